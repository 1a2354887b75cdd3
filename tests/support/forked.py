"""Runs command lines one after another, each in a process forked from this one, which has imported everything once.

``python forked.py '[["fit", ...], ...]'`` prints the exit status of each run; a killed one's is negative.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path

import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401
import torch.utils.tensorboard  # noqa: F401

from lit_sparse.cli import app, main  # noqa: F401


def run(args: list[str], number: int) -> int:
    """Run one command line; what it prints goes to ``<number>.log``."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with Path(f"{number}.log").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    status = 1
    try:
        status = main(args)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    print(json.dumps([run(args, number) for number, args in enumerate(json.loads(sys.argv[1]))]))
