"""Runs that are killed several times, at any moment, end as one that was never killed: weights, metrics, histories."""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

import pytest
import torch

from .conftest import CONFIGS, ROOT, Command

SUPPORT = ROOT / "tests" / "support"
pytestmark = pytest.mark.gate

DIGITS = (
    *("-c", str(CONFIGS / "ssvae" / "digits.yaml")),
    *("--trainer.limit_train_batches=10", "--trainer.check_val_every_n_epoch=1", "--trainer.log_every_n_steps=3"),
    *("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"),
)
STEPS = "--checkpoint_every_n_steps=4"


def run_all(command_line: Command, folder: Path, runs: list[list[str]]) -> list[int]:
    """Run command lines one after another; return their exit statuses."""
    return [command_line(folder, *run).returncode for run in runs]


def killed(fit: tuple[str, ...], name: str, *moments: str) -> list[list[str]]:
    """Return a run that is killed at some moments, each time continued, and at last let go to its end."""
    runs = []
    for place, moment in enumerate((*moments, "")):
        killer = ["--trainer.callbacks+=interruptions.KillAtMoment", f"--trainer.callbacks.{moment}"] if moment else []
        runs.append(["fit", *fit, f"--name={name}", *killer, *(["--ckpt_path=last"] if place else [])])
    return runs


def rows(run: Path) -> list[dict[str, float]]:
    """Return the rows of a run's metrics, less what is measured in seconds."""
    with (run / "metrics.csv").open(newline="") as file:
        return [
            {name: float(value) for name, value in row.items() if value and "seconds" not in name}
            for row in csv.DictReader(file)
        ]


def assert_same(cut: Path, whole: Path) -> None:
    """Compare all that is left of two runs."""
    ours, theirs = (torch.load(run / "checkpoints" / "last.ckpt", weights_only=True) for run in (cut, whole))
    assert ours["global_step"] == theirs["global_step"]
    assert ours["loops"]["fit_loop"]["epoch_progress"]["current"] == theirs["loops"]["fit_loop"]["epoch_progress"]["current"]
    for name, tensor in theirs["state_dict"].items():
        torch.testing.assert_close(ours["state_dict"][name], tensor, atol=1e-6, rtol=1e-5, msg=name)
    got, expected = rows(cut), rows(whole)
    assert [(row["step"], sorted(row)) for row in got] == [(row["step"], sorted(row)) for row in expected]
    for row, other in zip(got, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-4, abs=1e-6)
    for name, state in theirs["callbacks"].items():
        if isinstance(state, dict) and "history" in state:
            assert [known(row) for row in ours["callbacks"][name]["history"]] == [
                pytest.approx(known(row), rel=1e-4, nan_ok=True) for row in state["history"]
            ], name


def known(row: dict[str, float | None]) -> dict[str, float]:
    """Return values, NaN where an epoch has none."""
    return {key: math.nan if value is None else value for key, value in row.items()}


def moment(name: str) -> str:
    return f"moment={name}"


#: Moments of kills: after the last step checkpoint of an epoch, within a save, between an epoch's end and its checkpoint.
PAIRS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "validation, validation": ((STEPS,), (moment("validation 20"), moment("validation 40"))),
    "after a save, in a save": ((), (moment("saved 20"), moment("rename 30"))),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, command_line: Command) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert run_all(command_line, folder, killed((*DIGITS, "--trainer.max_epochs=5"), "whole")) == [0]
    return folder / "runs" / "whole" / "0"


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize("case", PAIRS)
def test_a_run_that_is_killed_twice_is_like_one_that_is_not(
    case: str, whole: Path, command_line: Command, tmp_path: Path
) -> None:
    options, moments = PAIRS[case]
    assert run_all(command_line, tmp_path, killed((*DIGITS, "--trainer.max_epochs=5", *options), "cut", *moments)) == [
        -9,
        -9,
        0,
    ]
    assert_same(tmp_path / "runs" / "cut" / "0", whole)


def test_a_run_that_is_killed_before_the_end_of_an_epoch_without_validation_trains_all_epochs(
    command_line: Command, tmp_path: Path
) -> None:
    fit = (*DIGITS, "--trainer.max_epochs=3", "--trainer.check_val_every_n_epoch=2", "--checkpoint_every_n_steps=5")
    runs = [*killed(fit, "cut", moment("epoch_end 10")), *killed(fit, "whole")]
    assert run_all(command_line, tmp_path, runs) == [-9, 0, 0]
    assert_same(tmp_path / "runs" / "cut" / "0", tmp_path / "runs" / "whole" / "0")


def config(name: str) -> tuple[str, str]:
    return "-c", str(SUPPORT / f"{name}.yaml")


#: Stops at the third check, since no improvement is this large.
STOPPING = (
    *("--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/loss"),
    *("--trainer.callbacks.patience=2", "--trainer.callbacks.min_delta=1000"),
)
FAMILIES: dict[str, tuple[str, ...]] = {
    "ssvae": (*DIGITS, "--trainer.max_epochs=6"),
    "steps": (*DIGITS, "--trainer.max_epochs=6", STEPS),
    "every step": (*DIGITS, "--trainer.max_epochs=4", "--trainer.log_every_n_steps=1", "--checkpoint_every_n_steps=1"),
    "validation twice an epoch": (
        *DIGITS,
        "--trainer.max_epochs=4",
        "--trainer.val_check_interval=5",
        "--checkpoint_every_n_steps=5",
    ),
    "validation every second epoch": (
        *DIGITS,
        "--trainer.max_epochs=6",
        "--trainer.check_val_every_n_epoch=2",
        "--checkpoint_every_n_steps=5",
    ),
    "max_steps": (*DIGITS, "--trainer.max_steps=47", STEPS),
    "max_steps at a checkpoint": (*DIGITS, "--trainer.max_steps=48", STEPS),
    "max_steps at a validation": (*DIGITS, "--trainer.max_steps=40", STEPS),
    "early stopping": (*DIGITS, "--trainer.max_epochs=9", STEPS, *STOPPING),
    "early stopping within an epoch": (
        *(*DIGITS, "--trainer.max_epochs=9", "--trainer.val_check_interval=4", "--checkpoint_every_n_steps=2", *STOPPING),
    ),
    "early stopping after min_epochs": (*DIGITS, "--trainer.max_epochs=9", "--trainer.min_epochs=4", STEPS, *STOPPING),
    "stopped by a callback": (
        *(*DIGITS, "--trainer.max_epochs=9", "--checkpoint_every_n_steps=1"),
        *("--trainer.callbacks+=interruptions.StopAtStep", "--trainer.callbacks.step=27"),
    ),
    "accumulated gradients": (
        *DIGITS,
        "--trainer.max_epochs=6",
        "--trainer.accumulate_grad_batches=3",
        "--checkpoint_every_n_steps=2",
    ),
    "plateau": (
        *(*DIGITS, "--trainer.max_epochs=6", STEPS),
        "--model.init_args.lr_scheduler=pytorch_lightning.cli.ReduceLROnPlateau",
        *("--model.init_args.lr_scheduler.monitor=val/loss", "--model.init_args.lr_scheduler.patience=0"),
        *("--model.init_args.lr_scheduler.threshold=0.5", "--model.init_args.lr_scheduler.factor=0.3"),
    ),
    "bits": (*config("bits"), "--checkpoint_every_n_steps=5"),
    "game": (*config("game"), "--trainer.max_epochs=3", "--checkpoint_every_n_steps=6"),
    "soae": (*config("soae"), "--checkpoint_every_n_steps=6"),
    "several updates": (*config("soae"), "--checkpoint_every_n_steps=10", "--data.init_args.updates_per_batch=5"),
    "coreset": (
        *(*config("coreset"), "--trainer.max_epochs=4", "--checkpoint_every_n_steps=2"),
        "--data.init_args.vectors.init_args.checkpoint=runs/proxy/0/checkpoints/last.ckpt",
    ),
}
#: Runs that a family needs before its own.
BEFORE: dict[str, list[str]] = {
    "coreset": ["fit", *config("soae"), "--name=proxy", "--trainer.max_epochs=1", "--model.init_args.mapping=torch.nn.Tanh"],
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_that_is_killed_at_random_moments_is_like_one_that_is_not(
    family: str, seed: int, command_line: Command, tmp_path: Path
) -> None:
    """Two pairs and two triples of kills, any moment after the first checkpoint as likely as another."""
    fit = FAMILIES[family]
    whole = [
        "fit",
        *fit,
        "--name=whole",
        "--trainer.callbacks+=interruptions.KillAtMoment",
        "--trainer.callbacks.record=moments",
    ]
    assert set(run_all(command_line, tmp_path, [*([BEFORE[family]] if family in BEFORE else []), whole])) == {0}
    passed = (tmp_path / "moments").read_text().splitlines()
    first = next(place for place, name in enumerate(passed, 1) if name.startswith("saved"))
    draw = random.Random(f"{family} {seed}")
    runs: list[list[str]] = []
    names = []
    for number, kills in enumerate((2, 2, 3, 3)):
        numbers = [
            draw.randint(first, first + (len(passed) - first) // 2),
            *(draw.randint(1, len(passed) // 2) for _ in range(kills - 1)),
        ]
        runs += killed(fit, f"cut{number}", *(f"number={count}" for count in numbers))
        names.append((f"cut{number}", numbers))
    done = [command_line(tmp_path, *run) for run in runs]
    assert {run.returncode for run in done} <= {-9, 0}, [run.stderr[-2000:] for run in done if run.returncode not in (-9, 0)]
    for name, numbers in names:
        try:
            assert_same(tmp_path / "runs" / name / "0", tmp_path / "runs" / "whole" / "0")
        except AssertionError as error:
            raise AssertionError(f"{name}, killed at moments {numbers}: {error}") from error
