"""What users of Lightning expect of a command line."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
import pytorch_lightning as pl
import torch
import yaml

import lit_sparse
from lit_sparse.cli import build_cli, main
from tests.conftest import CONFIGS

DIGITS = ("-c", str(CONFIGS / "ssvae" / "digits.yaml"), "--trainer.accelerator=cpu", "--quiet")
SHORT = (
    "--trainer.log_every_n_steps=1",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=1",
    "--trainer.limit_test_batches=1",
)
FIT = ("fit", *DIGITS, *SHORT, "--trainer.check_val_every_n_epoch=1", "--trainer.max_epochs")
COPIES = ("--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.dirpath=memory://copies")


def refusal(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main([*command]) == 2
    return capsys.readouterr().err


def test_runs_go_to_the_root_folder_of_the_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    root = "--trainer.default_root_dir=mine"
    assert main([*FIT, "1", root]) == 0
    assert Path("mine/ssvae/digits/0/checkpoints/last.ckpt").is_file()
    assert main(["test", *DIGITS, *SHORT, root, "--ckpt_path=last"]) == 0
    assert "one folder for all runs" in refusal(capsys, *FIT, "1", root, "--output_dir=other")
    assert "a local folder" in refusal(capsys, *FIT, "1", "--trainer.default_root_dir=s3://bucket/runs")


def test_checkpoints_are_copied_to_a_url_and_read_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT, "2", "--name=whole"]) == 0
    assert main([*FIT, "1", "--name=cut", *COPIES]) == 0
    (copy,) = (f"memory:/{path}" for path in fsspec.filesystem("memory").glob("/copies/*.ckpt"))
    assert main([*FIT, "2", "--name=rest", *COPIES, f"--ckpt_path={copy}"]) == 0
    last = f"file://{Path('runs/cut/0/checkpoints/last.ckpt').resolve()}"
    assert main([*FIT, "2", "--name=cut", *COPIES, f"--ckpt_path={last}"]) == 0, "the run of the checkpoint is continued"
    whole, *others = (
        torch.load(f"runs/{name}/0/checkpoints/last.ckpt", weights_only=True)["state_dict"] for name in ("whole", "rest", "cut")
    )
    for other in others:
        assert all(torch.equal(other[name], value) for name, value in whole.items())
    first = torch.load(fsspec.open_local(f"simplecache::{copy}"), weights_only=True)["state_dict"]
    assert all(torch.equal(first[name], value) for name, value in lit_sparse.load(copy).state_dict().items())
    assert main(["test", *DIGITS, *SHORT, f"--ckpt_path={copy}"]) == 0
    with fsspec.open("memory://broken/last.ckpt", "wb") as file:
        file.write(Path("runs/cut/0/checkpoints/last.ckpt").read_bytes()[:-100])
    for path, words in {
        "memory://broken/last.ckpt": "'memory://broken/last.ckpt' cannot be read",
        "memory://none/last.ckpt": "does not exist",
        "nothing://last.ckpt": "Protocol not known",
    }.items():
        assert words in refusal(capsys, "test", *DIGITS, f"--ckpt_path={path}")


TOP = """
optimizer: {class_path: AdamW, init_args: {lr: 0.5}}
lr_scheduler: {class_path: ReduceLROnPlateau, init_args: {monitor: val/loss}}
"""


@pytest.mark.parametrize("given", ["a config", "options", "an option of the optimizer of the config"])
def test_the_optimizer_and_the_scheduler_are_options_of_the_command(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("top.yaml").write_text(TOP)
    words = ["-c", "top.yaml"]
    if given == "options":
        words = ["--optimizer", "AdamW", "--optimizer.lr=0.5", "--lr_scheduler=ReduceLROnPlateau"]
        words += ["--lr_scheduler.monitor", "val/loss"]
    elif given != "a config":
        words += ["--optimizer.lr", "0.25"]
    model = build_cli(["fit", *DIGITS, *words]).config["fit"]["model"]["init_args"]
    assert model["optimizer"]["class_path"] == "torch.optim.AdamW"
    assert model["optimizer"]["init_args"]["lr"] == (0.25 if given.startswith("an option") else 0.5)
    assert model["lr_scheduler"]["class_path"].endswith(".cli.ReduceLROnPlateau")


def test_one_optimizer_in_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    Path("two.yaml").write_text(f"{TOP}model: {{init_args: {{optimizer: Adam}}}}\n")
    assert "Expected one `optimizer`" in refusal(capsys, "fit", *DIGITS, "-c", "two.yaml")


def test_a_config_with_any_callback_of_lightning_is_read_again_as_it_was_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    needed: dict[str, dict[str, object]] = {
        "EarlyStopping": {"monitor": "val/loss"},
        "GradientAccumulationScheduler": {"scheduling": {"0": 1, "2": 3}},
        "ModelPruning": {"pruning_fn": "l1_unstructured"},
        "StochasticWeightAveraging": {"swa_lrs": 0.1},
        "ThroughputMonitor": {"batch_size_fn": "builtins.len"},
        "Timer": {"duration": "00:01:00:00"},
    }
    left_out = {"Callback", "Checkpoint", "ProgressBar", "BaseFinetuning", "BasePredictionWriter"}
    named = [name for name in pl.callbacks.__all__ if name not in left_out]
    callbacks = [{"class_path": f"pytorch_lightning.callbacks.{name}", "init_args": needed.get(name, {})} for name in named]
    texts = [yaml.safe_dump({"trainer": {"callbacks": callbacks}})]
    for number in range(2):
        path = tmp_path / f"{number}.yaml"
        path.write_text(texts[-1])
        given = (*DIGITS, "-c", str(path)) if number == 0 else ("-c", str(path))
        with pytest.raises(SystemExit) as ended:
            main(["fit", *given, "--print_config"])
        assert ended.value.code == 0
        texts.append(capsys.readouterr().out)
    assert texts[1] == texts[2]
    written = yaml.safe_load(texts[1])["trainer"]["callbacks"]
    assert [one["init_args"] | needed.get(name, {}) for name, one in zip(named, written, strict=True)] == [
        one.get("init_args", {}) for one in written
    ]
