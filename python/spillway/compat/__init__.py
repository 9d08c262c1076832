"""Spillway's regions under the names that other packages gave to theirs."""
