"""Learning rates by YAML: per step, with a warm-up, on a plateau; a schedule continues after a kill."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.optim import lr_scheduler

from lit_sparse.cli import build_cli, main
from lit_sparse.errors import ConfigurationError
from lit_sparse.models import StepwiseLR
from lit_sparse.models.schedulers import check_end
from tests.conftest import ROOT, Command

#: Three epochs of 16 steps.
BITS = ("-c", str(ROOT / "tests" / "support" / "bits.yaml"))
PAGE = (ROOT / "docs" / "how_to" / "short_options.md").read_text(encoding="utf-8")
SECTION = re.search(r"## Learning-rate schedules\n(.*?)\n## ", PAGE, re.DOTALL)
assert SECTION is not None
EPOCHS, WARM_UP, ONE_CYCLE, PLATEAU = re.findall(r"```yaml\n(.*?)```", SECTION[1], re.DOTALL)


class Rates(pl.Callback):
    """Note the learning rate of each step."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.rates.append(float(trainer.optimizers[0].param_groups[0]["lr"]))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rates(config: str, *options: str) -> list[float]:
    """Return the rate of each step of a run."""
    Path("schedule.yaml").write_text(config)
    cli = build_cli(["fit", *BITS, "-c", "schedule.yaml", *options])
    noted = Rates()
    cli.trainer.callbacks.append(noted)
    cli.trainer.fit(cli.model, cli.datamodule)
    return noted.rates


def alone(build: Any, lr: float, steps: int) -> list[float]:
    """Return the rates of a torch scheduler by itself."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler, found = build(optimizer), []
    for _ in range(steps):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.gate
def test_a_scheduler_moves_per_epoch() -> None:
    assert rates(EPOCHS) == pytest.approx([1e-3 * 0.9**epoch for epoch in range(3) for _ in range(16)])


@pytest.mark.gate
def test_a_warm_up_and_steps() -> None:
    cosine = alone(lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 38), 1e-3, 38)
    assert rates(WARM_UP) == pytest.approx([*(1e-4 * step for step in range(1, 11)), *cosine])


@pytest.mark.gate
def test_one_cycle_moves_each_step() -> None:
    expected = alone(lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.01, 48, cycle_momentum=False), 1e-3, 48)
    assert rates(ONE_CYCLE) == pytest.approx(expected)


@pytest.mark.gate
def test_a_plateau_is_seen_when_validation_runs() -> None:
    """In epochs 1 and 3 of 6 no metric is new; the loss never improves by a factor of ten."""
    found = rates(PLATEAU.replace("patience: 0", "patience: 0, threshold: 0.9"), "--trainer.max_epochs=6")
    assert found[::16] == pytest.approx([1e-3, 1e-3, 1e-3, 1e-3, 5e-4, 5e-4])


def test_a_plateau_has_a_short_name_on_the_command_line() -> None:
    option = "--model.init_args.lr_scheduler"
    cli = build_cli(["fit", *BITS, f"{option}=ReduceLROnPlateau", f"{option}.monitor=val/loss"])
    assert cli.model.configure_optimizers()["lr_scheduler"]["monitor"] == "val/loss"
    cli.model.lr_scheduler = lr_scheduler.ReduceLROnPlateau  # torch's
    with pytest.raises(ConfigurationError, match="ReduceLROnPlateau with a `monitor`"):
        cli.model.configure_optimizers()


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize("wrapped", [True, False], ids=["steps", "epochs"])
@pytest.mark.filterwarnings("ignore:A `OneCycleLR` scheduler is using:RuntimeWarning")
def test_a_schedule_that_does_not_reach_its_end_says_so(wrapped: bool) -> None:
    one_cycle = "class_path: torch.optim.lr_scheduler.OneCycleLR, init_args: {max_lr: 0.01, total_steps: 100}"
    inner = f"class_path: StepwiseLR, init_args: {{scheduler: {{{one_cycle}}}}}" if wrapped else one_cycle
    moves = "48 times, once per step" if wrapped else "3 times, once per epoch"
    with pytest.warns(
        UserWarning, match=rf"OneCycleLR\(total_steps=100\) does not reach its end: in this run it is stepped {moves}"
    ):
        rates(f"model: {{init_args: {{lr_scheduler: {{{inner}}}}}}}")


def test_a_cycle_shorter_than_the_run_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"OneCycleLR\(total_steps=40\) .* it is stepped 48 times, .*total_steps to 48"
    ):
        rates(ONE_CYCLE.replace("48", "40"))


@pytest.mark.parametrize("kind", ["OneCycleLR", "CosineAnnealingLR", "LinearLR", "PolynomialLR"])
@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize("steps", [100, -1, float("inf")])
def test_a_run_of_unknown_length(kind: str, interval: str, steps: float, recwarn: pytest.WarningsRecorder) -> None:
    """Epochs of unknown length; the number of steps may be known, as `max_steps`."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    end = {"OneCycleLR": {"max_lr": 0.1, "total_steps": 500}, "CosineAnnealingLR": {"T_max": 500}}.get(
        kind, {"total_iters": 500}
    )
    scheduler = getattr(lr_scheduler, kind)(optimizer, **end)
    trainer: Any = SimpleNamespace(
        estimated_stepping_batches=steps, num_training_batches=float("inf"), accumulate_grad_batches=1
    )
    check_end(scheduler, interval, trainer)
    said = [str(warning.message) for warning in recwarn]
    if steps == 100 and interval == "step":
        assert len(said) == 1
        assert "is stepped 100 times, once per step" in said[0]
    else:
        assert not said


def test_a_plateau_does_not_count_steps() -> None:
    with pytest.raises(ConfigurationError, match="Use it as the model's `lr_scheduler`"):
        StepwiseLR(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]), lambda it: lr_scheduler.ReduceLROnPlateau(it))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [WARM_UP, ONE_CYCLE], ids=["warm-up", "one cycle"])
def test_a_killed_run_continues_its_schedule(schedule: str, lit_sparse: Command, here: Path) -> None:
    """Killed in the warm-up, two steps after a checkpoint: all weights and rates equal an undisturbed run's."""
    (here / "schedule.yaml").write_text(schedule)
    fit = ("fit", *BITS, "-c", "schedule.yaml", "--checkpoint_every_n_steps=4")
    assert main([*fit, "--name=whole"]) == 0
    kill = ("--trainer.callbacks=interruptions.KillAtStep", "--trainer.callbacks.step=6")
    assert lit_sparse(*fit, "--name=cut", *kill).returncode != 0
    assert main([*fit, "--name=cut", "--ckpt_path=last"]) == 0
    whole, cut = (torch.load(f"runs/{name}/0/checkpoints/last.ckpt", weights_only=True) for name in ("whole", "cut"))
    assert whole["global_step"] == cut["global_step"] == 48
    for name, tensor in whole["state_dict"].items():
        assert torch.equal(cut["state_dict"][name], tensor), name
    assert cut["lr_schedulers"] == whole["lr_schedulers"]
    assert cut["optimizer_states"][0]["param_groups"] == whole["optimizer_states"][0]["param_groups"]
