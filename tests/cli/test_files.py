"""Checkpoint files on disk."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lit_sparse.cli.files import WholeFiles
from lit_sparse.errors import CheckpointError


def test_times_of_files_follow_the_order_of_writing_even_if_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, top = tmp_path / "last.ckpt", tmp_path / "top" / "a.ckpt"
    WholeFiles().save_checkpoint({}, last)
    ahead = time.time_ns() + 3600 * 10**9
    os.utime(last, ns=(ahead, ahead))
    files, rename = WholeFiles(), os.replace

    def rename_and_kill(*paths: Path) -> None:
        rename(*paths)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", rename_and_kill)
    with suppress(CheckpointError):  # it is empty
        files.load_checkpoint(last)
    for later, earlier in ((top, last), (last, top)):
        with pytest.raises(KeyboardInterrupt):
            files.save_checkpoint({}, later)
        assert later.stat().st_mtime_ns > earlier.stat().st_mtime_ns


def test_reading_an_older_checkpoint_does_not_set_the_time_back(tmp_path: Path) -> None:
    older, newer, newest = (tmp_path / f"{name}.ckpt" for name in "abc")
    files = WholeFiles()
    files.save_checkpoint({}, older)
    ahead = files._latest = time.time_ns() + 3600 * 10**9  # the clock is set back by an hour after this
    files.save_checkpoint({}, newer)
    with suppress(CheckpointError):  # it is empty
        files.load_checkpoint(older)
    files.save_checkpoint({}, newest)
    assert newest.stat().st_mtime_ns > newer.stat().st_mtime_ns > ahead
