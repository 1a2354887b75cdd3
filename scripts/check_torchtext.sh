#!/usr/bin/env bash
# Makes an environment with torchtext and the torch 2.3 that it needs, installs the package there, and runs tests/compat.
#
# Usage: scripts/check_torchtext.sh [FOLDER OF THE ENVIRONMENT, kept if it is named] [python]
#
# torchtext's last release, 0.18, loads with torch 2.3 alone, which has wheels for Python 3.8 to 3.12. The wheels for Linux bring
# CUDA, some 2.5 GB; pip's own options (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS) can point to smaller ones.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -gt 0 ]; then
  folder=$1
else
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
python=${2:-python3}

"$python" -c 'import sys; sys.exit(0 if (3, 10) <= sys.version_info[:2] <= (3, 12) else "torch 2.3 needs Python 3.10 to 3.12 here: give another one as the second argument")'
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
"$folder/bin/pip" install --quiet -e ".[torchtext]" "pytest>=8" "pytest-timeout>=2.3"
export NUMBA_CACHE_DIR="$folder/numba"
"$folder/bin/python" -c 'import torch, torchtext; print("torch", torch.__version__, "torchtext", torchtext.__version__)'
"$folder/bin/python" -m pytest -p no:cacheprovider --override-ini "filterwarnings=default" --override-ini "addopts=" tests/compat
