"""Runs command lines, each in a process forked from this one, which has imported everything once.

Each line of standard input is a request in JSON: ``args`` of the command line, its folder ``cwd``, its ``environment``, files
for its ``stdout`` and ``stderr``, and after how many seconds a ``timeout`` ends it. The answer is its exit status, which is
negative for a killed process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import traceback
from typing import Any

import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401
import torch.utils.tensorboard  # noqa: F401

import lit_sparse.callbacks
import lit_sparse.data
import lit_sparse.models  # noqa: F401
from lit_sparse.cli import app, main  # noqa: F401


def run(request: dict[str, Any]) -> int:
    """Run one command line."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[1:1] = request["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = ["lit-sparse", *request["args"]]
    sys.modules["__main__"].__spec__ = importlib.util.find_spec(
        "lit_sparse.__main__"
    )  # what Lightning starts further processes by
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    signal.alarm(request["timeout"])
    for number, name in enumerate((os.devnull, request["stdout"], request["stderr"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o644), number)
    try:
        return main()  # of `sys.argv`, as the program is started
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    for line in sys.stdin:
        process = os.fork()
        if not process:
            status = run(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
