"""The internals of Lightning that the package uses have the names and the order that it expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import pytorch_lightning.callbacks
from pytorch_lightning.callbacks import ModelCheckpoint, ModelPruning
from pytorch_lightning.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync

from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import ConfigurationError
from lit_sparse.lightning.internals import after_restore, given_hyperparameters
from lit_sparse.lightning.process_states import META, VALUES
from lit_sparse.lightning.states import LAST, REFUSED, SAVER
from lit_sparse.models import LitSparseModule, RobustClassifier, SupervisedOnlineAutoencoder
from lit_sparse.nn import ConvNet


class Watched(RobustClassifier):
    """Notes when its initial values would be made."""

    def __init__(self) -> None:
        super().__init__(network=ConvNet(8, 8, channels=[2], hidden=4), in_features=64)
        self.events: list[str] = []

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit":
            after_restore(self.trainer, lambda: self.events.append("initialize"))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.events.append("restore")

    def configure_optimizers(self) -> Any:
        self.events.append("optimizers")
        return super().configure_optimizers()


class Sane(pl.Callback):
    """Counts sanity checks."""

    count = 0

    def on_sanity_check_start(self, *_: Any) -> None:
        self.count += 1


def trainer(folder: Path, epochs: int) -> pl.Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return pl.Trainer(
        default_root_dir=folder,
        max_epochs=epochs,
        limit_train_batches=2,
        limit_val_batches=1,
        enable_checkpointing=False,
        **quiet,
    )


def test_initial_values_are_made_between_restoring_and_the_optimizers(tmp_path: Path) -> None:
    data, first = DigitsDataModule(labelled=1.0), Watched()
    fitting = trainer(tmp_path, 1)
    fitting.fit(first, data)
    assert first.events == ["initialize", "optimizers"]
    fitting.save_checkpoint(tmp_path / "one.ckpt")
    again = Watched()
    trainer(tmp_path, 2).fit(again, data, ckpt_path=tmp_path / "one.ckpt", weights_only=True)
    assert again.events == ["restore", "optimizers"]
    fitting.fit(first, data)  # the trainer is as it was
    assert first.events.count("initialize") == 2


def test_a_sanity_check_is_left_out_of_the_fit_that_continues_alone(tmp_path: Path) -> None:
    data, model, sane = DigitsDataModule(labelled=1.0), Watched(), Sane()
    fitting = trainer(tmp_path, 1)
    fitting.callbacks.append(sane)  # type: ignore[attr-defined]
    fitting.fit(model, data)
    assert sane.count == 1
    fitting.save_checkpoint(tmp_path / "one.ckpt")
    fitting.fit_loop.max_epochs = 2
    fitting.fit(model, data, ckpt_path=tmp_path / "one.ckpt", weights_only=True)
    assert sane.count == 1
    fitting.fit_loop.max_epochs = 3
    fitting.fit(model, data)
    assert sane.count == 2


@pytest.mark.parametrize(
    "path",
    [
        "fit_loop.epoch_loop._batches_that_stepped",
        "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.increment_completed",
        "fit_loop.epoch_loop._should_accumulate",
        "fit_loop.epoch_loop._should_check_val_fx",
        "fit_loop.epoch_loop._num_ready_batches_reached",
        "fit_loop.epoch_loop.update_lr_schedulers",
        "fit_loop.epoch_loop.val_loop._has_run",
        "fit_loop.epoch_loop._results.log",
        "fit_loop.epoch_loop.scheduler_progress.increment_ready",
        "fit_loop._data_fetcher",
        "fit_loop._restarting",
        "_checkpoint_connector._restore_modules_and_callbacks",
        "_run_sanity_check",
        "_logger_connector._first_loop_iter",
        "_logger_connector.should_update_logs",
        "_logger_connector.metrics",
    ],
)
def test_a_name_is_there(path: str, tmp_path: Path) -> None:
    found: Any = trainer(tmp_path, 1)
    *parts, last = path.split(".")
    for part in parts:
        found = getattr(found, part)
    assert last in dir(found)


def test_callbacks_have_the_names_that_checkpoints_keep() -> None:
    saver = ModelCheckpoint()
    assert {*SAVER, LAST} <= vars(saver).keys()
    assert callable(saver.file_exists)
    assert set(REFUSED) <= set(pytorch_lightning.callbacks.__all__)
    assert hasattr(ModelPruning("l1_unstructured"), "_use_lottery_ticket_hypothesis")
    meta = _Metadata("training_step", "loss", _sync=_Sync())
    assert all(hasattr(meta, name) for name in META)
    assert all(hasattr(_ResultMetric(meta, True), name) for name in VALUES)


def test_no_model_is_built_by_the_command_line() -> None:
    assert given_hyperparameters() == {}


@pytest.mark.parametrize(
    ("base", "hook"),
    [
        *((LitSparseModule, name) for name in ("on_save_checkpoint", "on_train_batch_start", "setup")),
        *((SupervisedOnlineAutoencoder, name) for name in ("on_train_epoch_start", "on_load_checkpoint")),
        *((DigitsDataModule, name) for name in ("state_dict", "load_state_dict")),
    ],
)
def test_hooks_call_those_of_the_base_class(base: type, hook: str) -> None:
    def silent(self: Any, *_: Any) -> None: ...
    def replaced(self: Any, *_: Any) -> None: ...

    silent.__code__ = silent.__code__.replace(co_name=hook)
    for bases in ((base,), (type("Mixin", (), {hook: silent}), base)):  # itself, or before the package's class
        named = "Own" if bases == (base,) else "Mixin"
        with pytest.raises(ConfigurationError, match=rf"Expected `{hook}` of {named} to call `super\(\)\.{hook}`"):
            type("Own", bases, {hook: silent} if bases == (base,) else {})
    type("Own", (base,), {"on_train_batch_end": silent, "load": silent, hook: replaced})


def test_a_hook_may_call_that_of_the_base_class_within_a_function() -> None:
    class Own(RobustClassifier):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            def store() -> None:
                super(Own, self).on_save_checkpoint(checkpoint)

            store()

    assert issubclass(Own, RobustClassifier)
