"""Checkpoint files on disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

from lit_sparse.cli.files import WholeFiles


def test_times_of_files_follow_the_order_of_writing_even_if_the_clock_was_set_back(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("first.ckpt", "second.ckpt"))
    WholeFiles().save_checkpoint({}, first)
    ahead = time.time_ns() + 3600 * 10**9
    os.utime(first, ns=(ahead, ahead))
    for later, earlier in ((second, first), (first, second)):
        WholeFiles().save_checkpoint({}, later)
        assert later.stat().st_mtime_ns > earlier.stat().st_mtime_ns
