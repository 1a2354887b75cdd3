"""Options of PyTorch's DataLoader, samplers, transforms and augmentation: an epoch is exact with each of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, SequentialSampler, WeightedRandomSampler

from lit_sparse.coresets import Uniform
from lit_sparse.data import CoresetDataModule, DigitsDataModule, SyntheticRegressionDataModule, TranslationDataModule
from lit_sparse.errors import ConfigurationError
from tests.data.pairs import write_pairs
from tests.data.test_position import Free, continued, quiet, stopped  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore:.*(callbacks used to create|You defined a `validation_step`)")


def numbers(**options: Any) -> SyntheticRegressionDataModule:
    return SyntheticRegressionDataModule(size=100, batch_size=8, **options)


def epochs(data: Any, count: int = 2) -> list[list[list[int]]]:
    data.setup("fit")
    loader = data.train_dataloader()
    return [[batch["index"].tolist() for batch in loader] for _ in range(count)]


@pytest.mark.parametrize("options", [{"persistent_workers": True}, {"prefetch_factor": 3}, {"pin_memory": False}])
def test_workers_read_the_same(options: dict[str, Any]) -> None:
    assert epochs(numbers(num_workers=1, **options)) == epochs(numbers())


def test_workers_that_stay_are_the_same_processes() -> None:
    data = numbers(num_workers=1, persistent_workers=True)
    data.setup("fit")
    loader = data.train_dataloader()
    first = [*loader]
    (_, workers), iterator = loader._workers, iter(loader)
    next(iterator)  # one iterator is open, and another begins
    assert len([*loader]) == len(first)
    del iterator
    assert workers._iterator._workers[0].is_alive()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "option", [{"persistent_workers": True}, {"prefetch_factor": 2}, {"num_workers": 1, "prefetch_factor": 0}]
)
def test_options_of_workers_without_any(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"num_workers|prefetch_factor"):
        numbers(**option)


def test_a_sampler_orders_the_examples() -> None:
    data = numbers(sampler=SequentialSampler(range(80)))
    assert epochs(data)[0] == epochs(data)[1] == [[*range(start, start + 8)] for start in range(0, 80, 8)]
    shares = [torch.cat([*data.train_batches(0, rank, 2)]).tolist() for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == [*range(80)]


@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_the_draws_of_a_sampler_are_of_the_epoch(generator: Any) -> None:
    def drawn() -> Any:
        return numbers(sampler=WeightedRandomSampler([0.0] * 40 + [1.0] * 40, 50, generator=generator))

    state = torch.get_rng_state()
    first, again = epochs(drawn()), epochs(drawn())
    assert first == again
    assert first[0] != first[1]
    assert min(i for batch in first[0] for i in batch) >= 40
    assert torch.equal(torch.get_rng_state(), state)
    seen, path = stopped(Free(), drawn(), 4)
    assert seen.epochs[0] + continued(Free(), drawn(), path).epochs[0] == continued(Free(), drawn(), None).epochs[0]  # type: ignore[arg-type]


def test_samplers_of_images_and_text(tmp_path: Path) -> None:
    images = DigitsDataModule(labelled=1.0, sampler=SequentialSampler(range(100)), batch_size=50)
    assert epochs(images, 1) == [[[*range(50)], [*range(50, 100)]]]
    for split in ("train", "val", "test"):
        write_pairs(tmp_path, split, 30)
    text = TranslationDataModule(str(tmp_path), source="de", target="en", sampler=SequentialSampler(range(9)))
    assert sorted(epochs(text, 1)[0][0]) == [*range(9)]


def test_samplers_that_do_not_fit() -> None:
    with pytest.raises(ConfigurationError, match=r"all examples.*DistributedSampler"):
        numbers(sampler=DistributedSampler([1], 1, 0))
    with pytest.raises(ConfigurationError, match="`labelled`"):
        DigitsDataModule(labelled=0.5, sampler=SequentialSampler(range(9))).setup()
    with pytest.raises(ConfigurationError, match="`base` without `sampler`"):
        CoresetDataModule(numbers(sampler=SequentialSampler(range(9))), Uniform(), 10, lambda e: torch.ones(len(e), 1))
    with pytest.raises(IndexError, match="indices in 0"):
        epochs(numbers(sampler=SequentialSampler(range(900))))


def noisy(batch: dict[str, Any]) -> dict[str, Any]:
    draws = torch.rand(1) + random.random() + np.random.rand()  # noqa: NPY002
    return {**batch, "features": batch["features"] + draws}


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "features": 2 * batch["features"]}


def test_a_transform_is_of_all_splits_and_augmentation_of_training() -> None:
    plain, changed = numbers(), numbers(transform=doubled, augmentation=noisy)
    for data in (plain, changed):
        data.setup()
    for loader, train in (("train_dataloader", True), ("val_dataloader", False), ("test_dataloader", False)):
        for before, after in zip(getattr(plain, loader)(), getattr(changed, loader)(), strict=True):
            noise = after["features"] - 2 * before["features"]
            assert bool((noise > 0).all()) if train else not noise.any()
    coreset = CoresetDataModule(changed, Uniform(), 10, lambda examples: torch.ones(len(examples), 1))
    coreset.setup("fit")
    batch = next(iter(coreset.train_dataloader()))
    assert bool((batch["features"] > 2 * plain.fetch("train", 0, batch["index"])["features"]).all())


@pytest.mark.parametrize("workers", [0, 1])
def test_augmentation_is_the_same_in_a_continued_epoch(workers: int) -> None:
    def features(start: int = 0, **options: Any) -> list[torch.Tensor]:
        data = numbers(augmentation=noisy, **options)
        data.setup("fit")
        loader = data.train_dataloader()
        if start:
            whole = data.train_batches(0, 0, 1)
            loader.load_state_dict({"epoch": 0, "batch": start, "parts": [[8, 1, sum(map(len, whole[:start]))]]})
        return [batch["features"] for batch in loader]

    whole, rest = features(), features(4, num_workers=workers)
    assert all(map(torch.equal, whole[4:], rest))
    assert not torch.equal(whole[0][0] - whole[0][0].round(), whole[1][0])


def test_a_transform_that_returns_no_batch() -> None:
    data = numbers(transform=lambda batch: None)
    with pytest.raises(ConfigurationError, match="to return a batch, a dict, but got NoneType"):
        epochs(data)
