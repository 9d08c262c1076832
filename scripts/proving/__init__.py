"""scripts/prove: packs what a bare GPU machine needs, proves there what only hardware can, and records what was found.

A parcel has the layout of a checkout, so that everything in it finds its parts where they are in one. Standard library
only: the machine has Python and PyTorch, and perhaps nothing else.
"""
