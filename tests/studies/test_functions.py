"""Functions that studies call: they give the numbers of ``lit-sparse fit``, of published optima and of the selectors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from lit_sparse.cli import main
from lit_sparse.cli.scores import activity, zeros
from lit_sparse.coresets import IHT, NonnegativeOMP, SparseVI
from lit_sparse.coresets.posteriors import reverse_kl
from lit_sparse.data import DigitsDataModule
from lit_sparse.models import RobustClassifier, SupervisedOnlineAutoencoder
from lit_sparse.nn import ConvNet
from lit_sparse.studies.problems import coresets, kernel_transport, kl_regression
from lit_sparse.studies.problems.label_noise import robust_loss
from tests.conftest import CONFIGS, metrics_of


@pytest.fixture
def houses(shared: Path) -> str:
    return str(shared / "data" / "california_housing" / "cal_housing.csv.gz")


@pytest.mark.gate
@pytest.mark.parametrize(
    ("link", "risk"),
    [
        ("softplus", ()),
        ("capped_exp", ("-c", str(CONFIGS / "robust" / "risk" / "capped_exp.yaml"))),
        (None, ("--model.init_args.risk={class_path: KLDRO, init_args: {lam: 1.0}}",)),
    ],
)
def test_a_lightning_run_has_the_same_curve(
    link: str | None, risk: tuple[str, ...], houses: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the config that ships, with batches of 1000."""
    monkeypatch.chdir(tmp_path)
    arguments = {"path": houses, "link": link, "batch_size": 1000, "lr": 1e-5, "epochs": 3}
    curve = [row["objective"] for row in kl_regression.california(2, every=1, **arguments)]  # type: ignore[arg-type]
    options = (f"--data.init_args.path={houses}", "--data.init_args.batch_size=1000", "--data.init_args.seed=2", *risk)
    brief = ("--trainer.max_epochs=3", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--name=one")
    rate = ("--model.init_args.optimizer.init_args.lr=1e-5", "--trainer.log_every_n_steps=10")
    assert main(["fit", "-c", str(CONFIGS / "robust" / "california.yaml"), *options, *rate, *brief]) == 0
    assert metrics_of(tmp_path / "runs/one/0")["val/log_mean_exp"][-3:] == pytest.approx(curve[1:], rel=2e-4)
    other = kl_regression.california(1, every=1, **arguments)[-1]["objective"]  # type: ignore[arg-type]
    assert abs(curve[3] - other) > 1e-3, "other seeds give other curves"


def test_the_start_and_the_optimum_of_the_regression(houses: str) -> None:
    x, y = kl_regression.load(houses)
    assert float(kl_regression.log_mean_exp(kl_regression.least_squares(x, y), x, y)) == pytest.approx(44.02, abs=0.01)
    assert kl_regression.optimum(0, path=houses)["objective"] == pytest.approx(1.99684, abs=2e-5)


def test_gaps_of_transport_become_small() -> None:
    options = {"rho": 0.03, "width": 0.7, "step_size": 0.3}
    found = kernel_transport.ascend(0, objective="safe", iterations=[100, 1000], **options)  # type: ignore[arg-type]
    assert [row["iterations"] for row in found] == [100, 1000]
    assert 0 < found[1]["gap"] < found[0]["gap"] < 1
    again = kernel_transport.ascend(0, objective="safe", iterations=1000, **options)  # type: ignore[arg-type]
    assert again[-1] == found[1], "the samples do not depend on where the gap is measured"
    assert kernel_transport.marks(5) == [5] and kernel_transport.marks(20)[-1] == 20
    (broken,) = kernel_transport.ascend(0, objective="dual", rho=1.0, width=0.7, step_size=1e6, iterations=[200])
    assert broken["gap"] == math.inf
    assert broken["overflows"] > 0


def test_a_coreset_is_compared_with_all_examples() -> None:
    found = coresets.compare(1, folder=".", problem="gaussian", selector="NN-OMP", k=60)
    problem = coresets.GaussianMean(1)
    coreset = NonnegativeOMP()(problem.vectors, 60)
    expected = reverse_kl(problem.full, problem.posterior(coreset.dense()))
    assert found["reverse_kl"] == pytest.approx(expected)
    assert found["symmetrized_kl"] == found["forward_kl"] + found["reverse_kl"]
    assert found["size"] == 60


def test_options_of_the_thresholding_selectors() -> None:
    made = {name: build(300) for name, build in coresets.SELECTORS.items()}
    keys = ("max_iter", "step", "step_scale", "batch", "debias", "polish")
    options = {name: [getattr(each, key, None) for key in keys] for name, each in made.items() if isinstance(each, IHT)}
    assert options == {
        "A-IHT": [300, "optimal", 1.0, 1.0, False, False],
        "IHT, constant step": [300, "constant", 1.0, 1.0, None, False],
        "A-IHT, 20 % batches": [300, "optimal", 1.0, 0.2, False, False],
        "A-IHT II": [300, "optimal", 1.0, 1.0, True, False],
        "A-IHT II polished": [300, "optimal", 1.0, 1.0, True, True],
        "A-IHT, half step": [300, "optimal", 0.5, 1.0, False, False],
        "A-IHT II, half step": [300, "optimal", 0.5, 1.0, True, False],
    }


def test_zeros_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    torch.save({"state_dict": {"w": torch.tensor([[0.0, 1.0], [0.0, 0.0]]), "b": torch.zeros(2)}}, path)
    assert zeros(path) == {"w": 0.75}


@pytest.mark.gate
def test_activity_is_counted_for_each_training_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    brief = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.log_every_n_steps=1")
    options = ("--data.init_args.shift_augmentation=true", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false")
    assert main(["fit", "-c", str(CONFIGS / "soae" / "digits.yaml"), "--name=one", *brief, *options]) == 0
    path = tmp_path / "runs" / "one" / "0" / "checkpoints" / "last.ckpt"
    found = activity(path)
    data = DigitsDataModule(labelled=1.0, binarize=False, shift_augmentation=True)
    data.setup()
    batch = data.fetch("train", 0, torch.arange(9 * 1257))
    active = np.count_nonzero(
        SupervisedOnlineAutoencoder.load_from_checkpoint(path).encode(batch["pixels"]).numpy(force=True), 1
    )
    expected = {"mean": active.mean(), "std": active.std()}
    expected |= {"low": expected["mean"] - expected["std"], "high": expected["mean"] + expected["std"]}
    assert found == pytest.approx(expected, rel=1e-4)
    assert 20 < found["low"] < found["high"] < 70


def test_sparse_vi_of_all_sizes_is_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(coresets.PROBLEMS, "few", lambda seed, folder: coresets.GaussianMean(seed, 5, 40))
    found = [coresets.compare(1, folder=".", problem="few", selector="SparseVI", k=k, largest=6) for k in (1, 4, 6)]
    assert coresets._sparse_vi.cache_info().hits >= 2
    problem = coresets.GaussianMean(1, 5, 40)
    coreset = SparseVI(problem.resample())(problem.vectors, 6, torch.Generator().manual_seed(1000))
    assert found[-1]["objective"] == pytest.approx(coreset.objective, rel=1e-9)
    assert found[-1]["reverse_kl"] < found[0]["reverse_kl"]


def test_twenty_directions_of_a_map_leave_much_of_the_covariances_out(shared: Path) -> None:
    path = str(shared / "data" / "california_housing" / "cal_housing.csv.gz")
    exact, released = (coresets.make(name, 0, path).vectors for name in ("rbf", "rbf_released"))
    assert released.shape == (1000, 701)
    products = exact @ exact.T
    assert float((released @ released.T - products).norm() / products.norm()) == pytest.approx(0.41, abs=0.01)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`ModelCheckpoint.monitor")  # stopped before the first validation
def test_curves_of_wrong_labels(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut after some updates, a run continues with the curves of one that was not."""
    monkeypatch.chdir(tmp_path)
    study = yaml.safe_load((CONFIGS / "studies" / "logsumexp_mnist.yaml").read_text())
    callback = {**study["options"]["trainer.callbacks+"], "init_args": {"every": 6, "train_examples": 50, "val_examples": 50}}
    words = ["fit", "-c", str(CONFIGS / "robust" / "mnist.yaml"), f"--data.init_args.folder={shared / 'data' / 'mnist'}"]
    labels = shared / "data" / "mnist_noisy_labels" / "feature_dependent_25.npy"
    words += [f"--data.init_args.label_noise.init_args.path={labels}", "--data.init_args.train_size=400"]
    words += ["--data.init_args.test_size=200", f"--trainer.callbacks+={yaml.safe_dump(callback)}"]
    words += [
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        "--trainer.limit_val_batches=1",
        "--data.init_args.updates_per_batch=1",
        "--trainer.log_every_n_steps=10",
    ]
    assert main([*words, "--name=whole", "--trainer.max_steps=12"]) == 0
    assert main([*words, "--name=cut", "--trainer.max_steps=6"]) == 0
    assert main([*words, "--name=cut", "--trainer.max_steps=12", "--ckpt_path=last"]) == 0
    curves = [metrics_of(tmp_path / "runs" / name / "0") for name in ("whole", "cut")]
    names = [name for name in curves[0] if name.startswith("curves/")]
    assert len(names) == 4
    assert {name: curves[0][name] for name in names} == {name: curves[1][name] for name in names}
    assert len(curves[0]["curves/test_accuracy"]) == 3


def test_the_robust_loss_is_of_all_images_in_any_chunks() -> None:
    model = RobustClassifier(network=ConvNet(8, 8, channels=[2]), in_features=64)
    batch = {"pixels": torch.rand(2500, 64), "label": torch.arange(2500) % 10}
    parts = [
        robust_loss(model, {name: value[rows] for name, value in batch.items()}) for rows in (slice(1000), slice(1000, None))
    ]
    expected = np.log(0.4 * np.exp(parts[0]) + 0.6 * np.exp(parts[1]))
    assert robust_loss(model, batch) == pytest.approx(expected, rel=1e-5)
