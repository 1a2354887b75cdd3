"""Folds: each training or validation example is in one of them, and the test data stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lit_sparse.data import (
    DigitsDataModule,
    ResumableDataModule,
    SymmetricNoise,
    SyntheticRegressionDataModule,
    TranslationDataModule,
    TransportDataModule,
)
from lit_sparse.errors import ConfigurationError

FOLDS = 3


def translation(folder: Path, **options: Any) -> TranslationDataModule:
    for split, number in (("train", 31), ("val", 10), ("test", 7)):
        for language in ("de", "en"):
            lines = [f"{language} {split} {place}" for place in range(number)]
            (folder / f"{split}.{language}").write_text("\n".join(lines), encoding="utf-8")
    return TranslationDataModule(str(folder), source="de", target="en", **options)


def examples(data: ResumableDataModule, split: Any) -> list[tuple[Any, ...]]:
    """Return what tells each example of a split apart."""
    data.setup("fit")
    data.setup("test")
    if isinstance(data, TranslationDataModule):
        return list(zip(*(data.texts(split)[role] for role in ("source", "target")), strict=True))
    batch = data.fetch(split, 0, torch.arange(data.size(split)))
    name = "pixels" if "pixels" in batch else "features"
    return [tuple(row.tolist()) for row in batch[name]]


MADE = {
    "digits": lambda folder, **options: DigitsDataModule(binarize=False, **options),
    "noisy digits": lambda folder, **options: DigitsDataModule(binarize=False, label_noise=SymmetricNoise(0.2), **options),
    "table": lambda folder, **options: SyntheticRegressionDataModule(**options),
    "translation": translation,
}


@pytest.mark.parametrize("name", MADE)
def test_each_example_is_in_one_fold(name: str, tmp_path: Path) -> None:
    whole = MADE[name](tmp_path)
    everything = sorted(examples(whole, "train") + examples(whole, "val"))
    held = []
    for fold in range(FOLDS):
        data = MADE[name](tmp_path, fold=(fold, FOLDS))
        val = examples(data, "val")
        assert abs(len(val) - len(everything) / FOLDS) < 1
        assert sorted(examples(data, "train") + val) == everything
        assert examples(data, "test") == examples(whole, "test")
        held += val
    assert sorted(held) == everything


def test_labels_stay_with_their_images() -> None:
    known: dict[tuple[float, ...], int] = {}
    for data in (DigitsDataModule(binarize=False, labelled=1.0), DigitsDataModule(binarize=False, labelled=1.0, fold=(1, 2))):
        data.setup("fit")
        for split in ("train", "val"):
            batch = data.fetch(split, 0, torch.arange(data.size(split)))
            for pixels, label in zip(batch["pixels"].tolist(), batch["label"].tolist(), strict=True):
                assert known.setdefault(tuple(pixels), label) == label


def test_wrong_folds_are_refused(tmp_path: Path) -> None:
    for fold in ((2, 2), (-1, 2), (0, 1), (0,)):
        with pytest.raises(ConfigurationError, match=r"`fold` such as \[0, 2\]"):
            DigitsDataModule(fold=fold)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="`fold` to be null for TransportDataModule"):
        TransportDataModule(None, None, fold=(0, 2))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="at most 41 folds"):
        translation(tmp_path, fold=(0, 42)).setup("fit")
    with pytest.raises(ConfigurationError, match="no `fold` with `use_all`"):
        SyntheticRegressionDataModule(use_all=True, fold=(0, 2)).setup("fit")
