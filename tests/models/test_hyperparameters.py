"""Descriptions from which parts can be built again."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from lit_sparse.estimators import Marginalize, SparseMAPMarginalize
from lit_sparse.mappings import Sparsemax, TopKSparsemax
from lit_sparse.models.hyperparameters import describe
from lit_sparse.structures import Budget


def test_parts_are_described_by_their_arguments() -> None:
    described = describe(TopKSparsemax(3, gamma=0.5))
    assert described["class_path"] == "lit_sparse.mappings.TopKSparsemax"
    assert described["init_args"] == {"k": 3, "gamma": 0.5, "dim": -1}
    described = describe(SparseMAPMarginalize(Budget(6, 2), max_iter=30))
    assert described["init_args"]["max_iter"] == 30
    assert described["init_args"]["structure"] == {
        "class_path": "lit_sparse.structures.Budget",
        "init_args": {"d": 6, "budget": 2},
    }
    assert describe(Marginalize(Sparsemax()))["init_args"]["mapping"]["class_path"].endswith(".Sparsemax")


def test_callables_and_containers() -> None:
    assert describe((1, 2.5, "a", None, True)) == [1, 2.5, "a", None, True]
    assert describe(torch.optim.Adam) == "torch.optim.Adam"
    expected = {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1, "betas": [0.5, 0.9]}}
    assert describe(functools.partial(torch.optim.Adam, lr=0.1, betas=(0.5, 0.9))) == expected


@pytest.mark.parametrize("thing", [lambda x: x, object(), nn.Linear(2, 3), torch.zeros(2)])
def test_what_has_no_description(thing: object) -> None:
    with pytest.raises(TypeError):
        describe(thing)
