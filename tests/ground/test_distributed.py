"""Two and three real processes report what one does."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lit_sparse.cli import main
from lit_sparse.metrics import hoyer_sparseness
from tests.conftest import CONFIGS, ROOT, Command, metrics_of
from tests.data.pairs import write_pairs
from tests.support.counted import calls_of

pytestmark = pytest.mark.gate

DIGITS = ("-c", str(CONFIGS / "ssvae" / "digits.yaml"))
BITS = ("-c", str(ROOT / "tests" / "support" / "bits.yaml"))
GAME = ("-c", str(ROOT / "tests" / "support" / "game.yaml"))
SOAE = ("-c", str(ROOT / "tests" / "support" / "soae.yaml"))
TRANSLATION = ("-c", str(ROOT / "tests" / "support" / "translation.yaml"))
TWO = ("-c", str(CONFIGS / "trainer" / "ddp_cpu.yaml"))
THREE = (*TWO, "--trainer.devices=3")
ODD = ("--data.init_args.test_size=101", "--data.init_args.val_size=101", "--data.init_args.eval_batch_size=7")
QUIET = ("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--data.init_args.binarize=true")
SHORT = ("--trainer.max_epochs=2", "--trainer.check_val_every_n_epoch=1")


#: Name of a case -> overlay, and number of examples; with two examples, the third process has none.
SEVERAL = {
    "two": (TWO, 101),
    "three": pytest.param(THREE, 101, marks=pytest.mark.slow),
    "one of three is empty": pytest.param(THREE, 2, marks=pytest.mark.slow),
}


@pytest.mark.slow
@pytest.mark.parametrize(("overlay", "examples"), SEVERAL.values(), ids=SEVERAL)
def test_scores_equal_those_of_one_process(
    overlay: tuple[str, ...], examples: int, lit_sparse: Command, tmp_path: Path
) -> None:
    sizes = (*ODD, f"--data.init_args.test_size={examples}", f"--data.init_args.val_size={examples}")
    done = lit_sparse("fit", *DIGITS, *sizes, *QUIET, *SHORT)
    assert done.returncode == 0, done.stderr
    for command, prefix in (("validate", "val"), ("test", "test")):
        scores = []
        for number, several in enumerate(((), overlay)):
            done = lit_sparse(command, *DIGITS, *several, *sizes, *QUIET, "--ckpt_path", "last")
            assert done.returncode == 0, done.stderr
            scores.append(metrics_of(tmp_path / "runs" / "ssvae" / "digits" / "0" / command / str(number)))
        one, two = scores
        assert one.keys() == two.keys()
        assert one[f"{prefix}/examples"] == two[f"{prefix}/examples"] == [examples]
        assert one[f"{prefix}/decoder_calls_total"][0] > examples
        for name, values in one.items():
            exact = "support_size" in name or "decoder_calls" in name
            assert two[name] == (values if exact else pytest.approx(values, rel=1e-6)), name


@pytest.mark.slow
def test_counts_of_three_processes_are_exact_if_one_is_empty(lit_sparse: Command, tmp_path: Path) -> None:
    """Sums, means and percentiles cover all decisions; the third process has no example of the validation."""
    fit = ("fit", "--model=counted.Counted", "--data=counted.CountedData", "--name=counted", *THREE)
    done = lit_sparse(*fit, "--trainer.max_epochs=1", "--trainer.enable_progress_bar=false", "--trainer.log_every_n_steps=1")
    assert done.returncode == 0, done.stderr
    got = metrics_of(tmp_path / "runs" / "counted" / "0")
    for stage, examples in (("train", range(6)), ("val", range(2))):
        calls = [count for index in examples for count in calls_of(index)]
        for name, counts in (("decoder_calls", calls), ("support_size", [count + 1 for count in calls])):
            assert got[f"{stage}/{name}_total"] == [sum(counts)]
            assert got[f"{stage}/{name}_mean"] == [sum(counts) / len(counts)], "to the last bit"
            assert got[f"{stage}/{name}_median"] == [statistics.median_low(counts)]
            assert got[f"{stage}/{name}_p10"] == [sorted(counts)[math.ceil(len(counts) / 10) - 1]]
    assert got["val/examples"] == [2.0]
    mean = sum(calls) / len(calls)
    assert (mean + mean + mean) / 3 != mean, "a mean of equal means would be rounded"


@pytest.mark.slow
def test_bits_per_dimension_equal_those_of_one_process(
    lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each image has draws of its own, and the errors add up over processes."""
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *BITS, "--trainer.max_epochs=1"]) == 0
    assert main(["test", *BITS, "--ckpt_path", "last"]) == 0
    done = lit_sparse("test", *BITS, *TWO, "--ckpt_path", "last")
    assert done.returncode == 0, done.stderr
    one, two = (metrics_of(tmp_path / "runs" / "bits" / "0" / "test" / str(number)) for number in (0, 1))
    assert one.keys() == two.keys()
    assert one["test/examples"] == [101.0]
    assert one["test/bits_per_dim_standard_error"][0] > 0
    for name, values in one.items():
        assert two[name] == pytest.approx(values, rel=1e-5), name


def test_training_on_two_processes(lit_sparse: Command, tmp_path: Path) -> None:
    """Both processes hold the same weights, write one run folder, and resume as if never killed."""
    train = ("fit", *DIGITS, *TWO, *ODD, *QUIET, *SHORT, "--checkpoint_every_n_steps=3")
    done = lit_sparse(*train, "--name=whole")
    assert done.returncode == 0, done.stderr
    killer = ("--trainer.callbacks=interruptions.KillAtStep", "--trainer.callbacks.step=13")
    killed = lit_sparse(*train, "--name=cut", *killer)
    assert killed.returncode != 0
    done = lit_sparse(*train, "--name=cut", "--ckpt_path", "last")
    assert done.returncode == 0, done.stderr
    whole, cut = tmp_path / "runs" / "whole", tmp_path / "runs" / "cut"
    for folder in (whole, cut):
        assert [path.name for path in folder.iterdir()] == ["0"]
    expected, got = (torch.load(f / "0" / "checkpoints" / "last.ckpt", weights_only=True) for f in (whole, cut))
    for name, tensor in expected["state_dict"].items():
        torch.testing.assert_close(got["state_dict"][name], tensor, atol=1e-6, rtol=0)
    total = "train/decoder_calls_total"
    assert metrics_of(cut / "0")[total] == metrics_of(whole / "0")[total]


@pytest.mark.slow
def test_predictions_of_two_processes_are_one_file(
    lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file equals one process's, in the order of the inputs."""
    monkeypatch.chdir(tmp_path)
    short = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.log_every_n_steps=1")
    assert main(["fit", *DIGITS, *ODD, *QUIET, *short]) == 0
    assert main(["predict", *DIGITS, *ODD, *QUIET, "--ckpt_path", "last"]) == 0
    done = lit_sparse("predict", *DIGITS, *ODD, *QUIET, *TWO, "--ckpt_path", "last")
    assert done.returncode == 0, done.stderr
    one, two = (tmp_path / "runs" / "ssvae" / "digits" / "0" / "predict" / number for number in "01")
    assert [path.name for path in two.glob("predictions*")] == ["predictions.csv"]
    lines, others = ((folder / "predictions.csv").read_text().splitlines() for folder in (one, two))
    assert lines[0] == others[0]
    for line, other in zip(lines[1:], others[1:], strict=True):
        assert [float(value) for value in other.split(",")] == pytest.approx(
            [float(value) for value in line.split(",")], rel=1e-5
        )
    assert [line.split(",")[0] for line in others[1:]] == [str(number) for number in range(101)]


@pytest.mark.slow
def test_no_process_group_is_left_after_a_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom lit_sparse.cli import main\nstatus = main(sys.argv[1:])\n"
        "import torch\nprint(f'status {status}, group {torch.distributed.is_initialized()}', file=sys.stderr)\n"
    )
    command = [sys.executable, str(script), "fit", *DIGITS, *QUIET, *SHORT, *TWO, "--trainer.limit_train_batches=2"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stderr.count("status 0, group False") == 2, done.stderr


@pytest.mark.slow
def test_a_sampler_learns_on_two_processes_and_its_game_is_scored_alike(
    lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Baselines use the losses of both processes; statistics of the language do not depend on the number of processes."""
    done = lit_sparse("fit", *GAME, *TWO)
    assert done.returncode == 0, done.stderr
    state = torch.load(tmp_path / "runs" / "game" / "0" / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert float(state["estimator.mean.count"]) == 2 * 1594, "the games of both, in two epochs"
    done = lit_sparse("test", *GAME, *TWO, "--ckpt_path", "last")
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    assert main(["test", *GAME, "--ckpt_path", "last"]) == 0
    two, one = (metrics_of(tmp_path / "runs" / "game" / "0" / "test" / str(number)) for number in (0, 1))
    assert one.keys() == two.keys()
    assert {"test/topographic_similarity", "test/used_vocabulary", "test/success"} <= one.keys()
    assert one["test/examples"] == [101.0]
    assert one["test/used_vocabulary"][0] > 1
    for name, values in one.items():
        assert two[name] == pytest.approx(values, rel=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), ("--trainer.callbacks=OptimalBrainDamage", "--trainer.callbacks.module=encoder", "--trainer.callbacks.every=2")],
    ids=["sparse connectivity", "optimal brain damage"],
)
def test_weights_are_acted_on_alike(
    options: tuple[str, ...], lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes project, or prune, the same weights, and are scored as one is."""
    same = ("--trainer.callbacks+=agreement.SameWeights", "--name=two", "--trainer.max_epochs=3")
    done = lit_sparse("fit", *SOAE, *options, *TWO, "--data.init_args.batch_size=5", *same)
    assert done.returncode == 0, done.stderr
    assert "all 2 processes have the same weights" in done.stdout
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *SOAE, *options, "--name=one", "--trainer.max_epochs=3"]) == 0
    one, two = (
        torch.load(tmp_path / "runs" / name / "0" / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for name in ("one", "two")
    )
    if options:  # what is drawn to measure by depends on the batches; how much goes does not
        assert int((one["encoder.weight"] == 0).sum()) == int((two["encoder.weight"] == 0).sum()) > 900
    else:
        for weight in (one["encoder.weight"], two["encoder.weight"]):
            torch.testing.assert_close(hoyer_sparseness(weight), torch.full((30,), 0.5), atol=1e-5, rtol=0)
    done = lit_sparse("test", *SOAE, *TWO, "--name=one", "--ckpt_path", "last")
    assert done.returncode == 0, done.stderr
    assert main(["test", *SOAE, "--name=one", "--ckpt_path", "last"]) == 0
    two, one = (metrics_of(tmp_path / "runs" / "one" / "0" / "test" / str(number)) for number in (0, 1))
    for name, values in one.items():
        assert two[name] == pytest.approx(values, rel=1e-5), name


@pytest.mark.slow
def test_importance_that_was_measured_goes_on(lit_sparse: Command, tmp_path: Path) -> None:
    """Killed between the measurement and the removal, two processes go on as if they had not been."""
    damage = ("--trainer.callbacks=OptimalBrainDamage", "--trainer.callbacks.module=encoder", "--trainer.callbacks.every=2")
    same = ("--trainer.callbacks.sample_every=10", "--trainer.callbacks+=agreement.SameWeights")
    fit = ("fit", *SOAE, *damage, *same, *TWO, "--trainer.max_epochs=3", "--trainer.limit_train_batches=8")
    fit = (*fit, "--checkpoint_every_n_steps=3")
    killed = lit_sparse(*fit, "--trainer.callbacks+=interruptions.KillAtStep", "--trainer.callbacks.step=13")
    assert killed.returncode != 0
    for options in (("--ckpt_path", "last"), ("--name=whole",)):
        done = lit_sparse(*fit, *options)
        assert done.returncode == 0, done.stderr
        assert "all 2 processes have the same weights" in done.stdout
    cut, whole = (
        torch.load(tmp_path / "runs" / name / "0" / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for name in ("soae", "whole")
    )
    assert int((whole["encoder.weight"] == 0).sum()) == whole["encoder.weight"].numel() // 2
    for name, tensor in whole.items():
        torch.testing.assert_close(cut[name], tensor, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_scores_of_text_equal_those_of_one_process(
    lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BLEU, chrF and ROUGE are of all outputs, each of them once, and what is predicted is in the order of the input."""
    for split, number in (("train", 61), ("val", 11), ("test", 13)):
        write_pairs(tmp_path / "pairs", split, number)
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *TRANSLATION, "--trainer.max_epochs=12"]) == 0
    best = ("--ckpt_path", "best")
    for command, prefix in (("validate", "val"), ("test", "test")):
        assert main([command, *TRANSLATION, *best]) == 0
        done = lit_sparse(command, *TRANSLATION, *TWO, *best)
        assert done.returncode == 0, done.stderr
        one, two = (metrics_of(tmp_path / "runs" / "translation" / "0" / command / str(number)) for number in (0, 1))
        assert one.keys() == two.keys()
        assert {f"{prefix}/bleu", f"{prefix}/chrf", f"{prefix}/rouge20_L", f"{prefix}/groups_mean"} <= one.keys()
        assert one[f"{prefix}/chrf"][0] > 0
        for name, values in one.items():
            assert two[name] == pytest.approx(values, rel=1e-6), name
    assert main(["predict", *TRANSLATION, *best]) == 0
    done = lit_sparse("predict", *TRANSLATION, *TWO, *best)
    assert done.returncode == 0, done.stderr
    folders = [tmp_path / "runs" / "translation" / "0" / "predict" / str(number) for number in (0, 1)]
    one, two = ([json.loads(line) for line in (f / "predictions.jsonl").read_text().splitlines()] for f in folders)
    for ours, theirs in zip(one, two, strict=True):  # other batches add up in another order: the last digit of a score varies
        scores, others = ([output.pop("score") for output in line["outputs"]] for line in (ours, theirs))
        assert scores == pytest.approx(others, rel=1e-5)
        assert ours == theirs
    assert (folders[1] / "predictions.txt").read_text().count("\n") == 13
