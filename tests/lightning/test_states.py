"""States of a training that Lightning's checkpoints lack."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lit_sparse.lightning.choice import ModelCheckpoint
from lit_sparse.lightning.states import _replace_later_files


@pytest.mark.parametrize("source", ["checkpoints", "checkpoints/top", "top"])
@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/top", "top"])
def test_a_continued_run_overwrites_its_later_checkpoints_in_all_its_folders(place: str, source: str, tmp_path: Path) -> None:
    def write(name: str, time: int) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, ns=(time, time))
        return path

    last = write(f"0/{source}/last.ckpt", 2)
    write("0/status.json", 1)
    earlier, later, inner = write(f"0/{place}/a.ckpt", 1), write(f"0/{place}/b.ckpt", 3), write(f"0/{place}/in/c.ckpt", 3)
    other = write(f"1/{place}/b.ckpt", 3)
    trainer: Any = SimpleNamespace(ckpt_path=last, strategy=SimpleNamespace(broadcast=lambda value: value))
    found = {}
    for path in (earlier, later, inner, other):
        saver: Any = ModelCheckpoint(dirpath=path.parent)
        saver.file_exists = lambda path, trainer: Path(path).exists()
        _replace_later_files(saver, trainer)
        found[path] = saver.file_exists(str(path), trainer)
    assert found == {earlier: True, later: False, inner: False, other: True}


def test_a_continued_run_without_a_folder_of_its_own_overwrites_later_checkpoints_beside_its_own_alone(tmp_path: Path) -> None:
    last, beside, other = (tmp_path / name for name in ("last.ckpt", "b.ckpt", "logs/b.ckpt"))
    other.parent.mkdir()
    for time, path in enumerate((last, beside, other)):
        path.touch()
        os.utime(path, ns=(time, time))
    trainer: Any = SimpleNamespace(ckpt_path=last, strategy=SimpleNamespace(broadcast=lambda value: value))
    for path in (beside, other):
        saver: Any = ModelCheckpoint(dirpath=path.parent)
        saver.file_exists = lambda path, trainer: Path(path).exists()
        _replace_later_files(saver, trainer)
        assert saver.file_exists(str(path), trainer) == (path == other)
