"""The script that trains all seeds at once does what ``lit-sparse fit`` does with one."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
import torch

from lit_sparse.cli import main
from tests.conftest import CONFIGS, ROOT, metrics_of

sys.path.insert(0, str(ROOT / "scripts"))

import logsumexp_mnist
import logsumexp_regression
import reproduce_logsumexp


@pytest.fixture
def houses(shared: Path) -> Path:
    return shared / "data" / "california_housing" / "cal_housing.csv.gz"


@pytest.mark.parametrize(
    ("method", "risk"),
    [
        ("safe KL", ("--model.init_args.risk.init_args.link=softplus",)),
        ("capped exponential", ()),
        ("batch LSE", ("--model.init_args.risk={class_path: KLDRO, init_args: {lam: 1.0}}",)),
    ],
    ids=["safe", "capped", "batch"],
)
def test_a_lightning_run_is_a_column(
    method: str, risk: tuple[str, ...], houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the config that ships, at batch 1000, with the seed of the third column of four."""
    monkeypatch.chdir(tmp_path)
    x, y = logsumexp_regression.load(houses)
    link = logsumexp_regression.METHODS[method]
    curve = logsumexp_regression.train(x, y, link, 1000, 1e-5, range(4), 3)
    options = (f"--data.init_args.path={houses}", "--data.init_args.batch_size=1000", "--data.init_args.seed=2", *risk)
    brief = ("--trainer.max_epochs=3", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--name=one")
    rate = ("--model.init_args.optimizer.init_args.lr=1e-5", "--trainer.log_every_n_steps=10")
    assert main(["fit", "-c", str(CONFIGS / "robust" / "california.yaml"), *options, *rate, *brief]) == 0
    found = torch.tensor(metrics_of(tmp_path / "runs/one/0")["val/log_mean_exp"][-3:], dtype=torch.float64)
    torch.testing.assert_close(found, curve[1:, 2], rtol=2e-4, atol=0)
    assert float((curve[3, 2] - curve[3, 1]).abs()) > 1e-3, "other seeds give other curves"


def test_the_start_and_the_optimum(houses: Path) -> None:
    x, y = logsumexp_regression.load(houses)
    start = logsumexp_regression.log_mean_exp(logsumexp_regression.least_squares(x, y).unsqueeze(0), x, y)
    assert float(start) == pytest.approx(44.02, abs=0.01)
    assert logsumexp_regression.optimum(x, y) == pytest.approx(1.99684, abs=2e-5)


def test_a_killed_script_goes_on(houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished runs are not trained again, and the results are those of all runs."""
    monkeypatch.setattr(logsumexp_regression, "METHODS", {"safe KL": "softplus", "batch LSE": None})
    monkeypatch.setattr(logsumexp_regression, "RATES", {"safe": {1000: 1e-5}, "batch": {1000: 1e-5}})
    folders = [f"--output={tmp_path / 'runs'}", f"--results={tmp_path / 'results'}"]
    words = ["regression", "--data", str(houses), "--epochs", "1", "--seeds", "2", *folders]
    assert reproduce_logsumexp.main(words) == 0
    table = (tmp_path / "results" / "logsumexp_regression.md").read_text()
    assert "| safe KL | 1000 | 1e-05 | 2 |" in table
    monkeypatch.setattr(logsumexp_regression, "train", lambda *arguments: pytest.fail("it was trained again"))
    assert reproduce_logsumexp.main(words) == 0
    assert (tmp_path / "results" / "logsumexp_regression.md").read_text() == table


def test_curves_of_wrong_labels(shared: Path, tmp_path: Path) -> None:
    """Cut after some updates, it goes on and writes the curves of a run that was not."""
    folder = shared / "data" / "mnist"
    short = [f"--data.init_args.folder={folder}", f"--data.init_args.label_noise.init_args.cache={tmp_path}"]
    short += ["--data.init_args.train_size=400", "--data.init_args.test_size=200"]
    curves = []
    for name, stops in (("whole", (12,)), ("cut", (6, 12))):
        for stop in stops:
            words = ["mnist", "--every", "6", "--arms", "safe KL", f"--output={tmp_path / name}"]
            words += [f"--results={tmp_path / name}", "--", *short, f"--trainer.max_steps={stop}"]
            (tmp_path / name / "mnist_mnist_0" / "done").unlink(missing_ok=True)
            assert reproduce_logsumexp.main(words) == 0
        with (tmp_path / name / "logsumexp_mnist.csv").open(newline="") as file:
            curves.append(list(csv.DictReader(file)))
    assert [row["step"] for row in curves[0]] == ["0", "6", "12"]
    assert curves[0] == curves[1]
    assert "safe KL | 0 | 12 |" in (tmp_path / "cut" / "logsumexp_mnist.md").read_text()
    assert logsumexp_mnist.rows_of(tmp_path / "nowhere.csv") == []
