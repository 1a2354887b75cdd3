"""Base of image data modules, with partial labels, binarization, augmentation and noisy labels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_sparse.checks import MOST, MOST_EXAMPLES, Count, check_number, check_positive, ranges
from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.images.binarize import binarize
from lit_sparse.data.images.label_noise import LabelNoise
from lit_sparse.data.loader import Batch
from lit_sparse.data.readers.integers import read_indices
from lit_sparse.data.splits import Rows, Split, Splits, in_batches, loaded, share_of, shuffled
from lit_sparse.errors import ConfigurationError, DataError, full_name

__all__ = ["UNLABELLED", "ImageDataModule", "Images"]

#: Label of unlabelled examples.
UNLABELLED = -100
STREAMS: dict[Split, int] = {"train": 0, "val": 1, "test": 2}
#: Shifts by (rows, columns) for ``shift_augmentation``; the first is zero.
SHIFTS = torch.tensor([(0, 0), *((down, right) for down in (-1, 0, 1) for right in (-1, 0, 1) if down or right)])


@dataclass(frozen=True)
class Images(Rows):
    """Images with labels, and optionally clean labels and groups.

    Attributes:
        pixels: (N, D) float32 intensities in [0, 1].
        labels: (N,) int64 classes.
        true_labels: (N,) int64 classes without noise; None if ``labels`` are not noisy.
        groups: (N,) int64 groups, numbered from 0; None without groups.
        places: (N,) int64 positions in the data set, to which files of indices refer; None if training images come first
            and validation images follow.
    """

    pixels: Tensor
    labels: Tensor
    true_labels: Tensor | None = None
    groups: Tensor | None = None
    places: Tensor | None = None

    def __post_init__(self) -> None:
        if self.pixels.dim() != 2 or self.pixels.dtype != torch.float32:
            raise DataError(f"Expected pixels (N, D) float32 but got {self.pixels.dtype} {tuple(self.pixels.shape)}.")
        for name in ("labels", "true_labels", "groups"):
            column: Tensor | None = getattr(self, name)
            if column is not None and (column.shape != self.pixels.shape[:1] or column.dtype != torch.int64):
                raise DataError(
                    f"Expected `{name}` of int64, one for each of {len(self.pixels)} images, but got {column.dtype}"
                    f" {tuple(column.shape)}. Convert them, or add the rest."
                )


@ranges(epoch_size=Count())
class ImageDataModule(ResumableDataModule):
    """Base class of image data modules, with labels for some or all training images.

    A training batch holds ``batch_size`` labelled images and, unless ``labelled_only``, as many unlabelled images, whose
    label is -100. An epoch is one pass over the unlabelled images, with repeated passes over the labelled ones. Without
    labels, a batch holds ``batch_size`` images, and an epoch is one pass over all of them. Batches are dicts of ``pixels``
    (B, D) float32, ``label`` (B,) and ``index`` (B,), the index within the split.

    With ``shift_augmentation``, the training images also include eight shifts of each image by one pixel, padded with zeros
    and computed on access. The k-th shift of the i-th of N images has the index ``i + k N``.

    With ``label_noise`` the training and validation labels are noisy, the test labels are not. Batches then also hold
    ``true_label`` (B,), the labels without noise, or -100 if unlabelled. Images with groups add ``group`` (B,), -100 if
    unlabelled. A subclass passes the training and validation images through :meth:`noisy` when it loads them.

    A fraction or number of labelled images selects the same positions of the training split for every seed, and so the
    same images if the seed does not divide the images into splits. A file of indices selects the images at
    these positions of the data set, counted from 0: ``.npy``, or ``.txt`` with an index per line.

    Args:
        labelled: labelled training images: a fraction if <= 1, else a number; 0 for none. Or the path of a file of indices.
        validation: path of a file of indices of the validation images, in place of the default ones; all other training and
            validation images are for training.
        labelled_only: whether to drop the unlabelled images, as for a warm start.
        binarize: whether to sample each pixel from a Bernoulli distribution with its intensity as mean: resampled in each
            training epoch, as a function of (seed, index) in validation and test.
        shift_augmentation: whether to also train on images shifted by one pixel, nine per image.
        normalize: mean and standard deviation of the intensities; ``pixels`` are then ``(intensity - mean) / deviation``.
            Shifts are padded and label noise is computed before this. None to keep the intensities.
        label_noise: noise in the labels of the training and validation images, taken together; None for no noise.
        epoch_size: number of images per epoch, drawn again for each epoch; None for all. If only some images are labelled, it
            is the number of unlabelled images.
        options: batch sizes, workers and seed; see :class:`~lit_sparse.data.ResumableDataModule`.

    Raises:
        ConfigurationError: for a batch size below 1, a negative number of labels, ``labelled_only`` without labels, files
            of indices with ``fold``, a ``sampler`` with some labelled images, an ``epoch_size`` above the number of images,
            or ``normalize`` without a positive deviation or with ``binarize``.
        DataError: at ``setup``, if a file of indices cannot be read, or names an image that is not there.
    """

    classes = 10
    has_folds = True
    independent_rows = True
    #: Height and width.
    shape: tuple[int, int]

    def __init__(
        self,
        *,
        labelled: float | str = 0.2,
        validation: str | None = None,
        labelled_only: bool = False,
        binarize: bool = True,
        shift_augmentation: bool = False,
        normalize: tuple[float, float] | None = None,
        label_noise: LabelNoise | None = None,
        epoch_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not isinstance(labelled, str):
            _check_labelled(labelled, labelled_only)
        if self.fold is not None and (validation is not None or isinstance(labelled, str)):
            raise ConfigurationError("Expected `fold: null` with files of indices but got a fold. Leave out one of them.")
        self.labelled, self.validation, self.labelled_only = labelled, validation, labelled_only
        self.binarize, self.shift_augmentation = binarize, shift_augmentation
        self.normalize = normalize
        if normalize is not None:
            if binarize:
                raise ConfigurationError("Expected `binarize: false` with `normalize` but got true. Leave out one of them.")
            if len(normalize) != 2:
                raise ConfigurationError(f"Expected argument `normalize` to be a mean and a deviation but got {normalize}.")
            mean = check_number("normalize[0]", normalize[0], -MOST, MOST)
            self.normalize = mean, check_positive("normalize[1]", normalize[1])
        self.label_noise, self.epoch_size = label_noise, epoch_size
        self._splits: dict[Split, Images] = Splits()
        self._labelled = torch.empty(0, dtype=torch.int64)
        self._unlabelled = torch.empty(0, dtype=torch.int64)
        self._has_label = torch.empty(0, dtype=torch.bool)

    @abstractmethod
    def load(self) -> dict[Split, Images]:
        """Read the images of the three splits; training and validation images must pass through :meth:`noisy`."""

    def noisy(self, images: Images) -> Images:
        """Add the label noise, if any, to all training and validation images, before any are dropped.

        Raises:
            DataError: if a label, with or without noise, is not a class.
        """
        if self.label_noise is None:
            return images
        self._check_labels(images, "the training and validation images")
        labels = self.label_noise(images.pixels, images.labels, self.classes)
        if not isinstance(labels, Tensor) or labels.shape != images.labels.shape or labels.dtype != torch.int64:
            got = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else full_name(labels)
            raise DataError(f"Expected {len(images)} int64 labels from {self.label_noise} but got {got}. Correct its __call__.")
        noisy = replace(images, labels=labels, true_labels=images.labels)
        self._check_labels(noisy, f"the labels by {self.label_noise}")
        return noisy

    def setup(self, stage: str | None = None) -> None:
        """Read the images, check their labels, and choose the labelled ones.

        Raises:
            ConfigurationError: if an argument does not suit the images, such as an ``epoch_size`` above their
                number.
            DataError: if the images or labels are invalid, such as intensities outside [0, 1].
        """
        if self._splits:
            return
        splits = loaded(self, Images)
        for split, images in splits.items():
            if not bool(((images.pixels >= 0) & (images.pixels <= 1)).all()):
                raise DataError(f"Expected intensities in [0, 1] in the {split} images but some are outside. Rescale them.")
            self._check_labels(images, f"the {split} images", unlabelled=not self.labelled)
        if self.label_noise is not None and splits["train"].true_labels is None:
            raise ConfigurationError(
                f"Expected `load` of {type(self).__name__} to pass its training and validation images through `noisy` but it"
                " does not. Call `noisy`, or leave out `label_noise`."
            )
        splits = self._validated(self.folded(splits))
        size = len(splits["train"])
        self._has_label = torch.zeros(size, dtype=torch.bool)
        self._has_label[self._chosen(splits["train"])] = True
        order = shuffled(size, self.seed, stream=1)
        self._labelled, self._unlabelled = order[self._has_label[order]], order[~self._has_label[order]]
        self._splits = Splits({split: replace(images, places=None) for split, images in splits.items()})
        if self.sampler is not None and 0 < len(self._labelled) < size:
            raise ConfigurationError(
                "Expected `labelled` to be 0 or 1.0 with a `sampler` but only some images are labelled. Leave one out."
            )
        available = len(self._all(self._unlabelled if self._mixes else self._labelled)) or self.size("train")
        if self.epoch_size is not None and self.epoch_size > available:
            raise ConfigurationError(
                f"Expected argument `epoch_size` to be at most {available}, all images, but got {self.epoch_size}. Decrease it."
            )

    @property
    def _mixes(self) -> bool:
        """Whether training batches hold labelled and unlabelled images."""
        return not self.labelled_only and len(self._labelled) > 0 and len(self._unlabelled) > 0

    def _validated(self, splits: dict[Split, Images]) -> dict[Split, Images]:
        """Return the splits with the images of the file ``validation`` for validation."""
        if self.validation is None:
            return splits
        both = splits["train"] + splits.get("val", splits["train"][:0])
        if both.places is None:
            both = replace(both, places=torch.arange(len(both)))
        held = torch.zeros(len(both), dtype=torch.bool)
        held[_rows_of(both, self.validation, "training and validation")] = True
        if bool(held.all()):
            raise DataError(f"Expected images for training but {self.validation!r} has all {len(both)}. Hold out fewer.")
        return splits | {"train": both[~held], "val": both[held]}

    def _chosen(self, images: Images) -> Tensor:
        """Return the indices of the labelled training images."""
        if isinstance(self.labelled, str):
            return _rows_of(images, self.labelled, "training")
        size = len(images)
        labelled = round(self.labelled * size) if self.labelled <= 1 else int(self.labelled)
        if labelled > size or (labelled < 1 and self.labelled > 0):
            raise ConfigurationError(
                f"Expected argument `labelled` to choose 1 .. {size} training images but got {labelled}. Use a fraction such as"
                " 0.2."
            )
        return shuffled(size, 0, stream=1)[:labelled]

    def size(self, split: Split) -> int:
        """Return the number of images of a split, including the shifts of ``shift_augmentation``."""
        return len(self._splits[split]) * (len(SHIFTS) if self.shift_augmentation and split == "train" else 1)

    def train_batches(self, epoch: int, rank: int, processes: int) -> Sequence[Tensor]:
        """Return the indices of each training batch of one process, labelled images first."""
        labelled, unlabelled = self._all(self._labelled), self._all(self._unlabelled)
        if not self._mixes:
            stream = 2 if len(labelled) else 0
            kind = labelled if len(labelled) and self.sampler is None else torch.arange(self.size("train"))
            order = kind[self._order(len(kind), epoch, stream)[: self.epoch_size]]
            return in_batches(share_of(order, rank, processes), self.batch_size)
        unlabelled = share_of(unlabelled[shuffled(len(unlabelled), self.seed, epoch, 3)[: self.epoch_size]], rank, processes)
        rounds = -(-len(unlabelled) * processes // len(labelled)) + 1
        labelled = torch.cat([labelled[shuffled(len(labelled), self.seed, epoch, 4 + r)] for r in range(rounds)])
        labelled = share_of(labelled, rank, processes)[: len(unlabelled)]
        pairs = zip(in_batches(labelled, self.batch_size), in_batches(unlabelled, self.batch_size), strict=True)
        return [torch.cat(pair) for pair in pairs]

    def divided(self, batches: Sequence[Tensor], rank: int, processes: int) -> Sequence[Tensor]:
        """Return a process's share of the rest of an epoch that was begun with another batch size or number of processes.

        As in every batch with unlabelled images, the first half of each is labelled.
        """
        if not self._mixes:
            return super().divided(batches, rank, processes)
        halves = [[batch.chunk(2)[half] for batch in batches] for half in (0, 1)]
        labelled, unlabelled = (ResumableDataModule.divided(self, half, rank, processes) for half in halves)
        return [torch.cat(pair) for pair in zip(labelled, unlabelled, strict=True)]

    def train_indices(self) -> Tensor:
        """Return the indices of all training images, or of the labelled ones with ``labelled_only``."""
        return self._all(self._labelled).sort().values if self.labelled_only else super().train_indices()

    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        """Return the images at indices (B,) of a split as a batch; the class describes its entries."""
        places = indices % len(self._splits[split])
        images = self._splits[split][places]
        pixels, labels = images.pixels, images.labels
        if split == "train" and self.shift_augmentation:
            pixels = self._moved(pixels, SHIFTS[indices // len(self._splits[split])])
        if self.binarize:
            pixels = binarize(pixels, self.seed + 7919 * epoch, indices, stream=STREAMS[split])
        if self.normalize is not None:
            mean, deviation = self.normalize
            pixels = (pixels - mean) / deviation
        batch = {"pixels": pixels, "label": labels, "index": indices}
        if self.label_noise is not None:
            batch["true_label"] = labels if images.true_labels is None else images.true_labels
        if images.groups is not None:
            batch["group"] = images.groups
        if split == "train":
            labelled = self._has_label[places]
            names = ("label", "true_label", "group")
            batch |= {name: torch.where(labelled, batch[name], UNLABELLED) for name in names if name in batch}
        return batch

    def _all(self, places: Tensor) -> Tensor:
        """Return the indices of all shifts of training images."""
        if not self.shift_augmentation:
            return places
        return (places + len(self._splits["train"]) * torch.arange(len(SHIFTS)).unsqueeze(1)).flatten()

    def _check_labels(self, images: Images, what: str, *, unlabelled: bool = False) -> None:
        outside = (images.labels < 0) | (images.labels >= self.classes)
        wrong = images.labels[outside & (images.labels != UNLABELLED) if unlabelled else outside]
        if len(wrong):
            raise DataError(
                f"Expected labels in 0 .. {self.classes - 1} but got {int(wrong[0])} in {what}"
                f" ({len(wrong)} of {len(images)} are outside). Correct them."
            )

    def _moved(self, pixels: Tensor, shifts: Tensor) -> Tensor:
        """Return images (B, D) after shifts (B, 2)."""
        high, wide = self.shape
        framed = torch.nn.functional.pad(pixels.view(len(pixels), -1, high, wide), (1, 1, 1, 1))
        windows = framed.unfold(2, high, 1).unfold(3, wide, 1)  # (B, C, 3, 3, H, W): a view of all shifts 1, 0, -1
        down, right = (1 - shifts).unbind(1)
        return windows[torch.arange(len(pixels)), :, down, right].flatten(1)


def _check_labelled(labelled: float, labelled_only: bool) -> None:
    if not check_number("labelled", labelled, -MOST_EXAMPLES, MOST_EXAMPLES) >= 0:
        raise ConfigurationError(f"Expected argument `labelled` to be at least 0 but got {labelled}. Use 0 for no labels.")
    if labelled == 0 and labelled_only:
        raise ConfigurationError(
            "Expected argument `labelled` to be positive with `labelled_only` but got 0. Use 1.0 for all labels."
        )
    if labelled > 1 and labelled != int(labelled):
        raise ConfigurationError(
            f"Expected argument `labelled` to be a fraction of at most 1, or a whole number, but got {labelled}. Round it."
        )


def _rows_of(images: Images, path: str, what: str) -> Tensor:
    """Return the rows of the images at the places in the data set that a file lists."""
    wanted = read_indices(Path(path).expanduser())
    places = torch.arange(len(images)) if images.places is None else images.places
    if len(missing := wanted[~torch.isin(wanted, places)]):
        raise DataError(
            f"Expected indices of the {len(images)} {what} images in {path!r} but got {int(missing[0])}, which is outside or"
            f" held out ({len(missing)} of {len(wanted)} are). Correct them."
        )
    ordered, rows = places.sort()
    return rows[torch.searchsorted(ordered, wanted)]
