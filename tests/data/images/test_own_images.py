"""Images of one's own: folders of files, archives of arrays, and what is wrong with them."""

from __future__ import annotations

import io
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lit_sparse.data import ImageFolderDataModule, ImageTableDataModule
from lit_sparse.data.images.own_images import OwnImagesDataModule
from lit_sparse.errors import ConfigurationError, DataError, LitSparseError


def write(path: Path, level: int = 0, size: tuple[int, int] = (8, 6), mode: str = "L") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, level if mode == "L" else (level, 0, 255)).save(path)
    return path


@pytest.fixture
def by_class(tmp_path: Path) -> Path:
    """Twenty images of cats, in dark levels, and ten of dogs, in bright ones, as PNG and JPEG."""
    for number in range(20):
        write(tmp_path / "cat" / f"{number}.png", number)
        write(tmp_path / "dog" / "more" / f"{number // 2}.JPG", 200 + number // 2)
    return tmp_path


@pytest.fixture
def by_split(tmp_path: Path) -> Path:
    for split, level in (("train", 10), ("test", 100)):
        for number in range(6):
            write(tmp_path / split / "cat" / f"{number}.png", level + number)
            write(tmp_path / split / "dog" / f"{number}.png", level + 50 + number)
    return tmp_path


def made(data: Any) -> Any:
    data.setup("fit")
    return data


def split_of(data: OwnImagesDataModule, split: Any) -> dict[str, torch.Tensor]:
    return data.fetch(split, 0, torch.arange(data.size(split)))


def test_folders_of_classes_are_split_by_the_seed(by_class: Path) -> None:
    data = made(ImageFolderDataModule(str(by_class), size=(4, 5), val_size=3, test_size=0.2))
    assert [data.size(split) for split in ("train", "val", "test")] == [21, 3, 6]
    assert (data.classes, data.class_names, data.shape) == (2, ["cat", "dog"], (4, 5))
    batches = [split_of(data, split) for split in ("train", "val", "test")]
    for batch in batches:
        assert batch["pixels"].shape[1] == 20
        assert torch.equal(batch["label"] == 1, batch["pixels"].mean(1) > 0.5)
    levels = torch.cat([batch["pixels"].mean(1) * 255 for batch in batches]).round().sort().values
    assert levels.tolist() == [*range(20), *range(200, 210)]
    again = made(ImageFolderDataModule(str(by_class), size=(4, 5), val_size=3, test_size=0.2))
    other = made(ImageFolderDataModule(str(by_class), size=(4, 5), val_size=3, test_size=0.2, seed=1))
    assert torch.equal(split_of(again, "test")["pixels"], batches[2]["pixels"])
    assert not torch.equal(split_of(other, "test")["pixels"], batches[2]["pixels"])


def test_folders_of_splits_are_followed(by_split: Path) -> None:
    data = made(ImageFolderDataModule(str(by_split), val_size=4))
    assert [data.size(split) for split in ("train", "val", "test")] == [8, 4, 12]
    assert sorted((split_of(data, "test")["pixels"][:, 0] * 255).round().tolist()) == [*range(100, 106), *range(150, 156)]
    for number in range(3):
        write(by_split / "val" / "dog" / f"{number}.png", 0)
    data = made(ImageFolderDataModule(str(by_split)))
    assert [data.size(split) for split in ("train", "val", "test")] == [12, 3, 12]
    assert split_of(data, "val")["label"].tolist() == [1, 1, 1]


def test_images_without_classes_train_without_labels(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path / f"{number}.png", number)
    data = made(ImageFolderDataModule(str(tmp_path), labelled=0))
    assert split_of(data, "test")["label"].tolist() == [-100] * 4
    with pytest.raises(DataError, match=r"a class for each image but .*--data\.init_args\.labelled 0"):
        made(ImageFolderDataModule(str(tmp_path)))


def test_colors_are_planes_of_red_green_and_blue(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path / "a" / f"{number}.png", 51, mode="RGB")
    data = made(ImageFolderDataModule(str(tmp_path), size=(2, 3), color=True, val_size=1, test_size=1, shift_augmentation=True))
    assert torch.allclose(split_of(data, "val")["pixels"][0], torch.tensor([0.2] * 6 + [0.0] * 6 + [1.0] * 6))
    moved = split_of(data, "train")["pixels"].view(9, 8, 3, 2, 3)
    assert torch.allclose(moved[0, 0, 0], torch.tensor(0.2))
    for shift in moved[1:, 0]:
        assert torch.allclose(shift[0] * 5, shift[2]), "all colors are moved alike"


@pytest.mark.parametrize(
    ("mode", "value", "level"),
    [("I;16", 32768, 128), ("1", 1, 255), ("RGBA", (255, 255, 255, 0), 0), ("LA", (200, 255), 200), ("P", 0, 0)],
)
def test_levels_of_every_kind_of_file(tmp_path: Path, mode: str, value: Any, level: int) -> None:
    for number in range(5):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.new(mode, (4, 4), value).save(tmp_path / "a" / f"{number}.png")
    data = made(ImageFolderDataModule(str(tmp_path), size=(4, 4), val_size=1, test_size=1))
    assert (split_of(data, "train")["pixels"] * 255).round().unique().tolist() == [level]


def test_a_photograph_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # its left side is up
    image = Image.fromarray(np.repeat(np.array([[0] * 16, [255] * 16], dtype=np.uint8), 8, axis=0))
    (tmp_path / "a").mkdir()
    for number in range(5):
        image.save(tmp_path / "a" / f"{number}.jpg", exif=exif, quality=100)
    pixels = split_of(made(ImageFolderDataModule(str(tmp_path), size=(2, 2), val_size=1, test_size=1)), "val")["pixels"]
    assert torch.allclose(pixels, torch.tensor([1.0, 0.0, 1.0, 0.0]), atol=0.2), "resizing blends neighbours"


def forged(width: int, height: int) -> bytes:
    """Return a PNG file that claims a size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def gif() -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (4, 4)).save(buffer, "GIF")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a whole PNG or JPEG file"),
        (b"no image", "is not a whole PNG or JPEG file"),
        (gif(), "is not a whole PNG or JPEG file"),
        (forged(4, 4), "is not a whole PNG or JPEG file"),
        (forged(11_500, 11_500), "is not a whole PNG or JPEG file"),
        (forged(40_000, 40_000), r"at most 134,217,728 pixels but got more in .*3\.png'"),
        (forged(12_000, 12_000), r"at most 134,217,728 pixels"),
        (forged(2_000_000_000, 2_000_000_000), "pixels"),
        (b"\xff\xd8" + b"\xff\xda" * 201, "it has more than 200 scans"),
    ],
    ids=["empty", "text", "gif", "cut", "cut-camera", "bomb", "small-bomb", "huge-bomb", "scans"],
)
def test_a_file_that_is_not_an_image_is_named(by_class: Path, content: bytes, words: str) -> None:
    (by_class / "cat" / "3.png").write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        made(ImageFolderDataModule(str(by_class)))
    assert "3.png" in str(caught.value)


def test_a_broken_link_to_an_image_is_not_left_out_in_silence(by_class: Path) -> None:
    (next(folder for folder in sorted(by_class.iterdir()) if folder.is_dir()) / "gone.png").symlink_to("nowhere.png")
    with pytest.raises(DataError, match=r"gone\.png"):
        ImageFolderDataModule(str(by_class)).setup()


def test_folders_that_do_not_fit_are_explained(by_split: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(DataError, match="does not exist"):
        made(ImageFolderDataModule(str(by_split / "nowhere")))
    with pytest.raises(DataError, match="but found none"):
        made(ImageFolderDataModule(str(tmp_path_factory.mktemp("empty"))))
    stray = write(by_split / "train" / "stray.png")
    with pytest.raises(DataError, match=r"in the folder of its class but .*stray\.png"):
        made(ImageFolderDataModule(str(by_split)))
    stray.unlink()
    write(by_split / "test" / "cats" / "0.png")
    with pytest.raises(DataError, match=r"got none of 'cats'.*Did you mean 'cat'"):
        made(ImageFolderDataModule(str(by_split)))


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_names_of_the_folder_for_validation(by_split: Path, name: str) -> None:
    for number in range(3):
        write(by_split / name / "dog" / f"{number}.png", 0)
    (by_split / "notes").mkdir()
    write(by_split / ".cache" / "0.png")
    data = made(ImageFolderDataModule(str(by_split)))
    assert [data.size(split) for split in ("train", "val", "test")] == [12, 3, 12]


def test_no_folder_of_images_is_left_out_in_silence(by_split: Path) -> None:
    write(by_split / "valid" / "dog" / "0.png")
    twice = write(by_split / "validation" / "dog" / "0.png")
    with pytest.raises(DataError, match=r"one folder for val in .* but got 'valid' and 'validation'\. Merge them"):
        made(ImageFolderDataModule(str(by_split)))
    twice.unlink()
    write(by_split / "dev" / "dog" / "0.png")
    with pytest.raises(DataError, match=r"folders train, val, valid, validation, test of .* but got some in 'dev'\. Rename it"):
        made(ImageFolderDataModule(str(by_split)))


def test_folders_of_no_class_are_told(by_split: Path) -> None:
    (by_split / "train" / "zebra").mkdir()
    for folder in (by_split, by_split / "train"):
        with pytest.raises(DataError, match=r"images of each class in .* but got none in 'zebra'"):
            made(ImageFolderDataModule(str(folder)))
    shutil.rmtree(by_split / "train")
    with pytest.raises(DataError, match=r"a folder train in .* but got only test"):  # else test would be a class
        made(ImageFolderDataModule(str(by_split)))


def test_no_image_beside_the_splits_is_left_out_in_silence(by_split: Path) -> None:
    write(by_split / ".hidden.png")
    assert made(ImageFolderDataModule(str(by_split))).size("test") == 12
    write(by_split / "stray.png")
    with pytest.raises(DataError, match=r"folders train, val, .* but got stray\.png next to them\. Move these"):
        made(ImageFolderDataModule(str(by_split)))
    for number in range(7):
        write(by_split / f"{number}.JPG")
    with pytest.raises(DataError, match=r"but got 0\.JPG, 1\.JPG, 2\.JPG, 3\.JPG, 4\.JPG and 3 more next to them"):
        made(ImageFolderDataModule(str(by_split)))


def test_remarks_of_a_camera_that_are_broken_are_not_mentioned(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "a").mkdir()
    for number in range(5):
        Image.new("L", (8, 8)).save(tmp_path / "a" / f"{number}.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01")
    made(ImageFolderDataModule(str(tmp_path), val_size=1, test_size=1))
    assert not [str(warning.message) for warning in recwarn if "EXIF" in str(warning.message)]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"size": (0, 4)}, "size"), ({"val_size": 0}, "val_size"), ({"test_size": 30}, r"`test_size` to hold out 1 \.\. 29")],
)
def test_options_out_of_range(by_class: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        made(ImageFolderDataModule(str(by_class), **options))


BYTES = np.arange(30 * 4 * 4, dtype=np.uint8).reshape(30, 4, 4)
NAMES = np.array(["cat", "dog"] * 15)


def archive(path: Path, **arrays: Any) -> str:
    np.savez(path / "a.npz", **arrays)
    return str(path / "a.npz")


def test_an_archive_of_images(tmp_path: Path) -> None:
    parts = np.array(["train"] * 20 + ["val"] * 4 + ["test"] * 6)
    data = made(ImageTableDataModule(archive(tmp_path, images=BYTES, labels=NAMES, split=parts)))
    assert [data.size(split) for split in ("train", "val", "test")] == [20, 4, 6]
    assert (data.shape, data.class_names) == ((4, 4), ["cat", "dog"])
    test = split_of(data, "test")
    order = test["pixels"][:, 0].argsort()
    assert torch.equal((test["pixels"][order] * 255).round().to(torch.uint8), torch.from_numpy(BYTES[24:].reshape(6, 16)))
    assert torch.equal(test["label"], (test["pixels"][:, 0] * 255 / 16).round().long() % 2)


def test_floats_and_colors_of_an_archive(tmp_path: Path) -> None:
    colors = np.random.default_rng(0).random((30, 2, 3, 3))
    data = made(ImageTableDataModule(archive(tmp_path, images=colors, labels=np.array([7, 10] * 15))))
    assert data.class_names == ["7", "10"]
    pixels = torch.cat([split_of(data, split)["pixels"] for split in ("train", "val", "test")])
    planes = torch.from_numpy(colors.transpose(0, 3, 1, 2).reshape(30, 18)).float()
    assert torch.equal(pixels[pixels[:, 0].argsort()], planes[planes[:, 0].argsort()])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"labels": NAMES}, "an array 'images'.*but got labels"),
        ({"images": BYTES}, "a class for each image"),
        ({"images": BYTES[:, 0], "labels": NAMES}, r"\(N, H, W\).* but got \(30, 4\)"),
        ({"images": BYTES[:0], "labels": NAMES[:0]}, r"but got \(0, 4, 4\)"),
        ({"images": BYTES.astype(np.float32), "labels": NAMES}, r"floats in \[0, 1\].*float32 from 0 to 255"),
        ({"images": np.full((30, 2, 2), np.nan), "labels": NAMES}, r"floats in \[0, 1\]"),
        ({"images": BYTES, "labels": NAMES[:7]}, r"for each of the 30 images but got <U3 \(7,\)"),
        ({"images": BYTES, "labels": np.arange(30) - 1}, "integer of at least 0"),
        ({"images": BYTES, "labels": NAMES, "split": NAMES}, "words train, val, test in .* but got 'cat'"),
        ({"images": BYTES, "labels": NAMES, "split": np.array(["test"] * 30)}, "at least 2 examples|for training but got none"),
        ({"images": BYTES * 1j, "labels": NAMES}, "real numbers"),
    ],
)
def test_arrays_that_are_not_images(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(LitSparseError, match=words):
        made(ImageTableDataModule(archive(tmp_path, **arrays)))


MODULES: list[Callable[[Path], OwnImagesDataModule]] = [
    lambda path: ImageFolderDataModule(str(path), size=(4, 4), batch_size=4),
    lambda path: ImageTableDataModule(archive(path, images=BYTES, labels=NAMES), batch_size=4),
]


@pytest.mark.parametrize("module", MODULES, ids=["folder", "archive"])
def test_the_place_in_an_epoch_is_kept(by_class: Path, module: Callable[[Path], OwnImagesDataModule]) -> None:
    data, again = made(module(by_class)), made(module(by_class))
    batches = [batch["index"].tolist() for batch in data.train_dataloader()]
    assert sorted(number for batch in batches for number in batch) == list(range(data.size("train")))
    loader = iter(data.train_dataloader())
    second = [next(loader)["index"].tolist() for _ in range(2)]
    assert second != batches[:2]
    again.load_state_dict(data.state_dict())
    rest = [batch["index"].tolist() for batch in again.train_dataloader()]
    assert rest == [batch["index"].tolist() for batch in loader]
