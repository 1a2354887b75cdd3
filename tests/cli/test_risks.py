"""A risk by YAML alone: it trains, goes on after a kill, and on two processes does what one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lit_sparse.cli import build_cli, main
from lit_sparse.models import SupervisedOnlineAutoencoder
from tests.conftest import CONFIGS, ROOT, Command, metrics_of
from tests.support.stand_ins import write_table

SOAE = ("-c", str(ROOT / "tests" / "support" / "soae.yaml"))
TWO = ("-c", str(CONFIGS / "trainer" / "ddp_cpu.yaml"))


def overlay(folder: Path, risk: object) -> tuple[str, str]:
    """Return the options of a YAML file with a risk and nothing else."""
    path = folder / "risk.yaml"
    path.write_text(yaml.safe_dump({"model": {"init_args": {"risk": risk}}}))
    return "-c", str(path)


def safe(**options: Any) -> dict[str, Any]:
    return {"class_path": "SafeKLDRO", "init_args": {"lam": 0.5, "rho": 0.05, **options}}


def group(**options: Any) -> dict[str, Any]:
    return {"class_path": "GroupDRO", "init_args": {"num_groups": 10, "step_size": 0.5, "group_key": "label", **options}}


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--model.risk=KLDRO"], "model.risk is KLDRO in place of SafeKLDRO. It keeps lam=0.5 of the config, and drops rho."),
        (["--model.risk=KLDRO", "--model.risk.lam=0.5"], ""),
        (["-c", "{model: {init_args: {risk: {class_path: KLDRO, init_args: {lam: 2}}}}}"], ""),
        (["--model.risk=CVaR", "--model.risk.level=0.5"], ""),
        (["--model.risk.rho=0.5"], ""),
    ],
)
def test_a_note_tells_what_another_class_keeps(
    words: list[str], kept: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_cli(["fit", *SOAE, *overlay(tmp_path, safe()), *words])
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert notes == ([f"note: {kept}"] if kept else [])


def last(folder: Path, name: str) -> dict[str, Any]:
    return torch.load(folder / "runs" / name / "0" / "checkpoints" / "last.ckpt", weights_only=True)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_entailment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for split in ("train", "dev", "test"):
        write_table(tmp_path / f"{split}.jsonl", [f"ein Haus {i % 5} {split}" for i in range(60)])
    small = ("--data.init_args.path=.", "--data.init_args.vectors=null", "--model.init_args.vector_size=6")
    quiet = ("--trainer.max_epochs=2", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--name=safe")
    quiet = (*quiet, "--trainer.log_every_n_steps=1", "--model.init_args.lr_scheduler.init_args.T_max=2")
    quiet = (*quiet, "--model.init_args.optimizer.init_args.fused=false")  # torch 2.3 has none on a CPU
    sizes = ("--data.init_args.train_size=null", "--data.init_args.test_size=null", "--data.init_args.val_size=null")
    fit = ["fit", "-c", str(CONFIGS / "entailment" / "snli_small.yaml"), *overlay(tmp_path, safe(dual_lr=0.02)), *small, *quiet]
    text = (CONFIGS / "entailment" / "snli_small.yaml").read_text()
    fit += [option for option in sizes if option.split("init_args.")[1].split("=")[0] in text]
    assert main(fit) == 0, capsys.readouterr().err
    found = last(tmp_path, "safe")
    assert float(found["state_dict"]["risk.dual"]) == pytest.approx(
        metrics_of(tmp_path / "runs/safe/0")["train/dual"][-1], rel=1e-4
    )
    groups = found["optimizer_states"][0]["param_groups"]
    assert [group["initial_lr"] for group in groups][1:] == [0.02]
    assert metrics_of(tmp_path / "runs/safe/0")["train/risk"][-1] > 0
    assert main(["test", *fit[1:], "--ckpt_path", "best"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("risk", "state"),
    [
        (safe(dual_lr=0.01), ["train/dual"]),
        (group(), [f"train/group_weight_{number}" for number in range(10)]),
        ({"class_path": "MultilevelCVaR", "init_args": {"level": 0.5, "smallest": 2}}, []),
    ],
    ids=["SafeKLDRO", "GroupDRO", "MultilevelCVaR"],
)
def test_killed_and_resumed(
    risk: dict[str, Any], state: list[str], lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dual variable, its rate and its momentum go on; so do the weights of groups, and random levels."""
    fit = ("fit", *SOAE, *overlay(tmp_path, risk), "--checkpoint_every_n_steps=4")
    killed = lit_sparse(*fit, "--trainer.callbacks+=interruptions.KillAtStep", "--trainer.callbacks.step=31")
    assert killed.returncode == -9, killed.stderr
    monkeypatch.chdir(tmp_path)
    for arguments in ([*fit, "--ckpt_path", "last"], [*fit, "--name=whole"]):
        assert main(arguments) == 0
    cut, whole = last(tmp_path, "soae"), last(tmp_path, "whole")
    for name, tensor in whole["state_dict"].items():
        torch.testing.assert_close(cut["state_dict"][name], tensor, atol=1e-6, rtol=0)
    for name in ("train/risk", "val/loss", *state):
        assert metrics_of(tmp_path / "runs/soae/0")[name] == pytest.approx(
            metrics_of(tmp_path / "runs/whole/0")[name], rel=1e-5
        )
    model = SupervisedOnlineAutoencoder.load_from_checkpoint(tmp_path / "runs/whole/0/checkpoints/last.ckpt", weights_only=True)
    assert type(model.risk).__name__ == risk["class_path"]
    assert getattr(model.risk, "dual_lr", None) == risk["init_args"].get("dual_lr")
    for name, tensor in model.risk.state_dict().items():
        assert torch.equal(tensor, whole["state_dict"][f"risk.{name}"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "risk",
    [safe(), {"class_path": "CVaR", "init_args": {"level": 0.3}}, group()],
    ids=["SafeKLDRO", "CVaR", "GroupDRO"],
)
def test_two_processes_equal_one(
    risk: dict[str, Any], lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a batch on two processes, the estimate is the mean of both, or is computed from the losses of both."""
    shared = (*SOAE, *overlay(tmp_path, risk), "--trainer.max_epochs=2", "--model.init_args.initial_bases=NoiseBases")
    same = ("--trainer.callbacks=agreement.SameWeights", "--data.init_args.batch_size=5", "--name=two")
    done = lit_sparse("fit", *shared, *TWO, *same)
    assert done.returncode == 0, done.stderr
    assert "all 2 processes have the same weights" in done.stdout
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *shared, "--trainer.callbacks=[]", "--name=one"]) == 0
    one, two = last(tmp_path, "one")["state_dict"], last(tmp_path, "two")["state_dict"]
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=2e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.gate
def test_what_is_learnt_is_not_taken_from_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm start takes the weights of a run with another risk, and finds its own dual variable."""
    monkeypatch.chdir(tmp_path)
    brief = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=3", "--trainer.log_every_n_steps=1")
    brief = (*brief, "--trainer.callbacks=[]")
    robust = overlay(tmp_path, safe(dual_lr=0.01))
    assert main(["fit", *SOAE, *brief, "--name=mean"]) == 0
    warm = "--model.init_args.initial_weights=runs/{}/0/checkpoints/last.ckpt"
    assert main(["fit", *SOAE, *robust, *brief, "--name=safe", warm.format("mean")]) == 0
    assert main(["fit", *SOAE, *brief, "--name=back", warm.format("safe")]) == 0
    assert bool(last(tmp_path, "safe")["state_dict"]["risk.dual"].isfinite())
    assert "risk.dual" not in last(tmp_path, "back")["state_dict"]


@pytest.mark.gate
def test_rates_that_are_changed_when_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps its own: the model's is not the dual variable's."""
    monkeypatch.chdir(tmp_path)
    brief = ("--trainer.limit_train_batches=3", "--trainer.callbacks=[]", "--model.init_args.lr_scheduler=null")
    brief = (*brief, "--trainer.log_every_n_steps=1")
    fit = ["fit", *SOAE, *overlay(tmp_path, safe(dual_lr=0.01)), *brief]
    assert main([*fit, "--trainer.max_epochs=1"]) == 0
    change = ("--model.init_args.optimizer.init_args.lr=0.05", "--model.init_args.risk.init_args.dual_lr=0.003")
    assert main([*fit, "--trainer.max_epochs=2", "--ckpt_path", "last", *change]) == 0
    groups = last(tmp_path, "soae")["optimizer_states"][0]["param_groups"]
    assert [group["lr"] for group in groups] == [0.05, 0.003]


@pytest.mark.parametrize(
    ("risk", "words"),
    [
        ("SafeKLDR", ("Did you mean 'SafeKLDRO'",)),
        ({"class_path": "SafeKLDRO", "init_args": {"lam": 1.0, "rho": 1.0}}, ("rho < 1",)),
        ({"class_path": "SafeKLDRO", "init_args": {"lam": 1.0}}, ("rho",)),
        ({"class_path": "SafeKLDRO", "init_args": {"lam": 0.0, "rho": 0.5}}, ("lam",)),
        ({"class_path": "Sparsemax"}, ("Sparsemax",)),
    ],
    ids=["typo", "rho", "missing", "lam", "another kind"],
)
def test_messages(
    risk: object, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *SOAE, *overlay(tmp_path, risk)]) != 0
    said = capsys.readouterr().err
    assert len(said.splitlines()) <= 3
    for word in words:
        assert word in said


@pytest.mark.gate
def test_a_broken_loss_ends_training_and_keeps_what_was_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a learning rate that diverges: the message says so, and the last checkpoint is sound."""
    monkeypatch.chdir(tmp_path)
    fit = ["fit", *SOAE, *overlay(tmp_path, safe(dual_lr=0.01)), "--checkpoint_every_n_steps=1"]
    steep = ("--model.init_args.optimizer.init_args.lr=1e38", "--trainer.callbacks=[]")
    assert main([*fit, *steep]) != 0
    said = capsys.readouterr().err
    assert "of the batch (number " in said and "lower the learning rate" in said
    assert bool(last(tmp_path, "soae")["state_dict"]["risk.dual"].isfinite())
