"""`python -m ademamix`: the command line."""

import sys

from ademamix.cli import main

if __name__ == "__main__":
    sys.exit(main())
