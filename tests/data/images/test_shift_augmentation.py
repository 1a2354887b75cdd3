"""Shifted images: all nine of each, none in evaluation, a random part in each epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import ConfigurationError


def digits(**options: Any) -> DigitsDataModule:
    data = DigitsDataModule(**{"labelled": 1.0, "binarize": False, "shift_augmentation": True, **options})
    data.setup()
    return data


def moved(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """Move an image, pixel by pixel."""
    found = np.zeros_like(image)
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            if 0 <= row - down < image.shape[0] and 0 <= column - right < image.shape[1]:
                found[row, column] = image[row - down, column - right]
    return found


def test_each_image_comes_in_nine_places_with_its_label() -> None:
    data, plain = digits(), digits(shift_augmentation=False)
    assert data.size("train") == 9 * 1257
    for place in (0, 5, 1256):
        image = plain.fetch("train", 0, torch.tensor([place]))
        batch = data.fetch("train", 0, place + 1257 * torch.arange(9))
        expected = {
            moved(image["pixels"].view(8, 8).numpy(), down, right).tobytes() for down in (-1, 0, 1) for right in (-1, 0, 1)
        }
        assert {row.numpy().tobytes() for row in batch["pixels"].view(9, 8, 8)} == expected
        assert torch.equal(batch["pixels"][0], image["pixels"][0])
        assert batch["label"].tolist() == image["label"].tolist() * 9
        assert batch["index"].tolist() == (place + 1257 * torch.arange(9)).tolist()


def test_an_epoch_goes_through_all_of_them_once() -> None:
    data = digits(batch_size=100)
    seen = torch.cat(list(data.train_batches(0, 0, 1)))
    assert seen.sort().values.tolist() == list(range(9 * 1257))
    shares = [torch.cat(list(data.train_batches(0, rank, 2))) for rank in (0, 1)]
    assert len(shares[0]) == len(shares[1])
    assert not set(shares[0].tolist()) & set(shares[1].tolist())


def test_an_epoch_of_a_part_takes_others_each_time() -> None:
    data = digits(epoch_size=200, batch_size=64)
    epochs = [torch.cat(list(data.train_batches(epoch, 0, 1))).tolist() for epoch in (0, 1, 0)]
    assert [len(set(epoch)) for epoch in epochs] == [200] * 3
    assert epochs[0] == epochs[2]
    assert len(set(epochs[0]) & set(epochs[1])) < 20
    both = [torch.cat(list(data.train_batches(0, rank, 2))).tolist() for rank in (0, 1)]
    assert sorted(both[0] + both[1]) == sorted(epochs[0])
    whole = digits(shift_augmentation=False, epoch_size=1257)
    assert torch.cat(list(whole.train_batches(0, 0, 1))).sort().values.tolist() == list(range(1257))


def test_moves_are_equally_frequent() -> None:
    data = digits(epoch_size=1000)
    shifts = torch.cat([torch.cat(list(data.train_batches(epoch, 0, 1))) // 1257 for epoch in range(20)])
    counts = torch.bincount(shifts, minlength=9).double()
    assert float(((counts - 20_000 / 9) ** 2 / (20_000 / 9)).sum()) < 26.1, "chi-squared of 8 degrees of freedom, p = 0.001"


def test_nothing_is_moved_in_evaluation() -> None:
    data, plain = digits(), digits(shift_augmentation=False)
    for split in ("val", "test"):
        assert data.size(split) == plain.size(split)
        for one, two in zip(data._in_order(split), plain._in_order(split), strict=True):
            assert torch.equal(one["pixels"], two["pixels"])


@pytest.mark.parametrize("options", [{"labelled": 0.2}, {"labelled": 0}, {"labelled": 100, "labelled_only": True}])
def test_the_same_images_are_labelled_at_every_position(options: dict[str, Any]) -> None:
    data = digits(**options, epoch_size=300)
    num_labelled = {0.2: 251, 0: 0, 100: 100}[options["labelled"]]
    images, known = set(), set()
    for epoch in range(3):
        for indices in data.train_batches(epoch, 0, 1):
            batch = data.fetch("train", epoch, indices)
            images |= set((indices % 1257).tolist())
            known |= set((indices[batch["label"] >= 0] % 1257).tolist())
    assert len(known) <= num_labelled
    assert len(known) >= 0.8 * num_labelled
    assert images == known if options.get("labelled_only") else len(images) > 500


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 9 * 1257),
        ({"shift_augmentation": False}, 1257),
        ({"labelled": 0.2}, 9 * (1257 - 251)),
        ({"labelled": 0.2, "labelled_only": True}, 9 * 251),
        ({"labelled": 0}, 9 * 1257),
    ],
)
def test_more_than_there_are_is_refused(options: dict[str, Any], most: int) -> None:
    digits(**options, epoch_size=most)
    with pytest.raises(ConfigurationError, match=f"`epoch_size` to be at most {most}, all images, but got {most + 1}"):
        digits(**options, epoch_size=most + 1)
    with pytest.raises(ConfigurationError, match="`epoch_size`"):
        digits(**options, epoch_size=0)
