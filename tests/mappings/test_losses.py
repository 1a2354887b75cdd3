"""Fenchel-Young losses against torch's cross-entropy and the published sparsemax loss."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lit_sparse.hf  # noqa: F401  # a mapping of its own is tested, too
from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import (
    CappedSoftmax,
    Entmax,
    FenchelYoungLoss,
    Fusedmax,
    Oscarmax,
    Softmax,
    SparseMapping,
    Sparsemax,
    SqPNormMax,
    TopKEntmax,
    TopKSparsemax,
)
from lit_sparse.mappings.base import with_slope
from lit_sparse.testing import concrete_subclasses
from tests.mappings.second_opinions import bisected, central_difference, random_rows
from tests.support.versions import needs_custom_operators

MAPPINGS = [
    example
    for cls in concrete_subclasses(SparseMapping)
    for example in cls.examples()
    if example.on_simplex and example.has_value
]
every_mapping = pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)


@pytest.mark.parametrize("shape", [(7, 5), (3, 5, 4), (2, 5, 3, 2)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [-1, 1])
def test_softmax_with_labels_is_cross_entropy(shape: tuple[int, ...], reduction: str, weighted: bool, dim: int) -> None:
    torch.manual_seed(0)
    scores = torch.randn(shape, dtype=torch.float64)
    target = torch.randint(5, (shape[0], *shape[2:]))
    target.view(-1)[1] = -100
    weight = torch.rand(5, dtype=torch.float64) if weighted else None
    ours = FenchelYoungLoss(Softmax(dim=dim), weight=weight, reduction=reduction)(scores, target)
    torch.testing.assert_close(ours, nn.CrossEntropyLoss(weight=weight, reduction=reduction)(scores, target))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_soft_targets_are_cross_entropy_less_the_entropy(smoothing: float, weighted: bool, hard: bool) -> None:
    torch.manual_seed(0)
    scores = torch.randn(6, 5, dtype=torch.float64)
    weight = torch.rand(5, dtype=torch.float64) if weighted else torch.ones(5, dtype=torch.float64)
    labels = torch.randint(5, (6,))
    target = labels if hard else torch.softmax(torch.randn(6, 5, dtype=torch.float64), -1)
    q = nn.functional.one_hot(labels, 5).double() if hard else target
    q = weight * ((1 - smoothing) * q + smoothing / 5)
    entropy = q.sum(-1) * torch.special.entr(q / q.sum(-1, keepdim=True)).sum(-1)
    total = weight[labels].sum() if hard else 6
    expected = nn.CrossEntropyLoss(weight=weight, label_smoothing=smoothing)(scores, target) - entropy.sum() / total
    ours = FenchelYoungLoss(Softmax(), weight=weight if weighted else None, label_smoothing=smoothing)(scores, target)
    torch.testing.assert_close(ours, expected)


def test_sparsemax_loss_as_published() -> None:
    torch.manual_seed(0)
    x = torch.randn(20, 6, dtype=torch.float64)
    k = torch.randint(6, (20,))
    y = Sparsemax()(x)
    tau = torch.where(y > 0, x - y, 0).sum(-1) / (y > 0).sum(-1)
    # Martins & Astudillo (2016), eq. (16)
    terms = torch.where(y > 0, x.square() - tau.square().unsqueeze(-1), 0).sum(-1)
    expected = -x[torch.arange(20), k] + 0.5 * terms + 0.5
    torch.testing.assert_close(FenchelYoungLoss(Sparsemax(), reduction="none")(x, k), expected)


def test_large_shifts_cost_no_digits() -> None:
    x = torch.tensor([[0.5, 0.25, -1.0]])
    for mapping in (Softmax(), Sparsemax()):
        loss = FenchelYoungLoss(mapping)
        torch.testing.assert_close(loss(x + 8192, torch.tensor([1])), loss(x, torch.tensor([1])), rtol=1e-6, atol=0)


def test_temperature_scales_cross_entropy() -> None:
    x, k = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    expected = 0.5 * nn.functional.cross_entropy(x / 0.5, k)
    torch.testing.assert_close(FenchelYoungLoss(Softmax(gamma=0.5))(x, k), expected)


def test_forbidden_classes() -> None:
    x = torch.tensor([[1.0, -torch.inf, 0.0], [1.0, 2.0, -torch.inf]], requires_grad=True)
    loss = FenchelYoungLoss(Sparsemax(), reduction="none")(x, torch.tensor([0, 2]))
    assert float(loss[0].detach()) == 0.0
    assert float(loss[1].detach()) == float("inf")
    (grad,) = torch.autograd.grad(loss[0], x)
    assert bool(grad.isfinite().all())


def test_ignored_rows_may_hold_anything() -> None:
    x = torch.tensor([[1.0, 0.0], [torch.nan, 3.0]], requires_grad=True)
    loss = FenchelYoungLoss(Sparsemax())(x, torch.tensor([0, -100]))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


def test_too_wide_a_target_for_topk_is_infinite() -> None:
    x = torch.tensor([[1.0, 0.5, 0.0]])
    q = torch.tensor([[0.4, 0.3, 0.3]])
    assert float(FenchelYoungLoss(TopKSparsemax(2))(x, q)) == float("inf")
    assert float(FenchelYoungLoss(TopKSparsemax(3))(x, q)) < 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: FenchelYoungLoss(Softmax(), reduction="avg"), "'mean', 'sum' or 'none'"),
        (lambda: FenchelYoungLoss(Softmax(), label_smoothing=2), "label_smoothing"),
        (lambda: FenchelYoungLoss(Softmax(), label_smoothing=".1"), "label_smoothing"),
        (lambda: FenchelYoungLoss(Softmax(), weight=[1.0, 2.0]), "`weight`"),
        (lambda: FenchelYoungLoss(Softmax(), weight=torch.ones(4))(torch.zeros(2, 3), torch.tensor([0, 1])), "4 classes"),
        (lambda: FenchelYoungLoss(nn.Softmax(-1)), r"got torch\.nn\.modules\.activation\.Softmax"),
        (lambda: FenchelYoungLoss(Softmax())(torch.zeros(2, 5, 10), torch.zeros(2, 5).long()), "dimension 1"),
        (lambda: FenchelYoungLoss(Softmax())(torch.zeros(2, 3), torch.tensor([0, 3])), r"0 \.\. 2"),
        (lambda: FenchelYoungLoss(Softmax())(torch.zeros(2, 3), torch.tensor([0])), r"shape \(2,\)"),
        (lambda: FenchelYoungLoss(Softmax())(torch.zeros(2, 3), torch.zeros(2, 2)), r"shape \(2, 3\)"),
    ],
)
def test_bad_input(call: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call()  # type: ignore[operator]


@needs_custom_operators
def test_losses_compile_and_map() -> None:
    loss = FenchelYoungLoss(Sparsemax())
    scores, labels = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    each = torch.func.vmap(torch.func.grad(lambda x, k: loss(x[None], k[None])))(scores, labels)
    torch.testing.assert_close(each, Sparsemax()(scores) - nn.functional.one_hot(labels, 3))
    torch.testing.assert_close(torch.compile(loss, fullgraph=True, backend="aot_eager")(scores, labels), loss(scores, labels))
    torch.testing.assert_close(loss(scores, labels.to(torch.uint8)), loss(scores, labels))


def test_labels_of_every_integer_type() -> None:
    """Class 156 is -100 in eight bits."""
    scores = random_rows(3, 200, seed=0)
    loss = FenchelYoungLoss(Softmax(), reduction="none")
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
        labels = torch.tensor([156, 3, 199], dtype=dtype)
        torch.testing.assert_close(loss(scores, labels), nn.functional.cross_entropy(scores, labels.long(), reduction="none"))


@needs_custom_operators
def test_labels_that_are_no_classes_where_nobody_can_look() -> None:
    scores, labels = random_rows(4, 5, seed=0), torch.tensor([0, 7, -1, -100])
    loss = FenchelYoungLoss(Sparsemax(), reduction="none")
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(scores, labels)
    mapped = torch.func.vmap(lambda x, k: loss(x[None], k[None])[0])(scores, labels)
    for got in (compiled, mapped):
        assert got.isnan().tolist() == [False, True, True, False]
        assert float(got[3]) == 0.0


def test_soft_targets_of_any_mass() -> None:
    """As for cross-entropy, whose gradient is the mass times softmax less the target."""
    x = random_rows(6, 4, seed=0).requires_grad_()
    q = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.2, 0.1, 0.0, 0.3], [0.0] * 4, [2.0, 0.0, 0.0, 0.0], [0.25] * 4, [3.0] * 4])
    q = q.double()
    expected = torch.autograd.grad(nn.functional.cross_entropy(x, q, reduction="sum"), x)[0]
    for weight in (None, torch.ones(4).double()):
        loss = FenchelYoungLoss(Softmax(), weight=weight, reduction="none")
        torch.testing.assert_close(torch.autograd.grad(loss(x, q).sum(), x)[0], expected)
        torch.testing.assert_close(loss(x, q), loss(x + 100, q))
        assert float(loss(x, q)[2].detach()) == 0.0


@pytest.mark.parametrize(
    "mapping",
    [Sparsemax(), Entmax(1.5), SqPNormMax(1.5), Fusedmax(0.1), Oscarmax(0.1), Softmax(), CappedSoftmax(0.3)],
    ids=repr,
)
def test_gradient_in_a_soft_target(mapping: SparseMapping) -> None:
    """Along the simplex, and for finite slopes of Omega where the target is zero, too."""
    x = random_rows(1, 4, seed=0)
    steep = isinstance(mapping, Softmax | CappedSoftmax)
    q = torch.tensor([[0.5, 0.3, 0.15, 0.05 if steep else 0.0]]).double().requires_grad_()
    direction, h = torch.tensor([[-1.0, 0.0, 0.0, 1.0]]).double(), 1e-6
    loss = FenchelYoungLoss(mapping)
    (got,) = torch.autograd.grad(loss(x, q), q)
    with torch.no_grad():
        change = (loss(x, q + h * direction) - loss(x, q)) / h
    torch.testing.assert_close((got * direction).sum(), change, atol=2e-3, rtol=0)


def test_under_autocast_as_cross_entropy() -> None:
    torch.manual_seed(0)
    hidden, weight, labels = torch.randn(8, 10), torch.randn(10, 10), torch.arange(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = hidden @ weight
        ours, theirs = FenchelYoungLoss(Softmax())(scores, labels), nn.functional.cross_entropy(scores, labels)
    assert ours.dtype == theirs.dtype == torch.float32
    torch.testing.assert_close(ours, theirs)


def number(value: float | Tensor) -> float:
    return float(torch.as_tensor(value).detach())


def log_of(y: np.ndarray) -> np.ndarray:
    return np.log(np.where(y > 0, y, 1.0))


def safe_divergence(y: np.ndarray, rho: float) -> float:
    """From the uniform distribution; infinite where y exceeds the cap."""
    room = 1 - rho * len(y) * y
    if (room < -1e-9).any():
        return math.inf
    return float((y * log_of(len(y) * y)).sum() + (room * log_of(room)).sum() / (rho * len(y)) + 1)


def tsallis(y: np.ndarray, alpha: float | Tensor) -> float:
    alpha = number(alpha)
    return float((y * log_of(y)).sum()) if alpha == 1 else float(((y**alpha).sum() - 1) / (alpha * (alpha - 1)))


#: Omega of each mapping written out, for one row in numpy.
OMEGAS: dict[str, Callable[..., float]] = {
    "Softmax": lambda m, y: float((y * log_of(y)).sum()),
    "Sparsemax": lambda m, y: 0.5 * (y**2).sum(),
    "TopKSparsemax": lambda m, y: math.inf if (y > 0).sum() > m.k else 0.5 * (y**2).sum(),
    "TopKEntmax": lambda m, y: math.inf if (y > 0).sum() > m.k else tsallis(y, m.alpha),
    "Entmax": lambda m, y: tsallis(y, m.alpha),
    "AnnealedEntmax": lambda m, y: tsallis(y, m.alpha),
    "LearnableEntmax": lambda m, y: tsallis(y, m.alpha),
    "SqPNormMax": lambda m, y: 0.5 * (y**m.p).sum() ** (2 / m.p),
    "NormMax": lambda m, y: float((y ** number(m.alpha)).sum() ** (1 / number(m.alpha))),
    "Fusedmax": lambda m, y: 0.5 * (y**2).sum() + number(m.lam) * np.abs(np.diff(y)).sum(),
    "LearnableFusedmax": lambda m, y: 0.5 * (y**2).sum() + number(m.lam) * np.abs(np.diff(y)).sum(),
    "Oscarmax": lambda m, y: 0.5 * (y**2).sum() + m.lam * sum(max(a, b) for a, b in itertools.combinations(y, 2)),
    "CappedSoftmax": lambda m, y: safe_divergence(y, m.rho),
    "RegularizedArgmax": lambda m, y: float(m.omega(torch.from_numpy(y).clamp_min(1e-12))),
}


def under_the_cap(mapping: SparseMapping, q: Tensor) -> Tensor:
    """Mix targets (rows, d) of capped softmax with the uniform distribution, just so much that they keep to the cap."""
    if not isinstance(mapping, CappedSoftmax):
        return q
    found = q.clone()
    for row, target in enumerate(q):
        cap = 1 / (mapping.rho * len(target))
        if target.max() > cap + 1e-12:
            share = bisected(lambda s, t=target, cap=cap: float((1 - s) * t.max() + s / len(t)) - cap, 0.0, 1.0)
            found[row] = (1 - share) * target + share / len(target)
    return found


def by_definition(mapping: SparseMapping, x: Tensor, q: Tensor) -> float:
    """``<y, x> - gamma Omega(y) + gamma Omega(q) - <q, x>`` for one row, y the mapping of x."""
    omega = OMEGAS[type(mapping).__name__]
    y = mapping.map(x, None, -1).detach()
    return float((y - q) @ x) + mapping.gamma * (omega(mapping, q.numpy()) - omega(mapping, y.numpy()))


def tolerances(mapping: SparseMapping) -> dict[str, float]:
    return {"atol": 1e-5, "rtol": 1e-5} if mapping.iterative else {"atol": 1e-7, "rtol": 1e-7}


@pytest.mark.cases(quick=112)
@every_mapping
@pytest.mark.parametrize("shape", [(4,), (3, 4), (3, 4, 2), (2, 4, 2, 3)])
@pytest.mark.parametrize("kind", ["labels", "soft", "smoothed", "weighted"])
def test_every_loss_is_its_definition_along_dimension_one(mapping: SparseMapping, shape: tuple[int, ...], kind: str) -> None:
    """For every ``dim`` of the mapping; with its gradient, mass times (mapping(x) - q)."""
    dim = min(1, len(shape) - 1)
    places = math.prod(shape) // 4
    rows = random_rows(places, 4, seed=places)
    labels = torch.arange(places) * 7 % 4
    targets = (
        torch.softmax(random_rows(places, 4, seed=99), -1) if kind == "soft" else torch.eye(4, dtype=torch.float64)[labels]
    )
    weight = (
        torch.tensor([0.5, 2.0, 1.0, 3.0], dtype=torch.float64) if kind == "weighted" else torch.ones(4, dtype=torch.float64)
    )
    q = (0.7 * targets + 0.3 / 4 if kind == "smoothed" else targets) * weight
    mass = q.sum(-1)
    q = under_the_cap(mapping, q / mass.unsqueeze(-1))
    expected = torch.tensor([by_definition(mapping, x, p) for x, p in zip(rows, q, strict=True)]).double() * mass

    outer = tuple(s for i, s in enumerate(shape) if i != dim)
    scores = rows.view(*outer, 4).movedim(-1, dim).contiguous().requires_grad_()
    target = targets.view(*outer, 4).movedim(-1, dim) if kind == "soft" else labels.view(outer)
    options = {"weight": weight if kind == "weighted" else None, "label_smoothing": 0.3 if kind == "smoothed" else 0.0}
    for own_dim in {0, -1, len(shape) - 1}:
        other = copy.deepcopy(mapping)
        other.dim = own_dim
        got = FenchelYoungLoss(other, reduction="none", **options)(scores, target)  # type: ignore[arg-type]
        assert got.shape == outer
        torch.testing.assert_close(got.detach().flatten(), expected, **tolerances(mapping))
    (gradient,) = torch.autograd.grad(got.sum(), scores)
    pulled = mass.unsqueeze(-1) * (mapping.map(rows, None, -1).detach() - q)
    torch.testing.assert_close(gradient.movedim(dim, -1).reshape(-1, 4), pulled, **tolerances(mapping))

    total, mean = (FenchelYoungLoss(mapping, reduction=r, **options)(scores, target) for r in ("sum", "mean"))  # type: ignore[arg-type]
    size = weight[labels].sum() if kind == "weighted" else places
    torch.testing.assert_close(total.detach(), expected.sum(), **tolerances(mapping))
    torch.testing.assert_close(mean.detach(), expected.sum() / size, **tolerances(mapping))


@every_mapping
def test_every_loss_ignores_what_it_is_told_to(mapping: SparseMapping) -> None:
    scores = random_rows(12, 4, seed=1).view(3, 2, 2, 4).movedim(-1, 1)
    labels = torch.arange(12).view(3, 2, 2) % 4
    ignored = labels == 2
    scores = scores.masked_fill(ignored.unsqueeze(1), torch.nan).requires_grad_()
    weight = torch.tensor([0.5, 2.0, 1.0, 3.0], dtype=torch.float64)
    for index, options in ((2, {}), (2, {"weight": weight, "label_smoothing": 0.1})):
        each = FenchelYoungLoss(mapping, ignore_index=index, reduction="none", **options)(scores, labels)  # type: ignore[arg-type]
        assert bool((each[ignored] == 0).all())
        finite = bool(each.isfinite().all())
        mean = FenchelYoungLoss(mapping, ignore_index=index, **options)(scores, labels)  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(mean, scores)
        assert bool((gradient.movedim(1, -1)[ignored] == 0).all())
        assert bool(gradient.isfinite().all())
        kept = scores.detach().movedim(1, -1)[~ignored].requires_grad_()
        alone = FenchelYoungLoss(mapping, **options)(kept, labels[~ignored])  # type: ignore[arg-type]
        torch.testing.assert_close(mean.detach(), alone.detach(), **tolerances(mapping))
        (expected,) = torch.autograd.grad(alone, kept)
        torch.testing.assert_close(gradient.movedim(1, -1)[~ignored], expected, **tolerances(mapping))
        assert finite or isinstance(mapping, TopKSparsemax | TopKEntmax)


@every_mapping
def test_every_gradient_equals_differences(mapping: SparseMapping) -> None:
    x, direction = random_rows(8, 5, seed=2), random_rows(8, 5, seed=3)
    target = torch.arange(8) % 5
    loss = FenchelYoungLoss(mapping, reduction="none", weight=torch.arange(1, 6).double())
    leaf = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(loss(leaf, target).sum(), leaf)
    change = central_difference(lambda x: loss(x, target), x, direction, 1e-5)
    torch.testing.assert_close((got * direction).sum(-1), change, atol=1e-4 if mapping.iterative else 1e-6, rtol=1e-6)


@every_mapping
def test_a_forbidden_class_is_a_class_less(mapping: SparseMapping) -> None:
    x = random_rows(6, 5, seed=4)
    x[:, 4] = -torch.inf
    target = torch.arange(6) % 4
    results = []
    for scores in (x, x[:, :4].clone()):
        leaf = scores.requires_grad_()
        loss = FenchelYoungLoss(mapping, reduction="none")(leaf, target)
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)
        results.append((loss.detach(), gradient[:, :4], gradient[:, 4:]))
    torch.testing.assert_close(results[0][0], results[1][0], **tolerances(mapping))
    torch.testing.assert_close(results[0][1], results[1][1], **tolerances(mapping))
    assert bool((results[0][2] == 0).all())


def test_the_omegas_here_are_of_all_mappings() -> None:
    assert {type(mapping).__name__ for mapping in MAPPINGS} == set(OMEGAS)


def test_parameters_of_a_mapping_lie_as_the_scores_do() -> None:
    """One lam for each place of (N, C, L), size 1 along the classes."""
    x, target = random_rows(6, 4, seed=5).view(2, 3, 4).movedim(-1, 1), torch.tensor([[0, 1, 2], [3, 0, 1]])
    lam = torch.tensor([0.0, 0.1, 0.5], dtype=torch.float64)
    got = FenchelYoungLoss(Fusedmax(lam.view(1, 1, 3)), reduction="none")(x, target)
    for i in range(3):
        expected = FenchelYoungLoss(Fusedmax(float(lam[i])), reduction="none")(x[:, :, i], target[:, i])
        torch.testing.assert_close(got[:, i], expected)


@pytest.mark.parametrize("mapping", [Softmax(), Sparsemax(), Entmax(1.5), SqPNormMax()], ids=repr)
def test_a_negative_probability_has_infinite_loss(mapping: SparseMapping) -> None:
    targets = torch.tensor([[-1.0, 1.0, 1.0], [0.5, 0.5, 0.0]])
    losses = FenchelYoungLoss(mapping, reduction="none")(torch.zeros(2, 3), targets)
    assert losses.isinf().tolist() == [True, False]


def test_a_slope_of_zero_has_a_derivative() -> None:
    """Each order of differentiation finds the second derivative, where the first one is zero."""

    def sloped(p: Tensor) -> Tensor:
        return with_slope(p, p - 1.0).sum()

    def pushed(p: Tensor) -> Tensor:
        tangent: Tensor = torch.func.jvp(sloped, (p,), (torch.ones_like(p),))[1]
        return tangent

    p = torch.tensor([1.0])
    assert torch.func.grad(pushed)(p) == 1
    assert torch.func.jvp(torch.func.grad(sloped), (p,), (torch.ones_like(p),))[1] == 1
