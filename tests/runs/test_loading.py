"""A trained model in one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml

import lit_sparse
from lit_sparse.cli import build_cli, main
from lit_sparse.data import DigitsDataModule, TranslationDataModule
from lit_sparse.errors import CheckpointError
from lit_sparse.lightning.choice import pl
from lit_sparse.models import SemiSupervisedVAE, Seq2Seq
from tests.conftest import CONFIGS, ROOT

QUIET = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu")
SHORT = (
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=1",
    "--trainer.log_every_n_steps=1",
    "--trainer.check_val_every_n_epoch=1",
)
DIGITS = ("-c", str(CONFIGS / "ssvae" / "digits.yaml"), *QUIET)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert main(["fit", *DIGITS, *SHORT, "--output_dir", str(folder), "--data.init_args.batch_size=50"]) == 0
    return folder / "ssvae" / "digits" / "0"


def assert_trained(model: torch.nn.Module, path: Path) -> None:
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert isinstance(model, SemiSupervisedVAE)
    assert not model.training
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())


@pytest.mark.gate
def test_a_run_folder_gives_the_trained_model(run: Path) -> None:
    for which in ("best", "last"):
        assert_trained(lit_sparse.load(run, which), run / "checkpoints" / f"{which}.ckpt")
    assert_trained(lit_sparse.load(str(run)), run / "checkpoints" / "best.ckpt")
    assert_trained(lit_sparse.load(run / "checkpoints" / "last.ckpt"), run / "checkpoints" / "last.ckpt")


def test_a_loaded_model_reads_no_file_that_its_checkpoint_names(run: Path, tmp_path: Path) -> None:
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    checkpoint["hyper_parameters"]["initial_weights"] = str(tmp_path / "other.ckpt")
    torch.save(checkpoint, tmp_path / "changed.ckpt")
    model = lit_sparse.load(tmp_path / "changed.ckpt")
    pl.Trainer(max_epochs=0, accelerator="cpu", logger=False, enable_checkpointing=False).fit(model, DigitsDataModule())
    assert all(torch.equal(value, checkpoint["state_dict"][name]) for name, value in model.state_dict().items())


@pytest.mark.gate
def test_the_data_module_is_that_of_the_run(run: Path) -> None:
    model, data = lit_sparse.load(run, data=True)
    assert isinstance(data, DigitsDataModule)
    assert data.batch_size == 50
    data.setup("test")
    batch = next(iter(data.test_dataloader()))
    assert len(model.predict_step(batch, 0)["class"]) == len(batch["pixels"])


@pytest.mark.cases(quick=1)
@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_build_cli_loads_the_weights(command: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli = build_cli([command, *DIGITS, "--output_dir", str(run.parents[2]), "--ckpt_path", "best"])
    assert_trained(cli.model, run / "checkpoints" / "best.ckpt")


@pytest.mark.gate
def test_a_text_model_knows_its_vocabularies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs").mkdir()
    for split, count in (("train", 16), ("val", 4), ("test", 4)):
        for language in ("de", "en"):
            text = "".join(f"{language} {number % 5} .\n" for number in range(count))
            (tmp_path / "pairs" / f"{split}.{language}").write_text(text)
    config = ["-c", str(ROOT / "tests" / "support" / "translation.yaml"), "--trainer.enable_model_summary=false"]
    assert main(["fit", *config, "--trainer.max_epochs=1", "--trainer.log_every_n_steps=1", "--name=it"]) == 0
    model, data = lit_sparse.load("runs/it/0", "last", data=True)
    assert isinstance(model, Seq2Seq)
    assert isinstance(data, TranslationDataModule)
    assert data.vocabularies == model.vocabularies
    built = build_cli(["test", *config, "--name=it", "--ckpt_path", "last"]).model
    assert built.vocabularies == model.vocabularies
    assert all(torch.equal(value, built.state_dict()[name]) for name, value in model.state_dict().items())


def test_what_is_not_there_is_said(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"Expected a newest checkpoint .* only best and last"):
        lit_sparse.load(run, "newest")
    with pytest.raises(CheckpointError, match=r"no checkpoint\. Give one of its runs: .*0\."):
        lit_sparse.load(run.parent)
    with pytest.raises(CheckpointError, match="does not exist"):
        lit_sparse.load(tmp_path / "x.ckpt")


@pytest.mark.parametrize(
    "content", [b"[1]", b"\xff", b"a: [", b"a: &a {k: 1}\nb: {<<: [*a, *a]}", b"data: &a [*a]", b"#" * (2**20 + 1)]
)
def test_a_damaged_config_is_one_message(content: bytes, run: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "best.ckpt").write_bytes((run / "checkpoints" / "best.ckpt").read_bytes())
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"^Expected .* in '.*config\.yaml' but got"):
        lit_sparse.load(tmp_path, data=True)


def test_the_data_of_a_run_are_trusted_no_more_than_its_model(run: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "best.ckpt").write_bytes((run / "checkpoints" / "best.ckpt").read_bytes())
    for described, words in (
        ({"class_path": "subprocess.Popen", "init_args": {"args": "touch here"}}, r"subprocess\.Popen"),
        ({"class_path": "lit_sparse.data.DigitsDataModule", "init_args": {"label_noise": "os.system"}}, r"os\.system"),
        ("os.system", "Expected a data module"),
    ):
        (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data": described}))
        with pytest.raises(CheckpointError, match=words):
            lit_sparse.load(tmp_path, data=True)


@pytest.mark.parametrize("how", ["load", "test"])
def test_no_link_out_of_a_run_is_followed(
    how: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even where it is put in place of the checkpoint after the name was checked."""
    copied = tmp_path / "runs" / "0"
    (copied / "checkpoints").mkdir(parents=True)
    shutil.copy(run / "config.yaml", copied)
    shutil.copy(run / "checkpoints" / "last.ckpt", tmp_path)
    (copied / "checkpoints" / "kept.ckpt").symlink_to(run / "checkpoints" / "last.ckpt")
    (copied / "checkpoints" / "last.ckpt").symlink_to("kept.ckpt")
    for name in ("runs.loading", "runs.folders"):
        monkeypatch.setattr(f"lit_sparse.{name}.inside", lambda path, _: path)
    words = "last.ckpt' to be a plain file but it is a symbolic link"
    if how == "load":
        with pytest.raises(CheckpointError, match=words):
            lit_sparse.load(copied, "last")
    else:
        assert main(["test", "-c", str(copied / "config.yaml"), "--ckpt_path=last"]) == 2
        assert words in capsys.readouterr().err
    (copied / "checkpoints" / "kept.ckpt").unlink()
    shutil.copy(tmp_path / "last.ckpt", copied / "checkpoints" / "kept.ckpt")
    assert_trained(lit_sparse.load(copied, "last"), tmp_path / "last.ckpt")


def test_checkpoints_that_may_not_be_listed_are_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    with pytest.raises(CheckpointError, match=r"checkpoints' but got: Not a directory"):
        lit_sparse.load(tmp_path)
