"""The scripts run, and the projections that benchmark_hoyer times compute the same as the package."""

from __future__ import annotations

import csv
import dataclasses
import functools
import importlib.util
import itertools
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from lit_sparse.mappings import functional as F
from tests.data.images.test_mnist import idx

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
ALGORITHMS = ("linear time", "alternating", "Hoyer 2004")


def load(name: str) -> ModuleType:
    """Import a script from its file, with its neighbours in reach, as they are when it is run."""
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hoyer() -> Any:
    return load("benchmark_hoyer")


def assert_picture(path: Path) -> None:
    start = path.read_bytes()[:100]
    assert start.startswith(b"\x89PNG") if path.suffix == ".png" else b"<?xml" in start


@pytest.mark.parametrize("file_format", ["png", "svg"])
def test_plot_mappings_draws_both_pictures(file_format: str, tmp_path: Path) -> None:
    load("plot_mappings").main(["--folder", str(tmp_path / "new"), "--format", file_format, "--resolution", "7"])
    for name in ("mappings_2d", "mappings_3d"):
        assert_picture(tmp_path / "new" / f"{name}.{file_format}")


def test_plot_mappings_shows_every_mapping() -> None:
    """A mapping that joins the package must join the pictures."""
    from lit_sparse import mappings

    script = load("plot_mappings")
    drawn = {type(mapping) for mapping in [*script.simplex_mappings().values(), *script.other_mappings().values()]}
    not_of_their_own = {mappings.SparseMapping, mappings.LearnableEntmax, mappings.LearnableFusedmax}
    layers = {getattr(mappings, name) for name in mappings.__all__} - not_of_their_own
    assert {layer for layer in layers if issubclass(layer, mappings.SparseMapping)} == drawn
    assert all(mapping.on_simplex for mapping in script.simplex_mappings().values())


def test_values_in_two_dimensions_touch_the_hinge() -> None:
    """The constants added to max_Omega([t, 0]) make it max(t, 0) far away, for every Omega; the capped one is bent less."""
    script = load("plot_mappings")
    x = torch.tensor([[-60.0, 0.0], [60.0, 0.0]], dtype=torch.float64)
    for name, mapping in script.simplex_mappings().items():
        value = mapping.value(x) + script.to_touch(mapping)
        cap = 1 / (2 * script.RHO) if name.startswith("capped") else 1.0
        torch.testing.assert_close(value, torch.tensor([-60 * (1 - cap), 60 * cap], dtype=torch.float64))


def test_benchmark_hoyer_prints_tables_and_draws(hoyer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    hoyer.main(["--quick", "--rounds", "1", "--vectors", "2", "--folder", str(tmp_path)])
    assert_picture(tmp_path / "hoyer.png")
    printed = capsys.readouterr().out
    assert printed.count("\n| ---:") == 5
    assert "F.hoyer_projection is at least" in printed
    assert torch.get_num_threads() == threads


def test_benchmark_sparsemap_prints_its_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = load("benchmark_sparsemap")
    monkeypatch.setattr(
        sys, "argv", ["benchmark_sparsemap", "--quick", "--rounds", "1", "--threads", str(torch.get_num_threads())]
    )
    script.main()
    printed = capsys.readouterr().out
    assert "`BitVector(d=32)`" in printed
    assert "| 64 | 16 |" in printed


def test_benchmark_risks_prints_its_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = load("benchmark_risks")
    monkeypatch.setattr(script, "SHAPES", ((8, 10),))
    assert script.main(["--repeats", "1", "--threads", str(torch.get_num_threads())]) == 0
    printed = capsys.readouterr().out
    assert "| (8, 10) | 1e-3 |" in printed
    assert "| Mean | 1.00 |" in printed


def test_benchmark_mappings_prints_its_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = load("benchmark_mappings")
    monkeypatch.setattr(script, "SHAPES", [(2, 5)])
    monkeypatch.setattr(script, "keep_memory", lambda: None)  # it lasts as long as the process
    monkeypatch.setattr(sys, "argv", ["benchmark_mappings", "--rounds", "1", "--only", "sparsemax"])
    script.main()
    assert "| (2, 5) | sparsemax |" in capsys.readouterr().out


@pytest.mark.parametrize("sparseness", [0.05, 0.3, 0.6, 0.9, 0.97])
@pytest.mark.parametrize("n", [2, 3, 10, 77, 1500])
def test_algorithms_agree_with_the_package(hoyer: Any, n: int, sparseness: float) -> None:
    generator = np.random.default_rng(n)
    for scale, norm in ((1.0, 1.0), (30.0, 2.5), (0.01, 0.1)):
        x = scale * generator.standard_normal(n)
        rows = torch.from_numpy(x)
        with_signs = F.hoyer_projection(rows, sparseness, norm=norm).numpy()
        nonneg = F.hoyer_projection(rows, sparseness, nonneg=True, norm=norm).numpy()
        for name in ALGORITHMS:
            project = hoyer.ALGORITHMS[name]
            np.testing.assert_allclose(project(x, sparseness, norm).y, nonneg, rtol=0, atol=1e-6)
            np.testing.assert_allclose(np.copysign(project(abs(x), sparseness, norm).y, x), with_signs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sparseness", [0.05, 0.3, 0.6, 0.9, 0.97])
@pytest.mark.parametrize("n", [2, 3, 10, 77, 1500])
def test_sorted_form_agrees_with_the_package(hoyer: Any, n: int, sparseness: float) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    expected = F.hoyer_projection(x, sparseness)
    for sort in (hoyer.torch_sort, hoyer.numpy_sort):
        torch.testing.assert_close(hoyer.sorted_form(x, sparseness, sort), expected, rtol=0, atol=1e-6)


def test_traces_end_at_the_support_and_alternating_is_never_longer_than_hoyer(hoyer: Any) -> None:
    """Thom & Palm (2013): the step to the simplex drops at least what the step to the positive entries does."""
    for seed in range(50):
        x = hoyer.vector(500, None, np.random.default_rng(seed))
        found = {name: hoyer.ALGORITHMS[name](x, 0.8) for name in ALGORITHMS}
        for trace in found.values():
            assert trace.sizes[-1] == np.count_nonzero(trace.y)
        for name in ("alternating", "Hoyer 2004"):
            assert found[name].sizes[0] == 500
            assert (np.diff(found[name].sizes) < 0).all()
        shorter, longer = found["alternating"].sizes, found["Hoyer 2004"].sizes
        assert len(shorter) <= len(longer)
        assert all(a <= b for a, b in zip(shorter, longer, strict=False))


@pytest.mark.parametrize("sparseness", [0.1, 0.5, 0.85])
def test_vectors_have_the_sparseness_asked_for(hoyer: Any, sparseness: float) -> None:
    x = hoyer.vector(256, sparseness, np.random.default_rng(0))
    assert abs((16 - x.sum() / np.linalg.norm(x)) / 15 - sparseness) < 0.01
    assert (x > 0).all()


def test_a_wrong_result_stops_the_benchmark(hoyer: Any) -> None:
    x = hoyer.vector(20, None, np.random.default_rng(0))
    y = hoyer.alternating(x, 0.5).y
    hoyer.check(x, 0.5, y)
    for wrong in (y + 1e-6, y * np.nan):
        with pytest.raises(RuntimeError, match="off"):
            hoyer.check(x, 0.5, wrong)


def test_compare_runs_draws_and_tabulates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load("compare_runs")
    calls = "train/decoder_calls_"
    header = f"epoch,step,val/nelbo,train/nelbo,{calls}p10,{calls}median,{calls}p90,{calls}mean"
    lines = [header, "0,5,90.0,,,,,", "0,5,,95.0,1.0,4.0,9.0,4.5", "1,9,,80.0,1.0,2.0,3.0,2.25"]
    (tmp_path / "run" / "test" / "0").mkdir(parents=True)
    (tmp_path / "run" / "metrics.csv").write_text("\n".join(lines))
    test = "epoch,step,test/nelbo,test/bits_per_dim,test/bits_per_dim_standard_error\n0,0,85.0,3.5,0.01"
    (tmp_path / "run" / "test" / "0" / "metrics.csv").write_text(test)
    monkeypatch.setattr(sys, "argv", ["compare_runs", f"ours={tmp_path / 'run'}", "--output", str(tmp_path / "picture.png")])
    script.main()
    assert "| ours | 2 | 95, 80 | 4, 2 | 4.50, 2.25 | 85 | 3.500 ± 0.01 |" in capsys.readouterr().out
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    game = "\n".join(lines).replace("nelbo", "success").replace("95.0", "0.4567").replace("80.0", "0.91234")
    (tmp_path / "run" / "metrics.csv").write_text(game)
    (tmp_path / "run" / "test" / "0" / "metrics.csv").write_text("epoch,step,test/success\n0,0,0.98765")
    script.main()
    printed = capsys.readouterr().out
    assert "| ours | 2 | 0.4567, 0.9123 | 4, 2 | 4.50, 2.25 | 0.9877 |\n" in printed
    assert "bits/dim" not in printed
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--metric", "val/nelbo"])
    with pytest.raises(SystemExit, match=r"all runs logged, of .*success; got val/nelbo"):
        script.main()
    (tmp_path / "run" / "metrics.csv").write_text("epoch,step,val/nelbo\n0,5,90.0")
    with pytest.raises(SystemExit, match="decoder_calls_median"):
        script.main()
    monkeypatch.setattr(sys, "argv", ["compare_runs", f"ours={tmp_path / 'elsewhere'}"])
    with pytest.raises(SystemExit):
        script.main()
    assert "is not a run folder" in capsys.readouterr().err


TINY = (
    "--trainer.max_epochs=2",
    "--trainer.limit_train_batches=3",
    "--trainer.check_val_every_n_epoch=1",
    "--trainer.accelerator=cpu",
)


@pytest.mark.slow
@pytest.mark.process
def test_a_sweep_goes_on_and_names_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = load("sweep")
    rate = "model.init_args.optimizer.init_args.lr"
    config = str(SCRIPTS.parent / "configs" / "ssvae" / "digits.yaml")
    options = ["--metric", "val/nelbo", "--output", str(tmp_path), "--jobs", "2", "--", *TINY]
    assert sweep.main([config, "--grid", rate, "1e-3", "1e-1", *options]) == 0
    printed = capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "ssvae" / "digits" / "sweep.csv").read_text().splitlines()))
    assert [float(row["val/nelbo"]) for row in rows] == sorted(float(row["val/nelbo"]) for row in rows)
    assert {row[rate] for row in rows} == {"1e-3", "1e-1"}
    assert "best, with val/nelbo" in printed
    best = yaml.safe_load((tmp_path / "ssvae" / "digits" / "best.yaml").read_text())
    assert float(best["model"]["init_args"]["optimizer"]["init_args"]["lr"]) == float(rows[0][rate])
    # Killed before its end, a cell goes on from its checkpoint; the other is only read.
    cell = tmp_path / "ssvae" / "digits" / "lr=1e-1" / "0"
    (cell / "finished").unlink()
    before = (tmp_path / "ssvae" / "digits" / "lr=1e-3" / "0" / "metrics.csv").stat().st_mtime_ns
    assert sweep.main([config, "--grid", rate, "1e-3", "1e-1", *options]) == 0
    assert (cell / "config_resumed_1.yaml").is_file()
    assert (tmp_path / "ssvae" / "digits" / "lr=1e-3" / "0" / "metrics.csv").stat().st_mtime_ns == before
    # Other options would make results of another kind: they are refused, and lose nothing.
    assert sweep.main([config, "--grid", rate, "1e-3", *options, "--trainer.max_epochs=3"]) == 1
    assert "Choose another --output" in capsys.readouterr().err


@pytest.mark.process
def test_a_job_that_was_cut_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    jobs = load("jobs")
    config = str(SCRIPTS.parent / "configs" / "ssvae" / "digits.yaml")
    job = jobs.Job(config, "some/run", tmp_path, TINY)
    with pytest.raises(jobs.JobFailedError, match="no option"):
        dataclasses.replace(job, options=[*TINY, "--data.init_args.nothing=1"]).train(1)
    assert not job.folder.exists(), "and what failed is no reason against other options"
    job.folder.mkdir(parents=True)
    (job.folder / "config.yaml").write_text("begun")
    assert jobs.run_all([functools.partial(jobs.Job.train, job), lambda threads: 1 / 0], 1) == [
        "ZeroDivisionError: division by zero"
    ]
    assert job.last.is_file()
    assert (job.folder / "finished").is_file()
    assert (tmp_path / "some" / "run" / "cut_0" / "config.yaml").read_text() == "begun", "nothing is thrown away"
    other = jobs.Job(str(SCRIPTS.parent / "configs" / "soae" / "digits.yaml"), "some/run", tmp_path, TINY)
    with pytest.raises(jobs.JobFailedError, match="other config"):
        other.train(1)


def test_a_job_is_not_that_of_another_overlay(tmp_path: Path) -> None:
    jobs, overlay = load("jobs"), tmp_path / "overlay.yaml"
    overlay.write_text("trainer: {max_epochs: 1}")
    config = str(SCRIPTS.parent / "configs" / "ssvae" / "digits.yaml")
    job = jobs.Job(config, "run", tmp_path, ["-c", str(overlay)])
    job.last.parent.mkdir(parents=True)
    for path in (job.last, job.folder / "finished"):
        path.touch()
    job.train(1)
    job.train(1)
    overlay.write_text("trainer: {max_epochs: 2}")
    with pytest.raises(jobs.JobFailedError, match=r"other overlays.*'max_epochs': 1.*now.*'max_epochs': 2"):
        job.train(1)
    begun = json.loads((tmp_path / "run.json").read_text())
    del begun["overlays"]  # as an older version wrote it
    (tmp_path / "run.json").write_text(json.dumps(begun))
    job.train(1)


@pytest.mark.process
def test_a_folder_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    """A training whose script was killed holds its folder until it ends."""
    jobs = load("jobs")
    job = jobs.Job("config.yaml", "run", tmp_path, TINY)
    with job.alone() as lock:  # also makes the folder
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=lock)
    job.folder.mkdir(parents=True)
    (job.folder / "metrics.csv").write_text("begun")
    (tmp_path / "config.yaml").write_text("{}")
    with pytest.raises(jobs.JobFailedError, match="being trained by another process"):
        dataclasses.replace(job, config=str(tmp_path / "config.yaml")).train(1)
    assert (job.folder / "metrics.csv").is_file(), "what is being written stays where it is"
    assert not (tmp_path / "run.json").exists(), "nor does the other command say what the run is"
    child.communicate(b"\n")
    with job.alone():
        pass


@pytest.mark.process
def test_an_interrupted_set_of_jobs_begins_no_more_of_them(tmp_path: Path) -> None:
    program = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have its background jobs ignore it
sys.path.insert(0, sys.argv[1])
import jobs

def job(threads):
    print("begun", flush=True)
    time.sleep(3)

jobs.run_all([job, job, job], 1)
"""
    command = [sys.executable, "-c", program, str(SCRIPTS)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    first = child.stdout.readline()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (first + out).count("begun") == 1
    assert "give the same command again" in err
    assert child.returncode != 0


def test_mistakes_in_a_sweep_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = load("sweep")
    config = str(SCRIPTS.parent / "configs" / "ssvae" / "digits.yaml")
    for arguments, words in (
        (["missing.yaml", "--grid", "a", "1", "--metric", "m"], "there is no config"),
        ([config, "--grid", "a", "--metric", "m"], "has no values"),
        ([config, "--grid", "a", "1", "--grid", "a", "2", "--metric", "m"], "twice"),
        ([config, "--grid", "a", "1", "--metric", "val/entropy"], "--mode min or --mode max"),
        ([config, "--grid", "a", "1", "--metric", "m", "--trainer.max_epochs=1"], "stand at the end, behind --"),
    ):
        with pytest.raises(SystemExit):
            sweep.main(arguments)
        assert words in capsys.readouterr().err
    (tmp_path / "metrics.csv").write_text("epoch,val/loss\n0,3.5\n1,")
    assert sweep.last_value(tmp_path, "val/loss") == 3.5
    with pytest.raises(SystemExit, match="such as val/loss; got val/lose"):
        sweep.last_value(tmp_path, "val/lose")
    (tmp_path / "metrics.csv").write_text("epoch,train/loss\n0,3.5")
    with pytest.raises(SystemExit, match=r"never validated: --trainer.check_val_every_n_epoch 1"):
        sweep.last_value(tmp_path, "val/loss")


def test_results_are_tabulated_beside_those_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From what is finished, over seeds; nothing is trained that is."""
    script = load("reproduce_latent")
    header = "epoch,train/decoder_calls_p10,train/decoder_calls_median,train/decoder_calls_p90,val/success"
    for name, success in (("sparse", (0.9, 0.92)), ("dense", (0.91, 0.95))):
        for seed, value in enumerate(success):
            run = tmp_path / "game" / "cut" / name / f"seed_{seed}" / "0"
            run.mkdir(parents=True)
            (run / "finished").touch()
            result = {"success": value, "entropy": 1.5, "calls": 3.0, "rows": 2e6}
            (run / "result.json").write_text(json.dumps(result))
            (run / "metrics.csv").write_text(f"{header}\n0,1,4,9,0.3\n1,1,2,3,{value}")
    arguments = ["game", "--schedule", "cut", "--methods", "sparse", "dense", "--seeds", "0", "1", "--output", str(tmp_path)]
    assert script.main(arguments) == 0
    cells = ["91.00 ± 1.41", "1.50 ± 0.00", "3.00 ± 0.00", "2.00 ± 0.00", "93.35 (3.13)"]
    line = f"| sparse marginalization (sparsemax) | 2 | {' | '.join(cells)} |"
    assert line in capsys.readouterr().out
    assert line in (tmp_path / "game_cut.md").read_text()
    assert len((tmp_path / "game_cut.csv").read_text().splitlines()) == 3
    assert_picture(tmp_path / "game_cut.png")
    with pytest.raises(SystemExit):
        script.main(["game", "--methods", "sparse", "guess"])
    assert "are sparse, dense" in capsys.readouterr().err


def test_tables_of_quality_tell_no_times() -> None:
    """Their runs shared a machine with other work; times stand in the tables of the benchmarks."""
    paths = [path for path in (SCRIPTS.parent / "results").glob("*") if path.suffix in (".md", ".csv")]
    heads = {
        f"{path.name}: {line}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines())
        if not path.name.startswith("benchmark_") and (number == 0 or path.suffix == ".md")
    }
    assert len(heads) > 100
    lines = (SCRIPTS.parent / "README.md").read_text().splitlines()
    heads |= {f"README: {line}" for line, rule in itertools.pairwise(lines) if rule.startswith(("| ---", "| :---"))}
    assert not sorted(head for head in heads if re.search(r"\b(seconds|minutes|time|s a run)\b", head))


def test_coresets_of_an_older_table_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that was begun with a column of times goes on without it, and what was measured is not measured again."""
    script = load("reproduce_coresets")
    path = tmp_path / "coresets_gaussian.csv"
    head = "problem,trial,selector,k,size,seconds,objective,forward_kl,reverse_kl,map_distance"
    path.write_text(f"{head}\ngaussian,0,GIGA,5,5,0.3,1.5,2.5,3.5,4.5\n")
    words = ["gaussian", "--trials", "1", "--sizes", "5", "--selectors", "GIGA", "uniform", "--results", str(tmp_path)]
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["reproduce_coresets.py", *words])
        assert script.main() == 0
    assert capsys.readouterr().out.count("measured") == 1
    with path.open(newline="") as file:
        old, new = csv.DictReader(file)
    assert (old["k"], old["objective"], old["map_distance"], "seconds" in old) == ("5", "1.5", "4.5", False)
    assert (new["selector"], new["size"], float(new["reverse_kl"]) > 0) == ("uniform", "5", True)
    assert "| 5 | 3.5 | " in (tmp_path / "coresets_gaussian.md").read_text()
    assert_picture(tmp_path / "coresets_gaussian.png")


def test_every_method_of_the_tables_has_its_config() -> None:
    script = load("reproduce_latent")
    for experiment in script.EXPERIMENTS.values():
        assert experiment.path.is_file()
        overlays = {
            path.stem for path in (experiment.path.parent / "estimator").glob("*.yaml") if not path.stem.endswith("_128")
        }
        assert {method.overlay for method in experiment.methods.values()} == {None, *overlays}
    assert script.SSVAE.path.with_name(f"{script.SSVAE.warm_start}.yaml").is_file()
    assert {"sparse", "dense", "sfe", "sfe_plus", "nvil", "gumbel", "gumbel_st"} <= set(script.SSVAE.methods)


@pytest.mark.slow
@pytest.mark.process
def test_a_taste_of_a_table_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Warm starts, trainings, exact scores; a second call only reads."""
    script = load("reproduce_latent")
    rng = np.random.default_rng(0)
    for prefix, size in (("train", 200), ("t10k", 50)):
        (tmp_path / f"{prefix}-images-idx3-ubyte").write_bytes(idx(rng.integers(0, 256, (size, 28, 28))))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(rng.integers(0, 10, size)))
    data = [f"--data.init_args.folder={tmp_path}", "--data.init_args.val_size=50", "--data.init_args.labelled=0.3"]
    common = ["ssvae", "--schedule", "taste", "--methods", "sparse", "nvil", "--jobs", "2", "--output", str(tmp_path / "runs")]
    for _ in range(2):
        assert script.main([*common, "--", *data, "--trainer.accelerator=cpu"]) == 0
        assert "| NVIL | 1 |" in capsys.readouterr().out
    result = json.loads((tmp_path / "runs/ssvae/taste/nvil/seed_0/0/result.json").read_text())
    assert result["calls"] == 1.0
    assert result["decoder_calls_mean"] == 10.0, "scored exactly"
    warm = torch.load(tmp_path / "runs/ssvae/taste/warm_start_Softmax/seed_0/0/checkpoints/last.ckpt", weights_only=True)
    assert warm["global_step"] > 0


def test_benchmark_training_compares_the_same_mathematics(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        load("benchmark_training").main(["--rounds", "1", "--steps", "2", "--threads", str(threads)])
    finally:
        torch.set_num_threads(threads)
    assert "| sparse | 1." in capsys.readouterr().out
