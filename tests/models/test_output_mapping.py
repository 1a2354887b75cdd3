"""Seq2Seq with a mapping at its output: the loss without all scores trains as the loss of all scores."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from lit_sparse.data import TranslationDataModule
from lit_sparse.mappings import Entmax, Fusedmax, LearnableEntmax, Softmax, SparseMapping, Sparsemax, TopKSparsemax
from lit_sparse.models import Seq2Seq
from lit_sparse.nn import RecurrentBody
from lit_sparse.nn.output_layer import losses as linear_losses
from lit_sparse.nn.output_layer import scores as linear_scores
from lit_sparse.nn.output_layer import support as linear_support
from tests.data.pairs import write_pairs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, number in (("train", 60), ("val", 11), ("test", 5)):
        write_pairs(tmp_path, split, number)
    return tmp_path


def data_of(folder: Path) -> TranslationDataModule:
    return TranslationDataModule(str(folder), source="de", target="en", batch_size=16, eval_batch_size=5)


class Curve(pl.Callback):
    """The loss of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any) -> None:
        self.losses.append(float(outputs["loss"]))


def model_of(mapping: SparseMapping | None, **options: Any) -> Seq2Seq:
    adam = functools.partial(torch.optim.Adam, lr=2e-2)
    body = RecurrentBody(16, 1, 0.0, input_feeding=False)
    return Seq2Seq(Sparsemax(), body, output_mapping=mapping, init_range=None, optimizer=adam, **options)


def curves(mapping: SparseMapping, folder: Path, **options: Any) -> tuple[list[float], dict[str, float]]:
    """Return the losses of all steps, and the logged values of the validation."""
    torch.manual_seed(0)
    curve, model = Curve(), model_of(mapping, **options)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=8,
        num_sanity_val_steps=0,
        precision="64-true",
        callbacks=[curve],
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
    )
    trainer.fit(model, data_of(folder))
    return curve.losses, {name: float(value) for name, value in trainer.callback_metrics.items()}


MAPPINGS = [
    pytest.param(lambda: Sparsemax(), {}, id="sparsemax"),
    pytest.param(lambda: Entmax(1.5), {"label_smoothing": 0.1, "tied_embeddings": True}, id="entmax"),
    pytest.param(lambda: LearnableEntmax(), {}, id="learnable"),
    pytest.param(lambda: TopKSparsemax(4), {}, id="top-k"),
    pytest.param(lambda: Softmax(), {"label_smoothing": 0.1}, id="softmax"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mapping", "options"), MAPPINGS)
def test_the_curves_are_equal_up_to_rounding(
    mapping: Any, options: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(linear_losses, "_label_losses", linear_losses._of_rows)  # all scores
        expected, logged = curves(mapping(), folder, **options)
    monkeypatch.setattr(linear_losses, "FEW", 0)
    monkeypatch.setattr(linear_support, "LEAST", 30)
    monkeypatch.setattr(linear_support, "FLAT", 1.0)
    for name, value in {"RANGE": 32, "SCORES": 1, "ALL_SCORES": 1, "LEAST_ROWS": 50}.items():
        monkeypatch.setattr(linear_scores, name, value)
    calls = []
    of_support = linear_losses._of_support
    monkeypatch.setattr(linear_losses, "_of_support", lambda *args: calls.append(1) or of_support(*args))  # type: ignore[func-returns-value]
    ours, ours_logged = curves(mapping(), folder, **options)
    assert bool(calls) == (not isinstance(mapping(), Softmax))
    assert expected[-1] < 0.95 * expected[0]
    assert ours == pytest.approx(expected, rel=1e-7)
    assert ours_logged == pytest.approx(logged, rel=1e-7)


def test_the_keys_of_checkpoints_stay(folder: Path) -> None:
    data = data_of(folder)
    data.setup("fit")
    plain, sparse, learnt = (
        set(model_of(mapping).build(data.vocabularies).state_dict()) for mapping in (None, Entmax(1.5), LearnableEntmax())
    )
    assert {key.split(".")[0] for key in plain} == {"source_embedding", "target_embedding", "output", "body"}
    assert plain == sparse
    assert learnt - plain == {"output_mapping.weight", "fenchel_young.mapping.weight"}


def test_other_mappings_and_other_layers_have_the_loss_of_all_scores(folder: Path) -> None:
    data = data_of(folder)
    data.setup("fit")
    hidden, gold = torch.randn(30, 16), torch.randint(5, (30,))
    for mapping in (Fusedmax(), Sparsemax()):
        model = model_of(mapping).build(data.vocabularies)
        assert model.fenchel_young is not None
        expected = model.fenchel_young(model.output(hidden), gold)
        torch.testing.assert_close(model._losses(hidden, gold)[0], expected)
        model.output.register_forward_hook(lambda module, inputs, output: 2 * output)
        expected = model.fenchel_young(model.output(hidden), gold)
        torch.testing.assert_close(model._losses(hidden, gold)[0], expected)
        model.output = nn.Sequential(model.output)  # type: ignore[assignment]
        torch.testing.assert_close(model._losses(hidden, gold)[0], expected)
