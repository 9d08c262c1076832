"""The memory of a model's training step, from its own code on fake tensors: what `spillway trace-model` runs.

Needs PyTorch and the simulated driver in the process, and nothing of install() or of what leaves the device.
"""
