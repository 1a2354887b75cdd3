"""Folders of sharded checkpoints are read as plain data."""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp

from lit_sparse.errors import CheckpointError
from lit_sparse.runs.checkpoint_files import read_checkpoint
from lit_sparse.runs.folders import is_checkpoint, replace_folder
from lit_sparse.runs.torch_files import is_sharded

pytestmark = pytest.mark.filterwarnings("ignore:(torch.distributed|Detected an existing checkpoint):UserWarning")


class Acts:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("acted",)


def content(**more: Any) -> dict[str, Any]:
    groups = [{"params": ["a.weight"], "lr": 0.5, "betas": (0.9, 0.99), "fused": None, **more}]
    state = {
        "state": {"a.weight": {"step": torch.tensor(3.0), "exp_avg": torch.arange(6.0).view(2, 3)}},
        "param_groups": groups,
    }
    weights = {"a.weight": torch.randn(2, 3), "a.bias": torch.tensor([1, 2]), "empty": torch.zeros(0, 4)}
    return {"state_dict": weights, "optimizer_0": state}


def written(folder: Path, **more: Any) -> dict[str, Any]:
    parts = content(**more)
    dcp.save(parts, checkpoint_id=folder, no_dist=True)
    torch.save({"pytorch-lightning_version": "2.6.6", "epoch": 1}, folder / "meta.pt")
    return parts


def test_a_folder_is_read_as_a_file_is(tmp_path: Path) -> None:
    parts = written(tmp_path / "last.ckpt")
    found = read_checkpoint(tmp_path / "last.ckpt")
    assert found.keys() == {"pytorch-lightning_version", "epoch", "state_dict", "optimizer_states"}
    for name, value in parts["state_dict"].items():
        assert torch.equal(found["state_dict"][name], value) and found["state_dict"][name].dtype == value.dtype
    (state,), expected = found["optimizer_states"], parts["optimizer_0"]
    assert state["param_groups"] == expected["param_groups"]
    assert all(torch.equal(state["state"]["a.weight"][key], value) for key, value in expected["state"]["a.weight"].items())


def edited(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        listed = pickle.loads((folder / ".metadata").read_bytes())
        (folder / ".metadata").write_bytes(pickle.dumps(change(listed) or listed))

    return edit


def moved(listed: Any) -> None:
    for place in listed.storage_data.values():
        place.relative_path = f"../{place.relative_path}"


def grown(listed: Any) -> None:
    listed.state_dict_metadata["state_dict.a.weight"].size = torch.Size([2**20, 2**20])


def shared(listed: Any) -> None:
    """Many tensors that are all one part of a file."""
    (index, place), *_ = ((index, place) for index, place in listed.storage_data.items() if index.fqn == "state_dict.a.weight")
    for number in range(9):
        name = f"state_dict.b{number}"
        listed.state_dict_metadata[name] = listed.state_dict_metadata[index.fqn]
        listed.storage_data[dataclasses.replace(index, fqn=name)] = place
        listed.planner_data[name] = ("state_dict", f"b{number}")


def acting_value(folder: Path) -> None:
    written(folder, acts=Acts())


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "a list that acts": (edited(lambda _: Acts()), "is called, which is not part of plain data"),
    "a value that acts": (acting_value, "cannot be read"),
    "files elsewhere": (edited(moved), "is not a plain file of it"),
    "a size that the files do not have": (edited(grown), "larger than its files"),
    "a tensor without its part": (
        edited(lambda listed: listed.state_dict_metadata["state_dict.a.weight"].chunks.clear()),
        "lacks a part",
    ),
    "one part for many tensors": (edited(shared), "larger than its files"),
    "no list": (lambda folder: (folder / ".metadata").write_bytes(b""), "cannot be read"),
    "a list of lists": (edited(lambda listed: listed.planner_data.update(a=("b", 10**12))), "too long"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_folder_that_is_not_plain_data_is_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "last.ckpt")
    spoil, words = BAD[what]
    spoil(tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(tmp_path / "last.ckpt")
    assert not Path("acted").exists()


def test_a_replacement_that_was_cut_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, part = tmp_path / "last.ckpt", tmp_path / "part"
    written(target)
    old = read_checkpoint(target)["state_dict"]["a.weight"]
    new = written(part)["state_dict"]["a.weight"]
    moves: list[Path] = []
    rename = Path.rename

    def once(self: Path, to: Path) -> Path:
        moves.append(self)
        if len(moves) == 2:
            raise KeyboardInterrupt
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", once)
    with pytest.raises(KeyboardInterrupt):
        replace_folder(part, target)
    monkeypatch.undo()
    assert not target.exists() and is_checkpoint(target) and is_sharded(target)
    assert torch.equal(read_checkpoint(target)["state_dict"]["a.weight"], old)
    replace_folder(part, target)
    assert torch.equal(read_checkpoint(target)["state_dict"]["a.weight"], new) and [*tmp_path.iterdir()] == [target]
