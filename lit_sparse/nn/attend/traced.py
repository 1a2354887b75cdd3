"""Sparse attention in graphs, of ``torch.compile`` and others: one opaque operator, and one for its gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_sparse.ground.torch_internals import HAS_CUSTOM_OPS, autograd_in_operator, call_operator
from lit_sparse.mappings import Entmax, TopKSparsemax
from lit_sparse.mappings.base import Threshold
from lit_sparse.nn.attend.blocks import attend_in_blocks
from lit_sparse.nn.attend.listed import attend_to_listed, sparse_ways
from lit_sparse.nn.attend.operands import Operands, Pairs, attend_to_all

__all__ = ["attend_by_operator"]

#: Arguments of both operators, as :func:`_attend` takes them.
_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? alpha, Tensor? mask, Tensor? bias, Tensor? seed, float? number, int? k,"
    " float gamma, float? scale, float? softcap, bool is_causal, float dropout, bool only_few"
)
_FORWARD = f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)"
_BACKWARD = f"(Tensor slope, Tensor places, Tensor long, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"


def attend_by_operator(operands: Operands, threshold: Threshold, only_few: bool) -> Tensor:
    """Return the attention output (..., L, Ev) in a compiled graph, by one opaque operator.

    It computes in blocks or by the candidates of each query.

    Args:
        operands: checked arguments of :func:`lit_sparse.nn.attention`.
        threshold: threshold of the mapping.
        only_few: whether to attend to all keys if the candidates are many.
    """
    query, key, value, pairs, scale, dropout, _ = operands
    learnt, low = isinstance(threshold.alpha, Tensor), operands.dtype()
    if not query.is_cpu:
        query, key, value = query.to(low), key.to(low), value.to(low)
    alpha, number = (threshold.alpha, None) if learnt else (None, threshold.alpha)
    tensors = (query, key, value, alpha, pairs.mask, pairs.bias, torch.randint(2**62, ()) if dropout else None)
    numbers = (number, threshold.k, threshold.gamma, scale, pairs.softcap, pairs.is_causal, dropout, only_few)
    output: Tensor = call_operator(torch.ops.lit_sparse.attention, *tensors, *numbers)[0]
    return output.to(low)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, *others: Any, candidates: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, and the candidates, which are found if they are not given; none are listed if all keys are used."""
    alpha, mask, bias, seed, number, k, gamma, scale, softcap, is_causal, dropout, only_few = others
    operands = Operands(query, key, value, Pairs(mask, bias, softcap, is_causal), scale, dropout)
    threshold = Threshold(number if alpha is None else alpha, k, gamma)
    rows, listed = operands.leading().numel() * query.shape[-2], None
    way, otherwise, programs = sparse_ways(operands, threshold, only_few)
    mapping = Entmax(threshold.alpha, gamma=gamma) if k is None else TopKSparsemax(k, gamma=gamma)
    with torch.random.fork_rng(devices=[query.device] if query.is_cuda else [], enabled=seed is not None):
        if seed is not None:
            generator = torch.cuda.default_generators[query.device.index] if query.is_cuda else torch.default_generator
            generator.manual_seed(int(seed))  # and no other, whose state would not come back
        if way == "listed" and (candidates is None or candidates[0].shape[1]):
            few = otherwise is not None
            listed = attend_to_listed(operands, mapping, threshold, only_few=few, candidates=candidates, programs=programs)
        if listed is not None:
            return listed.output, listed.places, listed.long
        blocks = "blocks" in (way, otherwise)
        output = attend_in_blocks(operands, threshold) if blocks else attend_to_all(operands, mapping)[0]
        return output, query.new_empty(rows, 0, dtype=torch.int32), query.new_ones(rows, dtype=torch.bool)


def _forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    output, places, long = _attend(*args)
    return output.contiguous(), places.contiguous(), long


def _forward_like(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    leading = Operands(query, key, value).leading()
    rows = leading.numel() * query.shape[-2]
    width = torch.library.get_ctx().new_dynamic_size()
    output = query.new_empty(*leading, query.shape[-2], value.shape[-1])
    return output, query.new_empty(rows, width, dtype=torch.int32), query.new_empty(rows, dtype=torch.bool)


def _backward(slope: Tensor, places: Tensor, long: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, value, alpha and bias, empty for those that are absent."""
    learned = (0, 1, 2, 3, 5)
    leaves = {i: args[i].detach().requires_grad_() for i in learned if args[i] is not None}
    with torch.enable_grad(), autograd_in_operator():
        output, *_ = _attend(*(leaves.get(i, arg) for i, arg in enumerate(args)), candidates=(places, long))
        grads = torch.autograd.grad(output, list(leaves.values()), slope, allow_unused=True, materialize_grads=True)
    found = dict(zip(leaves, grads, strict=True))
    return tuple(found[i].contiguous() if i in found else slope.new_empty(0) for i in learned)


def _backward_like(slope: Tensor, places: Tensor, long: Tensor, *args: Any) -> tuple[Tensor, ...]:
    return tuple(slope.new_empty(0) if arg is None else arg.new_empty(arg.shape) for arg in (*args[:4], args[5]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.tensors = [isinstance(value, Tensor) for value in inputs]
    ctx.numbers = [value for value in inputs if not isinstance(value, Tensor)]
    ctx.save_for_backward(*output[1:], *[value for value in inputs if isinstance(value, Tensor)])


def _differentiate(ctx: Any, slope: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    places, long, *tensors = ctx.saved_tensors
    tensors, numbers = iter(tensors), iter(ctx.numbers)
    inputs = [next(tensors) if is_tensor else next(numbers) for is_tensor in ctx.tensors]
    query, key, value, alpha, bias = torch.ops.lit_sparse.attention_backward(slope, places, long, *inputs)
    alpha, bias = (None if given is None else grad for given, grad in ((inputs[3], alpha), (inputs[5], bias)))
    return query, key, value, alpha, None, bias, *[None] * 9


if HAS_CUSTOM_OPS:
    _OPERATOR = torch.library.custom_op("lit_sparse::attention", _forward, mutates_args=(), schema=_FORWARD)
    _OPERATOR.register_fake(_forward_like)
    _OPERATOR.register_autograd(_differentiate, setup_context=_keep)
    _GRADIENT = torch.library.custom_op("lit_sparse::attention_backward", _backward, mutates_args=(), schema=_BACKWARD)
    _GRADIENT.register_fake(_backward_like)
