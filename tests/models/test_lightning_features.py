"""Each model and each data module with a plain Trainer and the features of Lightning that its users expect."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from PIL import Image
from pytorch_lightning.callbacks import BasePredictionWriter, EMAWeightAveraging, ModelCheckpoint, ModelSummary
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.tuner import Tuner

from lit_sparse.callbacks import CountLogger
from lit_sparse.coresets import Uniform
from lit_sparse.data import (
    CaliforniaHousingDataModule,
    ColoredDigitsDataModule,
    CoresetDataModule,
    ImageFolderDataModule,
    ImageTableDataModule,
    MNISTDataModule,
    PairDataModule,
    SummarizationDataModule,
    TableDataModule,
)
from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.regression.california_housing import RAW
from lit_sparse.mappings import BatchTopK, Sparsemax
from lit_sparse.models import RobustClassifier, RobustRegressor, Seq2Seq, SparseAutoencoder
from lit_sparse.nn import ConvNet, RecurrentBody
from lit_sparse.testing import concrete_subclasses
from tests.data.encoder import tiny_activations
from tests.data.images.test_mnist import idx
from tests.data.pairs import write_pairs

from .test_precision import ADAM, MADE, Pair, digits

pytestmark = [
    pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning"),
]


def _images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def _classified(data: pl.LightningDataModule, height: int = 8, colors: int = 1) -> Pair:
    network = ConvNet(height, height, colors=colors, channels=[4], hidden=8)
    return RobustClassifier(network=network, in_features=colors * height**2, optimizer=ADAM), data


def _mnist(folder: Path) -> Pair:
    for prefix, size in (("train", 80), ("t10k", 20)):
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(_images(size, 28, 28)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(np.arange(size) % 10))
    return _classified(MNISTDataModule(folder=str(folder), val_size=20, labelled=1.0, batch_size=16), 28)


def _folder(folder: Path) -> Pair:
    for number, pixels in enumerate(_images(80, 8, 8)):
        path = folder / ("train", "val", "test")[max(0, number % 5 - 2)] / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return _classified(ImageFolderDataModule(str(folder), size=(8, 8), labelled=1.0, batch_size=10))


def _archive(folder: Path) -> Pair:
    parts = np.array(["train", "train", "train", "val", "test"] * 16)
    np.savez(folder / "images.npz", images=_images(80, 8, 8), labels=np.arange(80) % 3, split=parts)
    return _classified(ImageTableDataModule(str(folder / "images.npz"), labelled=1.0, batch_size=10))


def _table(folder: Path, columns: Sequence[str], size: int = 60) -> str:
    rows = np.random.default_rng(0).integers(1, 60, (size, len(columns)))
    np.savetxt(folder / "t.csv", rows, delimiter=",", fmt="%d", header=",".join(columns), comments="")
    return str(folder / "t.csv")


def _pairs(kind: type[PairDataModule], folder: Path) -> Pair:
    for split in ("train", "val", "test"):
        write_pairs(folder, split, 30)
    data = kind(str(folder), source="de", target="en", batch_size=8)
    return Seq2Seq(Sparsemax(), RecurrentBody(8, 1, 0.1), max_output=5, optimizer=ADAM), data


#: The data modules that no model above is trained on, each with one that is.
OTHERS: dict[str, Callable[[Path], Pair]] = {
    "ActivationDataModule": lambda folder: (
        SparseAutoencoder(BatchTopK(2), in_features=8, width=8, optimizer=ADAM),
        tiny_activations(folder, batch_size=8),
    ),
    "CaliforniaHousingDataModule": lambda folder: (
        RobustRegressor(in_features=9, optimizer=ADAM),
        CaliforniaHousingDataModule(path=_table(folder, RAW), batch_size=8),
    ),
    "ColoredDigitsDataModule": lambda _: _classified(ColoredDigitsDataModule(labelled=1.0, batch_size=50), colors=2),
    "CoresetDataModule": lambda _: _classified(
        CoresetDataModule(digits(labelled=1.0), Uniform(), 100, lambda examples: torch.ones(len(examples), 1))
    ),
    "ImageFolderDataModule": _folder,
    "ImageTableDataModule": _archive,
    "MNISTDataModule": _mnist,
    "PairDataModule": functools.partial(_pairs, PairDataModule),
    "SummarizationDataModule": functools.partial(_pairs, SummarizationDataModule),
    "TableDataModule": lambda folder: (
        RobustRegressor(in_features=3, optimizer=ADAM),
        TableDataModule(_table(folder, "abc"), features="a,b", target="c", batch_size=8),
    ),
}
PAIRS = MADE | OTHERS
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


def test_each_data_module_is_trained_on(tmp_path: Path) -> None:
    kinds = {type(make(tmp_path)[1]) for make in MADE.values()}
    assert {kind.__name__ for kind in kinds} | {*OTHERS} == {kind.__name__ for kind in concrete_subclasses(ResumableDataModule)}
    assert all(type(OTHERS[name](tmp_path)[1]).__name__ == name for name in OTHERS if name != "ActivationDataModule")


@pytest.mark.cases(quick=2, gate=4)
@pytest.mark.parametrize("name", PAIRS)
def test_a_model_takes_the_features_of_lightning(name: str, tmp_path: Path) -> None:
    for options in ({"fast_dev_run": True}, {"overfit_batches": 1}):
        trainer(tmp_path, **options).fit(*PAIRS[name](tmp_path))
    pl.seed_everything(0)
    model, data = PAIRS[name](tmp_path)
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


@pytest.mark.cases(quick=2, gate=4)
@pytest.mark.parametrize("name", PAIRS)
def test_finders_set_the_rate_and_the_batch_size(name: str, tmp_path: Path) -> None:
    """A run after a search continues exactly."""
    if "Kernel" in name:
        pytest.skip("its own optimizer has the rate of the theory")
    weights = []
    for continued in (False, True):
        pl.seed_everything(0)
        model, data = PAIRS[name](tmp_path)
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
