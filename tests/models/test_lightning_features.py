"""Each model with a plain Trainer and the features of Lightning that its users expect."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import BasePredictionWriter, EMAWeightAveraging, ModelCheckpoint, ModelSummary
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.tuner import Tuner

from lit_sparse.callbacks import CountLogger

from .test_precision import MADE

pytestmark = [
    pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning"),
]
EACH = pytest.mark.parametrize("name", MADE)


def trainer(folder: Path, **options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    limits = dict.fromkeys(("limit_val_batches", "limit_test_batches", "limit_predict_batches"), 2)
    run = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "limit_train_batches": 4, "default_root_dir": folder}
    return pl.Trainer(**{**quiet, **limits, **run, **options})  # type: ignore[arg-type]


class Seen(BasePredictionWriter):
    """Notes the predictions that it gets."""

    def __init__(self) -> None:
        super().__init__("batch_and_epoch")
        self.batches: list[int] = []
        self.epoch = 0

    def write_on_batch_end(self, trainer: Any, module: Any, prediction: Any, indices: Any, *_: Any) -> None:
        self.batches.append(len(indices))

    def write_on_epoch_end(self, trainer: Any, module: Any, predictions: Any, indices: Any) -> None:
        self.epoch = len(predictions)


@pytest.mark.cases(quick=1, gate=2)
@EACH
def test_a_model_takes_the_features_of_lightning(name: str, tmp_path: Path) -> None:
    for options in ({"fast_dev_run": True}, {"overfit_batches": 1}):
        trainer(tmp_path, **options).fit(*MADE[name](tmp_path))
    pl.seed_everything(0)
    model, data = MADE[name](tmp_path)
    loggers, writer = [CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "board")], Seen()
    kernel = "Kernel" in name  # whose own optimizer has no weights to average, and adds up no gradients
    callbacks = [ModelSummary(2), writer, *([] if kernel else [EMAWeightAveraging(decay=0.5)])]
    options = {"profiler": "advanced", "logger": loggers, "callbacks": callbacks, "accumulate_grad_batches": 1 if kernel else 2}
    used = trainer(tmp_path, **{**options, "enable_model_summary": True})
    used.fit(model, data)
    (scores,) = used.validate(model, data, verbose=False)
    assert scores.keys() <= used.callback_metrics.keys() | scores.keys() and f"val/{model.count_name}" in scores
    used.predict(model, data)
    assert writer.epoch == len(writer.batches) > 0 and all(writer.batches)
    assert all(any(Path(str(logger.log_dir)).iterdir()) for logger in loggers)


@pytest.mark.cases(quick=1, gate=2)
@EACH
def test_a_plain_trainer_logs_counts_and_keeps_the_best_checkpoint(name: str, tmp_path: Path) -> None:
    pl.seed_everything(0)
    model, data = MADE[name](tmp_path)
    used = trainer(tmp_path, enable_checkpointing=True)
    used.fit(model, data)
    (saver,) = used.checkpoint_callbacks
    assert isinstance(saver, ModelCheckpoint) and (saver.monitor, saver.mode) == model.monitor
    assert float(saver.best_model_score) == pytest.approx(float(used.callback_metrics[model.monitor[0]]), abs=10)  # type: ignore[arg-type]
    assert Path(saver.last_model_path).name == "last.ckpt"
    used.test(model, data, verbose=False)
    assert sum(isinstance(callback, CountLogger) for callback in used.callbacks) == 1  # type: ignore[attr-defined]
    own = [CountLogger(8), ModelCheckpoint(tmp_path / "own", monitor=None)]
    used = trainer(tmp_path, callbacks=own, enable_checkpointing=True)
    used.fit(*MADE[name](tmp_path))
    assert all(callback in used.callbacks for callback in own) and len(used.checkpoint_callbacks) == 1  # type: ignore[attr-defined]


@pytest.mark.cases(quick=1, gate=2)
@EACH
def test_finders_set_the_rate_and_the_batch_size(name: str, tmp_path: Path) -> None:
    """A run after a search continues exactly."""
    if "Kernel" in name:
        pytest.skip("its own optimizer has the rate of the theory")
    weights = []
    for continued in (False, True):
        pl.seed_everything(0)
        model, data = MADE[name](tmp_path)
        saver = ModelCheckpoint(tmp_path / "run", every_n_train_steps=5, save_top_k=-1)
        before, used = model.lr, trainer(tmp_path, max_epochs=30, max_steps=8, callbacks=[saver], enable_checkpointing=True)
        found = Tuner(used).lr_find(model, data, num_training=15, min_lr=1e-4, max_lr=1e-2, early_stop_threshold=None)
        Tuner(used).scale_batch_size(model, datamodule=data, init_val=5, max_trials=2, steps_per_trial=1)
        assert model.lr == found.suggestion() != before and data.batch_size == 10
        path = next((tmp_path / "run").glob("*step=5.ckpt")) if continued else None
        used.fit(model, data, ckpt_path=path)
        assert {group["lr"] for group in used.optimizers[0].param_groups if not group.get("dual")} == {model.lr}
        weights.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    assert torch.equal(*weights)
    assert type(model).load_from_checkpoint(path).lr == model.lr


def test_each_validation_loader_has_its_own_means(tmp_path: Path) -> None:
    """The first one logs under the plain names, which are monitored."""
    model, data = MADE["SignalingGame"](tmp_path)
    used = trainer(tmp_path, limit_val_batches=1.0)
    expected = []
    data.setup(None)
    for loaders in (data.val_dataloader, data.test_dataloader):
        expected += used.validate(model, loaders(), verbose=False)
    used.validate(model, [data.val_dataloader(), data.test_dataloader()], verbose=False)
    names = expected[0].keys()
    assert expected[0] != expected[1] and "val/decoder_calls_mean" in names
    for place, suffix in enumerate(("", "/dataloader_idx_1")):
        assert {name: float(used.callback_metrics[f"{name}{suffix}"]) for name in names} == expected[place]
    assert len(used.callback_metrics) == 2 * len(names)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch.compile, which differ between its versions
@pytest.mark.cases(gate=1)
@EACH
def test_a_compiled_step_trains_as_the_step_does(name: str, tmp_path: Path) -> None:
    weights = []
    for compiled in (False, True):
        pl.seed_everything(0)
        model, data = MADE[name](tmp_path)
        model.optimizer = functools.partial(torch.optim.SGD, lr=0.01)  # Adam makes steps of rounding errors
        if compiled:
            model.compile(backend="eager")
            assert copy.deepcopy(model)._compiled_step is None, "a copy would compute with the weights of this one"
        trainer(tmp_path, max_epochs=1, limit_train_batches=1).fit(model, data)
        weights.append(torch.cat([torch.zeros(1), *(weight.detach().flatten() for weight in model.parameters())]))
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-4)
