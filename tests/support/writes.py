"""A callback whose import records the files and folders that a process writes; imported by command lines under test."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    writes = event in _CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    if writes and isinstance(arguments[0], str | os.PathLike):
        path = Path(arguments[0]).absolute()
        if path.is_relative_to(Path("runs").absolute()):
            print(f"{event} {path.name}", file=_file, flush=True)


class RecordWrites(pl.Callback):
    """Record in the file ``writes_HOST_PID`` of the current folder what the process changes in the folder ``runs``."""


_file = Path(f"writes_{os.uname().nodename}_{os.getpid()}").open("w")  # noqa: SIM115  (open as long as the process)
sys.addaudithook(_note)
