"""States of a training that Lightning's checkpoints lack."""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping

from lit_sparse.cli.callbacks import checkpoints
from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import CheckpointError
from lit_sparse.ground.state_checks import check_state
from lit_sparse.lightning.choice import ModelCheckpoint
from lit_sparse.lightning.process_states import TWISTER
from lit_sparse.lightning.states import _replace_later_files
from lit_sparse.models import RobustClassifier
from lit_sparse.nn import MLP


@pytest.mark.parametrize("source", ["checkpoints", "checkpoints/top", "top"])
@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/top", "top"])
def test_a_continued_run_overwrites_its_later_checkpoints_in_all_its_folders(place: str, source: str, tmp_path: Path) -> None:
    def write(name: str, time: int) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if "sharded" in name else path.touch()
        os.utime(path, ns=(time, time))
        return path

    last = write(f"0/{source}/last.ckpt", 2)
    write("0/status.json", 1)
    earlier, later, inner = write(f"0/{place}/a.ckpt", 1), write(f"0/{place}/b.ckpt", 3), write(f"0/{place}/in/c.ckpt", 3)
    other, before, after = (
        write(*one) for one in ((f"1/{place}/b.ckpt", 3), (f"0/{place}/sharded.ckpt", 1), (f"0/{place}/sharded_2.ckpt", 3))
    )
    trainer: Any = SimpleNamespace(ckpt_path=last, strategy=SimpleNamespace(broadcast=lambda value: value))
    found = {}
    for path in (earlier, later, inner, other, before, after):
        saver: Any = ModelCheckpoint(dirpath=path.parent)
        saver.file_exists = lambda path, trainer: Path(path).exists()
        _replace_later_files(saver, trainer)
        found[path] = saver.file_exists(str(path), trainer)
    assert found == {earlier: True, later: False, inner: False, other: True, before: True, after: False}
    (after / "shard").touch()
    os.utime(after, ns=(3, 3))
    assert saver.file_exists(str(after), trainer), "this process has written it again"


def test_a_continued_run_replaces_a_later_link_to_a_checkpoint_that_it_has_written_again(tmp_path: Path) -> None:
    last, target, link = (tmp_path / "checkpoints" / name for name in ("last.ckpt", "k/0.ckpt", "last-v1.ckpt"))
    target.parent.mkdir(parents=True)
    (tmp_path / "status.json").touch()
    for time, path in enumerate((last, target)):
        path.touch()
        os.utime(path, ns=(time, time))
    link.symlink_to("k/0.ckpt")
    os.utime(link, ns=(1, 1), follow_symlinks=False)  # a clock may have been set back
    trainer: Any = SimpleNamespace(ckpt_path=last, strategy=SimpleNamespace(broadcast=lambda value: value))
    saver: Any = ModelCheckpoint(dirpath=last.parent)
    saver.file_exists = lambda path, trainer: Path(path).exists()
    _replace_later_files(saver, trainer)
    target.touch()
    assert not saver.file_exists(str(link), trainer)
    link.unlink()
    link.symlink_to("k/0.ckpt")
    assert saver.file_exists(str(link), trainer)  # it is this process's own now


def test_a_continued_run_without_a_folder_of_its_own_overwrites_later_checkpoints_beside_its_own_alone(tmp_path: Path) -> None:
    last, beside, other = (tmp_path / name for name in ("last.ckpt", "b.ckpt", "logs/b.ckpt"))
    other.parent.mkdir()
    for time, path in enumerate((last, beside, other)):
        path.touch()
        os.utime(path, ns=(time, time))
    trainer: Any = SimpleNamespace(ckpt_path=last, strategy=SimpleNamespace(broadcast=lambda value: value))
    for path in (beside, other):
        saver: Any = ModelCheckpoint(dirpath=path.parent)
        saver.file_exists = lambda path, trainer: Path(path).exists()
        _replace_later_files(saver, trainer)
        assert saver.file_exists(str(path), trainer) == (path == other)


class Draws(pl.Callback):
    """Draw from the generators of torch, numpy and Python in hooks, and write a checkpoint at one of the draws."""

    def __init__(self, path: Path | None = None, number: int = 0) -> None:
        self.path, self.number, self.drawn = path, number, dict[int, tuple[float, ...]]()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        place = len(self.drawn) if self.path else max(self.drawn, default=self.number) + 1
        self.drawn[place] = (float(torch.rand(())), np.random.normal(), random.gauss(0, 1))  # noqa: NPY002
        if self.path and place == self.number:
            trainer.save_checkpoint(self.path)

    def on_validation_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.on_train_batch_end(trainer)


def _fit(draws: Draws, resumed: Path | None = None) -> dict[int, tuple[float, ...]]:
    pl.seed_everything(3 if resumed is None else 4, verbose=False)
    model = RobustClassifier(network=MLP([64, 10]), in_features=64)
    data = DigitsDataModule(labelled=1.0, epoch_size=40, batch_size=10, val_size=41, test_size=41)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=2,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        callbacks=[draws],
        **quiet,
    )
    trainer.fit(model, data, ckpt_path=resumed)
    return draws.drawn


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", [1, 3, 4])  # within an epoch, before its validation, and after it
def test_a_continued_run_draws_the_same_numbers_in_hooks(number: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.ckpt"
    whole = _fit(Draws(path, number))
    continued = _fit(Draws(number=number), path)
    assert continued == {place: drawn for place, drawn in whole.items() if place > number}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [True, "link"])
def test_a_saver_of_the_users_does_not_write_the_last_checkpoint_of_a_run(kind: Any, tmp_path: Path) -> None:
    model = RobustClassifier(network=MLP([64, 10]), in_features=64)
    saver = ModelCheckpoint(tmp_path, "k/{step}", every_n_train_steps=1, save_top_k=-1, save_last=kind, save_weights_only=True)
    named = ModelCheckpoint(tmp_path, "best", every_n_train_steps=2, save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=3,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saver, named, *checkpoints(tmp_path, model, 2)],
    )
    trainer.fit(model, DigitsDataModule(labelled=1.0, epoch_size=40, batch_size=10))
    assert "optimizer_states" in torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert Path(saver.last_model_path).name == "last-v1.ckpt"
    assert not (tmp_path / "best.ckpt").exists()  # without a validation, the run has none


@pytest.mark.parametrize("entry", [(624, 625), (624, -1), (0, 2**32), (slice(None), 2**32), None])
def test_a_malformed_state_of_a_generator_is_refused(entry: Any) -> None:
    """numpy would draw from outside of its words."""
    words = torch.arange(625)
    check_state("a.ckpt", "numpy", [words, 0.5], TWISTER)
    if entry is None:
        words = words[:-1]
    else:
        words[entry[0]] = entry[1]
    with pytest.raises(CheckpointError, match="624 words and a position"):
        check_state("a.ckpt", "numpy", [words, 0.5], TWISTER)


@pytest.mark.filterwarnings("ignore")
def test_another_generator_of_numpy_is_left_alone(tmp_path: Path) -> None:
    former = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        _fit(Draws(tmp_path / "cut.ckpt", 1))
        assert len(_fit(Draws(number=1), tmp_path / "cut.ckpt")) > 0
    finally:
        np.random.set_bit_generator(former)


class Shrinking(EarlyStopping):
    """Stops after a patience that shrinks in training."""

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        self.patience -= 1

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "patience": self.patience}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("given", "left"), [(9, 6), (8, 7)])
def test_the_patience_that_a_callback_restores_is_kept_unless_the_user_changes_it(
    given: int, left: int, tmp_path: Path
) -> None:
    for patience, epochs, path in ((9, 2, None), (given, 3, tmp_path / "last.ckpt")):
        stopping = Shrinking("val/loss", patience=patience)
        quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            num_sanity_val_steps=0,
            enable_checkpointing=False,
            callbacks=[stopping],
            **quiet,
        )
        model = RobustClassifier(network=MLP([64, 10]), in_features=64)
        trainer.fit(model, DigitsDataModule(labelled=1.0, epoch_size=40), ckpt_path=path)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert stopping.patience == left
