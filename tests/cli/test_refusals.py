"""Settings that Lightning refuses end in one message."""

from __future__ import annotations

from pathlib import Path

import pytest
from jsonargparse import ArgumentParser, Namespace

from lit_sparse.cli import main
from lit_sparse.cli.refusals import build_error
from lit_sparse.errors import ConfigurationError
from lit_sparse.models import BitVectorVAE
from tests.conftest import CONFIGS, ROOT

BITS = ("-c", str(ROOT / "tests" / "support" / "bits.yaml"), "--trainer.max_epochs=1")
KERNEL = ("-c", str(CONFIGS / "transport" / "kernel_1d.yaml"), "--trainer.max_epochs=2", "--trainer.enable_progress_bar=false")
AVERAGING = (
    "--trainer.callbacks=StochasticWeightAveraging",
    "--trainer.callbacks.swa_lrs=0.1",
    "--trainer.callbacks.device=null",
)
CASES = {
    "a share of one batch": (
        (*BITS, "--trainer.limit_val_batches=0.5", "--data.init_args.eval_batch_size=101"),
        "Lightning refuses this run: You requested to check 0.5 of the `val_dataloader`",
    ),
    "validation after the epoch": ((*BITS, "--trainer.val_check_interval=1000"), "(1000) must be less than or equal to"),
    "a metric that is not logged": (
        (*BITS, "--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=val/nothing"),
        "Expected EarlyStopping to monitor a logged metric but got 'val/nothing'.",
    ),
    "learning rates without a logger": (
        (*BITS, "--trainer.callbacks=LearningRateMonitor", "--trainer.logger=false"),
        "Cannot use `LearningRateMonitor` callback",
    ),
    "averaging without a learning rate": ((*KERNEL, *AVERAGING, "--data.init_args.samples=2000"), "Leave out the callback."),
}


@pytest.mark.cases(quick=3)
@pytest.mark.parametrize("case", CASES)
def test_one_message_says_what_lightning_refuses(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    args, message = CASES[case]
    assert main(["fit", *args]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert sum(line.startswith("lit-sparse: error: ") for line in error.splitlines()) == 1
    assert "Traceback" not in error


def test_an_error_in_a_model_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug in a step")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(BitVectorVAE, "step", broken)
    with pytest.raises(ValueError, match="a bug in a step"):
        main(["fit", *BITS])


def test_what_the_parser_refuses_when_parts_are_built_is_a_message() -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("part", type=BitVectorVAE)
    with pytest.raises(ValueError, match="subclass") as refused:
        parser.instantiate(Namespace(part=Namespace(class_path="collections.OrderedDict", init_args=Namespace())))
    error = build_error(refused.value, Namespace())
    assert isinstance(error, ConfigurationError)
    assert str(error).endswith("Change their class or its arguments.")
