"""A run with any feature of Lightning that is killed and continued is, to the last bit, one that was never killed."""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning.callbacks
import torch
from torch import Tensor

from .conftest import ROOT, Command

SUPPORT = ROOT / "tests" / "support"
PAGE = ROOT / "docs" / "explanation" / "exactness_and_reproducibility.md"
KILLER = "--trainer.callbacks+=interruptions.KillAtMoment"
#: Steps between checkpoints; an epoch has 10 batches.
EVERY = 4
SOAE = ("-c", str(SUPPORT / "soae.yaml"), "--data.init_args.epoch_size=100")
DDP = ("-c", "trainer/ddp_cpu")


@dataclass(frozen=True)
class Case:
    """A run that uses a feature.

    Attributes:
        options: options of the run.
        config: its config.
        measured: beginnings of the names of logged values that are measured.
        clock: whether validations depend on the clock, so that only what is trained can be compared.
        refused: part of the refusal, for a feature that is not continued.
    """

    options: tuple[str, ...] = ()
    config: tuple[str, ...] = ("-c", str(SUPPORT / "features.yaml"))
    measured: tuple[str, ...] = ()
    clock: bool = False
    refused: str = ""


def options_of(path: str, options: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{path}.{name}={value}" for name, value in options.items())


def callback(name: str, **options: Any) -> tuple[str, ...]:
    return (f"--trainer.callbacks+={name}", *options_of("--trainer.callbacks", options))


def trainer(**options: Any) -> tuple[str, ...]:
    return options_of("--trainer", options)


def scheduler(name: str, **options: Any) -> tuple[str, ...]:
    path = "--model.init_args.lr_scheduler"
    return (f"{path}={name}", *options_of(path, options))


def saver(**options: Any) -> Case:
    return Case(callback("ModelCheckpoint", **options))


AVERAGED = callback("StochasticWeightAveraging", swa_lrs=0.01, swa_epoch_start=2)
TRAINED = "--model.init_args.optimizer=features.Trained"
PRUNED = callback("ModelPruning", pruning_fn="l1_unstructured", amount=0.2)
EXPONENTIAL = scheduler("torch.optim.lr_scheduler.ExponentialLR", gamma=0.9)
ONE_CYCLE = {"scheduler": "torch.optim.lr_scheduler.OneCycleLR", "scheduler.max_lr": 0.5, "scheduler.total_steps": 40}
PLATEAU = {"monitor": "val/loss", "patience": 0, "threshold": 0.5, "factor": 0.3}

#: Features by the names of the page's table, each with what distinguishes a case after a colon.
CASES = {
    "StochasticWeightAveraging: in place of a scheduler": Case(AVERAGED, SOAE),
    "StochasticWeightAveraging: batch normalization": Case((*AVERAGED, *trainer(limit_val_batches=0))),
    "StochasticWeightAveraging: linear": Case(
        (*AVERAGED, "--trainer.callbacks.annealing_strategy=linear", "--trainer.callbacks.annealing_epochs=2")
    ),
    "StochasticWeightAveraging: two processes": Case((*DDP, *AVERAGED)),
    "WeightAveraging": Case(callback("WeightAveraging")),
    "EMAWeightAveraging: steps": Case(callback("EMAWeightAveraging", decay=0.9, update_every_n_steps=2)),
    "EMAWeightAveraging: epochs": Case(
        callback("EMAWeightAveraging", decay=0.9, update_every_n_steps=0, update_starting_at_epoch=1)
    ),
    "EarlyStopping": Case(callback("EarlyStopping", monitor="val/loss", patience=3, min_delta=0.05)),
    "ModelCheckpoint: best two and last": saver(monitor="val/loss", save_top_k=2, save_last="true"),
    "ModelCheckpoint: a metric of steps": saver(
        monitor="train/loss_step", save_top_k=3, every_n_train_steps=3, filename="'{step}'"
    ),
    "ModelCheckpoint: all": saver(monitor="epoch", save_top_k=-1, every_n_train_steps=4),
    "ModelCheckpoint: put off until validation": saver(monitor="val/loss", save_top_k=2, every_n_train_steps=5),
    "ModelCheckpoint: a link to the last": saver(monitor="val/loss", dirpath="kept", save_last="link", every_n_epochs=1),
    "ModelCheckpoint: by the clock": saver(save_top_k=1, train_time_interval="0:00:00"),
    "OnExceptionCheckpoint": Case(callback("OnExceptionCheckpoint", dirpath="kept")),
    "LearningRateMonitor": Case((*callback("LearningRateMonitor", log_momentum="true"), *EXPONENTIAL)),
    "DeviceStatsMonitor": Case(callback("DeviceStatsMonitor"), measured=("DeviceStatsMonitor",)),
    "ThroughputMonitor": Case(
        callback("ThroughputMonitor", batch_size_fn="features.size_of"), measured=("train/", "train|", "validate")
    ),
    "Timer": Case(callback("Timer", duration="01:00:00:00", interval="step")),
    "LambdaCallback": Case(callback("LambdaCallback", on_train_epoch_start="features.halve_rates")),
    "GradientAccumulationScheduler": Case(callback("GradientAccumulationScheduler", scheduling="{0: 2, 2: 3}")),
    "BaseFinetuning": Case((TRAINED, *callback("features.Freezing"))),
    "BackboneFinetuning": Case((TRAINED, *callback("BackboneFinetuning", unfreeze_backbone_at_epoch=1))),
    "ModelPruning: lottery tickets": Case(PRUNED),
    "ModelPruning: masks": Case(
        (
            *PRUNED,
            *(f"--trainer.callbacks.{name}=false" for name in ("use_lottery_ticket_hypothesis", "make_pruning_permanent")),
        )
    ),
    "RichProgressBar": Case(trainer(enable_progress_bar="true")),
    "BatchSizeFinder": Case(
        callback("BatchSizeFinder", max_trials=2, steps_per_trial=1, init_val=5),
        refused="BatchSizeFinder, which searches again",
    ),
    "LearningRateFinder": Case(
        callback("LearningRateFinder", num_training_steps=5, update_attr="false"),
        refused="LearningRateFinder, which searches again",
    ),
    "SpikeDetection": Case(callback("SpikeDetection", rtol=50), refused="SpikeDetection, which cannot restore"),
    "self.log": Case(),
    "accumulate_grad_batches": Case(trainer(accumulate_grad_batches=3)),
    "accumulate_grad_batches: validation in between": Case(trainer(accumulate_grad_batches=3, val_check_interval=4)),
    "accumulate_grad_batches: checkpoints in between": Case(
        (
            *trainer(accumulate_grad_batches=3),
            *callback("ModelCheckpoint", dirpath="runs/features/0/checkpoints", filename="last", train_time_interval="0:00:00"),
            "--trainer.callbacks.enable_version_counter=false",
        )
    ),
    "accumulate_grad_batches: two processes": Case(
        (
            *(*DDP, *trainer(accumulate_grad_batches=3, val_check_interval=2)),
            *callback("ModelCheckpoint", dirpath="runs/features/0/checkpoints", filename="last", train_time_interval="0:00:00"),
            "--trainer.callbacks.enable_version_counter=false",
        )
    ),
    "gradient_clip_val: norm": Case(trainer(gradient_clip_val=0.1)),
    "gradient_clip_val: value": Case(trainer(gradient_clip_val=0.01, gradient_clip_algorithm="value")),
    "val_check_interval: a share": Case(trainer(val_check_interval=0.25)),
    "val_check_interval: a count": Case(trainer(val_check_interval=3)),
    "val_check_interval: across epochs": Case(trainer(val_check_interval=7, check_val_every_n_epoch="null")),
    "val_check_interval: by the clock": Case(trainer(val_check_interval="00:00:00:01"), clock=True),
    "check_val_every_n_epoch": Case(trainer(check_val_every_n_epoch=2)),
    "limit_train_batches": Case(trainer(limit_train_batches=0.7, limit_val_batches=2)),
    "reload_dataloaders_every_n_epochs": Case(trainer(reload_dataloaders_every_n_epochs=1)),
    "overfit_batches": Case(trainer(overfit_batches=4)),
    "max_steps": Case(trainer(max_steps=33, max_epochs=-1)),
    "max_time": Case(trainer(max_time="00:01:00:00")),
    "64-true": Case(trainer(precision="64-true")),
    "bf16-mixed": Case(trainer(precision="bf16-mixed")),
    "bf16-true": Case(trainer(precision="bf16-true")),
    "16-true": Case(trainer(precision="16-true")),
    "ReduceLROnPlateau": Case(scheduler("pytorch_lightning.cli.ReduceLROnPlateau", **PLATEAU)),
    "CosineAnnealingWarmRestarts": Case(scheduler("torch.optim.lr_scheduler.CosineAnnealingWarmRestarts", T_0=2)),
    "OneCycleLR": Case(scheduler("StepwiseLR", **ONE_CYCLE)),
    "ExponentialLR": Case(EXPONENTIAL),
    "SequentialLR": Case(scheduler("features.ThenConstant")),
    "ddp": Case(DDP),
}
#: The cases of the gate: those that were lost in silence, and a refusal.
GATE = ("StochasticWeightAveraging: in place of a scheduler", "self.log", "BatchSizeFinder")


def chosen(passed: list[str], name: str, kills: int) -> Iterator[str]:
    """Choose moments of many kinds, one after another, from those after the first checkpoint; each case begins elsewhere."""
    first = max(place for place, moment in enumerate(passed) if moment == f"saved {EVERY}") + 1
    before = set(passed[:first])
    kinds = sorted({moment.split()[0] for moment in passed[first:]})
    turn = zlib.crc32(name.encode())
    wanted = sorted(kinds, key=lambda kind: (kinds.index(kind) - turn) % len(kinds))
    for number in range(kills):
        low, high = (first + (len(passed) - first) * place // kills for place in (number, number + 1))
        moments = [moment for moment in passed[low:high] if moment not in before]
        kind = next(kind for kind in wanted if any(moment.startswith(f"{kind} ") for moment in moments))
        wanted.append(wanted.pop(wanted.index(kind)))
        yield next(moment for moment in moments if moment.startswith(f"{kind} "))


def flat(found: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values of nested dicts and lists, and the numbers of their entries."""
    if isinstance(found, dict | list | tuple):
        yield f"{place}.len", len(found)
        for name, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from flat(value, f"{place}.{name}")
    else:
        yield place, found


def state_of(run: Path, *, clock: bool) -> dict[str, Any]:
    """Return all values of a run's last checkpoint, but those measured in seconds."""
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    for process in checkpoint["states"]["processes"]:
        process["logged"] = [entry for entry in process["logged"] if entry["meta"]["name"] != "train/seconds"]
    if clock:
        checkpoint = {name: checkpoint[name] for name in ("state_dict", "optimizer_states", "lr_schedulers")}
    other = ("SecondsLogger", "train/seconds", "time_elapsed")
    return {name: value for name, value in flat(checkpoint) if not any(part in name for part in other)}


def same(ours: Any, theirs: Any) -> bool:
    if not isinstance(theirs, Tensor):
        return bool(ours == theirs)
    return isinstance(ours, Tensor) and ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def rows_of(run: Path, measured: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the rows of a run's metrics without measured values, and without rows that have no others."""
    with (run / "metrics.csv").open(newline="") as file:
        rows = [
            {name: value for name, value in row.items() if value and not name.startswith(("train/seconds", *measured))}
            for row in csv.DictReader(file)
        ]
    return [row for row in rows if row.keys() - {"step", "epoch"}]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.gate if name in GATE else pytest.mark.slow) for name in CASES]
)
def test_a_run_that_is_killed_is_exact_or_refused(name: str, command_line: Command, tmp_path: Path) -> None:
    case = CASES[name]
    fit = ("fit", *case.config, *case.options, "--name=features", f"--checkpoint_every_n_steps={EVERY}")
    whole, cut = tmp_path / "whole", tmp_path / "cut"  # both run in the same folder, whose path is in checkpoints
    cut.mkdir()
    done = command_line(cut, *fit, KILLER, "--trainer.callbacks.record=moments")
    assert done.returncode == 0, done.stderr[-3000:]
    passed = (cut / "moments").read_text().splitlines()
    cut.rename(whole)
    cut.mkdir()
    kills = 1 if case.refused else 2 if "trainer/ddp_cpu" in case.options else 5
    moments = [*chosen(passed, name, kills), ""]
    for place, moment in enumerate(moments):
        killer = (KILLER, f"--trainer.callbacks.moment={moment}") if moment else (KILLER,)
        done = command_line(cut, *fit, *killer, *(["--ckpt_path=last"] if place else []))
        if moment and done.returncode != -9:
            assert "ddp_cpu" in " ".join(case.options) or case.clock, f"{moment}: {done.stderr[-3000:]}"
    if case.refused:
        assert done.returncode == 2
        assert f"Expected callbacks that can continue after a kill but got {case.refused}" in done.stderr
        return
    assert done.returncode == 0, f"{moments}: {done.stderr[-3000:]}"
    runs = [folder / "runs" / "features" / "0" for folder in (cut, whole)]
    ours, theirs = (state_of(run, clock=case.clock) for run in runs)
    assert ours.keys() == theirs.keys(), (moments, sorted(ours.keys() ^ theirs.keys())[:10])
    differ = [(place, ours[place], theirs[place]) for place in theirs if not same(ours[place], theirs[place])]
    assert not differ, (moments, differ[:10])
    if not case.clock:
        rows, expected = (rows_of(run, case.measured) for run in runs)
        assert rows == expected, moments
        left = [sorted(str(path.relative_to(folder)) for path in folder.rglob("*.ckpt")) for folder in (cut, whole)]
        assert left[0] == left[1], moments


@pytest.mark.gate
def test_a_checkpoint_of_an_exception_is_refused(command_line: Command, tmp_path: Path) -> None:
    fit = ("fit", *Case().config, *callback("OnExceptionCheckpoint", dirpath="kept"))
    done = command_line(tmp_path, *fit, KILLER, "--trainer.callbacks.moment=batch_end 14", "--trainer.callbacks.send=2")
    assert done.returncode == 130, done.stderr
    done = command_line(tmp_path, *fit, "--ckpt_path=kept/on_exception.ckpt")
    assert done.returncode == 2
    assert "Expected a checkpoint that was written after a batch" in done.stderr


def test_the_page_lists_the_features() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Continue a run")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    listed = {feature: verdict for _, features, verdict in rows[2:] for feature in re.findall("`(.+?)`", features)}
    assert listed == {name.partition(": ")[0]: "refused" if case.refused else "exact" for name, case in CASES.items()}
    no_state = {
        "BasePredictionWriter",
        "Callback",
        "Checkpoint",
        "ModelSummary",
        "ProgressBar",
        "RichModelSummary",
        "TQDMProgressBar",
    }
    assert set(pytorch_lightning.callbacks.__all__) - no_state <= listed.keys()
