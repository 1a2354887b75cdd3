"""Noisy labels: exact rates, the same noise at any time, files of labels, caches, and what data modules make of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_sparse.cli import main
from lit_sparse.data import (
    DigitsDataModule,
    FeatureDependentNoise,
    ImageDataModule,
    LabelNoise,
    LabelsFromFile,
    MNISTDataModule,
    SymmetricNoise,
)
from lit_sparse.data.images import label_noise
from lit_sparse.data.images.base import Images
from lit_sparse.errors import ConfigurationError, DataError
from tests.conftest import CONFIGS

from .test_mnist import idx

SPLITS = ("train", "val", "test")


def all_of(data: ImageDataModule, split: Any) -> dict[str, torch.Tensor]:
    return data.fetch(split, 0, torch.arange(data.size(split)))


def made(noise: LabelNoise | None, **options: Any) -> DigitsDataModule:
    data = DigitsDataModule(**{"labelled": 1.0, "binarize": False, **options}, label_noise=noise)
    data.setup()
    return data


@given(
    rate=st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.999, 1.0]),
    size=st.integers(1, 70),
    classes=st.integers(2, 5),
    seed=st.integers(0, 3),
)
@settings(max_examples=60)
def test_the_rate_of_symmetric_noise_is_exact(rate: float, size: int, classes: int, seed: int) -> None:
    labels = torch.arange(size) % classes
    before = labels.clone()
    noisy = SymmetricNoise(rate, seed)(torch.zeros(size, 2), labels, classes)
    assert int((noisy != labels).sum()) == round(rate * size)
    assert bool(((noisy >= 0) & (noisy < classes)).all())
    assert torch.equal(labels, before)
    assert noisy.dtype == torch.int64


def test_symmetric_noise_is_uniform() -> None:
    labels = torch.arange(40_000) % 4
    noisy = SymmetricNoise(0.75)(torch.zeros(40_000, 1), labels, 4)
    counts = torch.zeros(4, 4).index_put((labels, noisy), torch.ones(40_000), accumulate=True)
    torch.testing.assert_close(counts / 40_000, torch.full((4, 4), 1 / 16), atol=0.004, rtol=0)
    assert not torch.equal(noisy, SymmetricNoise(0.75, seed=1)(torch.zeros(40_000, 1), labels, 4))


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.25, 1.0])
def test_the_rate_of_feature_dependent_noise_is_exact(digits: tuple[torch.Tensor, torch.Tensor], rate: float) -> None:
    pixels, labels = digits
    noisy = FeatureDependentNoise(rate)(pixels, labels, 10)
    assert int((noisy != labels).sum()) == round(rate * len(labels))
    assert bool(((noisy >= 0) & (noisy < 10)).all())


def test_feature_dependent_noise_takes_small_margins_and_likely_classes(digits: tuple[torch.Tensor, torch.Tensor]) -> None:
    """A second, simpler classifier, the nearest mean, finds the same images doubtful, and the same classes likely."""
    pixels, labels = digits
    noisy = FeatureDependentNoise()(pixels, labels, 10)
    flipped = noisy != labels
    means = torch.stack([pixels[labels == label].mean(0) for label in range(10)])
    distances = torch.cdist(pixels, means)
    right = (distances.argmin(1) == labels).float()
    assert float(right[flipped].mean()) < float(right[~flipped].mean()) - 0.15
    others = distances.scatter(1, labels.unsqueeze(1), torch.inf).argsort(1)
    assert float((others[flipped, 0] == noisy[flipped]).float().mean()) > 0.4, "1 / 9 by chance"


def test_margins_by_hand() -> None:
    probabilities = torch.tensor(
        [[0.6, 0.3, 0.1], [0.5, 0.45, 0.05], [0.1, 0.5, 0.4], [0.0, 0.2, 0.8], [0.34, 0.33, 0.33]], dtype=torch.float64
    )
    labels = torch.tensor([0, 0, 0, 2, 2])
    assert label_noise._flipped(probabilities, labels, 3).tolist() == [0, 1, 1, 2, 0]
    assert label_noise._flipped(probabilities, labels, 4).tolist() == [1, 1, 1, 2, 0]
    assert labels.tolist() == [0, 0, 0, 2, 2]


def test_the_same_noise_beside_anything(
    digits: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, trainings: list[int], one_thread: None
) -> None:
    pixels, labels = digits
    found = []
    for place, (seed, threads) in enumerate(((0, 1), (7, 2), (7, 3))):
        torch.manual_seed(seed)
        torch.set_num_threads(threads)
        before = torch.get_rng_state()
        with torch.inference_mode(place == 2):
            found.append(FeatureDependentNoise(cache=str(tmp_path / str(place)))(pixels, labels, 10))
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.get_num_threads() == threads
    assert trainings == [0, 0, 0]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], FeatureDependentNoise(seed=1)(pixels, labels, 10))


@pytest.mark.gate
def test_caches(digits: tuple[torch.Tensor, torch.Tensor], caches: Path, tmp_path: Path, trainings: list[int]) -> None:
    pixels, labels = digits
    fresh = FeatureDependentNoise()(pixels, labels, 10)
    (kept,) = caches.iterdir()
    assert torch.equal(FeatureDependentNoise()(pixels, labels, 10), fresh)
    assert trainings == [0]
    own = tmp_path / "of" / "my" / "own"
    assert torch.equal(FeatureDependentNoise(cache=str(own))(pixels, labels, 10), fresh)
    assert [file.name for file in own.iterdir()] == [kept.name]
    assert trainings == [0, 0]
    other = labels.clone()
    other[0] = (other[0] + 1) % 10
    for noise, images, classes, some in (
        (FeatureDependentNoise(0.2), pixels, labels, 10),
        (FeatureDependentNoise(seed=1), pixels, labels, 10),
        (FeatureDependentNoise(), pixels * 0.5, labels, 10),
        (FeatureDependentNoise(), pixels, other, 10),
        (FeatureDependentNoise(), pixels, labels, 11),
    ):
        noise(images, classes, some)
    assert trainings == [0, 0, 0, 1, 0, 0, 0]
    assert len(list(caches.iterdir())) == 6, "a file for each, and nothing else"


@pytest.mark.gate
def test_a_cache_file_that_is_not_what_it_should_be(
    digits: tuple[torch.Tensor, torch.Tensor], caches: Path, trainings: list[int]
) -> None:
    pixels, labels = digits
    fresh = FeatureDependentNoise()(pixels, labels, 10)
    (kept,) = caches.iterdir()
    whole = kept.read_bytes()

    def saved(**arrays: Any) -> bytes:
        np.savez(kept, **arrays)
        return kept.read_bytes()

    contents = [
        b"",
        b"no zip",
        whole[:-30],
        whole[:80] + bytes(byte ^ 255 for byte in whole[80:120]) + whole[120:],
        saved(other=fresh.numpy()),
        saved(labels=fresh.numpy()[1:]),
        saved(labels=labels.numpy()),
        saved(labels=fresh.numpy() + 1),
        saved(labels=torch.where(fresh == labels, labels, 10).numpy()),
        saved(labels=fresh.double().numpy()),
    ]
    for number, content in enumerate(contents, 1):
        kept.write_bytes(content)
        assert torch.equal(FeatureDependentNoise()(pixels, labels, 10), fresh)
        assert len(trainings) == number + 1
    assert torch.equal(FeatureDependentNoise()(pixels, labels, 10), fresh)
    assert len(trainings) == len(contents) + 1, "the last one was replaced"


def test_no_place_for_a_cache(
    digits: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainings: list[int]
) -> None:
    pixels, labels = digits
    fresh = FeatureDependentNoise()(pixels, labels, 10)
    (tmp_path / "file").touch()
    assert torch.equal(FeatureDependentNoise(cache=str(tmp_path / "file" / "below"))(pixels, labels, 10), fresh)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(Path, "home", homeless)
    assert torch.equal(FeatureDependentNoise()(pixels, labels, 10), fresh)
    assert len(trainings) == 3
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    FeatureDependentNoise()(pixels, labels, 10)
    assert len(list((tmp_path / "home" / ".cache" / "lit_sparse").iterdir())) == 1


@pytest.mark.parametrize("noise", [SymmetricNoise(0.25), FeatureDependentNoise()], ids=repr)
def test_digits_with_noise(noise: LabelNoise) -> None:
    data, again, clean = made(noise), made(noise), made(None)
    flips = 0
    for split in SPLITS:
        noisy, twice, true = (all_of(some, split) for some in (data, again, clean))
        assert torch.equal(noisy["pixels"], true["pixels"])
        assert torch.equal(noisy["true_label"], true["label"])
        assert torch.equal(noisy["label"], twice["label"])
        assert "true_label" not in true
        flips += int((noisy["label"] != noisy["true_label"]).sum())
        assert (split == "test") == torch.equal(noisy["label"], noisy["true_label"])
    assert flips == round(0.25 * (data.size("train") + data.size("val")))


def test_each_digit_is_in_one_split_with_its_label(digits: tuple[torch.Tensor, torch.Tensor]) -> None:
    data = made(SymmetricNoise(0.25))
    parts = [all_of(data, split) for split in SPLITS]
    assert [len(part["label"]) for part in parts] == [1257, 180, 360]
    found = torch.cat([torch.cat([part["pixels"], part["true_label"].unsqueeze(1)], 1) for part in parts])
    assert sorted(found.tolist()) == sorted(torch.cat([digits[0], digits[1].unsqueeze(1)], 1).tolist())


def test_unlabelled_images_have_no_label_without_noise_either() -> None:
    data, whole = made(SymmetricNoise(0.5), labelled=100), made(SymmetricNoise(0.5))
    batch, every = all_of(data, "train"), all_of(whole, "train")
    known = batch["label"] >= 0
    assert int(known.sum()) == 100
    for name in ("label", "true_label"):
        assert torch.equal(batch[name][known], every[name][known])
        assert batch[name][~known].unique().tolist() == [-100]
        assert torch.equal(all_of(data, "val")[name], all_of(whole, "val")[name])
    assert 20 < int((batch["label"] != batch["true_label"]).sum()) < 80


def test_moved_images_keep_both_labels() -> None:
    data, plain = made(SymmetricNoise(0.5), shift_augmentation=True), made(SymmetricNoise(0.5))
    size = plain.size("train")
    for name in ("label", "true_label"):
        assert torch.equal(all_of(data, "train")[name], all_of(plain, "train")[name].repeat(9))
    assert data.size("train") == 9 * size


def test_mnist_takes_labels_in_the_order_of_its_file(folder: Path) -> None:
    labels = np.arange(60) % 10
    np.save(folder / "noisy.npy", labels)
    for train_size in (None, 30):
        data = MNISTDataModule(
            folder=str(folder),
            val_size=10,
            train_size=train_size,
            test_size=15,
            labelled=1.0,
            label_noise=LabelsFromFile(str(folder / "noisy.npy")),
        )
        data.setup()
        assert all_of(data, "train")["label"].tolist() == labels[: train_size or 50].tolist()
        assert all_of(data, "val")["label"].tolist() == labels[50:].tolist()
        assert torch.equal(all_of(data, "test")["label"], all_of(data, "test")["true_label"])


def test_noise_comes_before_images_are_left_out(folder: Path) -> None:
    parts = []
    for train_size in (50, 20):
        data = MNISTDataModule(
            folder=str(folder), val_size=10, train_size=train_size, labelled=1.0, label_noise=SymmetricNoise(0.4)
        )
        data.setup()
        parts.append(all_of(data, "train")["label"])
    assert torch.equal(parts[0][:20], parts[1])


def test_labels_outside_the_classes(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.full(60, 11)))
    data = MNISTDataModule(folder=str(folder), val_size=10, labelled=0, label_noise=FeatureDependentNoise())
    with pytest.raises(DataError, match="got 11 in the training and validation images"):
        data.setup()


class Wrong(LabelNoise):
    """Returns what it is given."""

    def __init__(self, found: torch.Tensor) -> None:
        self.found = found

    def __call__(self, pixels: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
        return self.found


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (torch.zeros(1437), r"Expected 1437 int64 labels from Wrong\(.*\) but got torch\.float32"),
        (torch.zeros(5, dtype=torch.int64), r"Expected 1437 int64 labels .* \(5,\)"),
        (torch.full((1437,), 10), r"labels in 0 \.\. 9 but got 10 in the labels by Wrong"),
    ],
    ids=["float", "few", "outside"],
)
def test_noise_that_breaks_its_promise(found: torch.Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        made(Wrong(found))


class Forgetful(DigitsDataModule):
    """Does not ask for the noise."""

    def noisy(self, images: Images) -> Images:
        return images


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: SymmetricNoise(1.5), "`rate`"),
        (lambda: SymmetricNoise(float("nan")), "`rate`"),
        (lambda: SymmetricNoise(0.5, seed=0.5), "`seed`"),  # type: ignore[arg-type]
        (lambda: FeatureDependentNoise(-0.1), "`rate`"),
        (lambda: SymmetricNoise(0.5)(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), 1), "at least 2 classes"),
        (lambda: Forgetful(label_noise=SymmetricNoise(0.5)).setup(), "Expected `load` of Forgetful to pass"),
    ],
    ids=["above", "nan", "seed", "below", "classes", "load"],
)
def test_bad_arguments(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call()


def test_arguments_are_shown() -> None:
    assert repr(FeatureDependentNoise(0.5)) == "FeatureDependentNoise(rate=0.5, seed=0, cache=None)"
    assert repr(LabelsFromFile("a.npz")) == "LabelsFromFile(path='a.npz', key='labels')"


RUN = (
    "fit",
    "-c",
    str(CONFIGS / "ssvae" / "digits.yaml"),
    "--trainer.accelerator=cpu",
    "--trainer.devices=1",
    "--trainer.fast_dev_run=true",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
)


@pytest.mark.gate
def test_the_command_line_takes_noise(caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--data.init_args.label_noise", "FeatureDependentNoise", "--data.init_args.label_noise.init_args.rate=0.1"]
    assert main([*RUN, *arguments]) == 0
    assert len(list(caches.iterdir())) == 1


def test_the_command_line_tells_a_misspelled_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--data.init_args.label_noise", "FeatureDependantNoise"]) == 2
    assert "Did you mean 'FeatureDependentNoise'?" in capsys.readouterr().err


@pytest.mark.slow
def test_the_real_images(shared: Path) -> None:
    data = MNISTDataModule(
        folder=str(shared / "data" / "mnist"), labelled=1.0, binarize=False, label_noise=FeatureDependentNoise()
    )
    data.setup()
    parts = [all_of(data, split) for split in ("train", "val")]
    assert sum(int((part["label"] != part["true_label"]).sum()) for part in parts) == 15_000
    assert torch.equal(all_of(data, "test")["label"], all_of(data, "test")["true_label"])
    pairs = torch.cat([torch.stack([part["true_label"], part["label"]]) for part in parts], 1)
    counts = torch.zeros(10, 10).index_put((pairs[0], pairs[1]), torch.ones(60_000), accumulate=True).fill_diagonal_(0)
    assert int(counts[4].argmax()) == 9, "fours are taken for nines"
