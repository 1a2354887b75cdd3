"""``python -m lit_sparse`` is ``lit-sparse``."""

import sys

from lit_sparse.cli import main

if __name__ == "__main__":
    sys.exit(main())
