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
        path.mkdir() if "sharded" in name else path.touch()
        os.utime(path, ns=(time, time))
        return path

    last = write(f"0/{source}/last.ckpt", 2)
    write("0/status.json", 1)
    earlier, later, inner = write(f"0/{place}/a.ckpt", 1), write(f"0/{place}/b.ckpt", 3), write(f"0/{place}/in/c.ckpt", 3)
    other, before, after = (
        write(*one) for one in ((f"1/{place}/b.ckpt", 3), (f"0/{place}/sharded.ckpt", 1), (f"0/{place}/sharded_2.ckpt", 3))
    )
    trainer: Any = SimpleNamespace(ckpt_path=last, strategy=SimpleNamespace(broadcast=lambda value: value))
    found = {}
    for path in (earlier, later, inner, other, before, after):
        saver: Any = ModelCheckpoint(dirpath=path.parent)
        saver.file_exists = lambda path, trainer: Path(path).exists()
        _replace_later_files(saver, trainer)
        found[path] = saver.file_exists(str(path), trainer)
    assert found == {earlier: True, later: False, inner: False, other: True, before: True, after: False}
    (after / "shard").touch()
    os.utime(after, ns=(3, 3))
    assert saver.file_exists(str(after), trainer), "this process has written it again"


def test_a_continued_run_replaces_a_later_link_to_a_checkpoint_that_it_has_written_again(tmp_path: Path) -> None:
    last, target, link = (tmp_path / "checkpoints" / name for name in ("last.ckpt", "k/0.ckpt", "last-v1.ckpt"))
    target.parent.mkdir(parents=True)
    (tmp_path / "status.json").touch()
    for time, path in enumerate((last, target)):
        path.touch()
        os.utime(path, ns=(time, time))
    link.symlink_to("k/0.ckpt")
    os.utime(link, ns=(1, 1), follow_symlinks=False)  # a clock may have been set back
    trainer: Any = SimpleNamespace(ckpt_path=last, strategy=SimpleNamespace(broadcast=lambda value: value))
    saver: Any = ModelCheckpoint(dirpath=last.parent)
    saver.file_exists = lambda path, trainer: Path(path).exists()
    _replace_later_files(saver, trainer)
    target.touch()
    assert not saver.file_exists(str(link), trainer)
    link.unlink()
    link.symlink_to("k/0.ckpt")
    assert saver.file_exists(str(link), trainer)  # it is this process's own now


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
