"""Noise on the labels of images: which of them get the label of another class, and of which one."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import check_integer, check_number
from lit_sparse.data.readers.arrays import open_arrays
from lit_sparse.data.readers.idx import read_idx
from lit_sparse.data.readers.text_files import ending_of, in_folder, read_lines
from lit_sparse.errors import ConfigurationError, DataError, shown_arguments

__all__ = ["FeatureDependentNoise", "LabelNoise", "LabelsFromFile", "SymmetricNoise"]

# The classifier of feature-dependent noise: one hidden layer, and four epochs of 60,000 images. Part of the cache's key.
HIDDEN, STEPS, BATCH, STEP_SIZE = 64, 1000, 256, 2e-3


class LabelNoise(ABC):
    """A function that gives some images the label of another class.

    A subclass needs :meth:`__call__` alone. It keeps each constructor argument as an attribute of the same name, and nothing
    else: the same images and labels get the same noise, in any process, at any time.

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
        """Return noisy labels (N,) int64 in 0 .. classes - 1, in a tensor of their own.

        Args:
            pixels: (N, D) float32 intensities in [0, 1].
            labels: (N,) int64, the true ones, in 0 .. classes - 1.
            classes: how many there are.
        """


class SymmetricNoise(LabelNoise):
    """Gives a share of the images, drawn uniformly, the label of another class, drawn uniformly.

    Args:
        rate: the share of images whose label is another one; it is met exactly, to one image.
        seed: of what is drawn.

    Raises:
        ConfigurationError: for a rate outside [0, 1].

    Example:
        >>> labels = torch.arange(100) % 10
        >>> noisy = SymmetricNoise(0.3)(torch.zeros(100, 4), labels, 10)
        >>> int((noisy != labels).sum())
        30
    """

    def __init__(self, rate: float, seed: int = 0) -> None:
        self.rate = check_number("rate", rate, 0.0, 1.0)
        self.seed = check_integer("seed", seed)

    @override
    def __call__(self, pixels: Tensor, labels: Tensor, classes: int) -> Tensor:
        size = _flips(self.rate, len(labels), classes)
        generator = torch.Generator().manual_seed(self.seed)
        chosen = torch.randperm(len(labels), generator=generator, device="cpu")[:size]
        noisy = labels.clone()
        if size:
            ahead = torch.randint(1, classes, (size,), generator=generator, device="cpu")
            noisy[chosen] = (labels[chosen] + ahead) % classes
        return noisy


class FeatureDependentNoise(LabelNoise):
    """Gives the images that a classifier finds most doubtful the label of the class that they are taken for.

    A small network, one hidden layer, learns the true labels of the images that it is shown. Those with the smallest margin
    between the probabilities of their two best classes then get the most probable class that is not theirs. So the noise is
    where people would err, too, and a model that fits it learns something wrong, unlike from noise that is spread evenly.

    The network takes some seconds, and what comes out is kept in a file. It computes in double precision on one thread, so
    that the noise is the same for any number of threads; another processor or release of torch may round in other ways, and
    swap images at the edge of the share.

    Args:
        rate: the share of images whose label is another one; it is met exactly, to one image.
        seed: of the network's first weights and its batches.
        cache: folder of the files with noisy labels; None for ``lit_sparse`` in the user's folder of caches.

    Raises:
        ConfigurationError: for a rate outside [0, 1].

    Source: after Algan & Ulusoy (2020), "Label noise types and their effects on deep learning", who take the probabilities
    from a network that another one has taught.

    Example:
        >>> pixels = torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.4, 0.5], [0.5, 0.6], [1.0, 0.9], [1.0, 1.0]])
        >>> with TemporaryDirectory() as folder:  # the images between the classes are those that get the other one
        ...     FeatureDependentNoise(1 / 3, cache=folder)(pixels, torch.tensor([0, 0, 0, 1, 1, 1]), 2)
        tensor([0, 0, 1, 0, 1, 1])
    """

    def __init__(self, rate: float = 0.25, seed: int = 0, cache: str | None = None) -> None:
        self.rate = check_number("rate", rate, 0.0, 1.0)
        self.seed = check_integer("seed", seed)
        self.cache = cache

    @override
    def __call__(self, pixels: Tensor, labels: Tensor, classes: int) -> Tensor:
        size = _flips(self.rate, len(labels), classes)
        if not size:
            return labels.clone()
        folder = _cache_folder() if self.cache is None else Path(self.cache).expanduser()
        file = None if folder is None else folder / f"noisy_labels_{self._key(pixels, labels, classes)}.npz"
        noisy = None if file is None else _kept(file, labels, classes, size)
        if noisy is None:
            noisy = _flipped(_probabilities(pixels, labels, classes, self.seed), labels, size)
            if file is not None:
                _keep(file, noisy)
        return noisy

    def _key(self, pixels: Tensor, labels: Tensor, classes: int) -> str:
        """Return what the noisy labels depend on, as hexadecimal digits."""
        recipe = (self.rate, self.seed, classes, HIDDEN, STEPS, BATCH, STEP_SIZE, tuple(pixels.shape), pixels.dtype)
        key = hashlib.sha256(repr(recipe).encode())
        for values in (pixels, labels):
            key.update(np.ascontiguousarray(values.numpy()).data)
        return key.hexdigest()[:32]


class LabelsFromFile(LabelNoise):
    """Takes the labels from a file: noise that somebody has published, or people who err.

    Args:
        path: one label for each image, those for training first, then those for validation, before any are left out: for
            MNIST that is the order of its file. An array ``.npy``, or one of several in an ``.npz``, a text with a label a
            line, ``.txt`` or ``.csv``, or, with any other ending, an idx file, like MNIST's; the last two may be gzipped.
        key: name of the array in an ``.npz`` file.

    Raises:
        DataError: when called, if the file cannot be read, or does not hold as many labels as there are images, or if one of
            them is no class.
    """

    def __init__(self, path: str, key: str = "labels") -> None:
        self.path = path
        self.key = key

    @override
    def __call__(self, pixels: Tensor, labels: Tensor, classes: int) -> Tensor:
        path = Path(self.path).expanduser()
        if not path.is_file():
            raise DataError(f"There is no file of labels {str(path)!r}.{in_folder(path.parent, path.name)}")
        readers = {".npy": self._from_numpy, ".npz": self._from_numpy, ".txt": _from_text, ".csv": _from_text}
        found = readers.get(ending_of(path), _from_idx)(path)
        if found.shape != tuple(labels.shape):
            raise DataError(
                f"Expected {len(labels)} labels in {str(path)!r}, one for each training and validation image, but got an array"
                f" {found.shape}."
            )
        if not np.issubdtype(found.dtype, np.integer):
            raise DataError(f"Expected integers as labels in {str(path)!r} but got {found.dtype}. Convert them.")
        wrong = np.flatnonzero((found < 0) | (found >= classes))
        if len(wrong):
            raise DataError(
                f"Expected labels in 0 .. {classes - 1} in {str(path)!r} but the one at place {wrong[0] + 1} is"
                f" {found[wrong[0]]} ({len(wrong)} of {len(found)} are outside)."
            )
        return torch.from_numpy(found.astype(np.int64))

    def _from_numpy(self, path: Path) -> np.ndarray[Any, Any]:
        with open_arrays(path) as arrays:
            return arrays["" if path.suffix == ".npy" else self.key]


def _flips(rate: float, size: int, classes: int) -> int:
    """Return how many of some labels are to be others."""
    flips = round(rate * size)
    if flips and classes < 2:
        raise ConfigurationError(f"Expected at least 2 classes, so that a label can be another one, but there are {classes}.")
    return flips


def _from_idx(path: Path) -> np.ndarray[Any, Any]:
    return read_idx(path, 1)


def _from_text(path: Path) -> np.ndarray[Any, Any]:
    lines = read_lines(path)
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, 1):
        if not line.strip().isdecimal() or len(line) > 18:
            raise DataError(f"Expected one label a line, such as 7, in {str(path)!r} but line {number} is {line[:40]!r}.")
    return np.array([int(line) for line in lines], dtype=np.int64)


def _probabilities(pixels: Tensor, labels: Tensor, classes: int, seed: int) -> Tensor:
    """Return the probabilities (N, classes) float64 of a network that has learned the labels of the same images."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (pixels.shape[1], HIDDEN, classes)
    with _one_thread(), torch.inference_mode(False), torch.enable_grad():
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
    """Return scores (N, classes) float64 by a network of one hidden layer."""
    return torch.relu(pixels.double() @ first + first_bias) @ second + second_bias


def _flipped(probabilities: Tensor, labels: Tensor, size: int) -> Tensor:
    """Return labels (N,) of which those of the smallest margins are the most probable other class."""
    best, second = probabilities.topk(2, -1).values.unbind(-1)
    chosen = (best - second).argsort(stable=True)[:size]
    others = probabilities[chosen].scatter(1, labels[chosen].unsqueeze(1), -1.0)
    noisy = labels.clone()
    noisy[chosen] = others.argmax(-1)
    return noisy


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread: how a sum is parted among several may change how it is rounded."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _cache_folder() -> Path | None:
    """Return this package's folder in the user's folder of caches; None for a user who has no home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # the specification has others ignored
        return named / "lit_sparse"
    try:
        return Path.home() / ".cache" / "lit_sparse"
    except RuntimeError:
        return None


def _kept(path: Path, labels: Tensor, classes: int, size: int) -> Tensor | None:
    """Return noisy labels of a file; None where there is none, or one that is not what it should be."""
    try:
        with open_arrays(path) as arrays:
            noisy = torch.from_numpy(arrays["labels"])
    except Exception:  # a file that is cut or overwritten may raise anything
        return None
    fits = noisy.shape == labels.shape and noisy.dtype == labels.dtype and bool(((noisy >= 0) & (noisy < classes)).all())
    return noisy if fits and int((noisy != labels).sum()) == size else None


def _keep(path: Path, noisy: Tensor) -> None:
    """Write noisy labels to a file that appears when it is whole, or say that they could not be kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=path.parent) as own:  # several processes may write the same file
            part = Path(own) / path.name
            np.savez_compressed(part, labels=noisy.numpy())
            part.replace(path)
    except OSError as error:
        rank_zero_info(f"The noisy labels could not be kept in {str(path.parent)!r} ({error}): the next run makes them anew.")
