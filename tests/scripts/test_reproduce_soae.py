"""The eight variants are trained, tested once, tabulated and compared as published."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from .test_scripts import assert_picture, load

ERRORS = {
    "soae_sigma": (1.0, 1.2, 1.1, 1.3, 1.15),
    "mlp_random": (2.0, 2.2, 2.1, 2.4, 2.3),
    "mlp_samples": (2.1, 2.25, 2.0, 2.35, 2.2),
}


def finished(job: object, error: float, epochs: int = 2) -> None:
    """Leave what a training and its test leave."""
    folder: Path = job.folder  # type: ignore[attr-defined]
    (folder / "test" / "0").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    (folder / "finished").touch()
    lines = [f"{epoch},{0.5 + epoch / 10}" for epoch in range(epochs)]
    (folder / "metrics.csv").write_text("\n".join(["epoch,val/accuracy", *lines]))
    (folder / "test" / "0" / "metrics.csv").write_text(f"test/accuracy,test/support_size_mean\n{1 - error / 100},40.5")
    weight = torch.cat([torch.zeros(1, 4), torch.ones(3, 4)])
    torch.save({"state_dict": {"encoder.weight": weight}}, folder / "checkpoints" / "last.ckpt")


def test_results_are_tabulated_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = load("reproduce_soae")
    seeds = [str(seed) for seed in range(5)]
    common = ["digits", "--seeds", *seeds, "--variants", *ERRORS, "soae_l0", "--sparseness", "0.5", "0.9"]
    plan = script.Plan("digits", "cut", [*ERRORS, "soae_l0"], list(range(5)), [0.5, 0.9], tmp_path / "runs", 2000, [])
    for (name, seed, sparseness), job in plan.jobs().items():
        if sparseness is not None:
            finished(job, 5 * sparseness)
        elif name in ERRORS:
            finished(job, ERRORS[name][seed])
    arguments = ["--output", str(tmp_path / "runs"), "--results", str(tmp_path / "results"), "--trim", "0", "--only_tables"]
    assert script.main([*common, *arguments]) == 0
    text = (tmp_path / "results" / "soae_digits_cut.md").read_text()
    assert text in capsys.readouterr().out
    assert "| SOAE-sigma | Hoyer | yes | 5 | 1.15 | 1.00 to 1.30 | 40.5 | 25.0 |" in text
    assert "Missing: soae_digits_cut/soae_l0/seed0" in text
    assert "Groups without a difference at the level 0.05: SOAE-sigma; MLP-random, MLP-samples." in text.replace(
        "MLP-samples, MLP-random", "MLP-random, MLP-samples"
    )
    assert "| SOAE-sigma < MLP" in text
    rows = list(csv.DictReader((tmp_path / "results" / "soae_digits_cut.csv").read_text().splitlines()))
    assert len(rows) == 25
    assert {row["sparseness"] for row in rows} == {"", "0.5", "0.9"}
    for ending in ("", "_ranks", "_sparseness"):
        assert_picture(tmp_path / "results" / f"soae_digits_cut{ending}.png")


def test_variants_of_groups_that_overlap_are_compared_one_by_one() -> None:
    script = load("reproduce_soae")
    steps = {"soae_sigma": 0.0, "soae_l0": 0.45, "mlp_random": 0.9}
    errors = {name: [1.0 + shift + 0.1 * run for run in range(10)] for name, shift in steps.items()}
    lines, found = script.tests(errors, trim=0, level=0.05)
    assert len(found.groups) == 2, "neighbours do not differ, the ends do"
    assert "The groups overlap, so variants are compared one by one." in lines
    assert sum(line.startswith("| SOAE-sigma < MLP-random | ") for line in lines) == 1
    assert sum(" < " in line and line.count("|") == 4 for line in lines[1:]) == 4, "three pairs, and the head of their table"


def test_a_run_that_is_not_there_is_no_result(tmp_path: Path) -> None:
    script = load("reproduce_soae")
    plan = script.Plan("digits", "cut", ["soae_sigma"], [0], [], tmp_path, 2000, [])
    job = plan.job("soae_sigma", 0)
    assert script.error(job) is None
    finished(job, 2.0)
    (job.folder / "finished").unlink()
    assert script.error(job) is None, "tested, and then trained on"


def test_every_variant_has_its_config() -> None:
    script = load("reproduce_soae")
    overlays = {path.stem for path in (script.CONFIGS / "variants").glob("*.yaml")}
    assert overlays == set(script.VARIANTS) - {script.SIGMA}
    for experiment in script.EXPERIMENTS.values():
        assert (script.CONFIGS / experiment.config).is_file()
        assert set(experiment.options) <= set(script.VARIANTS)


@pytest.mark.slow
@pytest.mark.process
def test_a_taste_of_all_variants_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every overlay runs; a second call only reads."""
    script = load("reproduce_soae")
    arguments = ["digits", "--schedule", "taste", "--jobs", "2", "--output", str(tmp_path)]
    assert script.main([*arguments, "--", "--trainer.accelerator=cpu"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + len(script.VARIANTS)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.ckpt")}
    assert script.main([*arguments, "--", "--trainer.accelerator=cpu"]) == 0
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.ckpt")}
    assert len(stamps) >= len(script.VARIANTS)


def test_benchmark_soae_prints_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        load("benchmark_soae").main(["--rounds", "1", "--steps", "2", "--threads", str(threads)])
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert "| 64 | tanh | " in printed
    assert "| Hoyer, 0.8, sparse gradient | " in printed
    assert "| SparseConnectivity | " in printed
    with pytest.raises(SystemExit):
        load("benchmark_soae").main(["stairs"])
    assert "there is no part 'stairs'" in capsys.readouterr().err
