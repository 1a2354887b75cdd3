"""Both Lightnings: the choice, training with either, and messages about a wrong one."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import ConfigurationError, MissingExtraError
from lit_sparse.lightning import choice as lightning
from lit_sparse.lightning.choice import NAMES, VARIABLE, check_pairing, choose, chosen_path
from tests.support.processes import run_python

BOTH = pytest.mark.parametrize("name", NAMES.values())


def skip_without(package: str) -> None:
    """Skip a test without a package; ``importorskip`` would import it, and later tests of this process would warn."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def only(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Let only these be installed, and none be imported."""
    monkeypatch.setattr(lightning, "find_spec", lambda package: package in packages or None)
    for name in NAMES.values():
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.slow
@BOTH
def test_a_trainer_takes_parts_of_the_user_and_of_this_package(name: str) -> None:
    skip_without(name.partition(".")[0])
    assert "trained three times" in run_python("tests/support/either_lightning.py", name)


@pytest.mark.slow
def test_the_command_line_runs_on_the_lightning_that_is_asked_for() -> None:
    skip_without("lightning")
    code = "import sys; from lit_sparse.cli import main; main(sys.argv[1:]); assert 'pytorch_lightning' not in sys.modules"
    quick = ["--trainer.fast_dev_run=true", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    scheduled = ["--model.init_args.lr_scheduler=ReduceLROnPlateau", "--model.init_args.lr_scheduler.monitor=val/loss"]
    own = ["--trainer.callbacks+=pytorch_lightning.callbacks.LearningRateMonitor"]  # a config written for the other one
    run_python("-c", code, "fit", "-c", "ssvae/digits", *quick, *scheduled, *own, **{VARIABLE: "lightning"})


@pytest.mark.parametrize("package", NAMES)
def test_the_one_that_is_installed_is_chosen(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, package)
    monkeypatch.setattr(metadata, "version", lambda _: "2.6.6")
    assert choose() == NAMES[package]


@pytest.mark.parametrize("package", NAMES)
def test_the_one_that_is_imported_is_chosen(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, *NAMES)
    monkeypatch.setattr(metadata, "version", lambda _: "2.6.6")
    assert choose() == "pytorch_lightning"
    monkeypatch.setitem(sys.modules, NAMES[package], ModuleType(NAMES[package]))
    assert choose() == NAMES[package]


@pytest.mark.parametrize("package", NAMES)
def test_the_variable_decides(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, *NAMES)
    monkeypatch.setattr(metadata, "version", lambda _: "2.6.6")
    for name in NAMES.values():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setenv(VARIABLE, package)
    assert choose() == NAMES[package]


def test_wrong_choices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "pytorch_lightning")
    monkeypatch.setenv(VARIABLE, "torch_lightning")
    with pytest.raises(ConfigurationError, match="one of pytorch_lightning, lightning but got 'torch_lightning'"):
        choose()
    monkeypatch.setenv(VARIABLE, "lightning")
    with pytest.raises(MissingExtraError, match=r'but got none. Install it with: pip install "lightning>=2\.6\.6"'):
        choose()


@pytest.mark.parametrize("package", NAMES)
@pytest.mark.parametrize("version", ["2.5.9", "2.6.3", "2.6.5.post1"])
def test_versions_whose_checkpoints_can_run_code_are_refused(
    version: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, package)
    monkeypatch.setattr(metadata, "version", lambda _: version)
    with pytest.raises(MissingExtraError, match=rf"extra 'train' with .* 2\.6\.6 or newer.* but got {re.escape(version)}"):
        choose()
    monkeypatch.setattr(metadata, "version", lambda _: "2.7.0.dev1")
    assert choose() == NAMES[package]


def test_models_and_data_modules_warn_of_the_other_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(name for name in NAMES.values() if name != lightning.NAME)
    monkeypatch.setitem(sys.modules, other, ModuleType(other))
    message = f"Import the Trainer from `{lightning.NAME}`, or import `{other}` before lit_sparse"
    for build in (check_pairing, DigitsDataModule):
        with pytest.warns(UserWarning, match=message):
            build()


def test_paths_of_the_other_are_those_of_the_chosen() -> None:
    for name in NAMES.values():
        assert chosen_path(f"{name}.callbacks.EarlyStopping") == f"{lightning.NAME}.callbacks.EarlyStopping"
    assert chosen_path("torch.optim.Adam") == "torch.optim.Adam"


def test_names_that_lightning_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        lightning.Nothing  # noqa: B018


def test_one_module_imports_lightning() -> None:
    package = Path(lightning.__file__).parent.parent
    pattern = re.compile(r"^\s*(import|from) (pytorch_lightning|lightning|lightning_fabric)\b", re.M)
    assert [path.name for path in package.rglob("*.py") if pattern.search(path.read_text("utf-8"))] == ["choice.py"]
