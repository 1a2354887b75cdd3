"""Data modules of your own images: a folder of PNG and JPEG files, or an archive of arrays."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.checks import Number, check_count, ranges
from lit_sparse.data.images.base import UNLABELLED, ImageDataModule, Images
from lit_sparse.data.readers.arrays import Arrays, open_arrays
from lit_sparse.data.readers.images import ENDINGS, read_image
from lit_sparse.data.readers.text_files import existing, in_folder
from lit_sparse.data.splits import SPLITS, Split, held_out, numbers_of, shuffled
from lit_sparse.errors import ConfigurationError, DataError, did_you_mean
from lit_sparse.ground.files import below

__all__ = ["ImageFolderDataModule", "ImageTableDataModule", "OwnImagesDataModule"]

#: Names of the splits' folders.
FOLDERS = (("train",), ("val", "valid", "validation"), ("test",))
#: Largest height and width: all images are in memory.
LARGEST_SIDE = 4096
#: Maximal number of files in a message.
NAMED = 5


@ranges(val_size=Number(0.0, 1e12, open_low=True), test_size=Number(0.0, 1e12, open_low=True))
class OwnImagesDataModule(ImageDataModule):
    """Base class of data modules of a user's own images; a subclass implements :meth:`read`.

    ``setup`` sets the attributes ``classes`` (their number), ``class_names`` and ``shape``. Classes are numbered in sorted
    order.

    Args:
        val_size: images held out for validation, if the data have no validation split: a fraction if below 1, else a
            number.
        test_size: images held out for the test, if the data have no test split: a fraction if below 1, else a number.
        labelled: labelled training images: a fraction if <= 1, else a number; 0 for none. Or the path of a file of indices,
            which count the images in the order of their sorted names, or of the archive.
        binarize: whether to sample each pixel from a Bernoulli distribution with its intensity as mean.
        options: options of :class:`~lit_sparse.data.ImageDataModule`.

    Raises:
        ConfigurationError: for an argument outside its range.
    """

    def __init__(
        self,
        *,
        val_size: float = 0.1,
        test_size: float = 0.2,
        labelled: float | str = 1.0,
        binarize: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(labelled=labelled, binarize=binarize, **options)
        self.val_size, self.test_size = val_size, test_size
        #: Names of the classes by their numbers; empty for images without classes.
        self.class_names: list[str] = []

    @abstractmethod
    def read(self) -> tuple[Tensor, np.ndarray[Any, Any] | None, np.ndarray[Any, Any]]:
        """Return the pixels (N, D) float32 in [0, 1], the classes (N,) as words or integers or None, and the splits (N,).

        A split is 0 for training, 1 for validation and 2 for the test. If a split is empty, training images are held out
        for it. The method sets ``shape``.
        """

    def load(self) -> dict[Split, Images]:
        """Return the images of each split, with numbered classes.

        Raises:
            DataError: if images to be labelled have no class.
        """
        pixels, classes, kinds = self.read()
        labels = torch.full((len(pixels),), UNLABELLED)
        if classes is not None:
            names, numbers = np.unique(classes, return_inverse=True)
            self.class_names = [str(name) for name in names]
            labels = torch.from_numpy(numbers.astype(np.int64))
        elif self.labelled != 0:
            raise DataError(
                f"Expected a class for each image but {type(self).__name__} found no classes. Sort the images into folders by"
                " class, name the array of labels, or train without labels: --data.init_args.labelled 0"
            )
        self.classes = len(self.class_names)
        every = Images(pixels, labels, places=torch.arange(len(pixels)))
        places = self._places(torch.from_numpy(kinds))
        rest = self.noisy(every[torch.cat([places["train"], places["val"]])])
        size = len(places["train"])
        return {"train": rest[:size], "val": rest[size:], "test": every[places["test"]]}

    def _places(self, kinds: Tensor) -> dict[Split, Tensor]:
        """Return the shuffled indices of the images of each split."""
        order = shuffled(len(kinds), self.seed)
        indices = [order[kinds[order] == number] for number in range(len(SPLITS))]
        for number, name, size in ((2, "test_size", self.test_size), (1, "val_size", self.val_size)):
            if not len(indices[number]):
                count = held_out(name, size, len(order), len(indices[0]))
                indices[number], indices[0] = indices[0][:count], indices[0][count:]
        if not len(indices[0]):
            raise DataError("Expected images for training but got none. Hold out fewer.")
        return dict(zip(SPLITS, indices, strict=True))


class ImageFolderDataModule(OwnImagesDataModule):
    """Data module of PNG and JPEG images in a folder with one subfolder per class, resized to one size.

    Files such as ``path/cat/1.png`` and ``path/dog/2.jpg`` are split at random. Files such as ``path/train/cat/1.png`` and
    ``path/test/dog/2.jpg`` are split by their folders; a missing ``val`` or ``test`` is held out from ``train``. ``val``
    may also be named ``valid`` or ``validation``. Images without class folders need ``labelled: 0``. Pixels are in [0, 1]:
    H x W values of a grey image, or 3 x H x W of a color image, red first. All images are kept in memory. In a config::

        data:
          class_path: ImageFolderDataModule
          init_args: {path: animals, size: [32, 32]}

    Args:
        path: the folder.
        size: height and width of the resized images.
        color: whether to keep the colors, instead of grey levels.
        options: options of :class:`OwnImagesDataModule`.

    Raises:
        ConfigurationError: for an argument outside its range.
        DataError: at ``setup``, if the folder is missing or holds no images, a file cannot be read, or an image is next to
            ``train`` but not in a split's folder.
    """

    def __init__(
        self,
        path: str,
        *,
        size: tuple[int, int] = (28, 28),
        color: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.path = path
        self.color = color
        if len(size) != 2:
            raise ConfigurationError(
                f"Expected argument `size` to be a height and a width but got {size!r}. Give two integers."
            )
        self.shape = (check_count("size", size[0], most=LARGEST_SIDE), check_count("size", size[1], most=LARGEST_SIDE))

    def read(self) -> tuple[Tensor, np.ndarray[Any, Any] | None, np.ndarray[Any, Any]]:
        """Return the pixels, classes and splits of all images in the folder.

        Raises:
            DataError: if the folder is missing or holds no images, or an image is in a wrong folder.
        """
        root = Path(self.path).expanduser()
        if not root.is_dir():
            raise DataError(f"The folder of images {str(root)!r} does not exist.{in_folder(root.parent, root.name)}")
        files = list(self._files(root))
        if not files:
            raise DataError(f"Expected images {', '.join(ENDINGS)} in {str(root)!r} but found none.{in_folder(root, '')}")
        sorted_in = [name is not None for _, name, _ in files]
        if any(sorted_in) and not all(sorted_in):
            apart = files[sorted_in.index(False)][2]
            raise DataError(f"Expected each image in the folder of its class but got {str(apart)!r} outside. Move it.")
        known = {name for kind, name, _ in files if kind == 0}
        for kind, name, file in files:
            if name not in known:
                guess = did_you_mean(str(name), [str(one) for one in known])
                raise DataError(
                    f"Expected training images of each class but got none of {name!r}, the class of {str(file)!r} in"
                    f" {SPLITS[kind]}.{guess} Add images, or rename the folder."
                )
        pixels = np.stack([read_image(file, self.shape, color=self.color) for _, _, file in files])
        names = np.array([str(name) for _, name, _ in files]) if all(sorted_in) else None
        return _intensities(pixels), names, np.array([kind for kind, _, _ in files])

    def _files(self, root: Path) -> Iterator[tuple[int, str | None, Path]]:
        """Yield the split, the class and the path of each image, in a fixed order."""
        inside = {folder.name for folder in _folders(root)}
        if inside and inside <= {*itertools.chain(*FOLDERS[1:])}:
            raise DataError(f"Expected a folder train in {str(root)!r} but got only {', '.join(sorted(inside))}. Add it.")
        for kind, folder in _splits(root) if "train" in inside else [(0, root)]:
            apart = [file for file in sorted(folder.iterdir()) if _is_image(file)]
            yield from ((kind, None, file) for file in apart)
            for inner in _folders(folder):
                files = [file for file in sorted(below(inner)) if _is_image(file)]
                if not files and not apart:
                    raise DataError(
                        f"Expected images of each class in {str(folder)!r} but got none in {inner.name!r}. Remove it."
                    )
                yield from ((kind, inner.name, file) for file in files)


class ImageTableDataModule(OwnImagesDataModule):
    """Data module of images in arrays of a file ``.npz`` or ``.h5``.

    The file holds images (N, H, W) in grey levels or (N, H, W, 3) in color, as uint8 or as floats in [0, 1]. It also holds
    their classes (N,), as numbers or words, and optionally an array (N,) of the words ``train``, ``val`` and ``test``.
    Pixels have the same order as in :class:`ImageFolderDataModule`. In a config::

        data:
          class_path: ImageTableDataModule
          init_args: {path: animals.npz}

    Args:
        path: path of the file.
        images: name of the array of images.
        labels: name of the array of classes; optional with ``labelled: 0``.
        parts: name of the optional array of splits.
        options: options of :class:`OwnImagesDataModule`.

    Raises:
        ConfigurationError: for an argument outside its range.
        DataError: at ``setup``, if the file cannot be read, or an array is not as described.
    """

    def __init__(
        self,
        path: str,
        *,
        images: str = "images",
        labels: str = "labels",
        parts: str = "split",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.path = path
        self.images = images
        self.labels = labels
        self.parts = parts

    def read(self) -> tuple[Tensor, np.ndarray[Any, Any] | None, np.ndarray[Any, Any]]:
        """Return the pixels, classes and splits from the arrays of the file.

        Raises:
            DataError: if the file is missing, or an array has another type, shape or range.
        """
        path = existing(self.path, "images")
        with open_arrays(path) as arrays:
            images = arrays[self.images]
            if images.ndim not in (3, 4) or 0 in images.shape or (images.ndim == 4 and images.shape[3] not in (1, 3)):
                raise DataError(
                    f"Expected images (N, H, W) or (N, H, W, 3) in {self.images!r} of {str(path)!r} but got {images.shape}."
                    " Reshape them."
                )
            labels = _each(arrays, self.labels, len(images)) if self.labels in arrays else None
            parts = _each(arrays, self.parts, len(images)) if self.parts in arrays else ["train"] * len(images)
        kinds = numbers_of(parts, f"{self.parts!r} of {str(path)!r}")
        self.shape = images.shape[1:3]
        pixels = _intensities(images if images.ndim == 3 else images.transpose(0, 3, 1, 2))
        if not bool(((pixels >= 0) & (pixels <= 1)).all()):  # NaN as well
            raise DataError(
                f"Expected images of type uint8, or floats in [0, 1], in {self.images!r} of {str(path)!r} but got"
                f" {images.dtype} from {images.min():g} to {images.max():g}. Scale them."
            )
        return pixels, labels, kinds.numpy()


def _splits(root: Path) -> list[tuple[int, Path]]:
    """Return the number and the folder of each split, after a check that all images are in them."""
    kinds = {name: kind for kind, names in enumerate(FOLDERS) for name in names}
    outside = sorted(file.name for file in root.iterdir() if _is_image(file))
    if outside:
        more = f" and {len(outside) - NAMED} more" if len(outside) > NAMED else ""
        raise DataError(
            f"Expected images in the folders {', '.join(kinds)} of {str(root)!r} but got {', '.join(outside[:NAMED])}{more}"
            " next to them. Move these into a folder, or out."
        )
    splits: dict[int, Path] = {}
    for folder in _folders(root):
        if not any(_is_image(file) for file in below(folder)):
            continue
        kind = kinds.get(folder.name)
        if kind is None:
            raise DataError(
                f"Expected images in the folders {', '.join(kinds)} of {str(root)!r} but got some in {folder.name!r}. Rename"
                f" it to val or test, or move it out. If train is a class, move all classes into one folder train."
            )
        if kind in splits:
            raise DataError(
                f"Expected one folder for {SPLITS[kind]} in {str(root)!r} but got {splits[kind].name!r} and {folder.name!r}."
                " Merge them, or move one out."
            )
        splits[kind] = folder
    return sorted(splits.items())


def _folders(folder: Path) -> list[Path]:
    return sorted(inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith("."))


def _each(arrays: Arrays, name: str, size: int) -> Any:
    """Return an array (N,) with a word or a non-negative integer per image."""
    array = arrays[name]
    if array.shape != (size,) or not (array.dtype.kind == "U" or (array.dtype.kind in "iu" and int(array.min()) >= 0)):
        raise DataError(
            f"Expected an array {name!r} in {str(arrays.path)!r} with a word, or an integer of at least 0, for each of the"
            f" {size} images but got {array.dtype} {array.shape}. Correct it."
        )
    return array


def _intensities(pixels: np.ndarray[Any, Any]) -> Tensor:
    """Return pixels (N, D) float32 of images (N, ...); uint8 is divided by 255."""
    flat = torch.from_numpy(np.ascontiguousarray(pixels.reshape(len(pixels), -1), dtype=np.float32))
    return flat / 255 if pixels.dtype == np.uint8 else flat


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and not path.is_dir() and not path.name.startswith(".")  # a broken link is told
