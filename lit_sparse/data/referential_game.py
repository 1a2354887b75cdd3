"""Games about images: a target and distractors, from any array of feature vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lit_sparse.checks import check_choice, check_count, check_number
from lit_sparse.data.base import ResumableDataModule, Split, shuffled, warn_without_test
from lit_sparse.data.images.base import STREAMS, ImageDataModule, Images
from lit_sparse.data.loader import Batch
from lit_sparse.data.readers.arrays import Arrays, open_arrays
from lit_sparse.data.readers.text_files import in_folder
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.random import seeded_uniform

__all__ = ["ReferentialGameDataModule", "distinct"]

SPLITS: tuple[Split, ...] = ("train", "val", "test")


class ReferentialGameDataModule(ResumableDataModule):
    """Every image of a split is the target of one game an epoch, hidden among distractors of the same split.

    Distractors and the target's place are drawn anew in every training epoch; in validation and test they are a function of
    (seed, index), always the same. Batches are dicts of ``target`` (B, F) and ``candidates`` (B, N, F) float32, ``position``
    (B,), where among them the target is, and ``index`` (B,), its place in the split; also ``label`` (B,) int64, its class
    (a place in ``class_names``), and its ``attributes`` (B, A) int64, where they are known.

    Args:
        images: a data module whose images serve, pixels as features, split as it says; such as ``DigitsDataModule``.
        path: in place of images, a file of feature vectors: ``.npy``, ``.npz``, or ``.h5`` (with the extra ``h5``).
        features: name of the array (M, F) in a file that holds several.
        labels: name of the array (M,) of classes there, numbers or words; None for ``label``, if there is one.
        attributes: name of an array (M, A) of integers there, what is known of each image, for analyses of the language; it
            may be that of the features. None for no such analyses.
        parts: name of the array (M,) that says which vectors are held out: 0 for training and anything else for the test, or
            the words ``train``, ``val`` and ``test``; None for ``split``, if there is one, and else ``test_share`` of all.
        val_share: share of the vectors for training that are held out for validation, unless ``parts`` names some.
        test_share: share of all vectors that are held out for the test, where ``parts`` does not say so.
        candidates: N, images a game, >= 2.
        distractors: ``"any"`` other images, one of each of ``"other_classes"``, or others of the ``"same_class"``.
        normalize: scale vectors to length 1.
        batch_size: games in a training batch of one process.
        eval_batch_size: games in a batch of validation, test and prediction.
        num_workers: processes that fetch batches ahead.
        seed: of splits, orders, distractors and places.

    Raises:
        ConfigurationError: if not exactly one of images and path is given, or another argument is not as described.
    """

    def __init__(
        self,
        images: ImageDataModule | None = None,
        *,
        path: str | None = None,
        features: str = "features",
        labels: str | None = None,
        attributes: str | None = None,
        parts: str | None = None,
        val_share: float = 0.1,
        test_share: float = 0.2,
        candidates: int = 16,
        distractors: Literal["any", "other_classes", "same_class"] = "any",
        normalize: bool = True,
        batch_size: int = 64,
        eval_batch_size: int = 256,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, num_workers=num_workers, seed=seed)
        if (images is None) == (path is None):
            raise ConfigurationError(
                "Expected either `images`, a data module as in --data.init_args.images DigitsDataModule, or `path`, a file of"
                " feature vectors (.npy, .npz, .h5), and not both."
            )
        named = [("labels", labels), ("attributes", attributes), ("parts", parts)]
        for name, array in named:
            if array is not None and (images is not None or str(path).endswith(".npy")):
                raise ConfigurationError(
                    f"Expected `{name}` only with a file of several arrays, .npz or .h5, in which {array!r} is one; "
                    + (f"{path!r} holds the vectors alone." if path is not None else "a data module has none.")
                )
        for name, share in (("val_share", val_share), ("test_share", test_share)):
            check_number(name, share, 0.0, 1.0, open_low=True, open_high=True)
        self.images = images
        self.path = path
        self.features = features
        self.labels = labels
        self.attributes = attributes
        self.parts = parts
        self.val_share = val_share
        self.test_share = test_share
        self.candidates = check_count("candidates", candidates, 2)
        self.distractors = check_choice("distractors", distractors, ("any", "other_classes", "same_class"))
        self.normalize = normalize
        self._splits: dict[Split, _Split] = {}
        self._attributes: dict[Split, Tensor] = {}
        #: The names of the classes, by their number in ``label``; empty where they are not known. Filled by ``setup``.
        self.class_names: list[str] = []

    def setup(self, stage: str | None = None) -> None:
        """Read the vectors and split them."""
        if not self._splits:
            self._read()
        if stage == "fit":
            warn_without_test(self._check_test)
        if stage in ("test", "predict"):
            self._check_test()

    def _check_test(self) -> None:
        if not self.size("test"):
            raise DataError(f"{self.path!r} holds nothing out for the test. Mark some vectors in its array of parts.")

    def _read(self) -> None:
        if self.images is None:
            read = self._from_file(Path(str(self.path)).expanduser())
        else:
            read = self.images.load()
            self.class_names = [str(number) for number in range(self.images.classes)]
        if self.distractors != "any" and not self.class_names:
            raise DataError(
                f"distractors={self.distractors!r} needs the classes of the images, but {self.path!r} has no array"
                f' {self.labels or "label"!r}. Add one, or draw "any".'
            )
        splits = {}
        for split, images in read.items():
            vectors = images.pixels
            if self.normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
            splits[split] = _Split(split, Images(vectors, images.labels), self.candidates, self.distractors)
        self._splits = splits

    @property
    def in_features(self) -> int:
        """F, once ``setup`` has run."""
        return self._splits["train"].images.pixels.shape[1]

    @property
    def attribute_count(self) -> int:
        """A, once ``setup`` has run; 0 without attributes."""
        return self._attributes["train"].shape[1] if self._attributes else 0

    def size(self, split: Split) -> int:
        """Return the number of games of a split."""
        return len(self._splits[split].images)

    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        """Return a batch of games; see the class."""
        mine = self._splits[split]
        draws = seeded_uniform(self.seed + 7919 * epoch, indices, (2 * self.candidates,), stream=STREAMS[split]).double()
        others = mine.others(indices, draws[:, : self.candidates - 1], draws[:, self.candidates : -1])
        position = (draws[:, -1] * self.candidates).long().clamp_max(self.candidates - 1)
        places = torch.arange(self.candidates - 1).expand_as(others)
        chosen = torch.empty(len(indices), self.candidates, dtype=torch.int64)
        chosen.scatter_(1, places + (places >= position.unsqueeze(-1)).long(), others)
        chosen.scatter_(1, position.unsqueeze(-1), indices.unsqueeze(-1))
        vectors = mine.images.pixels
        known = {"attributes": self._attributes[split][indices]} if self._attributes else {}
        if self.class_names:
            known["label"] = mine.images.labels[indices]
        return {
            **known,
            "target": vectors[indices],
            "candidates": vectors[chosen],
            "position": position,
            "index": indices,
        }

    def _from_file(self, path: Path) -> dict[Split, Images]:
        if not path.is_file():
            raise DataError(f"There is no file {str(path)!r} of feature vectors.{in_folder(path.parent, path.name)}")
        with open_arrays(path) as arrays:
            name = self.features if self.features in arrays else next(iter(arrays)) if len(arrays) == 1 else None
            if name is None:
                raise DataError(
                    f"Expected an array {self.features!r} in {str(path)!r} but it holds {', '.join(sorted(arrays))}. Name it by"
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
        """Return which vectors belong to which split, in the order of a shuffle."""
        order = shuffled(size, self.seed)
        kinds = torch.zeros(size, dtype=torch.int64)  # training, validation, test
        if parts is None:
            kinds[order[: round(self.test_share * size)]] = 2
        elif parts.dtype.kind == "U":
            words = parts
            unknown = sorted(set(words.tolist()) - set(SPLITS))
            if unknown:
                raise DataError(
                    f"Expected the array {self.parts or 'split'!r} of {str(path)!r} to hold the words {', '.join(SPLITS)}, or"
                    f" 0 for training and 1 for the test, but it holds {', '.join(map(repr, unknown[:5]))}."
                )
            for number, word in enumerate(SPLITS):
                kinds[torch.from_numpy(words == word)] = number
        else:
            kinds[torch.from_numpy(parts != 0)] = 2
        found = [order[kinds[order] == number] for number in range(len(SPLITS))]
        if not len(found[1]):
            count = round(self.val_share * len(found[0]))
            found[:2] = found[0][count:], found[0][:count]
        return dict(zip(SPLITS, found, strict=True))


class _Split:
    """The images of a split, by class.

    Args:
        name: of the split.
        images: the images.
        candidates: images a game.
        kind: of the distractors.
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
        most = {
            "any": len(images),
            "other_classes": len(self.classes),
            "same_class": int(self.counts.min()) if len(images) else 0,
        }
        if most[kind] < candidates and not (name == "test" and not len(images)):  # a file may hold nothing out for it
            what = {"any": "images", "other_classes": "classes", "same_class": "images in the smallest class"}[kind]
            raise DataError(
                f"Expected at least candidates={candidates} {what} in the {name} split but there are {most[kind]}. Play with"
                " fewer candidates, hold out more, or draw other distractors."
            )

    def others(self, indices: Tensor, draws: Tensor, more: Tensor) -> Tensor:
        """Return the distractors (B, n) of some targets, all different.

        Args:
            indices: (B,) the targets.
            draws: (B, n) uniform in [0, 1).
            more: (B, n) others.
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
    where, found = f"{name!r} in {str(arrays.path)!r}", arrays[name]
    try:
        vectors = found.astype(np.float32)
    except ValueError as error:
        raise DataError(f"Expected {where} to hold vectors (M, F) of numbers: {error}.") from error
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise DataError(f"Expected {where} to hold vectors (M, F) but its shape is {vectors.shape}.")
    broken = np.flatnonzero(~np.isfinite(vectors).all(-1))
    if len(broken):
        raise DataError(
            f"Expected {where} to hold finite vectors but {len(broken)} of {len(vectors)} hold NaN or inf,"
            f" the first in row {broken[0]}."
        )
    return vectors


def _one_each(arrays: Arrays, name: str | None, usual: str, size: int) -> Any:
    """Return an array (M,) that holds something of each vector; None if none is asked for and the usual one is not there."""
    name = name or (usual if usual in arrays else None)
    if name is None:
        return None
    found = arrays[name] if name in arrays else np.zeros(())
    if found.shape != (size,) or not (found.dtype.kind == "U" or _are_integers(found)):
        raise DataError(
            f"Expected an array {name!r} in {str(arrays.path)!r} with a whole number or a word for each of the {size} vectors"
            f" but it holds {arrays.shapes}."
        )
    return found


def _integers(arrays: Arrays, name: str, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return an array (M, A) of integers."""
    found = arrays[name] if name in arrays else np.zeros(0)
    if found.ndim != 2 or len(found) != size or not _are_integers(found):
        raise DataError(
            f"Expected an array {name!r} of integers ({size}, A) in {str(arrays.path)!r}, the `attributes`, but it holds"
            f" {arrays.shapes}{f', this one of type {found.dtype}' if name in arrays else ''}. Words can be numbered by"
            " numpy.unique(..., return_inverse=True)."
        )
    return found.astype(np.int64)


def _are_integers(array: np.ndarray[Any, np.dtype[Any]]) -> bool:
    """Return whether all entries are integers that int64 holds."""
    if array.dtype.kind in "bi":
        return True
    if array.dtype.kind not in "uf" or not bool(np.isfinite(array).all()):
        return False
    return bool((array == np.round(array)).all() and (np.abs(array) < 2.0**63).all())


def distinct(draws: Tensor, sizes: Tensor) -> Tensor:
    """Return n different numbers (B, n) of ``0 .. size - 1`` for each row, all choices of n alike, by Floyd's algorithm.

    Args:
        draws: (B, n) uniform in [0, 1).
        sizes: (B,), each at least n.

    Example:
        >>> sorted(distinct(torch.tensor([[0.1, 0.9, 0.2]]), torch.tensor([3]))[0].tolist())
        [0, 1, 2]
    """
    count = draws.shape[1]
    chosen = torch.full(draws.shape, -1, dtype=torch.int64)
    for i in range(count):
        last = sizes - count + i
        drawn = torch.minimum((draws[:, i] * (last + 1)).long(), last)
        taken = (chosen == drawn.unsqueeze(-1)).any(-1)
        chosen[:, i] = torch.where(taken, last, drawn)
    return chosen


def _without(numbers: Tensor, left_out: Tensor) -> Tensor:
    """Shift numbers (B, n) past one that is left out (B,)."""
    return numbers + (numbers >= left_out.unsqueeze(-1)).long()
