"""Checks of mappings under differentiation, function transforms and compilation, and what checks of mappings share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from lit_sparse.ground.arguments import constructor_parameters
from lit_sparse.mappings import SparseMapping
from lit_sparse.testing.checks import random_scores

__all__ = [
    "compiles",
    "constructor_arguments",
    "derivatives",
    "gradient_of",
    "machine_code",
    "same",
    "tolerance_of",
    "transforms",
    "with_gamma",
]

NAN = float("nan")

#: Before torch 2.4 it does not.
FORWARD_MODE_NESTS = hasattr(torch.library, "custom_op")


def tolerance_of(mapping: SparseMapping, dtype: torch.dtype = torch.float64) -> float:
    """Return the tolerance for a mapping's results in a dtype."""
    exact = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
    return max(exact, 1e-5) if mapping.iterative else exact


def same(actual: Tensor, expected: Tensor, mapping: SparseMapping, what: str, tolerance: float | None = None) -> None:
    """Check that two results are equal up to a mapping's tolerance, including NaN."""
    tolerance = tolerance_of(mapping, actual.dtype) if tolerance is None else tolerance

    def message(detail: str) -> str:
        return f"{what}: {detail}"

    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True, msg=message)


def constructor_arguments(mapping: SparseMapping) -> dict[str, Any]:
    """Return the constructor arguments that would create an equal mapping."""
    return {name: getattr(mapping, name) for name in constructor_parameters(type(mapping))}


def with_gamma(mapping: SparseMapping, gamma: float) -> SparseMapping:
    """Return a copy of a mapping with another gamma."""
    return type(mapping)(**{**constructor_arguments(mapping), "gamma": gamma})


def gradient_of(function: Callable[..., Tensor], x: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the gradient of ``(weights * function(x)).sum()``; the function is a mapping under a mask if one is given."""
    leaf = x.clone().requires_grad_()
    result = function(leaf) if mask is None else function(leaf, mask)
    return torch.autograd.grad(result, leaf, weights)[0]


def derivatives(mapping: SparseMapping) -> None:
    """Check first and second derivatives of a mapping and of its value, in reverse and forward mode."""
    x = random_scores(4, 6, seed=3).requires_grad_()
    tolerance = 1e-4 if mapping.iterative else 1e-5
    for function in (mapping, mapping.value) if mapping.has_value else (mapping,):
        torch.autograd.gradcheck(function, x, check_forward_ad=True, atol=tolerance, rtol=1e-3)
        torch.autograd.gradgradcheck(function, x, atol=tolerance / 1e5, rtol=1e-5, fast_mode=True)
    if mapping.iterative and not FORWARD_MODE_NESTS:
        return  # nor does it let values be read
    point, direction = x.detach(), random_scores(4, 6, seed=4)
    y, tangent = jvp(mapping, (point,), (direction,))  # type: ignore[misc]
    same(y, mapping(point), mapping, "jvp returns the result")
    h = 1e-6
    difference = (mapping(point + h * direction) - mapping(point - h * direction)) / (2 * h)
    same(tangent, difference, mapping, "jvp equals a finite difference", 1e-3 if mapping.iterative else 1e-6)
    if mapping.has_value:
        (gradient,) = torch.autograd.grad(mapping.value(x).sum(), x)
        same(gradient, mapping(point), mapping, "the gradient of the value is the mapping")


def transforms(mapping: SparseMapping) -> None:
    """Check that a mapping under ``vmap`` equals a loop, also composed with grad, jacrev, jacfwd and hessian."""
    if mapping.iterative:
        return
    x = random_scores(4, 6, seed=3)
    weights = torch.arange(6, dtype=x.dtype)

    def scalar(row: Tensor) -> Tensor:
        return torch.sum(mapping(row) * weights)

    same(vmap(mapping)(x), mapping(x), mapping, "vmap equals the loop")
    same(vmap(mapping, in_dims=1, out_dims=1)(x.T), mapping(x).T, mapping, "vmap over dimension 1 equals the loop")
    same(vmap(vmap(mapping))(x.expand(2, 4, 6)), mapping(x).expand(2, 4, 6), mapping, "nested vmap equals the loop")
    mask = random_scores(4, 6, seed=5) > 0
    same(vmap(mapping)(x, mask), mapping(x, mask), mapping, "vmap over scores and mask equals the loop")
    if FORWARD_MODE_NESTS:  # linearize records operations as it goes
        tangent = torch.func.linearize(mapping, x)[1](x.flip(0))
        same(tangent, jvp(mapping, (x,), (x.flip(0),))[1], mapping, "linearize equals jvp")
    jacobian = jacrev(mapping)(x[0])
    same(jacobian, jacfwd(mapping)(x[0]), mapping, "jacrev equals jacfwd")
    batched = torch.autograd.functional.jacobian(mapping, x[0], vectorize=True)  # type: ignore[no-untyped-call]
    same(batched, jacobian, mapping, "a vectorized jacobian equals jacrev")
    same(vmap(grad(scalar))(x), torch.stack([grad(scalar)(row) for row in x]), mapping, "vmap(grad) equals the loop")
    second = torch.autograd.functional.hessian(scalar, x[0])  # type: ignore[no-untyped-call]
    same(hessian(scalar)(x[0]), second, mapping, "hessian equals double backward")
    if FORWARD_MODE_NESTS:
        hint = "; a RowFunction that is not piecewise linear sets `piecewise_linear = False`"
        same(jacfwd(jacfwd(scalar))(x[0]), second, mapping, f"jacfwd(jacfwd) equals double backward{hint}")
    if mapping.has_value:
        if FORWARD_MODE_NESTS:
            same(jacfwd(jacfwd(mapping.value))(x[0]), jacobian, mapping, "jacfwd(jacfwd) of the value is the jacobian")
        same(hessian(mapping.value)(x[0]), jacobian, mapping, "the hessian of the value is the jacobian")


def compiles(mapping: SparseMapping) -> None:
    """Check that a mapping under ``torch.compile(fullgraph=True)`` and ``torch.export`` equals eager execution."""
    if mapping.iterative or not hasattr(torch.library, "custom_op"):
        return
    backend = "aot_eager"  # all of torch's own tracing, and nothing after it
    torch._dynamo.reset()
    x, mask = random_scores(4, 6, seed=3), random_scores(4, 6, seed=5) > -1
    mask[1] = False
    compiled = torch.compile(lambda scores, mask=None: mapping(scores, mask), fullgraph=True, dynamic=True, backend=backend)
    for scores in (x, random_scores(3, 9), random_scores(5, 2)):
        same(compiled(scores), mapping(scores), mapping, f"compiled equals eager at {tuple(scores.shape)}")
        weights = random_scores(*scores.shape, seed=6)
        got, expected = (gradient_of(function, scores, weights) for function in (compiled, mapping))
        same(got, expected, mapping, "the compiled gradient equals the eager one")
    hidden = x.masked_fill(~mask, NAN).requires_grad_()
    same(compiled(hidden, mask), mapping(x, mask), mapping, "compiled with a mask equals eager")
    got, expected = gradient_of(compiled, hidden.detach(), x, mask), gradient_of(mapping, x, x, mask)
    same(got, expected, mapping, "the compiled gradient under a mask equals the eager one")

    broken = x.clone()
    broken[2, 1] = NAN
    got, expected = (gradient_of(function, broken, x) for function in (compiled, mapping))
    same(got, expected, mapping, "the compiled gradient of a NaN row equals the eager one")

    def along(scores: Tensor, direction: Tensor) -> Tensor:
        return jvp(mapping, (scores,), (direction,))[1]  # type: ignore[no-any-return]

    compiled_jvp = torch.compile(along, fullgraph=True, backend=backend)
    same(compiled_jvp(x, x.flip(0)), along(x, x.flip(0)), mapping, "the compiled jvp equals the eager one")

    def gradients(scores: Tensor) -> Tensor:
        return vmap(grad(lambda row: (mapping(row) * row.detach().flip(0)).sum()))(scores)  # type: ignore[no-any-return]

    compiled_gradients = torch.compile(gradients, fullgraph=True, backend=backend)
    same(compiled_gradients(x), gradients(x), mapping, "compiled vmap(grad) equals eager")

    if "gamma" in constructor_arguments(mapping) and not list(mapping.parameters()):  # a graph cannot make parameters
        strength = torch.compile(lambda x, gamma: with_gamma(mapping, gamma / 2)(x), fullgraph=True, backend=backend)
        for gamma in (1.0, 0.5, 2.0, 4.0):  # a strength that is computed from an argument must not be frozen
            expected = with_gamma(mapping, gamma / 2)(x)
            same(strength(x, gamma), expected, mapping, f"compiled with gamma={gamma}/2 equals eager")

    if mapping.has_value:
        compiled_value = torch.compile(mapping.value, fullgraph=True, backend=backend)
        got, expected = (gradient_of(function, x, x.new_ones(4)) for function in (compiled_value, mapping.value))
        same(got, expected, mapping, "the compiled gradient of the value equals the eager one")
        same(compiled_value(x), mapping.value(x), mapping, "the compiled value equals the eager one")

    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(mapping, (x,), dynamic_shapes=({0: batch},))
    same(program.module()(random_scores(7, 6)), mapping(random_scores(7, 6)), mapping, "an exported program equals eager")


def machine_code(mapping: SparseMapping) -> None:
    """Check that a mapping compiled to machine code by ``torch.compile`` equals eager execution."""
    if mapping.iterative or not hasattr(torch.library, "custom_op") or not (shutil.which("c++") or shutil.which("g++")):
        return
    torch._dynamo.reset()
    x, mask = random_scores(4, 6, seed=3), random_scores(4, 6, seed=5) > -1
    compiled = torch.compile(lambda scores, mask: mapping(scores, mask), fullgraph=True, dynamic=True)
    same(compiled(x, mask), mapping(x, mask), mapping, "compiled to machine code equals eager")
