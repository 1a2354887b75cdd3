"""The plan of attention: which way computes it, and why."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from lit_sparse.ground.torch_internals import can_read_values, forward_mode_active, transforms_active
from lit_sparse.kernels.row_kernel import HAS_CUSTOM_OPS
from lit_sparse.mappings import SparseMapping
from lit_sparse.mappings.base import Threshold
from lit_sparse.mappings.masking import align_parameter
from lit_sparse.nn.attend.blocks import saves, serves
from lit_sparse.nn.attend.gpu_candidates import has_programs
from lit_sparse.nn.attend.operands import Operands

__all__ = ["METHODS", "Method", "Plan", "choose", "sparse_ways"]

Method = Literal["auto", "sparse", "dense"]
Way = Literal["dense", "listed", "blocks", "traced"]
METHODS = get_args(Method)
#: Numbers of keys and of scores from which lists are faster on CPUs; they were not measured on GPUs.
LEAST_KEYS, LEAST_SCORES = 512, 1 << 16


class Plan(NamedTuple):
    """Plan of how attention is computed, and why.

    Attributes:
        way: ``"dense"``, with all weights; ``"listed"``, with the candidates of each query; ``"blocks"``, with GPU programs;
            ``"traced"``, with an operator of a compiled graph, which chooses between the latter two.
        reason: why this way was chosen.
        threshold: threshold of the mapping, for the sparse ways.
        otherwise: the way to use instead of lists if there are many candidates; None to keep lists.
    """

    way: Way
    reason: str
    threshold: Threshold | None = None
    otherwise: Way | None = None


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
    way, otherwise = ("dense", None) if threshold is None else sparse_ways(operands, threshold, auto, need_weights)
    programs = way == "blocks" or has_programs(operands)
    if auto and not (query.is_cpu or (programs and saves(operands))):
        return Plan("dense", "the device has no faster way")
    traced = not need_weights and (programs or query.is_cpu) and not query.is_nested and _takes_operators()
    if not traced:
        if not can_read_values():
            return Plan("dense", "a graph is traced, a transform of torch.func is active, or a mode records operations")
        if forward_mode_active():
            return Plan("dense", "derivatives in forward mode are computed")
        if query.is_meta or query.is_nested:
            return Plan("dense", "it needs the values of dense tensors")
    if threshold is None or not (isinstance(threshold.alpha, Tensor) or threshold.alpha > 1):
        return Plan("dense", f"{mapping!r} is not sparsemax, top-k sparsemax, or entmax with alpha above 1")
    if isinstance(threshold.alpha, Tensor) and not _is_one_per_head(threshold.alpha, operands, may_read=not traced):
        return Plan("dense", "each head needs one alpha of at least 1, in a tensor of shape (..., heads, 1, 1)")
    if traced:
        return Plan("traced", "a graph is traced", threshold)
    reason = "the device has programs" if way == "blocks" else "few keys have weight"
    return Plan(way, reason, threshold, otherwise)


def sparse_ways(operands: Operands, threshold: Threshold, auto: bool, need_weights: bool = False) -> tuple[Way, Way | None]:
    """Return the way a sparse method computes, and the way to use instead if there are many candidates."""
    in_blocks = not need_weights and serves(operands, threshold)
    if in_blocks and not has_programs(operands):
        return "blocks", None
    return "listed", "blocks" if in_blocks else "dense" if auto else None


def _takes_operators() -> bool:
    """Return whether ``torch.compile`` or ``torch.jit.trace`` traces, and no exporter or transform does."""
    exporting = getattr(torch.compiler, "is_exporting", bool)()  # from torch 2.7
    traced = torch.compiler.is_dynamo_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call, unused-ignore]
    return not exporting and HAS_CUSTOM_OPS and traced and not transforms_active()


def _is_one_per_head(alpha: Tensor, operands: Operands, may_read: bool) -> bool:
    """Return whether an alpha, which must fit the scores, is one for each head, and at least 1 as far as it can be read."""
    align_parameter(alpha, (*operands.leading(), operands.query.shape[-2], operands.key.shape[-2]), -1)
    fits = alpha.shape[-2:].numel() == 1 and alpha.dim() <= max(operands.query.dim(), operands.key.dim())
    return fits and (not may_read or bool((alpha >= 1).all()))
