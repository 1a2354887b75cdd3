"""A run killed by the system goes on as if it had not been."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lit_sparse.cli import main

from .conftest import CONFIGS, ROOT, Command, metrics_of
from .data.pairs import write_pairs

COMMON = (
    "fit",
    *("-c", str(CONFIGS / "ssvae" / "digits.yaml")),
    "--trainer.max_epochs=3",
    "--trainer.check_val_every_n_epoch=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.accelerator=cpu",
    "--data.init_args.binarize=true",
)

BITS = ("-c", str(ROOT / "tests" / "support" / "bits.yaml"))
GAME = ("-c", str(ROOT / "tests" / "support" / "game.yaml"))
SOAE = ("-c", str(ROOT / "tests" / "support" / "soae.yaml"))
TRANSLATION = ("-c", str(ROOT / "tests" / "support" / "translation.yaml"))

pytestmark = pytest.mark.gate


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, command_line: Command) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    done = command_line(folder, *COMMON)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "ssvae" / "digits" / "0"


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize(
    "killer",
    [
        ("interruptions.KillAtStep", "step=24", "--checkpoint_every_n_steps=5"),  # 16 batches an epoch: 8 into the second
        ("interruptions.KillAtEpoch", "epoch=2"),
        ("interruptions.KillAtStep", "step=32", "--checkpoint_every_n_steps=16"),  # after an epoch's last batch
    ],
    ids=["mid-epoch", "between epochs", "last batch"],
)
def test_killed_and_resumed_equals_uninterrupted(
    killer: tuple[str, ...], lit_sparse: Command, uninterrupted: Path, tmp_path: Path
) -> None:
    class_path, argument, *options = killer
    killed = lit_sparse(*COMMON, *options, f"--trainer.callbacks={class_path}", f"--trainer.callbacks.{argument}")
    assert killed.returncode == -9, killed.stderr
    resumed = lit_sparse(*COMMON, *options, "--ckpt_path", "last")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.strip().splitlines()[-1] == "run folder: runs/ssvae/digits/0"
    folder = tmp_path / "runs" / "ssvae" / "digits" / "0"
    expected, got = weights(uninterrupted), weights(folder)
    assert expected.keys() == got.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, atol=1e-6, rtol=0)
    expected_metrics, got_metrics = metrics_of(uninterrupted), metrics_of(folder)
    for name in ("val/loss", "val/accuracy", "train/loss", "train/decoder_calls_total", "train/support_size_p90"):
        assert got_metrics[name][-1] == pytest.approx(expected_metrics[name][-1], rel=1e-6), name
    for name in ("train/loss", "train/decoder_calls_total"):  # the epoch that was cut is counted whole
        if "KillAtStep" in class_path and argument == "step=24":
            assert got_metrics[name] == pytest.approx(expected_metrics[name], rel=1e-6), name
    assert (folder / "config_0.yaml").is_file(), "the config with the callback that killed it"


@pytest.mark.slow
def test_a_bit_vector_vae_goes_on_too(lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data come in other batches, and its picture has a memory; killed in a process, the rest runs in this one."""
    fit = ("fit", *BITS, "--checkpoint_every_n_steps=4")
    killed = lit_sparse(*fit, "--trainer.callbacks=interruptions.KillAtStep", "--trainer.callbacks.step=24")
    assert killed.returncode == -9, killed.stderr
    monkeypatch.chdir(tmp_path)
    for arguments in ([*fit, "--ckpt_path", "last"], ["fit", *BITS, "--name=whole"]):
        assert main(arguments) == 0
    cut, whole = tmp_path / "runs" / "bits" / "0", tmp_path / "runs" / "whole" / "0"
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(cut)[name], tensor, atol=1e-6, rtol=0)
    for name in ("train/nelbo", "train/rate", "train/decoder_calls_total", "val/distortion"):
        assert metrics_of(cut)[name] == pytest.approx(metrics_of(whole)[name], rel=1e-6), name
    curves = []
    for folder in (cut, whole):
        callbacks = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["callbacks"]
        curves.append(callbacks["NegativeELBOPlot{}"])
    assert [row["epoch"] for row in curves[0]["history"]] == [1, 2, 3]
    assert curves[0]["history"] == [pytest.approx(row, rel=1e-6) for row in curves[1]["history"]]


ANNEALED = (
    *("--model.init_args.estimator=GumbelSoftmax", "--trainer.callbacks=TemperatureAnnealing"),
    *("--trainer.callbacks.rate=0.01", "--trainer.callbacks.every=5"),
)


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize(
    ("options", "state"), [((), "mean.value"), (ANNEALED, "temperature")], ids=["learnt baseline", "temperature"]
)
def test_what_a_sampler_has_learnt_goes_on(
    options: tuple[str, ...], state: str, lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Baselines, temperatures and what is drawn equal a run that was never killed."""
    fit = ("fit", *GAME, *options, "--checkpoint_every_n_steps=4")
    killer = ("--trainer.callbacks+=interruptions.KillAtStep", "--trainer.callbacks.step=31")
    killed = lit_sparse(*fit, *killer)  # 21 batches an epoch
    assert killed.returncode == -9, killed.stderr
    monkeypatch.chdir(tmp_path)
    for arguments in ([*fit, "--ckpt_path", "last"], [*fit, "--name=whole"]):
        assert main(list(arguments)) == 0
    cut, whole = tmp_path / "runs" / "game" / "0", tmp_path / "runs" / "whole" / "0"
    assert f"estimator.{state}" in weights(whole)
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(cut)[name], tensor, atol=1e-6, rtol=0)
    for name in ("train/nll", "train/entropy", "val/success", "val/message_entropy"):
        assert metrics_of(cut)[name] == pytest.approx(metrics_of(whole)[name], rel=1e-5), name
    assert metrics_of(cut)["train/seconds"][-1] > metrics_of(cut)["train/seconds"][0] > 0


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize(
    "options",
    [(), ("--trainer.callbacks=OptimalBrainDamage", "--trainer.callbacks.module=encoder", "--trainer.callbacks.every=2")],
    ids=["sparse connectivity", "optimal brain damage"],
)
def test_what_acts_on_weights_goes_on(
    options: tuple[str, ...], lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed within an epoch at whose end weights are projected, or removed by what was measured in it."""
    fit = ("fit", *SOAE, *options, "--checkpoint_every_n_steps=4")
    killer = ("--trainer.callbacks+=interruptions.KillAtStep", "--trainer.callbacks.step=31")  # 20 batches an epoch
    killed = lit_sparse(*fit, *killer)
    assert killed.returncode == -9, killed.stderr
    monkeypatch.chdir(tmp_path)
    for arguments in ([*fit, "--ckpt_path", "last"], [*fit, "--name=whole"]):
        assert main(list(arguments)) == 0
    cut, whole = tmp_path / "runs" / "soae" / "0", tmp_path / "runs" / "whole" / "0"
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(cut)[name], tensor, atol=1e-6, rtol=0)
    zeros = float((weights(whole)["encoder.weight"] == 0).float().mean())
    assert zeros > 0.4 if options else zeros > 0
    for name in ("train/loss", "val/loss", "val/support_size_mean"):
        assert metrics_of(cut)[name] == pytest.approx(metrics_of(whole)[name], rel=1e-5), name


def test_nothing_to_resume_is_an_error(lit_sparse: Command, tmp_path: Path) -> None:
    done = lit_sparse(*COMMON, "--ckpt_path", "last")
    assert done.returncode == 2
    assert "holds a last checkpoint" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_fresh_run_overwrites_nothing(lit_sparse: Command, tmp_path: Path) -> None:
    short = (*COMMON, "--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.logger=false")
    for number in (0, 1):
        done = lit_sparse(*short)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().splitlines()[-1] == f"run folder: runs/ssvae/digits/{number}"
    assert (tmp_path / "runs" / "ssvae" / "digits" / "0" / "checkpoints" / "last.ckpt").is_file()


@pytest.mark.slow
def test_a_translation_model_goes_on_too(lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of about one length, the vocabularies of the first start, a schedule; killed in the middle of an epoch."""
    for split, number in (("train", 61), ("val", 11), ("test", 13)):
        write_pairs(tmp_path / "pairs", split, number)
    schedule = ("--model.init_args.lr_scheduler=torch.optim.lr_scheduler.StepLR", "--model.init_args.lr_scheduler.step_size=1")
    fit = ("fit", *TRANSLATION, *schedule, "--checkpoint_every_n_steps=5")
    monkeypatch.chdir(tmp_path)
    assert main([*fit, "--name=whole"]) == 0
    killer = ("--trainer.callbacks=interruptions.KillAtStep", "--trainer.callbacks.step=12")
    killed = lit_sparse(*fit, "--name=cut", *killer)
    assert killed.returncode == -9, killed.stderr
    assert main([*fit, "--name=cut", "--ckpt_path", "last"]) == 0
    whole, cut = (tmp_path / "runs" / name / "0" for name in ("whole", "cut"))
    expected, got = weights(whole), weights(cut)
    assert expected.keys() == got.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, atol=1e-6, rtol=0)
    for name, values in metrics_of(whole).items():
        if "seconds" not in name and "step" not in name:
            assert metrics_of(cut)[name] == pytest.approx(values, rel=1e-6), name
