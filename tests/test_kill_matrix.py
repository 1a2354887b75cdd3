"""A run with any feature of Lightning that is killed and continued is, to the last bit, one that was never killed."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from .conftest import ROOT, Command

SUPPORT = ROOT / "tests" / "support"
FEATURES = ("-c", str(SUPPORT / "features.yaml"))
SOAE = ("-c", str(SUPPORT / "soae.yaml"), "--data.init_args.epoch_size=100")
EVERY = 4
KILLER = "--trainer.callbacks+=interruptions.KillAtMoment"


def callback(name: str, **options: Any) -> tuple[str, ...]:
    return (f"--trainer.callbacks+={name}", *(f"--trainer.callbacks.{key}={value}" for key, value in options.items()))


def trainer(**options: Any) -> tuple[str, ...]:
    return tuple(f"--trainer.{key}={value}" for key, value in options.items())


def scheduler(name: str, **options: Any) -> tuple[str, ...]:
    path = "--model.init_args.lr_scheduler"
    return (f"{path}={name}", *(f"{path}.{key}={value}" for key, value in options.items()))


@dataclass(frozen=True)
class Case:
    """A feature, by the options of a run that uses it."""

    options: tuple[str, ...] = ()
    config: tuple[str, ...] = FEATURES
    #: Beginnings of names of logged values that are measured.
    measured: tuple[str, ...] = ()
    #: What the refusal says, for a feature that does not continue.
    refused: str = ""


CASES = {
    "none": Case(config=SOAE),
    "own": Case(),
    "swa": Case(callback("StochasticWeightAveraging", swa_lrs=0.01, swa_epoch_start=2), SOAE),
    "swa linear": Case(callback("StochasticWeightAveraging", swa_lrs=0.01, swa_epoch_start=2, annealing_strategy="linear", annealing_epochs=2)),
    "WeightAveraging": Case(callback("WeightAveraging")),
    "EMA": Case(callback("EMAWeightAveraging", decay=0.9, update_every_n_steps=2)),
    "EMA epoch": Case(callback("EMAWeightAveraging", decay=0.9, update_every_n_steps=0, update_starting_at_epoch=1)),
    "EarlyStopping": Case(callback("EarlyStopping", monitor="val/loss", patience=1, min_delta=0.05)),
    "topk": Case(callback("ModelCheckpoint", monitor="val/loss", save_top_k=2, save_last="true")),
    "topk steps": Case(callback("ModelCheckpoint", monitor="train/loss_step", save_top_k=3, every_n_train_steps=3, filename="'{step}'")),
    "all steps": Case(callback("ModelCheckpoint", monitor="epoch", save_top_k=-1, every_n_train_steps=4)),
    "deferred": Case(callback("ModelCheckpoint", monitor="val/loss", save_top_k=2, every_n_train_steps=5)),
    "link": Case(callback("ModelCheckpoint", monitor="val/loss", dirpath="kept", save_last="link", save_top_k=1, every_n_epochs=1)),
    "time": Case(callback("ModelCheckpoint", save_top_k=1, train_time_interval="0:00:00")),
    "LRMonitor": Case((*callback("LearningRateMonitor", log_momentum="true"), *scheduler("torch.optim.lr_scheduler.ExponentialLR", gamma=0.9))),
    "GradAcc": Case(callback("GradientAccumulationScheduler", scheduling="{0: 2, 2: 3}")),
    "Freezing": Case(("--model.init_args.optimizer=features.Trained", *callback("features.Freezing"))),
    "Backbone": Case(("--model.init_args.optimizer=features.Trained", *callback("BackboneFinetuning", unfreeze_backbone_at_epoch=1))),
    "pruning": Case(callback("ModelPruning", pruning_fn="l1_unstructured", amount=0.2)),
    "pruning2": Case(callback("ModelPruning", pruning_fn="l1_unstructured", amount=0.2, use_lottery_ticket_hypothesis="false", make_pruning_permanent="false")),
    "Timer": Case(callback("Timer", duration="01:00:00:00", interval="step")),
    "LRFinder": Case(callback("LearningRateFinder", num_training_steps=5, update_attr="false")),
    "BSFinder": Case(callback("BatchSizeFinder", max_trials=2, steps_per_trial=1, init_val=5)),
    "stats": Case(callback("DeviceStatsMonitor"), measured=("DeviceStatsMonitor",)),
    "OnException": Case(callback("OnExceptionCheckpoint", dirpath="kept")),
    "throughput": Case(callback("ThroughputMonitor", batch_size_fn="features.size_of"), measured=("train/", "validate/")),
    "spike": Case(callback("SpikeDetection", rtol=50)),
    "acc": Case(trainer(accumulate_grad_batches=3)),
    "acc val": Case(trainer(accumulate_grad_batches=3, val_check_interval=4)),
    "acc time": Case((*trainer(accumulate_grad_batches=3), *callback("ModelCheckpoint", filename="last", save_top_k=1, train_time_interval="0:00:00", enable_version_counter="false", auto_insert_metric_name="false", dirpath="runs/features/0/checkpoints"))),
    "clip": Case(trainer(gradient_clip_val=0.1)),
    "clip value": Case(trainer(gradient_clip_val=0.01, gradient_clip_algorithm="value")),
    "val share": Case(trainer(val_check_interval=0.25)),
    "val count": Case(trainer(val_check_interval=3)),
    "val across": Case(trainer(val_check_interval=7, check_val_every_n_epoch="null")),
    "val time": Case(trainer(val_check_interval="00:00:00:01")),
    "every 2": Case(trainer(check_val_every_n_epoch=2)),
    "limits": Case(trainer(limit_train_batches=0.7, limit_val_batches=2)),
    "reload": Case(trainer(reload_dataloaders_every_n_epochs=1)),
    "overfit": Case(trainer(overfit_batches=4)),
    "max_steps": Case(trainer(max_steps=33, max_epochs=-1)),
    "bf16-mixed": Case(trainer(precision="bf16-mixed")),
    "bf16-true": Case(trainer(precision="bf16-true")),
    "64": Case(trainer(precision="64-true")),
    "16-true": Case((*trainer(precision="16-true"),)),
    "plateau": Case(scheduler("pytorch_lightning.cli.ReduceLROnPlateau", monitor="val/loss", patience=0, threshold=0.5, factor=0.3)),
    "warm": Case(scheduler("torch.optim.lr_scheduler.CosineAnnealingWarmRestarts", T_0=2)),
    "onecycle": Case(scheduler("StepwiseLR", scheduler="torch.optim.lr_scheduler.OneCycleLR", **{"scheduler.max_lr": 0.5, "scheduler.total_steps": 40})),
    "det": Case(trainer(deterministic="true", detect_anomaly="true")),
    "ddp": Case(("-c", "trainer/ddp_cpu")),
    "ddp acc": Case(("-c", "trainer/ddp_cpu", *trainer(accumulate_grad_batches=3, val_check_interval=2))),
    "2 swa": Case(("-c", "trainer/ddp_cpu", *callback("StochasticWeightAveraging", swa_lrs=0.01, swa_epoch_start=2))),
    "bar": Case(trainer(enable_progress_bar="true")),
}


def moments(passed: list[str], kills: int) -> Iterator[str]:
    """Choose moments of all kinds, one after another, from those after the first checkpoint."""
    first = max(place for place, name in enumerate(passed) if name == f"saved {EVERY}") + 1
    kinds = list(dict.fromkeys(name.split()[0] for name in passed[first:]))
    used: dict[str, int] = dict.fromkeys(kinds, 0)
    for number in range(kills):
        low = first + (len(passed) - first) * number // kills
        high = first + (len(passed) - first) * (number + 1) // kills
        name = min(dict.fromkeys(passed[low:high]), key=lambda name: used[name.split()[0]])
        used[name.split()[0]] += 1
        yield name


def flat(found: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list | tuple) else None
    if inner is None:
        yield place, found
    else:
        yield f"{place}.len", len(found)
        for key, value in inner:
            yield from flat(value, f"{place}.{key}")


def state_of(folder: Path, run: str) -> dict[str, Any]:
    """Return all that a run leaves, except what is measured in seconds."""
    place = folder / "runs" / run / "0"
    checkpoint = torch.load(place / "checkpoints" / "last.ckpt", weights_only=True)
    for process in checkpoint["states"]["processes"]:
        process["logged"] = [entry for entry in process["logged"] if entry["meta"]["name"] != "train/seconds"]
    found = dict(flat(checkpoint))
    return {name: value for name, value in found.items() if "SecondsLogger" not in name and "time_elapsed" not in name and "_last_checkpoint_saved" not in name and "train/seconds" not in name}


def rows_of(folder: Path, run: str, measured: tuple[str, ...]) -> list[dict[str, str]]:
    with (folder / "runs" / run / "0" / "metrics.csv").open(newline="") as file:
        return [
            {name: value for name, value in row.items() if value and name != "train/seconds" and not name.startswith(measured or "?")}
            for row in csv.DictReader(file)
        ]


def same(ours: Any, theirs: Any) -> bool:
    if not isinstance(theirs, Tensor):
        return bool(ours == theirs)
    return isinstance(ours, Tensor) and ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def check(case: Case, command_line: Command, tmp_path: Path, kills: int = 5) -> None:
    fit = ("fit", *case.config, *case.options, "--name=features", f"--checkpoint_every_n_steps={EVERY}")
    whole, cut = tmp_path / "whole", tmp_path / "cut"  # both are written to the same folder, whose name is in checkpoints
    cut.mkdir()
    done = command_line(cut, *fit, KILLER, "--trainer.callbacks.record=moments")
    assert done.returncode == 0, done.stderr[-3000:]
    cut.rename(whole)
    cut.mkdir()
    statuses = []
    chosen = list(moments((whole / "moments").read_text().splitlines(), kills))
    for place, moment in enumerate([*chosen, ""]):
        killer = (KILLER, f"--trainer.callbacks.moment={moment}") if moment else (KILLER,)
        done = command_line(cut, *fit, *killer, *(["--ckpt_path=last"] if place else []))
        statuses.append(done.returncode)
        assert done.returncode in (0, -9) or "ddp" in case.options[:2][-1:][0], f"{moment}: {done.stderr[-3000:]}"
    assert statuses[-1] == 0, done.stderr[-3000:]
    print(list(zip(chosen, statuses)))
    ours, theirs = state_of(cut, "features"), state_of(whole, "features")
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())[:20]
    differ = [name for name, value in theirs.items() if not same(ours[name], value)]
    assert not differ, [(name[-70:], str(ours[name])[:60], str(theirs[name])[:60]) for name in differ[:12]]
    assert rows_of(cut, "features", case.measured) == rows_of(whole, "features", case.measured)
    for folder in ("runs/features/0/checkpoints", "kept"):
        assert sorted(path.name for path in (cut / folder).glob("*")) == sorted(path.name for path in (whole / folder).glob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_is_a_whole_run(case: str, command_line: Command, tmp_path: Path) -> None:
    check(CASES[case], command_line, tmp_path)
