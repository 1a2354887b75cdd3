"""Descriptions from which parts can be built again."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from lit_sparse.estimators import Marginalize, SparseMAPMarginalize
from lit_sparse.mappings import Sparsemax, TopKSparsemax
from lit_sparse.models import BitVectorVAE
from lit_sparse.runs.descriptions import describe
from lit_sparse.structures import Budget, Sequence


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


@pytest.mark.parametrize("thing", [lambda x: x, object(), nn.Linear(2, 3), nn.Sequential(nn.ReLU()), {"a": object()}])
def test_what_has_no_description(thing: object) -> None:
    with pytest.raises(TypeError):
        describe(thing)


def test_tensors_are_described_by_their_numbers(tmp_path: Path) -> None:
    """A checkpoint of a model built in Python loads, learnt potentials with their values."""
    for links, learn in ((torch.full((2, 2), 0.5), True), (torch.full((2, 2), 0.5), False), (None, True)):
        estimator = SparseMAPMarginalize(Sequence(tags=2), potentials=links, learn_potentials=learn)
        model = BitVectorVAE(estimator, in_features=4, bits=6, levels=3, encoder_hidden=[3], decoder_hidden=[3])
        if learn:
            torch.nn.init.constant_(estimator.potentials, 0.75)
        trainer = pl.Trainer(
            max_epochs=0, logger=False, accelerator="cpu", enable_progress_bar=False, default_root_dir=tmp_path
        )
        trainer.strategy.connect(model)
        trainer.save_checkpoint(tmp_path / "model.ckpt")
        again = BitVectorVAE.load_from_checkpoint(tmp_path / "model.ckpt")
        torch.testing.assert_close(again.estimator.potentials.detach(), estimator.potentials.detach())
        assert isinstance(again.estimator.potentials, torch.nn.Parameter) is learn
