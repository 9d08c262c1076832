#!/bin/bash
# Training on all GPUs of this machine under Spillway, with the exporter for Prometheus beside it.
#
#   train.sh [SCRIPT [ARGUMENT...]]
set -euo pipefail

[ $# -gt 0 ] || set -- train.py
dumps="${DUMPS:-memory}"
mkdir -p "$dumps"
# A dump of each rank at its end, and one where it runs out of memory: %r becomes the rank.
export SPILLWAY_STATS="$dumps/rank%r.json"

spillway exporter --listen 127.0.0.1:9835 &
exporter=$!
trap 'kill "$exporter" 2>/dev/null || true' EXIT

# Before torchrun: every Python that it starts is served.
spillway run -- torchrun --standalone --nproc-per-node gpu "$@" || code=$?

spillway report "$dumps"/rank*.json || true
exit "${code:-0}"
