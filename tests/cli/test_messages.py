"""Messages of the command line: one sentence on what is wrong, one on the next step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lit_sparse.cli import main
from lit_sparse.errors import CheckpointError, ConfigurationError, DataError, LitSparseError, did_you_mean
from lit_sparse.models.loaded_weights import not_given
from tests.conftest import CONFIGS
from tests.support.processes import run_python

DIGITS = ("-c", str(CONFIGS / "ssvae" / "digits.yaml"))
SHORT = (
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=1",
    "--trainer.limit_val_batches=1",
    "--trainer.check_val_every_n_epoch=1",
    "--trainer.log_every_n_steps=1",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must be refused in one message of at most 600 characters, and return it."""
    assert main(arguments) == 2
    error = capsys.readouterr().err
    (line,) = [line for line in error.splitlines() if "lit-sparse: error:" in line]
    assert "Traceback" not in error
    assert "Union" not in error
    assert len(line) < 600
    assert not [path for path in Path().rglob("*") if path.name.isdigit()], "a run that never began leaves no folder"
    return line


@pytest.mark.cases(quick=8, gate=99)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seed_everything=-1"], "`seed_everything` to be in 0 .. 2^32 - 1 but got -1"),
        (["--seed_everything=4294967296"], "in 0 .. 2^32 - 1 but got 4294967296"),
        (["--checkpoint_every_n_steps=-1"], "`checkpoint_every_n_steps` to be at least 1 but got -1"),
        (["--checkpoint_every_n_steps=0"], "to be at least 1 but got 0"),
        (["--trainer.accumulate_grad_batches=0"], "Expected `trainer.accumulate_grad_batches` to be at least 1 but got 0."),
        (["--trainer.check_val_every_n_epoch=0"], "Expected `trainer.check_val_every_n_epoch` to be at least 1 but got 0."),
        (["--trainer.log_every_n_steps=-1"], "Expected `trainer.log_every_n_steps` to be at least 0 but got -1."),
        (["--trainer.num_sanity_val_steps=-2"], "Expected `trainer.num_sanity_val_steps` to be at least -1 but got -2."),
        (["--trainer.devices=-3"], "The trainer does not accept its arguments: `devices`"),
        (["--model.in_features=-3"], "Expected argument `in_features` to be an integer of at least 1 but got -3"),
        (
            ["--model.classes=99999999999999999999"],
            "`classes` to be an integer of at most 1000000 but got 99999999999999999999",
        ),
        (["--model.classifier_hidden=[1000000000000]"], "`classifier_hidden` to be an integer of at most 1000000"),
        (
            ["--model.mapping=LPSparseMAP"],
            "as in `graph: {class_path: lit_sparse.structures.FactorGraph, init_args: {variables",
        ),
        (["--trainer.callbacks=EarlyStopping"], "Missing: monitor, which has no default"),
        (["--data.batch_size=null"], "`batch_size`"),
        (["--trainer.max_epochs="], "Expected `max_epochs` to be an integer or null but got ''."),
        (["--model.risk={class_path: CVaR, init_args: [1]}"], "Expected `init_args` of `risk` to be a dict but got '[1]'."),
        (["--model.risk={class_path: CVaR, init_args: null}"], "`init_args` of `risk` to be a dict but got 'null'."),
        (["--model.risk={class_path: CVaR, level: 1}"], "beside the class_path of `risk` but got 'level'. Put it into"),
        (["--model.optimizer={class_path: Adam, lr: 1}"], "no option 'class_path' in Adam. Beside a class_path, only"),
        (["--trainer.callbacks=[{class_path: EarlyStopping, monitor: val/nelbo}]"], "Beside a class_path, only `init_args`"),
        (["--data={class_path: DigitsDataModule, init_arg: {}}"], "in DigitsDataModule. Beside a class_path, only"),
        (["--model.mapping.init_args.gama=2"], "There is no option 'gama' in Sparsemax. Did you mean 'gamma'?"),
        (
            ["--model.mapping=SparseMAP"],
            "Missing: structure, which has no default. Set it in the init_args of the class, as in",
        ),
        (["--trainer.logger=CometLogger"], "Expected the package 'comet"),
        (
            ["--model.estimator=Sparsemax"],
            "Expected `estimator` to be of the kind Estimator but got the SparseMapping 'Sparsemax'.",
        ),
        (["--model.classifier_hidden=abc"], "Expected `classifier_hidden` to be a list but got 'abc'."),
        (["--model.mapping=[1, 2]"], "Expected `mapping` to be a SparseMapping but got '[1, 2]'."),
        (["--model=LitSparseModule"], "'LitSparseModule' for `model` cannot be built: it does not define step."),
        (["--model.optimizer=torch.optim"], "to be a subclass of torch's Optimizer but got 'torch.optim'."),
        (["--model.lr_scheduler=torch.optim.lr_scheduler.StepLr"], "Did you mean 'StepLR'? It defines: "),
        (["--trainer.precision=\udce9"], "'bf16' or null but got '\\udce9'"),
        (["--trainer.precision=17"], "'16-true', '16-mixed', 'bf16-true', "),
        (["--trainer.callbacks=[CountLogger, Foo]"], "There is no class 'Foo' for `callbacks`."),
        (["--trainer=abc"], "Expected `trainer` to be a dict but got 'abc'."),
        (["--data.foo.bar=3"], "There is no option 'foo.bar' in DigitsDataModule."),
        (["--model.lr=0.01"], "There is no option 'lr' in SemiSupervisedVAE. Did you mean 'optimizer.lr'?"),
        (["--modle.in_features=3"], "There is no option 'modle'. Did you mean 'model'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_are_refused_in_one_message(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(["fit", *DIGITS, *SHORT, *options], capsys)
    assert words in message


def test_sizes_that_are_too_large_together_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    config = ("-c", str(CONFIGS / "transport" / "kernel_1d.yaml"))
    sizes = ["--model.dim=1000000", "--model.potentials.capacity=100000000"]
    message = refused(["fit", *config, *SHORT, *sizes], capsys)
    assert "The parts cannot be built" in message
    assert "Change model.potentials.capacity = 100000000." in message


def test_a_config_without_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Give a config with -c: lit-sparse COMMAND -c my/digits.yaml" in refused(["fit", "my/digits.yaml"], capsys)
    assert "Give the class first" in refused(["fit", "--model.init_args.mapping=Sparsemax"], capsys)


def test_a_slip_at_the_top_of_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    Path("slip.yaml").write_text(Path(DIGITS[1]).read_text().replace("model:", "modle:", 1))
    assert "There is no option 'modle'. Did you mean 'model'?" in refused(["fit", "-c", "slip.yaml"], capsys)


def test_no_suggestion_is_the_name_itself() -> None:
    assert did_you_mean("Sparsemax", ["Sparsemax"]) == ""
    assert did_you_mean("sparsemax", ["Sparsemax"]) == " Did you mean 'Sparsemax'?"


def test_two_classes_of_one_name_need_their_full_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(".")
    for name in ("one_of_two", "two_of_two"):
        Path(f"{name}.py").write_text("from lit_sparse import mappings\nclass Twin(mappings.Softmax):\n    pass\n")
        __import__(name)
    message = refused(["fit", *DIGITS, *SHORT, "--model.mapping=Twin"], capsys)
    assert "Give the full path" in message
    assert "one_of_two.Twin or two_of_two.Twin" in message
    assert "Did you mean" not in message


def test_a_module_in_the_folder_of_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    here = Path.cwd()
    Path("own").mkdir()
    Path("own/parts_of_own.py").write_text("from lit_sparse.mappings import Sparsemax\nclass Mine(Sparsemax):\n    pass\n")
    Path("own/own.yaml").write_text("model: {init_args: {mapping: parts_of_own.Mine}}\n")
    message = refused(["fit", *DIGITS, *SHORT, "-c", "own/own.yaml"], capsys)
    assert f"nor in the folder {str(here)!r}" in message
    assert f"start the command in {str(here / 'own')!r}" in message


@pytest.mark.parametrize("part", ["EarlyStopping", "ModelCheckpoint"])
def test_a_metric_that_is_not_logged(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = [f"--trainer.callbacks={part}", "--trainer.callbacks.monitor=val/acuracy"]
    assert main(["fit", *DIGITS, *SHORT, *options]) == 2
    (message,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert f"Expected {part} to monitor a logged metric but got 'val/acuracy'. Did you mean 'val/accuracy'?" in message
    assert "Choose from: train/accuracy, " in message
    assert "p90" not in message


@pytest.mark.parametrize(
    ("config", "words", "text"),
    [
        ("ckpt_path: 5", [], "`ckpt_path`"),
        ("ckpt_path: [x]", [], "`ckpt_path`"),
        ("trust: 5", [], "`trust`"),
        ("ckpt_path: null", ["--ckpt_path", ""], "Give the path of a checkpoint"),
    ],
)
def test_values_of_options_about_checkpoints(
    config: str, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("some.yaml").write_text(config)
    assert text in refused(["fit", *DIGITS, *SHORT, "-c", "some.yaml", *words], capsys)


def test_what_lightning_refuses_within_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *DIGITS, *SHORT, "--trainer.gradient_clip_val=.nan"]) == 2
    assert "Lightning refuses this run: " in capsys.readouterr().err


def test_the_last_checkpoint_is_named_where_the_best_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("runs/ssvae/digits/0/checkpoints")
    folder.mkdir(parents=True)
    torch.save({}, folder / "last.ckpt")
    assert main(["test", *DIGITS, "--ckpt_path", "best"]) == 2
    assert f"{str(folder / 'last.ckpt')!r} exists. Give --ckpt_path last." in capsys.readouterr().err


@pytest.mark.slow
def test_help_of_a_class_fits_a_screen() -> None:
    """In a process of its own: help names all classes that a program has imported."""
    out = run_python("-m", "lit_sparse", "fit", "--model.help", "SignalingGame", COLUMNS="100")
    assert len(out.splitlines()) <= 50
    assert "TopKSparsemax" in out
    assert "torch.nn." not in out
    assert "torchmetrics" not in out
    for name in ("mapping", "sender", "receiver", "entropy_weight", "optimizer", "initial_weights"):
        assert f"--model.{name} " in out


def test_help_of_an_unknown_class_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--model.help", "SignallingGame"]) == 2
    error = capsys.readouterr().err
    assert "There is no class 'SignallingGame' for `model`. Did you mean 'SignalingGame'?" in error


@pytest.mark.gate
@pytest.mark.parametrize(
    ("name", "value", "expected"), [("", "", "PASSIVE"), ("OMP_WAIT_POLICY", "ACTIVE", "ACTIVE"), ("GOMP_SPINCOUNT", "9", "")]
)
def test_idle_threads_sleep_unless_the_user_says_otherwise(name: str, value: str, expected: str) -> None:
    kept = {
        key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    }
    code = "import os, sys; from lit_sparse.cli import main; main(['--version']); print(os.environ.get('OMP_WAIT_POLICY', ''))"
    environment = {**kept, **({name: value} if name else {})}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=environment)
    assert done.stdout.splitlines()[-1] == expected


def test_torch_that_is_loaded_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(key, raising=False)
    assert main(["--version"]) == 0
    assert "OMP_WAIT_POLICY" not in os.environ


@pytest.mark.parametrize("kind", [ConfigurationError, DataError, CheckpointError, LitSparseError])
def test_names_in_an_error_do_not_act_on_the_terminal(kind: type[Exception]) -> None:
    for acting in ("\x1b[2J", "\x9b2J", "\r", "\u202e", "\ud800", "\x00"):
        assert str(kind(f"There is no\n'ä{acting}'.")) == f"There is no\n'ä{acting.encode('unicode_escape').decode()}'."


def test_a_name_in_a_checkpoint_does_not_act_on_the_terminal() -> None:
    assert r"\x1b[2J" in str(not_given(torch.nn.Linear, ["\x1b[2J"]))


@pytest.mark.skipif(sys.platform != "linux", reason="the encoding of files is that of the locale")
def test_a_locale_without_letters_of_other_languages() -> None:
    code = "import sys; from lit_sparse.cli import main; status = main(); print(chr(0x2581)); sys.exit(status)"
    ascii_alone = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    assert run_python("-c", code, "--version", **ascii_alone).splitlines()[-1] == "\\u2581"
    done = subprocess.run(
        [sys.executable, "-c", code, "fit", "--output_dir", "sortié"],
        **{"env": {**os.environ, **ascii_alone}, "capture_output": True, "text": True},
    )
    assert done.returncode == 2
    assert "Set PYTHONUTF8=1" in done.stderr


def test_letters_that_the_locale_has_are_taken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "iso8859-1")
    assert main(["compile", "é"]) == 2
    assert "Expected a mapping" in capsys.readouterr().err
