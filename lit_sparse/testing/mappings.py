"""Shared checks of mappings: functions that raise an AssertionError for a mapping that fails.

Which checks apply is read from the class (``on_simplex``, ``shift_invariant``, ``iterative``), never from a list.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from lit_sparse.mappings import FenchelYoungLoss, SparseMapping
from lit_sparse.testing.checks import Checks, check_copies, random_scores, refuses
from lit_sparse.testing.mapping_transforms import (
    compiles,
    constructor_arguments,
    derivatives,
    gradient_of,
    machine_code,
    same,
    tolerance_of,
    transforms,
    with_gamma,
)

__all__ = ["MAPPING_CHECKS", "check_mapping"]

#: Name -> check. Each takes a mapping that works along the last dimension and raises an AssertionError.
MAPPING_CHECKS: Checks[SparseMapping] = Checks(SparseMapping)

INF = float("inf")
NAN = float("nan")


def check_mapping(mapping: SparseMapping) -> None:
    """Run every shared check on a mapping along the last dimension.

    Raises:
        AssertionError: if a check fails; the message names it.
    """
    MAPPING_CHECKS.run(mapping)


@MAPPING_CHECKS.add
def _simplex(mapping: SparseMapping) -> None:
    """On the simplex: not negative, summing to one; and best among many competitors there, by its own gamma and Omega."""
    if not mapping.on_simplex:
        return
    _is_best(mapping)
    if "gamma" in constructor_arguments(mapping) and not list(mapping.parameters()):
        _is_best(with_gamma(mapping, 3 * mapping.gamma))


def _is_best(mapping: SparseMapping) -> None:
    wrong = "so that `map` does not maximize <y, x> - gamma * `regularizer`(y): one of them, or its gamma, is wrong"
    slack = 1e-4 if mapping.iterative else 1e-12
    for seed, d in enumerate([2, 5, 9, 33]):
        x = random_scores(40, d, seed=seed)
        y = mapping(x)
        assert bool((y >= 0).all()), "a result is negative"
        rounding = 1e-6 if mapping.iterative else 1e-14 * d
        same(y.sum(-1), torch.ones(40, dtype=y.dtype), mapping, "rows sum to one", rounding)
        if not mapping.has_value:
            continue

        def attained(p: Tensor, x: Tensor = x) -> Tensor:
            return (p * x).sum(-1) - mapping.gamma * mapping.regularizer(p).detach()

        best = attained(y)
        same(mapping.value(x), best, mapping, "value is <y, x> - gamma Omega(y)")
        for step in (1.0, 0.3, 1e-2, 1e-4, 1e-6):
            for j in range(d):  # towards each vertex, and away from each entry of the support to the next
                vertex = torch.zeros(d, dtype=y.dtype)
                vertex[j] = 1.0
                moved = (1 - step) * y + step * vertex
                assert bool((attained(moved) <= best + slack).all()), f"a step of {step} to vertex {j} is better, {wrong}"
                shift = torch.minimum(y[:, j], torch.full_like(y[:, j], step)).unsqueeze(-1)
                swapped = y - shift * vertex + shift * vertex.roll(1)
                assert bool((attained(swapped) <= best + slack).all()), f"{step} moved on from {j} is better, {wrong}"


@MAPPING_CHECKS.add
def _scores_kept(mapping: SparseMapping) -> None:
    """Where it says so, entries that are not zero are the scores themselves."""
    if mapping.keeps_scores:
        x = random_scores(40, 9)
        y = mapping(x)
        same(torch.where(y != 0, x, 0.0), y, mapping, "entries that are not zero are scores", 0.0)


@MAPPING_CHECKS.add
def _shapes(mapping: SparseMapping) -> None:
    """Any ``dim``, batch shape, stride and size, empty and single included."""
    x = random_scores(3, 4, 5)
    for dim in range(-3, 3):
        moved = mapping.map(x, None, dim)
        rows = torch.stack([mapping(row) for row in x.movedim(dim, -1).reshape(-1, x.shape[dim])])
        same(moved.movedim(dim, -1).reshape(rows.shape), rows, mapping, f"dim={dim} equals row by row")
        value = mapping.value_along(x, None, dim) if mapping.has_value else moved.sum(dim)
        assert value.shape == x.movedim(dim, -1).shape[:-1], f"value along dim={dim} has shape {tuple(value.shape)}"
    wide = random_scores(6, 14)
    same(mapping(wide[::2, ::2]), mapping(wide[::2, ::2].clone()), mapping, "strided equals contiguous")
    same(mapping(wide.T.contiguous().T), mapping(wide), mapping, "transposed equals contiguous")
    for shape in [(0, 5), (2, 0, 3), (0,), (4, 0)]:
        assert mapping(torch.empty(shape)).shape == shape, f"an empty tensor {shape} keeps its shape"
    if mapping.on_simplex:
        assert bool((mapping(random_scores(7, 1)) == 1).all()), "a single entry gets everything"
    assert mapping(random_scores(5)).shape == (5,), "a single row keeps its shape"


@MAPPING_CHECKS.add
def _masks(mapping: SparseMapping) -> None:
    """Masking equals dropping columns. -inf masks too. Masked entries are ignored."""
    x = random_scores(30, 8)
    mask = random_scores(30, 8, seed=1) > -0.5
    if mapping.ordered:  # allowed entries must be contiguous
        ends = torch.arange(30).remainder(8)
        mask = (torch.arange(8) >= ends[:, None] // 2) & (torch.arange(8) <= ends[:, None])
    mask[0], mask[1] = False, True
    y = mapping(x, mask)
    for row, keep, got in zip(x, mask, y, strict=True):
        expected = torch.zeros_like(row)
        if keep.any():
            expected[keep] = mapping(row[keep])
        same(got, expected, mapping, "mask equals dropped columns")
    if mapping.has_value:
        same(mapping.value(x, mask)[1:], torch.stack([mapping.value(r[k]) for r, k in zip(x[1:], mask[1:], strict=True)]),
              mapping, "value under a mask equals dropped columns")  # fmt: skip
        assert float(mapping.value(x, mask)[0].detach()) == -INF, "the value of a row with nothing allowed is -inf"
    same(mapping(x.masked_fill(~mask, -INF)), y, mapping, "-inf equals a mask", 0.0)
    for hidden in (NAN, INF, 1e30):
        same(mapping(x.masked_fill(~mask, hidden), mask), y, mapping, f"{hidden} behind the mask changes nothing", 0.0)
    same(mapping(x, mask[:1].expand(30, 8)), mapping(x, mask[:1]), mapping, "a mask is broadcast", 0.0)

    weights = random_scores(30, 8, seed=2).masked_fill(~mask, NAN)  # gradients of masked entries are ignored too
    got = gradient_of(mapping, x.masked_fill(~mask, NAN), weights, mask)
    assert bool((got[~mask] == 0).all()), "the gradient of masked entries is zero"
    assert bool(got.isfinite().all()), "the gradient is finite with NaN at masked entries"


@MAPPING_CHECKS.add
def _invalid_rows(mapping: SparseMapping) -> None:
    """NaN or +inf at an allowed entry makes its own row NaN and leaves the others alone."""
    x = random_scores(6, 5)
    clean = mapping(x)
    for invalid in (NAN, -NAN, INF):
        dirty = x.clone()
        dirty[2, 3], dirty[4] = invalid, -INF
        leaf = dirty.requires_grad_()
        y = mapping(leaf)
        assert bool(y[2].isnan().all()), f"{invalid} makes its row NaN"
        same(y[[0, 1, 3, 5]].detach(), clean[[0, 1, 3, 5]], mapping, f"{invalid} leaves other rows alone", 0.0)
        assert bool((y[4] == 0).all()), "a row of -inf is zero"
        (got,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
        assert bool(got[[0, 1, 3, 4, 5]].isfinite().all()), f"the gradient of other rows is finite with {invalid} in one row"
        assert bool(got[2].isnan().all()), f"{invalid} makes the gradient of its row NaN"
        assert bool((got[4] == 0).all()), "the gradient of a row of -inf is zero"


@MAPPING_CHECKS.add
def _types(mapping: SparseMapping) -> None:
    """Four floating types and autocast; half precision computes in float32 and rounds once."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        x = random_scores(50, 40, dtype=dtype)
        y = mapping(x)
        assert y.dtype == dtype, f"{dtype} stays {dtype}"
        assert not mapping.has_value or mapping.value(x).dtype == dtype, f"the value of {dtype} is {dtype}"
        same(y, mapping(x.double()).to(dtype), mapping, f"{dtype} agrees with float64 on the same input")
        if mapping.on_simplex:
            # Each of the entries is rounded once; for float32 and float64 the row's threshold is, too.
            epsilon = torch.finfo(dtype).eps * (1 if dtype in (torch.bfloat16, torch.float16) else 4)
            epsilon = max(epsilon, 1e-6) if mapping.iterative else epsilon
            assert float((y.detach().double().sum(-1) - 1).abs().max()) <= epsilon, f"{dtype} rows sum to one"
        leaf = x.clone().requires_grad_()
        (got,) = torch.autograd.grad(mapping(leaf).float().square().sum(), leaf)
        assert got.dtype == dtype, f"the gradient of {dtype} is {dtype}"
    x = random_scores(4, 6, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(mapping(x), mapping(x.clone()), mapping, "autocast runs")
        low = torch.nn.functional.linear(x, torch.eye(6))
        y = mapping(low)
    same(y.float(), mapping(low.float()), mapping, "autocast agrees", tolerance_of(mapping, torch.bfloat16))


@MAPPING_CHECKS.add
def _extremes(mapping: SparseMapping) -> None:
    """Ties, constants, shifts of 1e4 and scales from 1e-6 to 1e6 stay exact."""
    if mapping.iterative:
        return
    for dtype in (torch.float64, torch.float32):
        tied = random_scores(30, 7, dtype=dtype).round()
        cases = {
            "ties": tied,
            "zeros": torch.zeros(2, 7, dtype=dtype),
            "constants": torch.full((2, 7), 3.3, dtype=dtype),
        }
        x = random_scores(30, 7, dtype=dtype)
        for scale in (1e-6, 1e-3, 1e3, 1e6):
            cases[f"scale {scale}"] = scale * x
        if mapping.shift_invariant:
            same(mapping(x.double() + 1e4), mapping(x.double()), mapping, "a shift changes nothing", 1e-8)
            cases["shift 1e4"] = x + 1e4
            cases["shift -1e4"] = x - 1e4
        for name, case in cases.items():
            y = mapping(case)
            same(y, mapping(case.double()).to(dtype), mapping, f"{name} in {dtype} agrees with float64 on the same input")
            if mapping.on_simplex:
                off = float((y.detach().double().sum(-1) - 1).abs().max())
                assert off <= 8 * torch.finfo(dtype).eps, f"{name}: sum in {dtype}"
                if mapping.has_value:
                    same(mapping.value(case), mapping.value(case.double()).to(dtype), mapping, f"value at {name}")
        huge = torch.tensor([[3e38, -3e38, 0.0], [3e38, 3e38, 1e-45]]).to(dtype)
        assert bool(mapping(huge).isfinite().all()), "finite scores give finite results"


@MAPPING_CHECKS.add
def _devices(mapping: SparseMapping) -> None:
    """The same numbers on every device at hand; shapes alone on the meta device."""
    x = random_scores(33, 21, dtype=torch.float32)
    mask = random_scores(33, 21, seed=1) > -1
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        part = copy.deepcopy(mapping).to(device)
        leaf, other = x.to(device).requires_grad_(), x.clone().requires_grad_()
        y, expected = part(leaf, mask.to(device)), mapping(other, mask)
        same(y.cpu(), expected, mapping, f"{device} equals the CPU")
        y.square().sum().backward()
        expected.square().sum().backward()
        assert leaf.grad is not None and other.grad is not None
        same(leaf.grad.cpu(), other.grad, mapping, f"the gradient on {device} equals the CPU's")
    assert mapping(x.to("meta")).shape == x.shape, "the meta device gives the shape"


@MAPPING_CHECKS.add
def _objects(mapping: SparseMapping) -> None:
    """Copies give the same results, ``state_dict`` holds only parameters, and ``repr`` shows the arguments."""
    x = random_scores(4, 6)
    check_copies(mapping, lambda copied: copied(x))
    learnt = {name for name, _ in mapping.named_parameters()}
    assert set(mapping.state_dict()) <= learnt, f"state_dict holds {set(mapping.state_dict()) - learnt}, which is not learnt"
    arguments = constructor_arguments(mapping)
    for name, value in arguments.items():
        shown = " ".join(f"{name}={value!r}".split())
        assert shown in " ".join(repr(mapping).split()), f"repr shows {shown}, but it is {mapping!r}"
    rebuilt = type(mapping)(**arguments).train(mapping.training)
    same(rebuilt(x), mapping(x), mapping, "the attributes rebuild the mapping")


@MAPPING_CHECKS.add
def _bad_input(mapping: SparseMapping) -> None:
    """Invalid arguments raise at construction, invalid tensors at the call, saying what was expected."""
    arguments = constructor_arguments(mapping)
    for bad in (0.0, -1.0, INF, NAN, "one", None, True) if "gamma" in arguments else ():
        refuses(lambda bad=bad: type(mapping)(**{**arguments, "gamma": bad}), "gamma")  # type: ignore[misc]
    refuses(lambda: mapping(torch.zeros(2, 3, dtype=torch.int64)), "floating dtype")
    refuses(lambda: mapping(torch.zeros(2, 3, dtype=torch.complex64)), "floating dtype")
    refuses(lambda: mapping(torch.zeros(2, 3), torch.ones(2, 3)), "boolean mask")
    refuses(lambda: mapping(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.int64)), ".bool()")
    refuses(lambda: mapping(torch.zeros(2, 3), [True] * 3), "boolean mask")
    refuses(lambda: mapping([1.0, 2.0]), "torch tensor")
    refuses(lambda: mapping(torch.zeros(2, 3).to_sparse()), "dense scores")
    refuses(lambda: mapping(torch.zeros(2, 4, 3), torch.ones(2, 3, dtype=torch.bool)), "mask[:, None, :]")
    if "dim" in arguments:
        for bad in ("time", 1.0, None, True):
            refuses(lambda bad=bad: type(mapping)(**{**arguments, "dim": bad}), "dim")  # type: ignore[misc]
        for bad in (2, -3):
            outside = type(mapping)(**{**arguments, "dim": bad})
            refuses(lambda outside=outside: outside(torch.zeros(2, 3)), "one of the 2 dimensions of the scores")  # type: ignore[misc]
            if mapping.has_value:
                refuses(lambda outside=outside: outside.value(torch.zeros(2, 3)), "one of the 2 dimensions")  # type: ignore[misc]
        inside = type(mapping)(**{**arguments, "dim": np.int64(-1)}).train(mapping.training)
        same(inside(random_scores(4, 6)), mapping.map(random_scores(4, 6), None, -1), mapping, "a numpy integer is a dimension")
    refuses(lambda: mapping(torch.zeros(2, 3), torch.ones(2, 4, dtype=torch.bool)), "broadcast")
    refuses(lambda: mapping(torch.zeros(3), torch.ones(2, 3, dtype=torch.bool)), "broadcast")


@MAPPING_CHECKS.add
def _loss(mapping: SparseMapping) -> None:
    """The Fenchel-Young loss is zero at its own result, not negative where Omega is finite, and has gradient y - q."""
    if not mapping.on_simplex:
        return
    if not mapping.has_value:
        refuses(lambda: FenchelYoungLoss(mapping), "maximizes something")
        refuses(lambda: mapping.value(random_scores(2, 3)), "maximizes something")
        return
    x = random_scores(12, 5).requires_grad_()
    y = mapping(x).detach()
    loss = FenchelYoungLoss(mapping, reduction="none")
    slack = 1e-4 if mapping.iterative else 1e-10
    same(loss(x, y), torch.zeros(12, dtype=y.dtype), mapping, "the loss of its own result is zero", slack)
    labels = torch.arange(12) % 5
    target = torch.nn.functional.one_hot(labels, 5).to(x.dtype)
    target = mapping.admissible(target, -1, torch.ones_like(target, dtype=torch.bool))
    hard = loss(x, labels)
    assert bool((hard >= -slack).logical_or(mapping.regularizer(target).isinf()).all()), "a loss is negative"
    (gradient,) = torch.autograd.grad(hard.sum(), x)
    same(gradient, y - target, mapping, "the gradient is y - q")


for _check in (derivatives, transforms, compiles, machine_code):
    MAPPING_CHECKS.add(_check)
