"""Digits: splits that do not overlap, labels for a share of the images, and pixels that are drawn as promised."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import ConfigurationError

SPLITS: Any = ("train", "val", "test")


def ready(**options: Any) -> DigitsDataModule:
    data = DigitsDataModule(**options)
    data.setup("fit")
    return data


def test_the_splits_hold_each_image_once_with_its_label() -> None:
    data = ready(binarize=False, labelled=1.0, val_size=0.1, test_size=100)
    assert [data.size(split) for split in SPLITS] == [1797 - 100 - 180, 180, 100]
    batches = [data.fetch(split, 0, torch.arange(data.size(split))) for split in SPLITS]
    found = sorted(
        (*pixels, label)
        for batch in batches
        for pixels, label in zip((batch["pixels"] * 16).tolist(), batch["label"].tolist(), strict=True)
    )
    digits = load_digits()
    assert found == sorted((*pixels, label) for pixels, label in zip(digits.data.tolist(), digits.target.tolist(), strict=True))


def test_pixels_are_drawn_by_seed_index_and_training_epoch() -> None:
    data, grey, some = ready(seed=3), ready(seed=3, binarize=False), torch.tensor([5, 900, 17])
    for split in ("train", "val"):
        first = data.fetch(split, 0, some % data.size(split))["pixels"]
        assert set(first.unique().tolist()) == {0.0, 1.0}
        assert torch.equal(first, data.fetch(split, 0, some % data.size(split))["pixels"])
        alone = data.fetch(split, 0, some[1:2] % data.size(split))["pixels"]
        assert torch.equal(alone, first[1:2]), "the other images of a batch do not matter"
    assert not torch.equal(data.fetch("train", 0, some)["pixels"], data.fetch("train", 1, some)["pixels"])
    drawn = torch.stack([data.fetch("train", epoch, some)["pixels"] for epoch in range(400)]).mean(0)
    assert torch.allclose(drawn, grey.fetch("train", 0, some)["pixels"], atol=0.12), "their mean is the intensity"


def test_some_images_have_labels() -> None:
    data = ready(labelled=100, batch_size=30)
    batches = [data.fetch("train", 0, indices) for indices in data.train_batches(0, 0, 1)]
    labels = torch.cat([batch["label"] for batch in batches])
    indices = torch.cat([batch["index"] for batch in batches])
    assert len(indices[labels >= 0].unique()) == 100
    unlabelled = indices[labels < 0]
    assert len(unlabelled) == len(unlabelled.unique()) == data.size("train") - 100, "an epoch is one pass over them"
    for batch in batches:
        half = len(batch["label"]) // 2
        assert bool((batch["label"][:half] >= 0).all())
        assert bool((batch["label"][half:] == -100).all())


WRONG = [({"test_size": 1797}, "`test_size`"), ({"val_size": 1437}, "`val_size`"), ({"labelled": 2000}, "`labelled`")]


@pytest.mark.parametrize(("options", "text"), WRONG)
def test_wrong_sizes_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        ready(**options)


def test_normalized_pixels() -> None:
    plain, data = DigitsDataModule(binarize=False), DigitsDataModule(binarize=False, normalize=(0.5, 0.25))
    for split in ("train", "val", "test"):
        for each in (plain, data):
            each.setup()
        pixels = [each.fetch(split, 0, torch.arange(5))["pixels"] for each in (plain, data)]
        assert torch.equal(pixels[1], (pixels[0] - 0.5) / 0.25)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalize": (0.1, 0.0), "binarize": False}, r"normalize\[1\]. to be a positive"),
        ({"normalize": (math.nan, 1.0), "binarize": False}, r"normalize\[0\]. to be a number"),
        ({"normalize": (0.1, 0.3)}, "Expected `binarize: false` with `normalize`"),
    ],
)
def test_a_wrong_normalization_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DigitsDataModule(**options)
