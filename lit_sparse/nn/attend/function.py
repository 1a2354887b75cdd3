"""The function of attention, and its plan: which way computes it, and why."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

from torch import Tensor

from lit_sparse.checks import check_choice, check_flag, check_mask, check_number, check_positive
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import can_read_values, forward_mode_active, traces_operators
from lit_sparse.mappings import SparseMapping
from lit_sparse.mappings.base import Threshold, check_mapping, warn_off_simplex
from lit_sparse.mappings.masking import align_parameter
from lit_sparse.nn.attend.blocks import attend_in_blocks, saves
from lit_sparse.nn.attend.listed import Way, attend_to_listed, sparse_ways
from lit_sparse.nn.attend.operands import Operands, Pairs, attend_to_all
from lit_sparse.nn.attend.traced import attend_by_operator

__all__ = ["METHODS", "Method", "Plan", "attend", "attention", "choose"]

Method = Literal["auto", "sparse", "dense"]
METHODS = get_args(Method)
#: Numbers of keys and of scores from which lists are faster on CPUs; they were not measured on GPUs.
LEAST_KEYS, LEAST_SCORES = 512, 1 << 16


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: SparseMapping,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    bias: Tensor | None = None,
    softcap: float | None = None,
    is_causal: bool = False,
    need_weights: bool = True,
    method: Method = "auto",
) -> tuple[Tensor, Tensor | None]:
    r"""Return scaled dot-product attention with any mapping in place of softmax: the output and the weights.

    .. math:: \mathrm{output} = \Pi(s\, Q K^\top + B)\, V

    where Q, K and V are query, key and value, s is the scale, B the bias, and Pi the mapping along the keys.

    A query without allowed positions gets a zero output and zero gradients. Values at positions that are masked for all
    queries, including NaN, affect neither outputs nor gradients.

    Grouped queries: with H query heads (..., H, L, E) and a divisor of H as the number of key heads (..., H / g, S, E),
    each key head serves g consecutive query heads.

    The sparse method computes only with the keys that may be in each query's support, its candidates, instead of all pairs.
    Its memory grows with the support, and it is several times faster for long sequences. Results agree with the dense
    method up to rounding. A value with weight zero does not affect the output, even if it is NaN, unless the query has too
    many candidates to list. Second derivatives exist, forward mode does not.

    Args:
        query: (..., L, E).
        key: (..., S, E).
        value: (..., S, Ev).
        mapping: mapping from scores to weights along S; its own ``dim`` is ignored.
        mask: boolean, broadcastable to (..., L, S); True at allowed positions.
        scale: factor of the scores; ``1 / sqrt(E)`` by default.
        dropout: probability with which a weight is set to zero, the others scaled up; 0 outside training.
        bias: floating, broadcastable to (..., L, S), added to the scores; -inf means not allowed.
        softcap: bound > 0 of the scaled scores x, which become ``softcap * tanh(x / softcap)`` before the bias is added.
        is_causal: whether the query at position i may see only the keys 0 .. i, in addition to the mask.
        need_weights: whether to return the weights.
        method: ``"dense"`` computes all weights. ``"sparse"`` computes the weights of candidates, for sparsemax, top-k
            sparsemax and entmax with alpha above 1. ``"auto"`` is sparse where this is faster: on a CPU, without weights,
            for at least 512 keys, if the candidates are few, and neither transforms, exports nor forward mode are involved.
            On a GPU with Triton, candidates are listed without a matrix of scores, for half types and float32 and head
            dimensions up to 256. If they are many, sparsemax and entmax with one number alpha in 1.05 .. 2 are computed in
            blocks, unless there are weights to return, a bias, a soft cap, dropout, or head dimensions above 128.
            Otherwise, and for up to 2^27 scores in float32, ``"auto"`` is dense there. Compiled graphs hold the sparse
            method as one operator, which returns no weights.

    Returns:
        The output (..., L, Ev), and the weights (..., L, S), after dropout. The weights are a sparse tensor with
        ``method="sparse"``, and None with ``need_weights=False``.

    Raises:
        ConfigurationError: if shapes or dtypes do not match, the mask is not boolean, the bias not floating, ``dropout``
            not a probability, the scale not a number, the softcap not positive, ``mapping`` not a SparseMapping, or the
            sparse method is impossible.

    Warns:
        UserWarning: once for a mapping whose weights are not probabilities.

    Source: Vaswani et al. (2017), Attention Is All You Need, eq. (1).

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Sparsemax
        >>> query, key, value = (
        ...     torch.randn(3, 5, 8),
        ...     torch.randn(3, 7, 8),
        ...     torch.randn(3, 7, 4),
        ... )
        >>> causal = torch.ones(5, 7, dtype=torch.bool).tril()
        >>> output, weights = attention(query, key, value, Sparsemax(), causal)
        >>> bool((weights[:, ~causal] == 0).all()), torch.equal(output, weights @ value)
        (True, True)
        >>> same, lists = attention(
        ...     query, key, value, Sparsemax(), is_causal=True, method="sparse"
        ... )
        >>> torch.allclose(same, output, atol=1e-6), lists.layout
        (True, torch.sparse_coo)
    """
    check_mapping(mapping)
    warn_off_simplex(mapping)
    check_choice("method", method, METHODS)
    check_flag("is_causal", is_causal)
    check_flag("need_weights", need_weights)
    check_number("dropout", dropout, 0.0, 1.0)
    if scale is not None:
        scale = check_number("scale", scale, -math.inf, math.inf, open_low=True, open_high=True)
    if softcap is not None:
        softcap = check_positive("softcap", softcap)
    if mask is not None:
        check_mask(mask, "a query may look")
    operands = Operands.of(query, key, value, Pairs(mask, bias, softcap, is_causal), scale, dropout)
    output, weights = attend(operands, mapping, method, need_weights)
    return output, weights if need_weights else None


def attend(
    operands: Operands, mapping: SparseMapping, method: Method = "auto", need_weights: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Return the attention output, and the weights, or None where they are not needed; see :func:`attention`.

    Raises:
        ConfigurationError: if the sparse method is impossible.
    """
    plan = choose(operands, mapping, method, need_weights)
    if method == "sparse" and plan.way == "dense":
        raise ConfigurationError(
            f"Expected method='sparse' to be possible but got a case where {plan.reason}. Use method='auto'."
        )
    way, threshold = plan.way, plan.threshold
    if threshold is None:
        return attend_to_all(operands, mapping)
    if way == "traced":
        return attend_by_operator(operands, threshold, method == "auto"), None
    if way == "listed":
        few = plan.otherwise is not None
        listed = attend_to_listed(operands, mapping, threshold, only_few=few, need_weights=need_weights, programs=plan.programs)
        if listed is not None:
            return listed.output, listed.weights
        way = plan.otherwise or "dense"
    return (attend_in_blocks(operands, threshold), None) if way == "blocks" else attend_to_all(operands, mapping)


class Plan(NamedTuple):
    """Plan of how attention is computed, and why.

    Attributes:
        way: ``"dense"``, with all weights; ``"listed"``, with the candidates of each query; ``"blocks"``, with GPU programs;
            ``"traced"``, with an operator of a compiled graph, which chooses between the latter two.
        reason: why this way was chosen.
        threshold: threshold of the mapping, for the sparse ways.
        otherwise: the way to use instead of lists if there are many candidates; None to keep lists.
        programs: whether GPU programs make the lists.
    """

    way: Way
    reason: str
    threshold: Threshold | None = None
    otherwise: Way | None = None
    programs: bool = False


def choose(operands: Operands, mapping: SparseMapping, method: Method, need_weights: bool) -> Plan:
    """Return the plan of how to compute an attention; it is dense where the sparse method is impossible."""
    auto, query = method == "auto", operands.query
    if method == "dense":
        return Plan("dense", "the method is dense")
    if auto and need_weights:
        return Plan("dense", "the weights are to be returned")
    size = operands.key.shape[-2]
    if auto and (size < LEAST_KEYS or not operands.key.numel() or operands.number_of_scores() < LEAST_SCORES):
        return Plan("dense", "there are few scores")
    threshold = mapping.threshold()
    none: tuple[Way, Way | None, bool] = ("dense", None, False)
    way, otherwise, programs = none if threshold is None else sparse_ways(operands, threshold, auto, need_weights)
    has_any = programs or way == "blocks"
    if auto and not (query.is_cpu or (has_any and saves(operands))):
        return Plan("dense", "the device has no faster way")
    traced = not need_weights and (has_any or query.is_cpu) and traces_operators()
    if not traced:
        if not can_read_values():
            return Plan("dense", "a graph is traced, a transform of torch.func is active, or a mode records operations")
        if forward_mode_active():
            return Plan("dense", "derivatives in forward mode are computed")
        if query.is_meta:
            return Plan("dense", "it needs the values of dense tensors")
    if threshold is None or not (isinstance(threshold.alpha, Tensor) or threshold.alpha > 1):
        return Plan("dense", f"{mapping!r} is not sparsemax, top-k sparsemax, or entmax with alpha above 1")
    if isinstance(threshold.alpha, Tensor) and not _is_one_per_head(threshold.alpha, operands, may_read=not traced):
        return Plan("dense", "each head needs one alpha of at least 1, in a tensor of shape (..., heads, 1, 1)")
    if traced:
        return Plan("traced", "a graph is traced", threshold)
    reason = "the device has programs" if way == "blocks" else "few keys have weight"
    return Plan(way, reason, threshold, otherwise, programs)


def _is_one_per_head(alpha: Tensor, operands: Operands, may_read: bool) -> bool:
    """Return whether an alpha, which must fit the scores, is one for each head, and at least 1 as far as it can be read."""
    align_parameter(alpha, (*operands.leading(), operands.query.shape[-2], operands.key.shape[-2]), -1)
    fits = alpha.shape[-2:].numel() == 1 and alpha.dim() <= max(operands.query.dim(), operands.key.dim())
    return fits and (not may_read or bool((alpha >= 1).all()))
