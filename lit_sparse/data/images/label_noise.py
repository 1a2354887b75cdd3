"""Noise in the labels of images."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import MOST_FEATURES, SEED, Number, check_count, check_tensor, ranges, shown
from lit_sparse.data.readers.arrays import open_arrays
from lit_sparse.data.readers.idx import read_idx
from lit_sparse.data.readers.integers import read_integer_lines
from lit_sparse.data.readers.text_files import ending_of, existing
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.ground.arguments import shown_arguments
from lit_sparse.ground.files import replaced, user_cache
from lit_sparse.lightning.choice import rank_zero_info

__all__ = ["FeatureDependentNoise", "LabelNoise", "LabelsFromFile", "SymmetricNoise"]

# Classifier of feature-dependent noise: one hidden layer, four epochs of 60,000 images. These values are in the cache key.
HIDDEN, STEPS, BATCH, STEP_SIZE = 64, 1000, 256, 2e-3


class LabelNoise(ABC):
    """Base class of label noise: a function that changes the labels of some images.

    A subclass implements :meth:`__call__`, and stores exactly its constructor arguments, as attributes of the same names.
    The noise must be a function of these arguments, the images and the labels.

    Example:
        >>> from lit_sparse.data import DigitsDataModule
        >>> class NextClass(LabelNoise):
        ...     def __call__(self, pixels, labels, classes):
        ...         return (labels + 1) % classes
        >>> data = DigitsDataModule(labelled=1.0, label_noise=NextClass())
        >>> data.setup()
        >>> batch = data.fetch("train", 0, torch.arange(100))
        >>> bool((batch["label"] == (batch["true_label"] + 1) % 10).all())
        True
    """

    def __repr__(self) -> str:
        """Show the constructor's arguments."""
        return f"{type(self).__name__}({shown_arguments(self)})"

    @abstractmethod
    def __call__(self, pixels: Tensor, labels: Tensor, classes: int) -> Tensor:
        """Return noisy labels (N,) int64 in 0 .. classes - 1, in a new tensor.

        Args:
            pixels: (N, D) float32 intensities in [0, 1].
            labels: (N,) int64 true labels in 0 .. classes - 1.
            classes: number of classes.
        """


@ranges(rate=Number(0.0, 1.0), seed=SEED)
class SymmetricNoise(LabelNoise):
    """Label noise that gives uniformly sampled images a uniformly sampled other class.

    Args:
        rate: fraction of changed labels, exact up to one image.
        seed: random seed.

    Raises:
        ConfigurationError: for a rate outside [0, 1].

    Example:
        >>> labels = torch.arange(100) % 10
        >>> noisy = SymmetricNoise(0.3)(torch.zeros(100, 4), labels, 10)
        >>> int((noisy != labels).sum())
        30
    """

    def __init__(self, rate: float, seed: int = 0) -> None:
        self.rate, self.seed = rate, seed

    @override
    def __call__(self, pixels: Tensor, labels: Tensor, classes: int) -> Tensor:
        size = _flips(self.rate, pixels, labels, classes)
        generator = torch.Generator().manual_seed(self.seed)
        chosen = torch.randperm(len(labels), generator=generator, device="cpu")[:size]
        noisy = labels.clone()
        if size:
            ahead = torch.randint(1, classes, (size,), generator=generator, device="cpu")
            noisy[chosen] = (labels[chosen] + ahead) % classes
        return noisy


@ranges(rate=Number(0.0, 1.0), seed=SEED)
class FeatureDependentNoise(LabelNoise):
    """Label noise that gives the images a small classifier is least certain of their most probable wrong class.

    A network of one hidden layer learns the true labels. The images with the smallest margin between their two largest
    probabilities then get the most probable wrong class. People would confuse these images as well, so this noise misleads
    a model more than uniform noise.

    The network trains for some seconds, and the noisy labels are cached in a file. It computes in double precision on one
    thread, so that the noise does not depend on the number of threads. Another processor or version of torch may round
    differently and exchange images of nearly equal margins.

    Args:
        rate: fraction of changed labels, exact up to one image.
        seed: seed of the network's initial weights and of its batches.
        cache: folder of the cached labels; None for ``lit_sparse`` in the user's cache folder.

    Raises:
        ConfigurationError: for a rate outside [0, 1].

    Source: after Algan & Ulusoy (2020), "Label noise types and their effects on deep learning", where the probabilities
    come from a distilled network.

    Example:
        >>> pixels = torch.tensor(
        ...     [[0.0, 0.0], [0.1, 0.0], [0.4, 0.5], [0.5, 0.6], [1.0, 0.9], [1.0, 1.0]]
        ... )
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:  # the images between the classes change
        ...     FeatureDependentNoise(1 / 3, cache=folder)(
        ...         pixels, torch.tensor([0, 0, 0, 1, 1, 1]), 2
        ...     )
        tensor([0, 0, 1, 0, 1, 1])
    """

    def __init__(self, rate: float = 0.25, seed: int = 0, cache: str | None = None) -> None:
        self.rate, self.seed, self.cache = rate, seed, cache

    @override
    def __call__(self, pixels: Tensor, labels: Tensor, classes: int) -> Tensor:
        size = _flips(self.rate, pixels, labels, classes)
        if not size:
            return labels.clone()
        folder = user_cache() if self.cache is None else Path(self.cache).expanduser()
        file = None if folder is None else folder / f"noisy_labels_{self._key(pixels, labels, classes)}.npz"
        noisy = None if file is None else _kept(file, labels, classes, size)
        if noisy is None:
            noisy = _flipped(_probabilities(pixels, labels, classes, self.seed), labels, size)
            if file is not None:
                _keep(file, noisy)
        return noisy

    def _key(self, pixels: Tensor, labels: Tensor, classes: int) -> str:
        """Return a hexadecimal hash of everything that determines the noisy labels."""
        recipe = (self.rate, self.seed, classes, HIDDEN, STEPS, BATCH, STEP_SIZE, tuple(pixels.shape), pixels.dtype)
        key = hashlib.sha256(repr(recipe).encode())
        for values in (pixels, labels):
            key.update(np.ascontiguousarray(values.numpy()).data)
        return key.hexdigest()[:32]


class LabelsFromFile(LabelNoise):
    """Label noise read from a file, such as published noise or human annotations.

    Args:
        path: file with one label per image, in the order of training and then validation images before any are dropped. For
            MNIST this is the order of its file. It is an array ``.npy``, an ``.npz`` with several arrays, a text file
            ``.txt`` or ``.csv`` with one label per line, or else an idx file like MNIST's; text and idx may be gzipped.
        key: name of the array in an ``.npz`` file.

    Raises:
        DataError: when called, if the file cannot be read, the number of labels is wrong, or a label is not a class.
    """

    def __init__(self, path: str, key: str = "labels") -> None:
        self.path = path
        self.key = key

    @override
    def __call__(self, pixels: Tensor, labels: Tensor, classes: int) -> Tensor:
        path = existing(self.path, "labels")
        noisy = self._read(path)
        if noisy.shape != tuple(labels.shape):
            raise DataError(
                f"Expected {len(labels)} labels in {str(path)!r}, one per training and validation image, but got an array"
                f" {noisy.shape}. Correct the file."
            )
        if not np.issubdtype(noisy.dtype, np.integer):
            raise DataError(f"Expected integers as labels in {str(path)!r} but got {noisy.dtype}. Convert them.")
        wrong = np.flatnonzero((noisy < 0) | (noisy >= classes))
        if len(wrong):
            raise DataError(
                f"Expected labels in 0 .. {classes - 1} in {str(path)!r} but got {noisy[wrong[0]]} at position {wrong[0] + 1}"
                f" ({len(wrong)} of {len(noisy)} are outside). Correct them."
            )
        return torch.from_numpy(noisy.astype(np.int64))

    def _read(self, path: Path) -> np.ndarray[Any, Any]:
        ending = ending_of(path)
        if ending in (".npy", ".npz"):
            with open_arrays(path) as arrays:
                return arrays["" if ending == ".npy" else self.key]
        return read_integer_lines(path, "label") if ending in (".txt", ".csv") else read_idx(path, 1)


def _flips(rate: float, pixels: Tensor, labels: Tensor, classes: int) -> int:
    """Return the number of labels to change, after a check of the arguments of the noise."""
    check_count("classes", classes, most=MOST_FEATURES)
    check_tensor(labels, "labels (N,) of torch.int64", shape=(None,), dtypes=(torch.int64,), error=DataError)
    check_tensor(pixels, f"pixels ({len(labels)}, D), one row per label,", error=DataError)
    if pixels.shape[:1] != labels.shape:
        raise DataError(f"Expected pixels ({len(labels)}, D), one row per label, but got {shown(pixels)}.")
    if len(labels) and int(labels.max()) >= classes:
        raise DataError(f"Expected labels below {classes}, the number of classes, but got {int(labels.max())}.")
    flips = round(rate * len(labels))
    if flips and classes < 2:
        raise ConfigurationError(f"Expected at least 2 classes for label noise but got {classes}. Leave out the noise.")
    return flips


def _probabilities(pixels: Tensor, labels: Tensor, classes: int, seed: int) -> Tensor:
    """Train a network on images and return its probabilities (N, classes) float64 for the same images."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (pixels.shape[1], HIDDEN, classes)
    with one_thread(), torch.inference_mode(False), torch.enable_grad():
        parameters = []
        for inputs, outputs in pairwise(sizes):
            weight = torch.randn(inputs, outputs, generator=generator, dtype=torch.float64, device="cpu") * inputs**-0.5
            parameters += [weight.requires_grad_(), torch.zeros_like(weight[0]).requires_grad_()]
        optimizer = torch.optim.Adam(parameters, lr=STEP_SIZE)
        for _ in range(STEPS):
            rows = torch.randint(len(labels), (BATCH,), generator=generator, device="cpu")
            loss = torch.nn.functional.cross_entropy(_scores(pixels[rows], *parameters), labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            return torch.cat([_scores(some, *parameters).softmax(-1) for some in torch.split(pixels, 10_000)])


def _scores(pixels: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor) -> Tensor:
    """Return scores (N, classes) float64 of a network with one hidden layer."""
    return torch.relu(pixels.double() @ first + first_bias) @ second + second_bias


def _flipped(probabilities: Tensor, labels: Tensor, size: int) -> Tensor:
    """Return labels (N,) after the ``size`` with the smallest margins are set to the most probable other class."""
    best, second = probabilities.topk(2, -1).values.unbind(-1)
    chosen = (best - second).argsort(stable=True)[:size]
    others = probabilities[chosen].scatter(1, labels[chosen].unsqueeze(1), -1.0)
    noisy = labels.clone()
    noisy[chosen] = others.argmax(-1)
    return noisy


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread within a context, because the rounding of sums depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _kept(path: Path, labels: Tensor, classes: int, size: int) -> Tensor | None:
    """Return the noisy labels of a cache file, or None if it is missing or invalid."""
    try:
        with open_arrays(path) as arrays:
            noisy = torch.from_numpy(arrays["labels"])
    except Exception:  # a truncated or overwritten file may raise anything
        return None
    fits = noisy.shape == labels.shape and noisy.dtype == labels.dtype and bool(((noisy >= 0) & (noisy < classes)).all())
    return noisy if fits and int((noisy != labels).sum()) == size else None


def _keep(path: Path, noisy: Tensor) -> None:
    """Write noisy labels to a file atomically, or report that the cache cannot be written."""
    try:
        with replaced(path, "wb") as file:  # several processes may write the same file
            np.savez_compressed(file, labels=noisy.numpy())
    except (OSError, ConfigurationError) as error:
        rank_zero_info(
            f"The noisy labels cannot be cached in {str(path.parent)!r} ({error}); the next run computes them again."
        )
