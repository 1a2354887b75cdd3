"""Averages of weights are of the whole model, and a run that is continued has them again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from lit_sparse.cli.stopping import DrawWhenStopped
from lit_sparse.data import DigitsDataModule, TranslationDataModule
from lit_sparse.mappings import Sparsemax
from lit_sparse.models import RobustClassifier, Seq2Seq
from lit_sparse.nn import MLP, RecurrentBody
from lit_sparse.risks import SafeKLDRO
from tests.data.pairs import write_pairs

AVERAGES: dict[str, Any] = {
    "exponential": partial(pl.callbacks.EMAWeightAveraging, decay=0.5),
    "stochastic": partial(pl.callbacks.StochasticWeightAveraging, swa_lrs=0.02, swa_epoch_start=1, annealing_epochs=2),
}
SGD: Any = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
Model = RobustClassifier | Seq2Seq


def parts(kind: str, folder: Path, **options: Any) -> tuple[Model, pl.LightningDataModule]:
    """Return a model whose risk learns a dual variable, or one whose layers are made when it knows the data; and its data."""
    torch.manual_seed(0)
    if kind == "robust":
        risk = SafeKLDRO(2.0, 0.1, dual_lr=0.3, initial_dual=0.0)
        model = RobustClassifier(network=MLP([64, 5, 10]), in_features=64, risk=risk, optimizer=SGD, **options)
        return model, DigitsDataModule(labelled=1.0, epoch_size=40, batch_size=10, val_size=41, test_size=41)
    for split in ("train", "val", "test"):
        write_pairs(folder, split, 32)
    data = TranslationDataModule(str(folder), source="de", target="en", batch_size=8, eval_batch_size=8)
    return Seq2Seq(Sparsemax(), RecurrentBody(6, 1, 0.1), optimizer=SGD, **options), data


class Stop(pl.Callback):
    """Write a checkpoint after a batch, and end the process's training as a kill does."""

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            raise KeyError("killed")


def fit(model: Model, data: pl.LightningDataModule, *callbacks: pl.Callback, resumed: Path | None = None, **more: Any) -> Any:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"max_epochs": 4, "enable_checkpointing": False, **quiet, **more}
    trainer = pl.Trainer(accelerator="cpu", callbacks=list(callbacks), **options)
    trainer.fit(model, data, ckpt_path=resumed)
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    assert [name for name, value in theirs.items() if not torch.equal(ours[name], value)] == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("kind", ["robust", "text"])
def test_a_continued_run_has_the_same_averages(kind: str, average: str, tmp_path: Path) -> None:
    whole = fit(*parts(kind, tmp_path), AVERAGES[average]())
    path = tmp_path / "cut.ckpt"
    with pytest.raises(KeyError, match="killed"):
        fit(*parts(kind, tmp_path), AVERAGES[average](), Stop(path, 10))
    assert_equal(fit(*parts(kind, tmp_path), AVERAGES[average](), resumed=path), whole)


@pytest.mark.filterwarnings("ignore")
def test_averages_begin_with_the_weights_of_a_warm_start(tmp_path: Path) -> None:
    model, data = parts("text", tmp_path)
    first = fit(model, data, max_epochs=1)
    model.trainer.save_checkpoint(tmp_path / "first.ckpt")
    never = pl.callbacks.EMAWeightAveraging(update_starting_at_step=1000)
    last = fit(*parts("text", tmp_path, initial_weights=str(tmp_path / "first.ckpt")), never, max_epochs=1)
    weights = dict(model.named_parameters())
    assert_equal({name: last[name] for name in weights}, {name: first[name] for name in weights})


class Drawn(DrawWhenStopped):
    """Keep the weights that pictures see after the end, and whether validation has run before."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: Any = None
        self.checked = False

    def on_sanity_check_start(self, *_: Any) -> None:
        self.checked = True

    def _draw(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.weights = {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("average", AVERAGES)
def test_pictures_of_a_run_that_had_ended_show_the_averages_and_the_last_validation(average: str, tmp_path: Path) -> None:
    saver = pl.callbacks.ModelCheckpoint(tmp_path, "last", save_on_train_epoch_end=True, enable_version_counter=False)
    options: dict[str, Any] = {"enable_checkpointing": True}
    whole, drawn = fit(*parts("robust", tmp_path), AVERAGES[average](), saver, **options), Drawn()
    fit(*parts("robust", tmp_path), AVERAGES[average](), drawn, resumed=tmp_path / "last.ckpt", **options)
    assert_equal(drawn.weights, whole)
    assert not drawn.checked


@pytest.mark.filterwarnings("ignore")
def test_a_file_is_written_once_in_a_step_of_several_batches(tmp_path: Path) -> None:
    def files() -> list[int]:
        loops = [torch.load(path, weights_only=True)["loops"] for path in sorted(tmp_path.glob("*.ckpt"))]
        return [loop["fit_loop"]["epoch_loop.batch_progress"]["total"]["processed"] for loop in loops]

    names: dict[str, Any] = {"filename": "{step}", "save_top_k": -1, "enable_version_counter": False}
    saver = partial(pl.callbacks.ModelCheckpoint, tmp_path, every_n_train_steps=2, **names)
    options: dict[str, Any] = {"enable_checkpointing": True, "accumulate_grad_batches": 2, "max_epochs": 2}
    fit(*parts("robust", tmp_path), saver(), **options)
    assert files() == [4, 8]
    fit(*parts("robust", tmp_path), saver(), resumed=tmp_path / "step=2.ckpt", **options)
    assert files() == [4, 8]
