"""The converter of the published features: what it reads, what it writes, and pickles that it refuses."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_sparse.data import ReferentialGameDataModule
from tests.scripts.test_scripts import load

h5py = pytest.importorskip("h5py", reason="the published features are in HDF5 files, the extra 'h5'")
NAMES = ["cat", "dog", "emu"] * 4


def write(folder: Path, names: Any, features: np.ndarray[Any, Any], protocol: int = 2) -> None:
    folder.mkdir(parents=True)
    with h5py.File(folder / "ours_images_single_sm0.h5", "w") as file:
        file["dataset_1"] = features
    (folder / "ours_images_single_sm0.objects").write_bytes(pickle.dumps(names, protocol))
    (folder / "ours_images_paths_sm0.objects").write_bytes(pickle.dumps(["a.jpg"]))


@pytest.mark.parametrize("names", [NAMES, np.array(NAMES), np.array(NAMES, dtype=object)], ids=["list", "array", "objects"])
@pytest.mark.parametrize("protocol", [2, 5])
def test_features_and_names_become_a_file_of_games(names: Any, protocol: int, tmp_path: Path) -> None:
    features = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    write(tmp_path / "train", names, features, protocol)
    write(tmp_path / "test", names[:6], -features[:6], protocol)
    load("convert_game_features").main([str(tmp_path), str(tmp_path / "all.npz")])
    data = ReferentialGameDataModule(path=str(tmp_path / "all.npz"), candidates=2, val_size=4, normalize=False)
    data.setup("test")
    assert data.size("test") == 6
    batch = data.fetch("test", 0, torch.arange(6))
    found = {tuple(row): data.class_names[label] for row, label in zip(batch["target"].tolist(), batch["label"], strict=True)}
    assert found == {tuple(row): name for row, name in zip((-features[:6]).tolist(), NAMES[:6], strict=True)}


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harmed",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (Harmful(), r"only strings, lists and arrays but got .*mkdir"),
        (np.array([Harmful()] * 12, dtype=object), "only strings, lists and arrays but got"),
        ([1, 2], "list of strings .* but got an array of int64"),
        (NAMES[:3], r"features \(3, F\), a row for each name"),
    ],
)
def test_other_pickles_are_refused(names: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train", names, np.zeros((12, 5)))
    with pytest.raises(SystemExit, match=message):
        load("convert_game_features").main([str(tmp_path), "all.npz"])
    assert not (tmp_path / "all.npz").exists()
    assert not (tmp_path / "harmed").exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="Expected a folder 'train'"):
        load("convert_game_features").main([str(tmp_path), "all.npz"])
    (tmp_path / "train").mkdir()
    with pytest.raises(SystemExit, match=r"Expected one file \*single\*.objects"):
        load("convert_game_features").main([str(tmp_path), "all.npz"])
