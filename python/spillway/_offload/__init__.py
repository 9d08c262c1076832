"""What leaves the device and comes back: regions and stashes, and on them activations, optimizer states, parameters.

Regions keep their addresses, so what is in them stays the same objects: optimizer.py and parameters.py have their
tensors there, by moving.py. A stash is a copy that comes back anywhere: activations.py and gradients.py have theirs
there. tiers.py is below both; schedule.py and holding.py decide what goes and when it comes, and know no PyTorch.
"""
