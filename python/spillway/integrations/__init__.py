"""Spillway in programs that others wrote: a module for each, which needs that one's package and is imported by name.

    from spillway.integrations.transformers import SpillwayCallback     # Trainer(callbacks=[SpillwayCallback()])
    from spillway.integrations.lightning import SpillwayCallback        # Trainer(callbacks=[SpillwayCallback()])
    %load_ext spillway.integrations.jupyter                             # %%spillway

The marker of pytest is the package pytest_spillway, which pytest finds by itself. All of them work on PyTorch's own
allocator too.
"""
