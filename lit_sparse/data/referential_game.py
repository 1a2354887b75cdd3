"""Referential games: a target among distractors, from any array of feature vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lit_sparse.checks import Count, Number, ranges
from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.distinct import distinct
from lit_sparse.data.images.base import STREAMS, ImageDataModule, Images
from lit_sparse.data.loader import Batch
from lit_sparse.data.readers.arrays import Arrays, open_arrays
from lit_sparse.data.readers.text_files import existing
from lit_sparse.data.splits import SPLITS, Split, Splits, held_out, numbers_of, shuffled, warn_without_test
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.ground.directions import directions
from lit_sparse.random import seeded_uniform

__all__ = ["ReferentialGameDataModule"]


@ranges(val_size=Number(0.0, 1e12, open_low=True), test_size=Number(0.0, 1e12, open_low=True), candidates=Count(2))
class ReferentialGameDataModule(ResumableDataModule):
    """Data module of referential games: a target image or feature vector among distractors.

    In each epoch, every example of a split is the target of one game, with distractors from the same split.

    Distractors and the target's position are resampled in each training epoch. In validation and test they are a
    function of (seed, index). Batches are dicts of ``target`` (B, F) and ``candidates`` (B, N, F) float32, ``position``
    (B,) of the target among the candidates, and ``index`` (B,) within the split. If known, the target's ``label`` (B,)
    int64, an index into ``class_names``, and ``attributes`` (B, A) int64 are added.

    Args:
        images: a data module of images, such as ``DigitsDataModule``, whose pixels are the features and whose splits are
            used.
        path: a file of feature vectors instead: ``.npy``, ``.npz``, or ``.h5`` (with the extra ``h5``).
        features: name of the array (M, F) in a file of several arrays.
        labels: name of the array (M,) of classes in the file, numbers or words; None for ``label`` if it exists.
        attributes: name of an array (M, A) of integers in the file that describe the images, for analyses of the language;
            it may be the array of the features. None skips these analyses.
        parts: name of the array (M,) of splits: 0 for training and other numbers for the test, or the words ``train``,
            ``val`` and ``test``. None for ``split`` if it exists, or else a random split of ``test_size``.
        val_size: training vectors held out for validation: a fraction if below 1, else a number, unless ``parts`` marks
            some.
        test_size: vectors held out for the test: a fraction if below 1, else a number, unless ``parts`` marks some.
        candidates: N, number of images per game, >= 2.
        distractors: kind of distractors: ``"any"`` other images, images of distinct ``"other_classes"``, or images of the
            ``"same_class"``.
        normalize: whether to scale vectors to length 1.
        options: batch sizes, workers and seed; see :class:`~lit_sparse.data.ResumableDataModule`.

    Raises:
        ConfigurationError: unless exactly one of images and path is given, or for another argument outside its range.
    """

    independent_rows = True

    def __init__(
        self,
        images: ImageDataModule | None = None,
        *,
        path: str | None = None,
        features: str = "features",
        labels: str | None = None,
        attributes: str | None = None,
        parts: str | None = None,
        val_size: float = 0.1,
        test_size: float = 0.2,
        candidates: int = 16,
        distractors: Literal["any", "other_classes", "same_class"] = "any",
        normalize: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if (images is None) == (path is None):
            raise ConfigurationError(
                "Expected either `images` or `path` but got both or neither. Give a data module, as in --data.init_args.images"
                " DigitsDataModule, or a file of feature vectors (.npy, .npz, .h5)."
            )
        for name, array in (("labels", labels), ("attributes", attributes), ("parts", parts)):
            if array is not None and (images is not None or str(path).endswith(".npy")):
                raise ConfigurationError(
                    f"Expected a .npz or .h5 file with the array {array!r}, which `{name}` names, but got "
                    + (f"{path!r} with a single array." if path is not None else "a data module.")
                    + f" Leave out `{name}`, or give another path."
                )
        self.images, self.path, self.features, self.labels = images, path, features, labels
        self.attributes, self.parts, self.val_size, self.test_size = attributes, parts, val_size, test_size
        self.candidates, self.distractors, self.normalize = candidates, distractors, normalize
        self._splits: dict[Split, _Split] = Splits()
        self._attributes: dict[Split, Tensor] = {}
        #: Names of the classes in ``label``, set by ``setup``; empty if unknown.
        self.class_names: list[str] = []

    def prepare_data(self) -> None:
        """Download the images, if the data module ``images`` has any to download."""
        if self.images is not None:
            self.images.prepare_data()

    def setup(self, stage: str | None = None) -> None:
        """Read the feature vectors and split them."""
        if not self._splits:
            self._read()
        if stage == "fit":
            warn_without_test(self._check_test)
        if stage in ("test", "predict"):
            self._check_test()

    def _check_test(self) -> None:
        if not self.size("test"):
            raise DataError(f"Expected test vectors in {self.path!r} but got none. Mark some in its array of parts.")

    def _read(self) -> None:
        if self.images is None:
            read = self._from_file(existing(str(self.path), "feature vectors"))
        else:
            read = self.images.load()
            self.class_names = [str(number) for number in range(self.images.classes)]
        if self.distractors != "any" and not self.class_names:
            raise DataError(
                f"Expected classes with distractors={self.distractors!r} but {self.path!r} has no array"
                f' {self.labels or "label"!r}. Add one, or draw "any".'
            )
        splits = {}
        for split, images in read.items():
            vectors = directions(images.pixels) if self.normalize else images.pixels
            splits[split] = _Split(split, Images(vectors, images.labels), self.candidates, self.distractors)
        self._splits = splits

    @property
    def in_features(self) -> int:
        """Number of features F of an input, available after ``setup``."""
        return self._splits["train"].images.pixels.shape[1]

    @property
    def attribute_count(self) -> int:
        """Number of attributes A of an input, available after ``setup``; 0 without attributes."""
        return self._attributes["train"].shape[1] if self._attributes else 0

    def size(self, split: Split) -> int:
        """Return the number of games of a split."""
        return len(self._splits[split].images)

    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        """Return the games at indices (B,) of a split as a batch; the class describes its entries."""
        mine = self._splits[split]
        draws = seeded_uniform(self.seed + 7919 * epoch, indices, (2 * self.candidates,), stream=STREAMS[split]).double()
        others = mine.others(indices, draws[:, : self.candidates - 1], draws[:, self.candidates : -1])
        position = (draws[:, -1] * self.candidates).long().clamp_max(self.candidates - 1)
        places = torch.arange(self.candidates - 1).expand_as(others)
        chosen = torch.empty(len(indices), self.candidates, dtype=torch.int64)
        chosen.scatter_(1, places + (places >= position.unsqueeze(-1)).long(), others)
        chosen.scatter_(1, position.unsqueeze(-1), indices.unsqueeze(-1))
        vectors = mine.images.pixels
        drawn = vectors.index_select(0, chosen.flatten())  # an index takes several times as long
        known = {"attributes": self._attributes[split][indices]} if self._attributes else {}
        if self.class_names:
            known["label"] = mine.images.labels[indices]
        return {
            **known,
            "target": vectors[indices],
            "candidates": drawn.view(*chosen.shape, vectors.shape[1]),
            "position": position,
            "index": indices,
        }

    def _from_file(self, path: Path) -> dict[Split, Images]:
        with open_arrays(path) as arrays:
            name = self.features if self.features in arrays else next(iter(arrays)) if len(arrays) == 1 else None
            if name is None:
                raise DataError(
                    f"Expected an array {self.features!r} in {str(path)!r} but got {', '.join(sorted(arrays))}. Name one with"
                    " --data.init_args.features."
                )
            vectors = _vectors(arrays, name)
            labels = _one_each(arrays, self.labels, "label", len(vectors))
            parts = _one_each(arrays, self.parts, "split", len(vectors))
            known = None if self.attributes is None else _integers(arrays, self.attributes, len(vectors))
        classes = np.zeros(len(vectors), dtype=np.int64)
        if labels is not None:
            labels = labels if labels.dtype.kind == "U" else labels.astype(np.int64)
            names, classes = np.unique(labels, return_inverse=True)
            self.class_names = [str(name) for name in names]
        every = Images(torch.from_numpy(vectors), torch.from_numpy(classes.astype(np.int64)))
        places = self._places(len(every), parts, path)
        if known is not None:
            attributes = torch.from_numpy(known)
            self._attributes = {split: attributes[place] for split, place in places.items()}
        return {split: every[place] for split, place in places.items()}

    def _places(self, size: int, parts: Any, path: Path) -> dict[Split, Tensor]:
        """Return the shuffled indices of the vectors of each split."""
        order = shuffled(size, self.seed)
        kinds = torch.zeros(size, dtype=torch.int64)  # training, validation, test
        if parts is None:
            kinds[order[: held_out("test_size", self.test_size, size, size)]] = 2
        elif parts.dtype.kind == "U":
            kinds = numbers_of(parts, f"{self.parts or 'split'!r} of {str(path)!r}", ", or 0 for training and 1 for the test,")
        else:
            kinds[torch.from_numpy(parts != 0)] = 2
        indices = [order[kinds[order] == number] for number in range(len(SPLITS))]
        if not len(indices[1]):
            count = held_out("val_size", self.val_size, len(indices[0]), len(indices[0]))
            indices[:2] = indices[0][count:], indices[0][:count]
        return dict(zip(SPLITS, indices, strict=True))


class _Split:
    """The images of a split, by class.

    Args:
        name: name of the split.
        images: images of the split.
        candidates: number of images per game.
        kind: kind of the distractors.
    """

    def __init__(self, name: Split, images: Images, candidates: int, kind: str) -> None:
        self.images = images
        self.kind = kind
        self.classes, place = torch.unique(images.labels, return_inverse=True)
        self.class_of = place
        self.order: Tensor = place.argsort(stable=True)  # images class by class
        self.counts = torch.bincount(place, minlength=len(self.classes))
        self.starts = self.counts.cumsum(0) - self.counts
        self.rank = torch.empty_like(place)
        self.rank[self.order] = torch.arange(len(place)) - self.starts[place[self.order]]
        most, what = {
            "any": (len(images), "images"),
            "other_classes": (len(self.classes), "classes"),
            "same_class": (int(self.counts.min()) if len(images) else 0, "images in the smallest class"),
        }[kind]
        if most < candidates and not (name == "test" and not len(images)):  # a file may have no test split
            raise DataError(
                f"Expected at least candidates={candidates} {what} in the {name} split but got {most}. Use fewer"
                " candidates, hold out more, or draw other distractors."
            )

    def others(self, indices: Tensor, draws: Tensor, more: Tensor) -> Tensor:
        """Return distinct distractors (B, n) of targets.

        Args:
            indices: (B,) indices of the targets.
            draws: (B, n) uniform in [0, 1).
            more: (B, n) uniform in [0, 1), independent of the first.
        """
        if self.kind == "any":
            return _without(distinct(draws, torch.full_like(indices, len(self.images) - 1)), indices)
        mine = self.class_of[indices]
        if self.kind == "same_class":
            chosen = _without(distinct(draws, self.counts[mine] - 1), self.rank[indices])
            place: Tensor = self.starts[mine].unsqueeze(-1) + chosen
            return self.order[place]
        classes = _without(distinct(draws, torch.full_like(indices, len(self.classes) - 1)), mine)
        sizes = self.counts[classes]
        place = self.starts[classes] + torch.minimum((more * sizes).long(), sizes - 1)
        return self.order[place]


def _vectors(arrays: Arrays, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return an array (M, F) of finite numbers, float32."""
    where, array = f"{name!r} in {str(arrays.path)!r}" if name else repr(str(arrays.path)), arrays[name]
    try:
        vectors = array.astype(np.float32)
    except ValueError as error:
        raise DataError(f"Expected vectors (M, F) of numbers in {where} but got: {error}. Convert them.") from error
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise DataError(f"Expected vectors (M, F) in {where} but got {vectors.shape}. Reshape them.")
    broken = np.flatnonzero(~np.isfinite(vectors).all(-1))
    if len(broken):
        raise DataError(
            f"Expected finite vectors in {where} but got NaN or inf in {len(broken)} of {len(vectors)}, the first in row"
            f" {broken[0]}. Drop them."
        )
    return vectors


def _one_each(arrays: Arrays, name: str | None, usual: str, size: int) -> Any:
    """Return an array (M,) by its name or its usual name; None if it is neither named nor in the file."""
    name = name or (usual if usual in arrays else None)
    if name is None:
        return None
    array = arrays[name] if name in arrays else np.zeros(())
    if array.shape != (size,) or not (array.dtype.kind == "U" or _are_integers(array)):
        raise DataError(
            f"Expected an array {name!r} in {str(arrays.path)!r} with a whole number or a word for each of the {size} vectors"
            f" but got {arrays.shapes}. Name another array."
        )
    return array


def _integers(arrays: Arrays, name: str, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return an array (M, A) of integers."""
    array = arrays[name] if name in arrays else np.zeros(0)
    if array.ndim != 2 or len(array) != size or not _are_integers(array):
        raise DataError(
            f"Expected an array {name!r} of integers ({size}, A) in {str(arrays.path)!r} as `attributes` but got"
            f" {arrays.shapes}{f', with {name!r} of type {array.dtype}' if name in arrays else ''}. Words can be numbered with"
            " numpy.unique(..., return_inverse=True)."
        )
    return array.astype(np.int64)


def _are_integers(array: np.ndarray[Any, np.dtype[Any]]) -> bool:
    """Return whether all entries are integers within int64."""
    if array.dtype.kind in "bi":
        return True
    if array.dtype.kind not in "uf" or not bool(np.isfinite(array).all()):
        return False
    return bool((array == np.round(array)).all() and (np.abs(array) < 2.0**63).all())


def _without(numbers: Tensor, left_out: Tensor) -> Tensor:
    """Shift numbers (B, n) past an excluded number (B,)."""
    return numbers + (numbers >= left_out.unsqueeze(-1)).long()
