"""Splits by files of indices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lit_sparse.data import DigitsDataModule, MNISTDataModule
from lit_sparse.errors import ConfigurationError, DataError

HELD, LABELLED = [3, 41, 59], [58, 0, 7, 2]


def save(path: Path, indices: object) -> str:
    if path.suffix == ".npy":
        np.save(path, np.asarray(indices), allow_pickle=True)
    else:
        path.write_text(str(indices))
    return str(path)


def mnist(folder: Path, **options: object) -> MNISTDataModule:
    data = MNISTDataModule(folder=str(folder), **{"binarize": False, "labelled": 4, **options})  # type: ignore[arg-type]
    data.setup()
    return data


@pytest.mark.parametrize("size", [0, 20])
def test_files_of_indices_choose_the_images(folder: Path, tmp_path: Path, size: int) -> None:
    whole = mnist(folder, val_size=0, labelled=1.0).fetch("train", 0, torch.arange(60))
    held = save(tmp_path / "held.npy", np.array(HELD, dtype=np.uint16))
    labelled = save(tmp_path / "labelled.txt", "\n".join(map(str, LABELLED)) + "\n")
    for seed in (0, 1):
        data = mnist(folder, val_size=size, validation=held, labelled=labelled, seed=seed)
        assert [data.size(split) for split in ("train", "val")] == [57, 3]
        assert torch.equal(data.fetch("val", 0, torch.arange(3))["pixels"], whole["pixels"][HELD])
        batch = data.fetch("train", 0, torch.arange(57))
        rest = [place for place in range(60) if place not in HELD]
        assert torch.equal(batch["pixels"], whole["pixels"][rest])
        assert [rest[place] for place in (batch["label"] >= 0).nonzero()[:, 0]] == sorted(LABELLED)


def test_the_labelled_images_are_the_same_for_every_seed(folder: Path) -> None:
    one, two = (mnist(folder, val_size=10, seed=seed) for seed in (0, 1))
    assert torch.equal(one._has_label, two._has_label)
    assert not torch.equal(one._unlabelled, two._unlabelled), "their orders are the seeds'"


def test_several_processes_and_a_continued_loop_have_each_image_once(folder: Path, tmp_path: Path) -> None:
    options = {"validation": save(tmp_path / "a.npy", HELD), "labelled": save(tmp_path / "b.npy", LABELLED), "batch_size": 2}
    shares = [torch.cat(list(mnist(folder, **options).train_batches(0, rank, 2))) for rank in (0, 1)]
    unlabelled = [share[~mnist(folder, **options)._has_label[share]].tolist() for share in shares]
    assert len({*unlabelled[0], *unlabelled[1]}) == len(unlabelled[0]) + len(unlabelled[1]) == 52
    data, whole = mnist(folder, **options), [batch["index"].tolist() for batch in mnist(folder, **options).train_dataloader()]
    begun = [batch["index"].tolist() for _, batch in zip(range(5), data.train_dataloader(), strict=False)]
    continued = mnist(folder, **options)
    continued.load_state_dict(data.state_dict())
    assert begun + [batch["index"].tolist() for batch in continued.train_dataloader()] == whole


def test_digits_are_named_by_their_place_in_the_file(tmp_path: Path) -> None:
    data = DigitsDataModule(binarize=False, labelled=1.0)
    data.setup()
    place = int(data.load()["train"].places[0])  # type: ignore[index]
    chosen = DigitsDataModule(binarize=False, validation=save(tmp_path / "a.npy", [place]))
    chosen.setup()
    first = [each.fetch(split, 0, torch.tensor([0]))["pixels"] for each, split in ((data, "train"), (chosen, "val"))]  # type: ignore[arg-type]
    assert torch.equal(*first)


@pytest.mark.parametrize(
    ("name", "indices", "words"),
    [
        ("a.npy", [0, 60], r"the 60 training and validation images in .* got 60, which is outside or held out \(1 of 2"),
        ("a.npy", [-1], "got -1, which is outside"),
        ("a.npy", [4, 7, 4], "each index once in .* got 4 2 times"),
        ("a.npy", [0.5], r"a list of integers in .* got float64 \(1,\)"),
        ("a.npy", [[1]], r"got int64 \(1, 1\)"),
        ("a.npy", [], "a list of integers"),
        ("a.npy", range(60), "Expected images for training"),
        ("a.npy", [{}], "unpickling can run code"),
        ("a.txt", "1\nsix\n", "one index per line.*got 'six' in line 2"),
        ("a.pkl", "", r"a \.npy or \.txt file of indices .*unpickling can run code"),
        ("missing.npy", None, "There is no file of indices"),
    ],
)
def test_wrong_files_are_refused(folder: Path, tmp_path: Path, name: str, indices: object, words: str) -> None:
    path = str(tmp_path / name) if indices is None else save(tmp_path / name, indices)
    with pytest.raises(DataError, match=words):
        mnist(folder, validation=path)


def test_a_labelled_image_that_is_held_out_and_folds_are_refused(folder: Path, tmp_path: Path) -> None:
    path = save(tmp_path / "a.npy", [5])
    with pytest.raises(DataError, match=r"the 59 training images in .* got 5, which is outside or held out"):
        mnist(folder, validation=path, labelled=path)
    for options in ({"validation": path}, {"labelled": path}):
        with pytest.raises(ConfigurationError, match="`fold: null` with files of indices"):
            mnist(folder, fold=(0, 2), **options)
