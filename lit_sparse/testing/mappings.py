"""The shared tester of mappings: what every mapping promises, as functions that raise when it is not so.

Which promises apply is read from the class (``on_simplex``, ``shift_invariant``, ``iterative``), never from a list.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import shutil
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from lit_sparse.mappings import FenchelYoungLoss, SparseMapping
from lit_sparse.testing.promises import Promises, refuses

__all__ = ["MAPPING_CHECKS", "check_mapping"]

#: Name -> check. Each takes a mapping that works along the last dimension and raises an AssertionError.
MAPPING_CHECKS: Promises[SparseMapping] = Promises()

INF = float("inf")
NAN = float("nan")


def check_mapping(mapping: SparseMapping) -> None:
    """Run every check on a mapping along the last dimension.

    Raises:
        AssertionError: naming the promise that was broken.
    """
    MAPPING_CHECKS.hold_for(mapping)


def _scores(*shape: int, seed: int = 0, scale: float = 2.0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def _tolerance(mapping: SparseMapping, dtype: torch.dtype = torch.float64) -> float:
    exact = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
    return max(exact, 1e-5) if mapping.iterative else exact


def _same(actual: Tensor, expected: Tensor, mapping: SparseMapping, what: str, tolerance: float | None = None) -> None:
    tolerance = _tolerance(mapping, actual.dtype) if tolerance is None else tolerance

    def message(detail: str) -> str:
        return f"{what}: {detail}"

    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True, msg=message)


def _arguments(mapping: SparseMapping) -> dict[str, Any]:
    names = [name for name in inspect.signature(type(mapping).__init__).parameters if name != "self"]
    return {name: getattr(mapping, name) for name in names}


@MAPPING_CHECKS.add
def _simplex(mapping: SparseMapping) -> None:
    """On the simplex: not negative, summing to one; and best among many competitors there, by its own gamma and Omega."""
    if not mapping.on_simplex:
        return
    _is_best(mapping)
    if "gamma" in _arguments(mapping) and not list(mapping.parameters()):
        _is_best(_with_gamma(mapping, 3 * mapping.gamma))


def _is_best(mapping: SparseMapping) -> None:
    wrong = "so that `map` does not maximize <y, x> - gamma * `regularizer`(y): one of them, or its gamma, is wrong"
    slack = 1e-4 if mapping.iterative else 1e-12
    for seed, d in enumerate([2, 5, 9, 33]):
        x = _scores(40, d, seed=seed)
        y = mapping(x)
        assert bool((y >= 0).all()), "a result is negative"
        _same(
            y.sum(-1),
            torch.ones(40, dtype=y.dtype),
            mapping,
            "rows sum to one",
            1e-6 if mapping.iterative else 1e-14 * d,
        )

        if not mapping.has_value:
            continue

        def attained(p: Tensor, x: Tensor = x) -> Tensor:
            return (p * x).sum(-1) - mapping.gamma * mapping.regularizer(p).detach()

        best = attained(y)
        _same(mapping.value(x), best, mapping, "value is <y, x> - gamma Omega(y)")
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
def _shapes(mapping: SparseMapping) -> None:
    """Any ``dim``, batch shape, stride and size, empty and single included."""
    x = _scores(3, 4, 5)
    for dim in range(-3, 3):
        moved = mapping.map(x, None, dim)
        rows = torch.stack([mapping(row) for row in x.movedim(dim, -1).reshape(-1, x.shape[dim])])
        _same(moved.movedim(dim, -1).reshape(rows.shape), rows, mapping, f"dim={dim} equals row by row")
        value = mapping.value_along(x, None, dim) if mapping.has_value else moved.sum(dim)
        assert value.shape == x.movedim(dim, -1).shape[:-1], f"value along dim={dim} has shape {tuple(value.shape)}"
    wide = _scores(6, 14)
    _same(mapping(wide[::2, ::2]), mapping(wide[::2, ::2].clone()), mapping, "strided equals contiguous")
    _same(mapping(wide.T.contiguous().T), mapping(wide), mapping, "transposed equals contiguous")
    for shape in [(0, 5), (2, 0, 3), (0,), (4, 0)]:
        assert mapping(torch.empty(shape)).shape == shape, f"an empty tensor {shape} keeps its shape"
    if mapping.on_simplex:
        assert bool((mapping(_scores(7, 1)) == 1).all()), "a single entry gets everything"
    assert mapping(_scores(5)).shape == (5,), "a single row keeps its shape"


@MAPPING_CHECKS.add
def _masks(mapping: SparseMapping) -> None:
    """A mask equals dropping columns; -inf is a mask; what stands behind it is never looked at."""
    x = _scores(30, 8)
    mask = _scores(30, 8, seed=1) > -0.5
    if mapping.ordered:  # what is left must have been neighbours before
        ends = torch.arange(30).remainder(8)
        mask = (torch.arange(8) >= ends[:, None] // 2) & (torch.arange(8) <= ends[:, None])
    mask[0], mask[1] = False, True
    y = mapping(x, mask)
    for row, keep, got in zip(x, mask, y, strict=True):
        expected = torch.zeros_like(row)
        if keep.any():
            expected[keep] = mapping(row[keep])
        _same(got, expected, mapping, "mask equals dropped columns")
    if mapping.has_value:
        _same(mapping.value(x, mask)[1:], torch.stack([mapping.value(r[k]) for r, k in zip(x[1:], mask[1:], strict=True)]),
              mapping, "value under a mask equals dropped columns")  # fmt: skip
        assert float(mapping.value(x, mask)[0].detach()) == -INF, "the value of a row with nothing allowed is -inf"
    _same(mapping(x.masked_fill(~mask, -INF)), y, mapping, "-inf equals a mask", 0.0)
    for hidden in (NAN, INF, 1e30):
        _same(mapping(x.masked_fill(~mask, hidden), mask), y, mapping, f"{hidden} behind the mask changes nothing", 0.0)
    _same(mapping(x, mask[:1].expand(30, 8)), mapping(x, mask[:1]), mapping, "a mask is broadcast", 0.0)

    leaf = x.masked_fill(~mask, NAN).requires_grad_()
    weights = _scores(30, 8, seed=2).masked_fill(~mask, NAN)  # a gradient behind the mask is not looked at either
    (got,) = torch.autograd.grad(mapping(leaf, mask), leaf, weights)
    assert bool((got[~mask] == 0).all()), "the gradient behind the mask is zero"
    assert bool(got.isfinite().all()), "the gradient is finite where NaN stands behind the mask"


@MAPPING_CHECKS.add
def _odd_rows(mapping: SparseMapping) -> None:
    """NaN or +inf at an allowed entry makes its own row NaN and leaves the others alone."""
    x = _scores(6, 5)
    clean = mapping(x)
    for odd in (NAN, -NAN, INF):
        dirty = x.clone()
        dirty[2, 3], dirty[4] = odd, -INF
        leaf = dirty.requires_grad_()
        y = mapping(leaf)
        assert bool(y[2].isnan().all()), f"{odd} makes its row NaN"
        _same(y[[0, 1, 3, 5]].detach(), clean[[0, 1, 3, 5]], mapping, f"{odd} leaves other rows alone", 0.0)
        assert bool((y[4] == 0).all()), "a row of -inf is zero"
        (got,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
        assert bool(got[[0, 1, 3, 4, 5]].isfinite().all()), f"the gradient of other rows is finite beside {odd}"
        assert bool((got[4] == 0).all()), "the gradient of a row of -inf is zero"


@MAPPING_CHECKS.add
def _types(mapping: SparseMapping) -> None:
    """Four floating types and autocast; half precision computes in float32 and rounds once."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        x = _scores(50, 40, dtype=dtype)
        y = mapping(x)
        assert y.dtype == dtype, f"{dtype} stays {dtype}"
        assert not mapping.has_value or mapping.value(x).dtype == dtype, f"the value of {dtype} is {dtype}"
        _same(y, mapping(x.double()).to(dtype), mapping, f"{dtype} agrees with float64 on the same input")
        if mapping.on_simplex:
            # Each of the entries is rounded once; for float32 and float64 the row's threshold is, too.
            epsilon = torch.finfo(dtype).eps * (1 if dtype in (torch.bfloat16, torch.float16) else 4)
            epsilon = max(epsilon, 1e-6) if mapping.iterative else epsilon
            assert float((y.detach().double().sum(-1) - 1).abs().max()) <= epsilon, f"{dtype} rows sum to one"
        leaf = x.clone().requires_grad_()
        (got,) = torch.autograd.grad(mapping(leaf).float().square().sum(), leaf)
        assert got.dtype == dtype, f"the gradient of {dtype} is {dtype}"
    x = _scores(4, 6, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _same(mapping(x), mapping(x.clone()), mapping, "autocast runs")
        low = torch.nn.functional.linear(x, torch.eye(6))
        y = mapping(low)
    _same(y.float(), mapping(low.float()), mapping, "autocast agrees", _tolerance(mapping, torch.bfloat16))


@MAPPING_CHECKS.add
def _derivatives(mapping: SparseMapping) -> None:
    """First and second derivatives in reverse and forward mode, of the mapping and of its value."""
    x = _scores(4, 6, seed=3).requires_grad_()
    tolerance = 1e-4 if mapping.iterative else 1e-5
    for function in (mapping, mapping.value) if mapping.has_value else (mapping,):
        torch.autograd.gradcheck(function, x, check_forward_ad=True, atol=tolerance, rtol=1e-3)
        torch.autograd.gradgradcheck(function, x, atol=tolerance, rtol=1e-3)
    point, direction = x.detach(), _scores(4, 6, seed=4)
    y, tangent = jvp(mapping, (point,), (direction,))  # type: ignore[misc]
    _same(y, mapping(point), mapping, "jvp returns the result")
    h = 1e-6
    difference = (mapping(point + h * direction) - mapping(point - h * direction)) / (2 * h)
    _same(tangent, difference, mapping, "jvp equals a finite difference", 1e-3 if mapping.iterative else 1e-6)
    if mapping.has_value:
        (gradient,) = torch.autograd.grad(mapping.value(x).sum(), x)
        _same(gradient, mapping(point), mapping, "the gradient of the value is the mapping")


@MAPPING_CHECKS.add
def _transforms(mapping: SparseMapping) -> None:
    """``vmap`` equals the loop, and composes with grad, jacrev, jacfwd and hessian."""
    if mapping.iterative:
        return
    x = _scores(4, 6, seed=3)
    weights = torch.arange(6, dtype=x.dtype)

    def scalar(row: Tensor) -> Tensor:
        return torch.sum(mapping(row) * weights)

    _same(vmap(mapping)(x), mapping(x), mapping, "vmap equals the loop")
    _same(vmap(mapping, in_dims=1, out_dims=1)(x.T), mapping(x).T, mapping, "vmap over dimension 1 equals the loop")
    _same(vmap(vmap(mapping))(x.expand(2, 4, 6)), mapping(x).expand(2, 4, 6), mapping, "nested vmap equals the loop")
    mask = _scores(4, 6, seed=5) > 0
    _same(vmap(mapping)(x, mask), mapping(x, mask), mapping, "vmap over scores and mask equals the loop")
    if hasattr(torch.func, "linearize"):  # records operations as it goes
        tangent = torch.func.linearize(mapping, x)[1](x.flip(0))
        _same(tangent, jvp(mapping, (x,), (x.flip(0),))[1], mapping, "linearize equals jvp")
    jacobian = jacrev(mapping)(x[0])
    _same(jacobian, jacfwd(mapping)(x[0]), mapping, "jacrev equals jacfwd")
    batched = torch.autograd.functional.jacobian(mapping, x[0], vectorize=True)  # type: ignore[no-untyped-call]
    _same(batched, jacobian, mapping, "a vectorized jacobian equals jacrev")
    _same(vmap(grad(scalar))(x), torch.stack([grad(scalar)(row) for row in x]), mapping, "vmap(grad) equals the loop")
    second = torch.autograd.functional.hessian(scalar, x[0])  # type: ignore[no-untyped-call]
    _same(hessian(scalar)(x[0]), second, mapping, "hessian equals double backward")
    _same(jacfwd(jacfwd(scalar))(x[0]), second, mapping, "jacfwd(jacfwd) equals double backward")
    if mapping.has_value:
        _same(jacfwd(jacfwd(mapping.value))(x[0]), jacobian, mapping, "jacfwd(jacfwd) of the value is the jacobian")
        _same(hessian(mapping.value)(x[0]), jacobian, mapping, "the hessian of the value is the jacobian")


@MAPPING_CHECKS.add
def _compiles(mapping: SparseMapping) -> None:
    """``torch.compile(fullgraph=True)`` with dynamic shapes and ``torch.export`` equal eager execution."""
    if mapping.iterative or not hasattr(torch.library, "custom_op"):
        return
    backend = "aot_eager"  # all of torch's own tracing, and nothing after it
    torch._dynamo.reset()
    x, mask = _scores(4, 6, seed=3), _scores(4, 6, seed=5) > -1
    mask[1] = False

    def forward(scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return mapping(scores, mask)  # type: ignore[no-any-return]

    compiled = torch.compile(forward, fullgraph=True, dynamic=True, backend=backend)
    for scores in (x, _scores(3, 9), _scores(5, 2)):
        _same(compiled(scores), mapping(scores), mapping, f"compiled equals eager at {tuple(scores.shape)}")
        ours, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
        weights = _scores(*scores.shape, seed=6)
        (got,) = torch.autograd.grad(compiled(ours), ours, weights)
        (expected,) = torch.autograd.grad(mapping(theirs), theirs, weights)
        _same(got, expected, mapping, "the compiled gradient equals the eager one")
    leaf, twin = x.masked_fill(~mask, NAN).requires_grad_(), x.clone().requires_grad_()
    _same(compiled(leaf, mask), mapping(x, mask), mapping, "compiled with a mask equals eager")
    (got,) = torch.autograd.grad(compiled(leaf, mask), leaf, x)
    (expected,) = torch.autograd.grad(mapping(twin, mask), twin, x)
    _same(got, expected, mapping, "the compiled gradient under a mask equals the eager one")

    broken = x.clone()
    broken[2, 1] = NAN
    gradients_of_broken = []
    for function in (compiled, mapping):
        leaf = broken.clone().requires_grad_()
        gradients_of_broken.append(torch.autograd.grad(function(leaf), leaf, x)[0])
    _same(gradients_of_broken[0], gradients_of_broken[1], mapping, "the compiled gradient of a NaN row equals the eager one")

    def along(scores: Tensor, direction: Tensor) -> Tensor:
        return jvp(mapping, (scores,), (direction,))[1]  # type: ignore[no-any-return]

    compiled_jvp = torch.compile(along, fullgraph=True, backend=backend)
    _same(compiled_jvp(x, x.flip(0)), along(x, x.flip(0)), mapping, "the compiled jvp equals the eager one")

    def gradients(scores: Tensor) -> Tensor:
        return vmap(grad(lambda row: (mapping(row) * row.detach().flip(0)).sum()))(scores)  # type: ignore[no-any-return]

    compiled_gradients = torch.compile(gradients, fullgraph=True, backend=backend)
    _same(compiled_gradients(x), gradients(x), mapping, "compiled vmap(grad) equals eager")

    if "gamma" in _arguments(mapping) and not list(mapping.parameters()):  # a graph cannot make parameters
        strength = torch.compile(lambda x, gamma: _with_gamma(mapping, gamma / 2)(x), fullgraph=True, backend=backend)
        for gamma in (1.0, 0.5, 2.0, 4.0):  # a strength that is computed from an argument must not be frozen
            expected = _with_gamma(mapping, gamma / 2)(x)
            _same(strength(x, gamma), expected, mapping, f"compiled with gamma={gamma}/2 equals eager")

    if mapping.has_value:
        compiled_value = torch.compile(mapping.value, fullgraph=True, backend=backend)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        (got,) = torch.autograd.grad(compiled_value(ours).sum(), ours)
        (expected,) = torch.autograd.grad(mapping.value(theirs).sum(), theirs)
        _same(got, expected, mapping, "the compiled gradient of the value equals the eager one")
        _same(compiled_value(x), mapping.value(x), mapping, "the compiled value equals the eager one")

    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(mapping, (x,), dynamic_shapes=({0: batch},))
    _same(program.module()(_scores(7, 6)), mapping(_scores(7, 6)), mapping, "an exported program equals eager")


@MAPPING_CHECKS.add
def _machine_code(mapping: SparseMapping) -> None:
    """``torch.compile`` down to machine code equals eager execution."""
    if mapping.iterative or not hasattr(torch.library, "custom_op") or not (shutil.which("c++") or shutil.which("g++")):
        return
    torch._dynamo.reset()
    x, mask = _scores(4, 6, seed=3), _scores(4, 6, seed=5) > -1
    compiled = torch.compile(lambda scores, mask: mapping(scores, mask), fullgraph=True, dynamic=True)
    _same(compiled(x, mask), mapping(x, mask), mapping, "compiled to machine code equals eager")


@MAPPING_CHECKS.add
def _extremes(mapping: SparseMapping) -> None:
    """Ties, constants, shifts of 1e4 and scales from 1e-6 to 1e6 stay exact."""
    if mapping.iterative:
        return
    for dtype in (torch.float64, torch.float32):
        tied = _scores(30, 7, dtype=dtype).round()
        cases = {
            "ties": tied,
            "zeros": torch.zeros(2, 7, dtype=dtype),
            "constants": torch.full((2, 7), 3.3, dtype=dtype),
        }
        x = _scores(30, 7, dtype=dtype)
        for scale in (1e-6, 1e-3, 1e3, 1e6):
            cases[f"scale {scale}"] = scale * x
        if mapping.shift_invariant:
            _same(mapping(x.double() + 1e4), mapping(x.double()), mapping, "a shift changes nothing", 1e-8)
            cases["shift 1e4"] = x + 1e4
            cases["shift -1e4"] = x - 1e4
        for name, case in cases.items():
            y = mapping(case)
            _same(y, mapping(case.double()).to(dtype), mapping, f"{name} in {dtype} agrees with float64 on the same input")
            if mapping.on_simplex:
                assert float((y.detach().double().sum(-1) - 1).abs().max()) <= 8 * torch.finfo(dtype).eps, (
                    f"{name}: sum in {dtype}"
                )
                if mapping.has_value:
                    _same(mapping.value(case), mapping.value(case.double()).to(dtype), mapping, f"value at {name}")
        huge = torch.tensor([[3e38, -3e38, 0.0], [3e38, 3e38, 1e-45]]).to(dtype)
        assert bool(mapping(huge).isfinite().all()), "finite scores give finite results"


@MAPPING_CHECKS.add
def _devices(mapping: SparseMapping) -> None:
    """The same numbers on every device at hand; shapes alone on the meta device."""
    x = _scores(33, 21, dtype=torch.float32)
    mask = _scores(33, 21, seed=1) > -1
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        part = copy.deepcopy(mapping).to(device)
        leaf, other = x.to(device).requires_grad_(), x.clone().requires_grad_()
        y, expected = part(leaf, mask.to(device)), mapping(other, mask)
        _same(y.cpu(), expected, mapping, f"{device} equals the CPU")
        y.square().sum().backward()
        expected.square().sum().backward()
        assert leaf.grad is not None and other.grad is not None
        _same(leaf.grad.cpu(), other.grad, mapping, f"the gradient on {device} equals the CPU's")
    assert mapping(x.to("meta")).shape == x.shape, "the meta device gives the shape"


@MAPPING_CHECKS.add
def _objects(mapping: SparseMapping) -> None:
    """Pickle and deepcopy; nothing in ``state_dict`` but what is learnt; ``repr`` shows the arguments."""
    x = _scores(4, 6)
    for twin in (pickle.loads(pickle.dumps(mapping)), copy.deepcopy(mapping)):
        _same(twin(x), mapping(x), mapping, "a copy does the same", 0.0)
    learnt = {name for name, _ in mapping.named_parameters()}
    assert set(mapping.state_dict()) <= learnt, f"state_dict holds {set(mapping.state_dict()) - learnt}, which is not learnt"
    arguments = _arguments(mapping)
    for name, value in arguments.items():
        shown = " ".join(f"{name}={value!r}".split())
        assert shown in " ".join(repr(mapping).split()), f"repr shows {shown}, but it is {mapping!r}"
    rebuilt = type(mapping)(**arguments)
    _same(rebuilt(x), mapping(x), mapping, "the attributes rebuild the mapping")


@MAPPING_CHECKS.add
def _bad_input(mapping: SparseMapping) -> None:
    """Invalid arguments raise at construction, invalid tensors at the call, saying what was expected."""
    arguments = _arguments(mapping)
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
        inside = type(mapping)(**{**arguments, "dim": np.int64(-1)})
        _same(inside(_scores(4, 6)), mapping.map(_scores(4, 6), None, -1), mapping, "a numpy integer is a dimension")
    refuses(lambda: mapping(torch.zeros(2, 3), torch.ones(2, 4, dtype=torch.bool)), "broadcast")
    refuses(lambda: mapping(torch.zeros(3), torch.ones(2, 3, dtype=torch.bool)), "broadcast")


@MAPPING_CHECKS.add
def _loss(mapping: SparseMapping) -> None:
    """The Fenchel-Young loss is zero at its own result, not negative where Omega is finite, and has gradient y - q."""
    if not mapping.on_simplex:
        return
    if not mapping.has_value:
        refuses(lambda: FenchelYoungLoss(mapping), "maximizes something")
        refuses(lambda: mapping.value(_scores(2, 3)), "maximizes something")
        return
    x = _scores(12, 5).requires_grad_()
    y = mapping(x).detach()
    loss = FenchelYoungLoss(mapping, reduction="none")
    slack = 1e-4 if mapping.iterative else 1e-10
    _same(loss(x, y), torch.zeros(12, dtype=y.dtype), mapping, "the loss of its own result is zero", slack)
    labels = torch.arange(12) % 5
    target = torch.nn.functional.one_hot(labels, 5).to(x.dtype)
    target = mapping.admissible(target, -1, torch.ones_like(target, dtype=torch.bool))
    hard = loss(x, labels)
    assert bool((hard >= -slack).logical_or(mapping.regularizer(target).isinf()).all()), "a loss is negative"
    (gradient,) = torch.autograd.grad(hard.sum(), x)
    _same(gradient, y - target, mapping, "the gradient is y - q")


def _with_gamma(mapping: SparseMapping, gamma: float) -> SparseMapping:
    return type(mapping)(**{**_arguments(mapping), "gamma": gamma})
