"""Checkpoints that are damaged, foreign or malformed are refused in one message."""

from __future__ import annotations

import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_sparse.cli import main
from lit_sparse.errors import CheckpointError
from lit_sparse.models import SemiSupervisedVAE
from lit_sparse.models.loaded_weights import read_weights
from lit_sparse.runs.checkpoint_files import LOGGED_STEP, read_checkpoint
from tests.conftest import CONFIGS

QUIET = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu")
SHORT = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--trainer.log_every_n_steps=1")
DIGITS = ("-c", str(CONFIGS / "ssvae" / "digits.yaml"), *QUIET)
Content = dict[str, Any]


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert main(["fit", *DIGITS, *SHORT, "--output_dir", str(folder)]) == 0
    return folder / "ssvae" / "digits" / "0" / "checkpoints" / "last.ckpt"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def put(*path: Any, value: Any) -> Callable[[Content], Content]:
    """Return what sets an entry of a checkpoint."""

    def change(content: Content) -> Content:
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return content

    return change


def less(*keys: str) -> Callable[[Content], Content]:
    return lambda content: {key: value for key, value in content.items() if key not in keys}


FIT = ("loops", "fit_loop")
PROGRESS = (*FIT, "epoch_progress", "total", "ready")
POSITION = (*FIT, "state_dict", "combined_loader", 0)
NAN = torch.full((10,), torch.nan)
#: Changes of a checkpoint, and the message of each command.
MALFORMED: dict[str, tuple[Callable[[Content], Any], str]] = {
    "a state dict alone": (lambda content: dict(content["state_dict"]), "bare state dict"),
    "a list": (lambda content: [content], "an object of type list"),
    "nothing": (lambda content: None, "an object of type NoneType"),
    "an empty dict": (lambda content: {}, "no state_dict"),
    "no version": (less("pytorch-lightning_version"), "version of Lightning"),
    "a version that is none": (put("pytorch-lightning_version", value="new"), "'new'"),
    "a version to come": (put("pytorch-lightning_version", value="99.0.0"), "'99.0.0'"),
    "a version of many digits": (put("pytorch-lightning_version", value=f"{'9' * 5000}.0"), "version of Lightning"),
    "a version that is a number": (put("pytorch-lightning_version", value=2), "but got 2"),
    "a class that is not there": (
        put("hyper_parameters", "mapping", "class_path", value="lit_sparse.mappings.Sparsemaxx"),
        "Did you mean 'Sparsemax'?",
    ),
    "a model that is not there": (
        put("hyper_parameters", "_class_path", value="lit_sparse.models.No"),
        "does not have this class",
    ),
    "a tensor as an argument": (put("hyper_parameters", "in_features", value=torch.ones(1)), "an integer in"),
    "arguments in a list": (put("hyper_parameters", value=[1]), "a dict but got list"),
    "an argument that is a list": (put("hyper_parameters", "in_features", value=[1]), "in_features"),
    "a step that is text": (put("global_step", value="ten"), "Expected `global_step`"),
    "an epoch below 0": (put("epoch", value=-1), "Expected `epoch`"),
    "progress that is text": (put(*PROGRESS, value="ten"), "loops.fit_loop.epoch_progress.total.ready"),
    "a weight that is NaN": (put("state_dict", "classifier.0.bias", value=NAN), "NaN in `classifier.0.bias`"),
    "a weight of another size": (put("state_dict", "classifier.0.bias", value=torch.ones(3)), "does not fit"),
    "a weight that is text": (put("state_dict", "classifier.0.bias", value="x"), "classifier.0.bias"),
    "a weight without a name": (put("state_dict", 3, value=torch.ones(3)), "to be text but got 3"),
    "means of another type": (put("train_means", value=4), "does not fit"),
    "callbacks of another type": (put("callbacks", "CountLogger", value=4), "does not fit"),
    "a file elsewhere": (put("callbacks", "ModelCheckpoint", value={"best_model_path": "a/../../b.ckpt"}), "a/../../b.ckpt"),
    "a remote file": (put("callbacks", "ModelCheckpoint", value={"best_k_models": {"s3://b": 1}}), "s3://b"),
}
#: Further keys that `fit` needs.
UNFINISHED: dict[str, tuple[Callable[[Content], Any], str]] = {
    "no optimizer": (less("optimizer_states"), "no optimizer_states.*initial_weights"),
    "weights alone": (less("optimizer_states", "lr_schedulers", "loops", "callbacks"), "no lr_schedulers and no loops"),
    "an optimizer of another type": (put("optimizer_states", value=[3]), "`optimizer_states.0`.*but got 3"),
    "no state of an optimizer": (put("optimizer_states", value=[]), "no optimizer_states"),
    "loops of another type": (put("loops", value=3), "Expected `loops` in 'changed.ckpt' to be a dict with `fit_loop`"),
    "states of another type": (put("states", value=3), "Expected `states` in 'changed.ckpt' to be a dict with keys"),
    "states with other entries": (put("states", "flags", value=3), "Expected `states.flags`"),
    "rows of later steps": (
        put(*FIT, "epoch_loop.state_dict", LOGGED_STEP, value=9),
        f"{LOGGED_STEP}` in .* to be an integer in 0 .. 3 but got 9",
    ),
    "a place that is text": (put(*POSITION, value="a"), "combined_loader.0.*but got 'a'"),
    "a place of other types": (
        put(*POSITION, "epoch", value="a"),
        "combined_loader.0.epoch` in .* to be 1, as in this run but got 'a'",
    ),
}


def refused(command: str, change: Callable[[Content], Any], last: Path, capsys: pytest.CaptureFixture[str]) -> str:
    torch.save(change(torch.load(last, weights_only=True)), "changed.ckpt")
    longer = ["--trainer.max_epochs=2", "--trainer.limit_train_batches=1", "--trainer.log_every_n_steps=1"]
    assert main([command, *DIGITS, *(longer if command == "fit" else ()), "--ckpt_path", "changed.ckpt"]) == 2
    message = capsys.readouterr().err
    assert "lit-sparse: error: " in message
    assert any(word in message for word in ("changed.ckpt", "Expected `in_features`", "Expected a position"))
    return " ".join(message.split())


@pytest.mark.cases(quick=12, gate=99)
@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_checkpoint_is_refused(kind: str, last: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = MALFORMED[kind]
    assert words in refused("test", change, last, capsys)


@pytest.mark.cases(gate=3)
@pytest.mark.parametrize("kind", UNFINISHED)
def test_what_training_cannot_go_on_from_is_refused(kind: str, last: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = UNFINISHED[kind]
    assert re.search(words, refused("fit", change, last, capsys))


@pytest.mark.parametrize("command", ["fit", "validate", "predict"])
def test_every_command_says_that_weights_are_nan(command: str, last: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "NaN in `classifier.0.bias`" in refused(command, MALFORMED["a weight that is NaN"][0], last, capsys)


def test_a_run_goes_on_with_other_numbers_of_accumulated_batches(tmp_path: Path) -> None:
    """Lightning counts the batches before an update with the number of the run that continues."""
    fit = ["fit", *DIGITS, *SHORT, "--trainer.max_epochs=4", "--trainer.limit_train_batches=6", "--trainer.limit_val_batches=1"]
    for steps, batches in ((3, 1), (5, 2), (6, 3), (8, 1)):
        more = ["--ckpt_path", "last"] if steps > 3 else []
        assert main([*fit, f"--trainer.max_steps={steps}", f"--trainer.accumulate_grad_batches={batches}", *more]) == 0


def test_from_python_nan_is_said_and_weights_of_a_warm_start_are_refused(last: Path) -> None:
    content = torch.load(last, weights_only=True)
    content["state_dict"]["classifier.0.bias"][0] = torch.nan
    torch.save(content, "nan.ckpt")
    with pytest.warns(UserWarning, match=r"NaN in `classifier\.0\.bias`"):
        model = SemiSupervisedVAE.load_from_checkpoint("nan.ckpt")
    assert bool(model.classifier[0].bias[0].isnan())
    with pytest.raises(CheckpointError, match="NaN"):
        read_weights("nan.ckpt")


@pytest.mark.gate
def test_a_checkpoint_of_another_model_is_refused(last: Path, capsys: pytest.CaptureFixture[str]) -> None:
    game = ["-c", str(CONFIGS / "signaling_game" / "digits.yaml"), *QUIET]
    for arguments in (["test", *game], ["fit", *game], ["test", "--model=SignalingGame", "--data=DigitsDataModule", *QUIET]):
        assert main([*arguments, "--ckpt_path", str(last)]) == 2
        message = capsys.readouterr().err
        assert "Expected a checkpoint of a SignalingGame" in message
        assert "lit_sparse.models.SemiSupervisedVAE" in message


@pytest.mark.gate
def test_a_flipped_bit_is_seen(last: Path) -> None:
    """In the contents of the archive, whose checksums torch does not verify."""
    whole = last.read_bytes()
    with zipfile.ZipFile(last) as archive:
        places = [(entry.header_offset + 30 + len(entry.filename) + 64, entry.file_size) for entry in archive.infolist()]
    generator = random.Random(0)
    for start, size in [place for place in places if place[1] > 400]:
        for _ in range(3):
            damaged = bytearray(whole)
            damaged[start + generator.randrange(size - 128)] ^= 1 << generator.randrange(8)
            Path("damaged.ckpt").write_bytes(damaged)
            for read in (read_checkpoint, SemiSupervisedVAE.load_from_checkpoint, read_weights):
                with pytest.raises(CheckpointError, match=r"damaged\.ckpt"):
                    read("damaged.ckpt")  # type: ignore[operator]
    assert read_checkpoint(last)["global_step"] == 1


def test_members_that_overlap_are_not_read() -> None:
    """The checksum of one part of the file would be computed for each of its names."""
    torch.save({"state_dict": {"w": torch.zeros(5000)}}, "some.ckpt")
    with zipfile.ZipFile("some.ckpt", "a") as archive:
        archive.filelist += 9 * [max(archive.filelist, key=lambda member: member.file_size)]
        archive._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match="its members overlap"):
        read_checkpoint("some.ckpt")


def test_lists_that_are_billions_when_written_out_are_refused(tmp_path: Path) -> None:
    shared: list[Any] = [0]
    for _ in range(40):
        shared = [shared, shared]
    torch.save({"state_dict": {}, "callbacks": shared}, tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match="few values between places"):
        read_checkpoint(tmp_path / "a.ckpt")


def test_a_description_that_contains_itself_is_refused(last: Path, capsys: pytest.CaptureFixture[str]) -> None:
    itself: dict[str, Any] = {}
    itself["again"] = itself
    for change in (put("hyper_parameters", "mapping", value=itself), put("loops", value=itself)):
        assert "levels of nesting" in refused("test", change, last, capsys)


@pytest.mark.cases(quick=3, gate=99)
@pytest.mark.parametrize("name", ["../../x", "/x", "a/../../x", "..", "", "a\0b"])
def test_a_name_that_leads_out_of_its_folder_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *DIGITS, *SHORT, "--output_dir=runs/here", "--name", name]) == 2
    assert "--output_dir" in capsys.readouterr().err
    assert not list(Path().rglob("*"))


def test_nor_does_the_name_of_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "own.yaml").write_text((CONFIGS / "ssvae" / "digits.yaml").read_text())
    assert main(["fit", "-c", "configs/../own.yaml", *QUIET, *SHORT]) == 2
    assert "'../own'" in capsys.readouterr().err
