"""Run folders that earlier versions wrote are still read: configs, checkpoints, and the numbers that these give."""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import re
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
import yaml

from lit_sparse.cli import main
from lit_sparse.models import LitSparseModule

from .conftest import metrics_of

FORMATS = Path(__file__).parent / "old_formats"
RUNS = sorted(path.parent for path in FORMATS.glob("*/*/config.yaml"))
#: Seconds of the machine that wrote them are not part of the format.
TIMES = ("seconds",)


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a run folder, with its data in the current folder."""
    source: Path = request.param
    current = shutil.copytree(FORMATS / "data", tmp_path / source.parent.name)
    folder = current / "runs" / source.name / "0"
    (folder / "checkpoints").mkdir(parents=True)
    shutil.copy(source / "config.yaml", folder)
    (folder / "checkpoints" / "last.ckpt").write_bytes(gzip.decompress((source / "last.ckpt.gz").read_bytes()))
    (folder / "expected.json").write_text((source / "expected.json").read_text())
    proxy = source.parent / "proxy" / "last.ckpt.gz"
    (current / "proxy.ckpt").write_bytes(gzip.decompress(proxy.read_bytes()))
    monkeypatch.chdir(current)
    return folder


def of_test(folder: Path) -> dict[str, float]:
    return {name: values[-1] for name, values in metrics_of(folder).items() if name.startswith("test/")}


#: Runs of 0.1 whose checkpoints have former names.
FORMER_CHECKPOINTS = (
    *("regression", "robust_classifier", "robust_regressor", "summarization", "translation", "translation_transformer"),
    *("transport_kernel", "transport_mlp"),
)
#: Former names in configs of 0.1.
FORMER_KEYS = r"\b(draws|start|loss_per|jitter|whole|val_share|val_samples): |lit_sparse\.nn\.\w+Potentials"
WARNINGS = r"`\w+` of \w+ is now|\w+ is now lit_sparse\.transport"


def warnings_of(run: Path, *, config: bool = True) -> AbstractContextManager[object]:
    """Expect the warnings of former names in a run's config or, without it, in its checkpoint; or none."""
    text = (run / "config.yaml").read_text()
    former = bool(re.search(FORMER_KEYS, text)) if config else run.parent.name in FORMER_CHECKPOINTS
    former = former and run.parents[2].name == "0.1"
    return pytest.warns(DeprecationWarning, match=WARNINGS) if former else nullcontext()


#: Relative change of the second epoch's numbers by rounding, where it is above 1e-4. Pixels summed in another order change the
#: rate of this model by 1e-4, as its gradient is a difference of likelihoods that are a thousand times larger.
ROUNDING = {"bitvector_vae": 3e-4}

each_run = pytest.mark.parametrize("run", RUNS, indirect=True, ids=lambda path: f"{path.parent.name}-{path.name}")


def test_there_are_runs() -> None:
    assert len(RUNS) >= 31


@each_run
def test_no_path_of_a_machine_is_stored(run: Path) -> None:
    states = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["callbacks"]
    folders = {Path(state["dirpath"]) for name, state in states.items() if name.startswith("ModelCheckpoint")}
    assert folders == {Path("runs", run.parent.name, "0", "checkpoints")}


@pytest.mark.cases(gate=2)
@each_run
def test_an_old_run_gives_its_numbers(run: Path) -> None:
    with warnings_of(run):
        assert main(["test", "-c", str(run / "config.yaml"), "--ckpt_path", str(run / "checkpoints" / "last.ckpt")]) == 0
    expected = json.loads((run / "expected.json").read_text())["test"]
    got = of_test(run / "test" / "0")
    assert expected
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=1e-5, abs=1e-7, nan_ok=True), name


@pytest.mark.cases(quick=8, gate=99)
@each_run
def test_an_old_checkpoint_loads_in_python(run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    module, _, name = config["model"]["class_path"].rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    with warnings_of(run, config=False):
        model = cls.load_from_checkpoint(run / "checkpoints" / "last.ckpt")
    assert isinstance(model, LitSparseModule)
    saved = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert saved.keys() == model.state_dict().keys()
    for key, tensor in saved.items():
        torch.testing.assert_close(model.state_dict()[key], tensor, rtol=0, atol=0)


@pytest.mark.slow
@each_run
def test_an_old_run_goes_on(run: Path) -> None:
    resumed = ["fit", "-c", str(run / "config.yaml"), "--ckpt_path", str(run / "checkpoints" / "last.ckpt")]
    with warnings_of(run):
        code = main([*resumed, f"--name={run.parent.name}", "--trainer.max_epochs=2", "--trainer.log_every_n_steps=1"])
    assert code == 0
    expected = json.loads((run / "expected.json").read_text())["second_epoch"]
    with (run / "metrics.csv").open(newline="") as file:
        got = {name: float(value) for row in csv.DictReader(file) for name, value in row.items() if value}
    for name, value in expected.items():
        tolerance = ROUNDING.get(run.parent.name, 1e-4)
        assert got[name] == pytest.approx(value, rel=tolerance, abs=1e-6, nan_ok=True), name


@pytest.mark.slow
@each_run
def test_an_old_checkpoint_predicts(run: Path) -> None:
    with warnings_of(run):
        assert main(["predict", "-c", str(run / "config.yaml"), "--ckpt_path", str(run / "checkpoints" / "last.ckpt")]) == 0
