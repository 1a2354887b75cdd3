"""Runs the command line: ``python -m lit_sparse`` does what ``lit-sparse`` does."""

import sys

from lit_sparse.cli import main

if __name__ == "__main__":
    sys.exit(main())
