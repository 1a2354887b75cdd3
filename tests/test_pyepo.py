"""Losses over solvers: their values and gradients by definition, in PyEPO's training loop, and against its own losses."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_sparse import pyepo as ours
from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import functional as F
from lit_sparse.pyepo import PerturbedFenchelYoungLoss, SparseMAPLoss, SPOPlusLoss, structure_of
from lit_sparse.structures import Assignment, Knapsack, ShortestPath

GRID = ShortestPath.grid(3, 4)
D = len(GRID.edges)


class Model:
    """As a model of PyEPO, of the cheapest paths through a grid."""

    modelSense, num_cost = 1, D
    calls = 0

    def setObj(self, c: Any) -> None:
        self.costs = torch.as_tensor(c, dtype=torch.float64)

    def solve(self) -> tuple[list[float], float]:
        self.calls += 1
        found = GRID.maximize(-self.costs.unsqueeze(0))[0]
        return found.tolist(), float(found @ self.costs)


def changed(**attributes: Any) -> Model:
    model = Model()
    vars(model).update(attributes)
    return model


def draw(seed: int, rows: int = 8) -> Tensor:
    return torch.rand(rows, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(loss: Any, costs: Tensor, *targets: Tensor) -> tuple[Tensor, Tensor]:
    costs = costs.clone().requires_grad_()
    value = loss(costs, *targets)
    return value.detach(), torch.autograd.grad(value.sum(), costs)[0]


@pytest.mark.parametrize("problem", [Model(), GRID], ids=["model", "structure"])
def test_values_and_gradients_by_definition(problem: Any) -> None:
    costs, true = draw(0), draw(1)
    best = GRID.maximize(-true)
    value, grad = gradient(SparseMAPLoss(problem, 0.3, reduction="none"), costs, best)
    means = F.sparsemap(-costs, GRID, gamma=0.3).marginals
    torch.testing.assert_close(grad, best - means)
    gain = (costs * (best - means)).sum(-1)
    torch.testing.assert_close(value, gain + 0.15 * (best.square() - means.square()).sum(-1))

    value, grad = gradient(SPOPlusLoss(problem, reduction="none"), costs, true, best, torch.zeros(8, 1))
    other = GRID.maximize(true - 2 * costs)
    torch.testing.assert_close(grad, 2 * (best - other))
    torch.testing.assert_close(value, ((true - 2 * costs) * other + 2 * costs * best - true * best).sum(-1))

    torch.manual_seed(3)
    value, grad = gradient(PerturbedFenchelYoungLoss(problem, 50, 0.2, reduction="none"), costs, best)
    torch.manual_seed(3)
    noisy = 0.2 * torch.randn(50, 8, D, dtype=torch.float64) - costs
    found = GRID.maximize(noisy.flatten(0, 1)).reshape(50, 8, D)
    torch.testing.assert_close(grad, best - found.mean(0))
    torch.testing.assert_close(value, (noisy * found).sum(-1).mean(0) + (costs * best).sum(-1))


def test_values_to_maximize_and_reductions() -> None:
    structure = Knapsack((2, 3, 1), 4)
    values, best = torch.tensor([[0.1, 0.9, 0.2], [1.0, 0.2, 0.3]]), torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    losses = SparseMAPLoss(structure, minimize=False, reduction="none")(values, best)
    torch.testing.assert_close(losses, SparseMAPLoss(structure, reduction="none")(-values, best))
    torch.testing.assert_close(SparseMAPLoss(structure, minimize=False)(values, best), losses.mean())
    torch.testing.assert_close(SparseMAPLoss(structure, minimize=False, reduction="sum")(values, best), losses.sum())


def test_known_solutions_save_calls_in_a_training() -> None:
    model, costs = Model(), draw(2)
    loss, best = SparseMAPLoss(model, 0.1), GRID.maximize(-draw(3))
    calls = []
    for _ in range(3):
        before = model.calls
        _, grad = gradient(loss, costs, best)
        calls.append(model.calls - before)
        costs = costs - 0.1 * grad
    assert calls[2] <= 12 < calls[0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SparseMAPLoss(3), "optModel of PyEPO or a structure"),
        (lambda: SparseMAPLoss(Model), "optModel of PyEPO or a structure"),
        (lambda: SparseMAPLoss(GRID, 0.0), "`gamma`"),
        (lambda: SparseMAPLoss(Model(), minimize=False), "minimize=True"),
        (lambda: SPOPlusLoss(GRID, minimize=1), "`minimize`"),  # type: ignore[arg-type]
        (lambda: SPOPlusLoss(GRID, reduction="max"), "`reduction`"),  # type: ignore[arg-type]
        (lambda: PerturbedFenchelYoungLoss(GRID, 0), "`samples`"),
        (lambda: PerturbedFenchelYoungLoss(GRID, sigma=-1.0), "`sigma`"),
        (lambda: SparseMAPLoss(GRID)(draw(0)[0], draw(0)[0]), "rows, entries"),
        (lambda: SparseMAPLoss(GRID)(draw(0)[:, 1:], draw(0)[:, 1:]), f"length {D}"),
        (lambda: SparseMAPLoss(GRID)(draw(0), torch.zeros(8, 1)), "solutions of shape"),
        (lambda: SparseMAPLoss(GRID)(draw(0), draw(0)), "zeros and ones"),
        (lambda: SparseMAPLoss(GRID)(draw(0), torch.ones(8, D)), "structures of ShortestPath"),
        (lambda: SPOPlusLoss(GRID)(draw(0), draw(0), torch.ones(8, D)), "structures of ShortestPath"),
        (lambda: PerturbedFenchelYoungLoss(GRID)(draw(0), torch.zeros(8, D)), "structures of ShortestPath"),
        (lambda: SPOPlusLoss(Assignment(2, 2))(draw(0)[:, :4], draw(0)[:, :4], torch.eye(8, 4)), "structures of Assignment"),
        (lambda: SPOPlusLoss(GRID)(draw(0), draw(0)[:1], torch.ones(8, D)), "true costs of shape"),
        (lambda: SparseMAPLoss(GRID)(draw(0).long(), torch.ones(8, D)), "torch.int64"),
        (lambda: SparseMAPLoss(changed(modelSense="min")), "`modelSense`"),
        (lambda: SparseMAPLoss(changed(modelSense=0)), "`modelSense`"),
        (lambda: SparseMAPLoss(changed(num_cost="five")), "`num_cost`"),
        (lambda: torch.func.vmap(SparseMAPLoss(GRID))(draw(0)[:, None], torch.ones(8, 1, D)), "without vmap"),
    ],
)
def test_bad_input_is_explained(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_an_untested_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "__module__", "pyepo.model")
    monkeypatch.setattr(ours.metadata, "version", lambda name: "9.1.0")
    with pytest.warns(UserWarning, match=r"PyEPO 9\.1\.0 is untested"):
        structure_of(Model())


@pytest.fixture
def peer() -> Any:
    """PyEPO, with a solver that it needs."""
    pytest.importorskip("ortools")
    return pytest.importorskip("pyepo")


@pytest.mark.parametrize("lambd", [0.1, 1.0])
def test_pyepos_own_losses(peer: Any, lambd: float) -> None:
    from pyepo.model.ort import knapsackModel, shortestPathModel

    weights = np.array([[3.0, 4, 5, 6, 2, 7]])
    for model, structure in (
        (shortestPathModel((3, 4)), GRID),
        (knapsackModel(weights=weights, capacity=np.array([12.0])), Knapsack((3, 4, 5, 6, 2, 7), 12)),
    ):
        d = model.num_cost
        costs, true = (draw(seed, 6)[:, :d] for seed in (0, 1))
        sense = {"minimize": int(model.modelSense) == 1}
        best = structure.maximize(-true if sense["minimize"] else true)
        theirs = peer.func.regularizedFrankWolfeFenchelYoung(model, lambd=lambd, tol=1e-9, max_iter=500, reduction="none")
        spo = peer.func.SPOPlus(model, reduction="none")
        for problem, options in ((model, {}), (structure, sense), (copy.deepcopy(structure_of(model)), sense)):
            for got, expected in zip(
                gradient(SparseMAPLoss(problem, lambd, reduction="none", **options), costs, best),
                gradient(theirs, costs, best),
                strict=True,
            ):
                torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
            objective = (true * best).sum(-1, keepdim=True)
            for got, expected in zip(
                gradient(SPOPlusLoss(problem, reduction="none", **options), costs, true, best, objective),
                gradient(spo, costs, true, best, objective),
                strict=True,
            ):
                torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [SparseMAPLoss, PerturbedFenchelYoungLoss, SPOPlusLoss])
def test_pyepos_training_loop(peer: Any, kind: Any) -> None:
    from pyepo.model.ort import shortestPathModel

    torch.manual_seed(0)
    model = shortestPathModel((3, 3))
    x, c = peer.data.shortestpath.genData(100, 5, (3, 3), deg=2, noise_width=0.1, seed=1)
    loader = torch.utils.data.DataLoader(peer.data.dataset.optDataset(model, x, c), batch_size=20)
    net = torch.nn.Linear(5, 12)
    optimizer, loss = torch.optim.Adam(net.parameters(), lr=0.05), kind(model)
    before = peer.metric.regret(net, model, loader)
    for _ in range(5):
        for x, c, w, z in loader:
            value = loss(net(x), c, w, z) if kind is SPOPlusLoss else loss(net(x), w)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    assert peer.metric.regret(net, model, loader) < 0.5 * before
