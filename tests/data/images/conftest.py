"""Fixtures of the tests of label noise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from lit_sparse.data.images import label_noise

from .test_mnist import idx


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Default folder of caches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "lit_sparse"


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    return torch.from_numpy(data.data).float() / 16, torch.from_numpy(data.target).long()


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of the classifiers that were trained, each of them for a shorter time than usual."""
    monkeypatch.setattr(label_noise, "STEPS", 200)
    seeds: list[int] = []
    train = label_noise._probabilities

    def counted(pixels: torch.Tensor, labels: torch.Tensor, classes: int, seed: int) -> torch.Tensor:
        seeds.append(seed)
        return train(pixels, labels, classes, seed)

    monkeypatch.setattr(label_noise, "_probabilities", counted)
    return seeds


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for prefix, size in (("train", 60), ("t10k", 20)):
        (tmp_path / f"{prefix}-images-idx3-ubyte").write_bytes(idx(rng.integers(0, 256, (size, 28, 28))))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(rng.integers(0, 10, size)))
    return tmp_path
