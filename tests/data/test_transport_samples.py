"""Measures and the pairs that are drawn from them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from lit_sparse.cli import build_cli
from lit_sparse.data import Points, TransportDataModule
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.transport import GaussianMixture, Measure

MANY = torch.arange(40_000)
MIXTURES = [
    GaussianMixture([0.5], [2.0]),
    GaussianMixture([-1, 1.5], [0.25, 0.16], [3.0, 1.0]),
    GaussianMixture([[0.0, 1.0, 2.0], [3.0, -1.0, 0.0]], [[0.1, 1.0, 2.0], 0.5]),
]


def pairs(**options: Any) -> TransportDataModule:
    return TransportDataModule(GaussianMixture([0.0], [1.0]), GaussianMixture([5.0], [0.25]), **options)


def moments(mixture: GaussianMixture) -> tuple[np.ndarray, np.ndarray]:
    means = np.array([np.atleast_1d(mean) for mean in mixture.means], dtype=float)
    variances = np.array([np.broadcast_to(one, means.shape[1:]) for one in mixture.variances], dtype=float)
    shares = np.ones(len(means)) if mixture.weights is None else np.array(mixture.weights)
    shares = (shares / shares.sum())[:, None]
    mean = (shares * means).sum(0)
    return mean, (shares * (variances + (means - mean) ** 2)).sum(0)


@pytest.mark.parametrize("mixture", MIXTURES, ids=["normal", "line", "space"])
def test_mixtures_have_their_moments(mixture: GaussianMixture) -> None:
    mean, variance = moments(mixture)
    points = mixture.sample(3, MANY).double().numpy()
    assert points.shape == (40_000, mixture.dim) == (40_000, len(mean))
    np.testing.assert_allclose(points.mean(0), mean, atol=5 * math.sqrt(variance.max() / 40_000))
    np.testing.assert_allclose(points.var(0), variance, rtol=0.05)


@pytest.mark.parametrize("mixture", MIXTURES, ids=["normal", "line", "space"])
def test_densities_are_those_of_torch(mixture: GaussianMixture) -> None:
    means = torch.tensor([np.atleast_1d(mean).tolist() for mean in mixture.means], dtype=torch.float64)
    spread = torch.stack([torch.tensor(one, dtype=torch.float64).expand(means.shape[1]) for one in mixture.variances]).sqrt()
    weights = torch.ones(len(means)) if mixture.weights is None else torch.tensor(mixture.weights)
    each = torch.distributions.Independent(torch.distributions.Normal(means, spread), 1)
    known = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(weights.double()), each)
    points = mixture.sample(0, torch.arange(50)).double()
    torch.testing.assert_close(mixture.log_prob(points), known.log_prob(points))


def test_a_draw_is_a_function_of_seed_and_index() -> None:
    for measure in (*MIXTURES, Points.of(np.arange(50.0))):
        whole = measure.sample(7, torch.arange(30))
        some = measure.sample(7, torch.tensor([29, 4, 4]))
        assert torch.equal(some, whole[[29, 4, 4]])
        assert not torch.equal(measure.sample(8, torch.arange(30)), whole)
        assert whole.dtype == torch.float32


def test_points_are_drawn_by_their_weights() -> None:
    points = Points.of([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], weights=[1.0, 0.0, 3.0])
    drawn = points.sample(0, MANY)
    assert points.dim == 2
    assert len(points) == 3
    assert points.log_prob(drawn) is None
    shares = [float((drawn == torch.tensor(row)).all(1).double().mean()) for row in ([0.0, 1.0], [2.0, 3.0], [4.0, 5.0])]
    assert shares[1] == 0.0
    assert shares[0] == pytest.approx(0.25, abs=0.01)
    assert shares[2] == pytest.approx(0.75, abs=0.01)
    even = Points.of(torch.arange(5.0)).sample(1, MANY)
    assert torch.bincount(even.flatten().long()).div(40_000).sub(0.2).abs().max() < 0.01
    last = Points.of([1.0, 2.0], weights=[1.0, 0.0]).sample(0, MANY)
    assert bool((last == 1.0).all()), "what has no weight is never drawn"


def test_points_are_read(tmp_path: Path) -> None:
    rows = np.array([[0.5, -1.0], [2.0, 3e-4], [7.0, 8.0]])
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "line.npy", rows[:, 0])
    np.save(tmp_path / "weights.npy", np.array([0, 0, 2]))
    (tmp_path / "named.csv").write_text("x,y\n0.5,-1\n2,3e-4\n\n7,8\n")
    (tmp_path / "plain.csv").write_text("0.5,-1\n2,3e-4\n7,8\n")
    for name in ("rows.npy", "named.csv", "plain.csv"):
        points = Points(str(tmp_path / name))
        found = {tuple(row) for row in points.sample(0, torch.arange(100)).tolist()}
        assert found == {tuple(row) for row in torch.tensor(rows, dtype=torch.float32).tolist()}
    assert Points(str(tmp_path / "line.npy")).dim == 1
    only = Points(str(tmp_path / "rows.npy"), weights=str(tmp_path / "weights.npy"))
    assert only.sample(0, torch.arange(5)).unique(dim=0).tolist() == [[7.0, 8.0]]


def test_points_that_cannot_be_read(tmp_path: Path) -> None:
    def reading(name: str, content: bytes | np.ndarray, weights: str | None = None) -> Points:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            np.save(path, content)
        return Points(str(path), weights=weights)

    np.save(tmp_path / "two.npy", np.ones(2))
    for points, words in (
        (Points(str(tmp_path / "nothing.npy")), "There is no file of points"),
        (reading("a.txt", b"1"), "in a .npy or .csv file"),
        (reading("broken.npy", b"1,2"), "cannot be read as an array"),
        (reading("objects.npy", np.array([{}, 1], dtype=object)), "Python objects in .*, which are not read"),
        (reading("words.csv", b"x,y\n1,b\n"), "cannot be read as .csv data"),
        (reading("uneven.csv", b"1,2\n1,2,3\n"), "cannot be read as .csv data"),
        (reading("hashes.csv", b"1,2\n# 3,4\n"), "cannot be read as .csv data"),
        (reading("first.csv", b"1,2#,3\n4,5\n"), "cannot be read as .csv data"),
        (reading("cube.npy", np.zeros((2, 2, 2))), r"points \(N, d\)"),
        (reading("none.npy", np.zeros((0, 2))), r"points \(N, d\)"),
        (reading("strings.npy", np.array(["a", "b"])), "Expected numbers"),
        (reading("holes.npy", np.array([[1.0], [np.nan], [np.inf]])), r"in row 1 \(2 rows in all\)"),
        (reading("three.npy", np.ones(3), str(tmp_path / "two.npy")), "a number per point, 3 of them"),
    ):
        with pytest.raises(DataError, match=words):
            points.sample(0, torch.arange(2))
    for bad in ([1.0, -1.0], [0.0, 0.0], [1.0, math.nan], [1.0]):
        with pytest.raises(DataError, match="none negative and not all zero"):
            Points.of([1.0, 2.0], weights=bad)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"means": [], "variances": []}, "`means` to be a list with one entry per component"),
        ({"means": 0.0, "variances": [1.0]}, "`means` to be a list"),
        ({"means": [0.0, [1.0, 2.0]], "variances": [1.0, 1.0]}, "components of equal length"),
        ({"means": ["a"], "variances": [1.0]}, "`means` to hold finite numbers"),
        ({"means": [math.nan], "variances": [1.0]}, "`means` to hold finite numbers"),
        ({"means": [0.0, 1.0], "variances": [1.0]}, "for each of the 2 components, a number or a list of 1"),
        ({"means": [[0.0, 1.0]], "variances": [[1.0, 1.0, 1.0]]}, "a number or a list of 2"),
        ({"means": [0.0], "variances": [0.0]}, "`variances` to be positive"),
        ({"means": [0.0], "variances": [1.0], "weights": [-1.0]}, "none negative"),
    ],
)
def test_mixtures_that_are_none(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        GaussianMixture(**arguments)


def test_training_draws_anew_and_validation_does_not() -> None:
    data = pairs(samples=50, val_size=40, test_size=30, batch_size=8)
    data.setup()
    index = torch.arange(30)
    first, second = (data.fetch("train", epoch, index) for epoch in (0, 1))
    again = data.fetch("train", 1, torch.tensor([3, 9]))
    for name in ("source", "target"):
        assert not bool((first[name] == second[name]).any())
        assert torch.equal(again[name], second[name][[3, 9]])
        assert torch.equal(data.fetch("val", 0, index)[name], data.fetch("val", 5, index)[name])
        splits = [data.fetch(split, 0, index)[name] for split in ("train", "val", "test")]
        assert len(torch.cat(splits).unique()) == 90, "splits have points of their own"
    assert torch.equal(first["index"], index)
    assert [data.size(split) for split in ("train", "val", "test")] == [50, 40, 30]
    assert torch.equal(data.train_indices(), torch.arange(50))
    other = pairs(seed=1)
    assert not bool((other.fetch("train", 0, index)["source"] == first["source"]).any())
    batches = list(data.train_dataloader())
    assert [len(batch["source"]) for batch in batches] == [8] * 6 + [2]
    assert torch.cat([batch["index"] for batch in batches]).sort().values.tolist() == list(range(50))


def test_the_two_sides_are_drawn_apart() -> None:
    data = TransportDataModule(GaussianMixture([0.0], [1.0]), GaussianMixture([0.0], [1.0]), samples=len(MANY))
    batch = data.fetch("train", 0, MANY)
    both = torch.cat([batch["source"], batch["target"]], 1)
    assert float(torch.corrcoef(both.mT)[0, 1].abs()) < 0.02


def test_measures_that_do_not_fit() -> None:
    plane = GaussianMixture([[0.0, 0.0]], [1.0])
    with pytest.raises(ConfigurationError, match="equally many coordinates but got 1 and 2"):
        TransportDataModule(GaussianMixture([0.0], [1.0]), plane).setup()
    with pytest.raises(ConfigurationError, match="`target` to be a Measure but got int"):
        TransportDataModule(plane, 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="`val_size` to be an integer of at least 1"):
        pairs(val_size=0)


def test_they_are_named_in_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.zeros((4, 2)))
    command = ["fit", "--model=EntropicTransport", "--model.dim=2", "--data=TransportDataModule", "--data.source=Points"]
    command += ["--data.source.path=rows.npy", "--data.target=GaussianMixture", "--data.target.means=[[0.5, 1.0]]"]
    command += ["--data.target.variances=[2.0]", "--trainer.logger=false", "--trainer.enable_progress_bar=false"]
    command += ["--trainer.accelerator=cpu"]
    data = build_cli(command).datamodule
    assert isinstance(data.source, Points)
    assert isinstance(data.target, GaussianMixture)
    assert isinstance(data.target, Measure)
    assert data.target.means == [[0.5, 1.0]]
    with pytest.raises(ConfigurationError, match=r"no class 'Point' for `source`.*Did you mean 'Points'"):
        build_cli([*command[:4], "--data.source=Point"])


def test_a_loader_goes_on_where_it_stood() -> None:
    data, other = (pairs(samples=20, batch_size=4) for _ in range(2))
    data.trainer = other.trainer = None
    data.setup()
    other.setup()
    loader = iter(data.train_dataloader())
    for _ in range(3):
        next(loader)
    other.load_state_dict(data.state_dict())
    for mine, theirs in zip(loader, other.train_dataloader(), strict=True):
        assert torch.equal(mine["source"], theirs["source"])
    assert isinstance(data, pl.LightningDataModule)
