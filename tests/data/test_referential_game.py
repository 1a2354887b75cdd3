"""Games: targets and distractors, sources of the vectors, and splits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_sparse.data import DigitsDataModule, ReferentialGameDataModule
from lit_sparse.data.distinct import distinct
from lit_sparse.errors import ConfigurationError, DataError


def vectors(size: int = 60) -> np.ndarray:
    """Vectors that differ in their first entry."""
    rng = np.random.default_rng(0)
    found = rng.random((size, 5)).astype(np.float32)
    found[:, 0] = np.arange(size)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.npz"
    label = np.arange(60) % 6
    np.savez(path, features=vectors(), label=label, split=(np.arange(60) >= 40), known=np.stack([label, label % 2], 1))
    return path


def games(path: Path, **options: object) -> ReferentialGameDataModule:
    data = ReferentialGameDataModule(path=str(path), **{"normalize": False, "candidates": 4, **options})  # type: ignore[arg-type]
    data.setup()
    return data


def test_the_target_is_among_different_candidates_where_it_is_said(file: Path) -> None:
    for kind in ("any", "other_classes", "same_class"):
        data = games(file, distractors=kind, candidates=3, val_size=0.5, seed=4)
        for split in ("train", "val", "test"):
            indices = torch.arange(data.size(split))
            batch = data.fetch(split, 0, indices)
            assert batch["candidates"].shape == (len(indices), 3, 5)
            right = batch["candidates"][indices, batch["position"]]
            assert torch.equal(right, batch["target"])
            names = batch["candidates"][..., 0]
            assert all(len(row.unique()) == 3 for row in names), "no image stands twice in a game"
            classes = names.long() % 6
            if kind == "same_class":
                assert bool((classes == batch["label"].unsqueeze(-1)).all())
            if kind == "other_classes":
                assert all(len(row.unique()) == 3 for row in classes)


@pytest.fixture
def plenty(tmp_path: Path) -> Path:
    np.save(tmp_path / "plenty.npy", vectors(3000))
    return tmp_path / "plenty.npy"


def test_places_and_distractors_are_drawn_evenly(plenty: Path) -> None:
    data = games(plenty, candidates=8)
    seen = torch.zeros(3000)
    for epoch in range(10):
        batch = data.fetch("train", epoch, torch.arange(data.size("train")))
        counts = torch.bincount(batch["position"], minlength=8)
        expected = len(batch["position"]) / 8
        assert float((counts - expected).square().sum() / expected) < 30  # chi-squared, 7 degrees: 1 in 10,000
        names = batch["candidates"][..., 0].long()
        seen += torch.bincount(names.flatten(), minlength=3000)
    hidden = seen[seen > 0] - 10  # less the ten times that it was the target
    expected = 7 * 10
    assert len(hidden) == data.size("train")
    assert 0.8 < float(hidden.var() / expected) < 1.2, "as often as by chance"


def test_evaluation_is_a_function_of_seed_and_index(file: Path) -> None:
    data, other = games(file), games(file, seed=1)
    whole = data.fetch("test", 0, torch.arange(20))
    parts = [data.fetch("test", 5, part) for part in torch.arange(20).split(7)]
    later = data.fetch("train", 1, torch.arange(20))["candidates"]
    assert not torch.equal(later, data.fetch("train", 0, torch.arange(20))["candidates"]), "training draws anew"
    assert not torch.equal(whole["candidates"], other.fetch("test", 0, torch.arange(20))["candidates"])
    batches = list(data.test_dataloader())
    for name, values in whole.items():
        assert torch.equal(torch.cat([batch[name] for batch in batches]), values), name
        if name in ("target", "label", "index"):
            assert torch.equal(torch.cat([part[name] for part in parts]), values), name


def test_splits_of_a_file_do_not_share_images(file: Path) -> None:
    data = games(file)
    names = {split: set(data.fetch(split, 0, torch.arange(data.size(split)))["target"][:, 0].long().tolist())
             for split in ("train", "val", "test")}  # fmt: skip
    assert names["test"] == set(range(40, 60)), "those that the file holds out"
    assert len(names["val"]) == 4
    assert names["train"] | names["val"] == set(range(40))
    assert not names["train"] & names["val"]
    with np.load(file) as arrays:
        np.savez(file.parent / "whole.npz", features=arrays["features"], label=np.array(list("abcdef"))[arrays["label"]])
    data = games(file.parent / "whole.npz", test_size=0.5, candidates=3)
    assert set(data.fetch("train", 0, torch.arange(27))["label"].tolist()) <= set(range(6))
    assert (data.size("train"), data.size("val"), data.size("test")) == (27, 3, 30)


def test_splits_may_be_words(file: Path) -> None:
    words = np.array(["train", "val", "test"])[np.arange(60) // 20]
    with np.load(file) as arrays:
        np.savez(file.parent / "words.npz", features=arrays["features"], part=words)
    data = games(file.parent / "words.npz", parts="part")
    for number, split in enumerate(("train", "val", "test")):
        batch = data.fetch(split, 0, torch.arange(20))  # type: ignore[arg-type]
        assert sorted(batch["target"][:, 0].tolist()) == list(range(20 * number, 20 * number + 20))
        assert "label" not in batch, "there are none"


def test_attributes_are_those_of_the_target(file: Path) -> None:
    data = games(file, attributes="known")
    batch = data.fetch("test", 0, torch.arange(20))
    assert data.attribute_count == 2
    assert torch.equal(batch["attributes"], torch.stack([batch["label"], batch["label"] % 2], -1))
    assert games(file).attribute_count == 0


def test_vectors_come_from_several_kinds_of_files(file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "plain.npy", vectors())
    np.savez(tmp_path / "single.npz", anything=vectors())
    for name in ("plain.npy", "single.npz"):
        data = games(tmp_path / name)
        assert data.in_features == 5
        assert (data.size("train"), data.size("val"), data.size("test")) == (43, 5, 12)
    h5py = pytest.importorskip("h5py", reason="reads HDF5 with the extra h5")
    with h5py.File(tmp_path / "vectors.h5", "w") as written, np.load(file) as arrays:
        for key in arrays.files:
            written[key] = arrays[key]
    with h5py.File(tmp_path / "words.h5", "w") as written:
        written["features"] = vectors()
        written["label"] = ["cat", "dog", "eel"] * 20
        written["split"] = ["train", "train", "test"] * 20
    data = games(tmp_path / "words.h5")
    assert data.class_names == ["cat", "dog", "eel"]
    assert set(data.fetch("test", 0, torch.arange(20))["label"].tolist()) == {2}
    same, other = (games(path).fetch("test", 0, torch.arange(20)) for path in (file, tmp_path / "vectors.h5"))
    assert all(torch.equal(same[key], other[key]) for key in same)


def test_classes_are_numbered_by_their_names(tmp_path: Path) -> None:
    """For any types of numbers; a missing test split is an error only in the test."""
    label = np.arange(60) % 6 * 300 - 300
    np.savez(tmp_path / "a.npz", features=vectors(), label=label, split=np.array(["train", "val"])[np.arange(60) % 2])
    data = games(tmp_path / "a.npz")
    assert data.class_names == ["-300", "0", "300", "600", "900", "1200"]
    batch = data.fetch("train", 0, torch.arange(30))
    assert [int(data.class_names[number]) for number in batch["label"]] == label[batch["target"][:, 0].long()].tolist()
    with pytest.raises(DataError, match="Expected test vectors"):
        data.setup("test")


def test_images_of_a_data_module_keep_its_splits() -> None:
    digits = DigitsDataModule(binarize=False, test_size=50, val_size=40)
    data = ReferentialGameDataModule(digits, candidates=10)
    data.setup()
    assert data.in_features == 64
    assert (data.size("val"), data.size("test")) == (40, 50)
    target = data.fetch("test", 0, torch.arange(50))["target"]
    torch.testing.assert_close(target.norm(dim=-1), torch.ones(50))
    pixels = digits.load()["test"].pixels
    torch.testing.assert_close(target, torch.nn.functional.normalize(pixels, dim=-1))


def test_real_features_and_attributes(shared: Path) -> None:
    features = games(shared / "data" / "caltech101_features" / "features.npz", normalize=True, candidates=16)
    assert features.size("test") == 2610
    assert features.in_features == 215
    file = shared / "data" / "visa_attributes" / "visa_us.npz"
    visa = games(file, features="attributes", attributes="attributes", candidates=16)
    assert visa.attribute_count == visa.in_features == 638


def floyd(draws: list[float], size: int) -> list[int]:
    """Return distinct numbers by Bentley and Floyd's algorithm."""
    numbers: list[int] = []
    for i, draw in enumerate(draws):
        last = size - len(draws) + i
        number = min(int(draw * (last + 1)), last)
        numbers.append(last if number in numbers else number)
    return numbers


@pytest.mark.parametrize("size", [3, 5, 11])
def test_distinct_draws_every_choice_alike(size: int) -> None:
    draws = torch.rand(40_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = distinct(draws, torch.full((40_000,), size))
    assert given[:500].tolist() == [floyd(row, size) for row in draws[:500].tolist()]
    chosen = given.sort(-1).values
    assert bool((chosen[:, 1:] > chosen[:, :-1]).all())
    assert int(chosen.min()) >= 0 and int(chosen.max()) < size
    _, counts = chosen.unique(dim=0, return_counts=True)
    expected = 40_000 / (size * (size - 1) * (size - 2) / 6)
    assert len(counts) == round(40_000 / expected)
    assert float((counts / expected - 1).abs().max()) < 5 / expected**0.5


def make(path: Path, content: dict[str, object]) -> str:
    np.savez(path, **content)  # type: ignore[arg-type]
    return str(path)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda p: ReferentialGameDataModule(), "either `images`"),
        (lambda p: ReferentialGameDataModule(DigitsDataModule(), path="x.npy"), "got both or neither"),
        (
            lambda p: ReferentialGameDataModule(DigitsDataModule(), attributes="x"),
            "which `attributes` names, but got a data module",
        ),
        (lambda p: ReferentialGameDataModule(path="x.npy", labels="kind"), "'x.npy' with a single array"),
        (lambda p: ReferentialGameDataModule(path="x.npy", candidates=1), "`candidates`"),
        (lambda p: ReferentialGameDataModule(path="x.npy", distractors="none"), "'other_classes'"),
        (lambda p: ReferentialGameDataModule(path="x.npy", val_size=0.0), "`val_size`"),
        (lambda p: games(p / "missing.npy"), "no file"),
        (lambda p: games(Path(make(p / "a.npz", {"x": vectors(), "y": vectors()}))), "got x, y"),
        (lambda p: games(Path(make(p / "a.npz", {"features": vectors()[0]}))), r"but got \(5,\)"),
        (
            lambda p: games(Path(make(p / "a.npz", {"features": np.where(vectors() == 7, np.nan, vectors())}))),
            "1 of 60, the first in row 7",
        ),
        (lambda p: games(Path(make(p / "a.npz", {"features": np.full((60, 5), "a")}))), "vectors .* of numbers"),
        (lambda p: games(Path(make(p / "a.npz", {"features": vectors(), "split": np.full(60, "dev")}))), "but got 'dev'"),
        (lambda p: games(Path(make(p / "a.npz", {"features": vectors(), "label": np.arange(3)}))), r"label \(3,\)"),
        (lambda p: games(Path(make(p / "a.npz", {"features": vectors()})), labels="lable"), "an array 'lable'"),
        (lambda p: games(Path(make(p / "a.npz", {"features": vectors()})), parts="splits"), "an array 'splits'"),
        (lambda p: games(Path(make(p / "a.npz", {"features": vectors(), "label": np.full(60, 0.5)}))), "whole number"),
        (lambda p: games(Path(make(p / "a.npz", {"features": vectors()})), attributes="known"), "an array 'known'"),
        (lambda p: games(Path(make(p / "a.npz", {"features": vectors()})), attributes="features"), "of integers"),
        (lambda p: games(Path(make(p / "a.npz", {"features": vectors()})), candidates=6), "but got 5"),
        (lambda p: games(Path(make(p / "a.npz", {"features": vectors(6)})), candidates=2), "`val_size` to hold out 1"),
        (lambda p: games(Path(make(p / "a.npz", {"features": vectors()})), distractors="other_classes"), "no array 'label'"),
        (
            lambda p: games(
                Path(make(p / "a.npz", {"features": vectors(), "label": np.arange(60) % 3})), distractors="other_classes"
            ),
            "candidates=4 classes in the",
        ),
    ],
)
def test_mistakes_are_explained(build: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigurationError, DataError), match=words):
        build(tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    for name, words in (("x.txt", "of type .npy"), ("x.npy", "cannot be read"), ("x.npz", "cannot be read")):
        (tmp_path / name).write_bytes(b"PK\x03\x04nothing")
        with pytest.raises(DataError, match=words):
            games(tmp_path / name)


def test_fit_says_that_nothing_is_held_out_for_the_test(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", features=np.random.default_rng(0).random((60, 4)), split=np.array(["train", "val"] * 30))
    with pytest.warns(UserWarning, match=r"The test split is missing: .* Expected test vectors"):
        ReferentialGameDataModule(path=str(tmp_path / "a.npz"), candidates=4).setup("fit")
