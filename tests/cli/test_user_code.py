"""The command line with classes of the user, in modules of the current folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lit_sparse.cli import main

from .test_app import DIGITS, QUIET, refused


def test_parts_of_the_current_folder(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A class in a file of the current folder is found; a failed import is explained."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    source = "from lit_sparse.mappings import Sparsemax\nclass Mine(Sparsemax):\n    pass\n"
    Path("parts_of_mine.py").write_text(source)
    Path("broken_parts.py").write_text(f"import there_is_no_such_thing\n{source}")
    Path("parts_with_a_slip.py").write_text(f"{source}\n(")
    arguments = ["fit", *DIGITS, *QUIET, "--trainer.fast_dev_run=true", "--model.mapping"]
    assert main([*arguments, "parts_of_mine.Mine"]) == 0
    message = refused([*arguments, "broken_parts.Mine"], capsys)
    assert "'broken_parts.Mine' for `mapping` cannot be imported: ModuleNotFoundError: No module named 'there_is" in message
    message = refused([*arguments, "parts_with_a_slip.Mine"], capsys)
    assert "'parts_with_a_slip.Mine' for `mapping` cannot be imported: SyntaxError" in message
    assert "Did you mean 'Mine'?" in refused([*arguments, "parts_of_mine.Mien"], capsys)


@pytest.mark.parametrize(("step", "kept"), [(0, False), (2, True)])
def test_a_run_that_fails_keeps_its_folder_once_it_has_trained(step: int, kept: bool) -> None:
    """The files of the loggers may be the only result of a long run."""
    hook = "on_train_start" if step == 0 else "on_train_batch_end"
    source = (
        "import pytorch_lightning as pl\n"
        "class Failing(pl.Callback):\n"
        f"    def {hook}(self, trainer, *_):\n"
        f"        if trainer.global_step == {step}:\n"
        "            raise RuntimeError('as asked')\n"
    )
    name = f"failing_at_{step}"
    Path(f"{name}.py").write_text(source)
    with pytest.raises(RuntimeError, match="as asked"):
        main(["fit", *DIGITS, *QUIET, f"--trainer.callbacks={name}.Failing"])
    assert Path("runs/ssvae/digits/0/config.yaml").is_file() == kept


def test_a_class_with_untyped_arguments_is_continued() -> None:
    """Lightning's parser reads such a class from a config, so its description in a checkpoint is read, too."""
    source = (
        "from torch.optim.lr_scheduler import ConstantLR\n"
        "class Untyped(ConstantLR):\n"
        "    def __init__(self, optimizer, total_iters=2):\n"
        "        super().__init__(optimizer, total_iters=total_iters)\n"
    )
    Path("untyped_schedule.py").write_text(source)
    short = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.log_every_n_steps=1")
    arguments = ["fit", *DIGITS, *QUIET, *short, "--model.lr_scheduler=untyped_schedule.Untyped"]
    assert main(arguments) == 0
    assert main([*arguments, "--ckpt_path=last", "--trainer.max_epochs=2"]) == 0
