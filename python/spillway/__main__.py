"""`python -m spillway` is the command."""

from ._command import main

main()
