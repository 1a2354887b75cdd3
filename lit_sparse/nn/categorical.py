"""Many categorical variables that share one linear layer of logits: the layer, and the compiled rows of its log-likelihood.

A variable with V values has V logits but few features. To compute its logits again costs less than to store them, so one pass
over a row of variables computes logits, exponentials and both derivatives for some variables at a time, in the cache.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from lit_sparse.checks import INPUTS, MOST_INPUTS, Count, check_tensor, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import on_values
from lit_sparse.kernels.cpu.compile import REDUCTION_FLAGS, bits_of, compile_rows, empty, layout_of, zeros
from lit_sparse.kernels.cpu.rows import key_range
from lit_sparse.kernels.cpu.threads import over_rows
from lit_sparse.kernels.cpu.vector_math import exponentials, workspace
from lit_sparse.nn.inputs import INTEGERS, check_floating, check_largest
from lit_sparse.nn.output_layer.losses import needs_all_scores

__all__ = ["Likelihood", "SharedCategorical", "log_likelihood"]

SECONDS = 7e-10  # for one logit, on one thread
TILE = 4  # variables at a time: the loops over values below name each of them
COLUMNS = 6  # columns of the layer at a time, the bias among them
SAFE = 60.0  # logits up to this size need no shift before exponentials are taken
OTHER_LOGITS = 2**26  # number of logits in memory at a time outside the CPU
MOST_LOGITS = 2**22  # number of logits in memory at a time for means
NO_NAN = REDUCTION_FLAGS - {"nnan"}  # NaN keeps its meaning


class Likelihood(NamedTuple):
    """Log-likelihoods of categorical variables, with their derivatives.

    Attributes:
        values: (R,) in nats, sums over the variables of a row.
        slopes: (R, N, F) derivative with respect to the features; None if not requested.
        layer_slopes: (R, F + 1, V) derivative of each row with respect to the bias and the columns of the weight; None if
            not requested.
    """

    values: Tensor
    slopes: Tensor | None
    layer_slopes: Tensor | None


@compile_rows(NO_NAN)
def _write_logits(e: Any, h: Any, layer: Any) -> None:
    """Write the logits (TILE, V) of features (TILE, C) under a layer (C, V); C is a multiple of COLUMNS."""
    for c in range(0, h.shape[1], COLUMNS):
        for p in range(TILE):
            h0, h1, h2, h3, h4, h5 = h[p, c], h[p, c + 1], h[p, c + 2], h[p, c + 3], h[p, c + 4], h[p, c + 5]
            for v in range(e.shape[1]):
                low = h0 * layer[c, v] + h1 * layer[c + 1, v] + h2 * layer[c + 2, v]
                logit = low + (h3 * layer[c + 3, v] + h4 * layer[c + 4, v] + h5 * layer[c + 5, v])
                e[p, v] = logit if c == 0 else e[p, v] + logit


@compile_rows(NO_NAN)
def _write_totals(e: Any, totals: Any) -> None:
    zero = e.dtype.type(0)
    a, b, c, d = zero, zero, zero, zero
    for v in range(e.shape[1]):
        a += e[0, v]
        b += e[1, v]
        c += e[2, v]
        d += e[3, v]
    totals[0], totals[1], totals[2], totals[3] = a, b, c, d


@compile_rows(NO_NAN)
def _add_slopes(e: Any, h: Any, scales: Any, layer: Any, column: Any, sums: Any, layer_slopes: Any) -> None:
    """Write the sums (TILE, C) of a column of the layer over e, and add to that column's own derivative."""
    zero = e.dtype.type(0)
    a, b, c, d = zero, zero, zero, zero
    h0, h1 = scales[0] * h[0, column], scales[1] * h[1, column]
    h2, h3 = scales[2] * h[2, column], scales[3] * h[3, column]
    for v in range(e.shape[1]):
        weight = layer[column, v]
        layer_slopes[column, v] += (h0 * e[0, v] + h1 * e[1, v]) + (h2 * e[2, v] + h3 * e[3, v])
        a += weight * e[0, v]
        b += weight * e[1, v]
        c += weight * e[2, v]
        d += weight * e[3, v]
    sums[0, column], sums[1, column], sums[2, column], sums[3, column] = a, b, c, d


@compile_rows()
def _shift(e: Any, bits: Any, p: Any, cell: Any, cell_bits: Any) -> Any:
    """Subtract the largest logit of a variable; return whether its logits are a distribution, and write zeros if not."""
    low, shift, lowest, highest = layout_of(e)
    least, most = key_range(bits, p, low, shift)
    valid = lowest < most < highest and least >= lowest
    cell_bits[0] = most ^ ((most >> shift) & low)
    for v in range(e.shape[1]):
        e[p, v] = e[p, v] - cell[0] if valid else 0
    return valid


@compile_rows()
def _likelihood_block(
    start: Any, stop: Any, likelihood: Any, slopes: Any, layer_slopes: Any, features: Any, layer: Any, seen: Any
) -> None:
    """Write log-likelihoods of rows ``start .. stop - 1``, and slopes unless their array is empty.

    The layer (C, V) begins with the bias.
    """
    variables, width, (columns, values) = features.shape[1], features.shape[2], layer.shape
    work, bits = workspace(layer, TILE * values)
    e, e_bits = work[0].reshape(TILE, values), bits[0].reshape(TILE, values)
    cell = empty(1, layer.dtype)
    cell_bits = bits_of(cell)
    h, sums = zeros((TILE, columns), layer.dtype), empty((TILE, columns), layer.dtype)
    totals, scales = empty(TILE, layer.dtype), empty(TILE, layer.dtype)
    largest = empty(columns, np.float64)
    for c in range(columns):
        largest[c] = np.max(np.abs(layer[c]))
    h[:, 0] = 1
    for row in range(start, stop):
        total = 0.0
        for first in range(0, variables, TILE):
            count = min(TILE, variables - first)
            safe = True
            for p in range(TILE):
                bound = largest[0]
                for f in range(width):
                    h[p, f + 1] = features[row, first + p, f] if p < count else 0
                    bound += abs(h[p, f + 1]) * largest[f + 1]
                safe = safe and bound <= SAFE
            _write_logits(e, h, layer)
            scales[:] = 1
            if not safe:
                for p in range(TILE):
                    scales[p] = 1 if _shift(e, e_bits, p, cell, cell_bits) else np.nan
            for p in range(count):
                total += scales[p] * e[p, seen[row, first + p]]
            exponentials(work, bits, TILE * values)
            _write_totals(e, totals)
            for p in range(count):
                total -= math.log(np.float64(totals[p]))
            if len(slopes) == 0:
                continue
            for p in range(TILE):
                scales[p] = -scales[p] / totals[p] if p < count else 0
            for c in range(width + 1):
                _add_slopes(e, h, scales, layer, c, sums, layer_slopes[row])
            for p in range(count):
                x = seen[row, first + p]
                for f in range(width):
                    slopes[row, first + p, f] = layer[f + 1, x] + scales[p] * sums[p, f + 1]
                    layer_slopes[row, f + 1, x] += h[p, f + 1]
                layer_slopes[row, 0, x] += 1
        likelihood[row] = total


def _likelihood_reference(h: Tensor, weight: Tensor, bias: Tensor, seen: Tensor, likelihood: Likelihood) -> None:
    """Write log-likelihoods by plain torch operations, with the logits of a few rows in memory at a time."""
    h, layer = nnf.pad(h, (1, 0), value=1.0), torch.cat([bias.unsqueeze(1), weight], 1)
    step = max(1, OTHER_LOGITS // max(1, h.shape[1] * len(layer)))
    for part in (slice(start, start + step) for start in range(0, len(h), step)):
        logs, index = (h[part] @ layer.t()).log_softmax(-1), seen[part].unsqueeze(-1)
        likelihood.values[part] = logs.gather(-1, index).squeeze(-1).sum(-1)
        if likelihood.slopes is None or likelihood.layer_slopes is None:
            continue
        excess = logs.exp_().neg_().scatter_add_(-1, index, torch.ones_like(index, dtype=h.dtype))
        likelihood.slopes[part] = excess @ weight
        torch.matmul(h[part].transpose(1, 2), excess, out=likelihood.layer_slopes[part])


@on_values
def log_likelihood(features: Tensor, weight: Tensor, bias: Tensor, seen: Tensor, *, slopes: bool) -> Likelihood:
    r"""Return the log-likelihood of categorical variables with shared linear logits for each row, and its derivatives.

    .. math:: \sum_n \ln \operatorname{softmax}(W h_n + b)_{x_n}

    where h_n are the features of variable n, x_n is its value, and W and b are shared by all variables.

    A logit more than 87 below the largest one counts as 87 below it in float32. NaN, +inf, or a variable without a finite
    logit makes its row NaN, and leaves other rows unchanged. There is no gradient.

    Args:
        features: (R, N, F) float32 or float64, h.
        weight: (V, F) of the same type, W.
        bias: (V,), b.
        seen: (R, N) int64 in 0 .. V - 1, the values x.
        slopes: whether to return the derivatives.

    Raises:
        ConfigurationError: for a value outside that range.

    Example:
        >>> h, weight, bias = torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(5)
        >>> out = log_likelihood(
        ...     h, weight, bias, torch.zeros(2, 3, dtype=torch.int64), slopes=True
        ... )
        >>> expected = (h @ weight.t() + bias).log_softmax(-1)[..., 0].sum(-1)
        >>> bool((out.values - expected).abs().max() < 1e-4), out.layer_slopes.shape
        (True, torch.Size([2, 5, 5]))
    """
    h, weight, bias, rows, values = features.detach(), weight.detach(), bias.detach(), len(features), len(bias)
    out = Likelihood(
        h.new_empty(rows),
        torch.empty_like(h, memory_format=torch.contiguous_format) if slopes else None,
        h.new_zeros(rows, h.shape[2] + 1, values) if slopes else None,
    )
    if not h.is_cpu:
        _likelihood_reference(h, weight, bias, seen, out)
    elif rows:
        check_largest("values", seen, values - 1, advice=" Check the data's levels.")
        layer = torch.cat([bias.unsqueeze(0), weight.t()])
        layer = nnf.pad(layer, (0, 0, 0, -len(layer) % COLUMNS))
        outs = [np.empty((0, 0, 0), layer.numpy().dtype) if array is None else array.numpy() for array in out]
        arrays = [tensor.contiguous().numpy() for tensor in (h, layer, seen)]
        over_rows(_likelihood_block, (rows, h.shape[1] * values), SECONDS, *outs, *arrays)
    return out


@ranges(features=Count(0, MOST_INPUTS), values=INPUTS)
class SharedCategorical(nn.Linear):
    r"""Layer that computes the log-likelihood of N categorical variables whose logits share one linear layer.

    .. math:: \ln p(x) = \sum_n \ln \operatorname{softmax}(W h_n + b)_{x_n}

    where h_n are the F features of variable n and x_n is one of its V values, for example the grey level of a pixel. One
    pass computes the value and its derivative for a few variables at a time. It stores tensors of the size of the features
    and of the layer, instead of N V probabilities per row. Second derivatives, transforms of ``torch.func``, forward mode
    and graphs of ``torch.compile`` and ``torch.export`` use plain torch operations, which store the logits.

    Args:
        features: F, number of features per variable.
        values: V, number of values per variable.

    Example:
        >>> layer = SharedCategorical(5, 256)
        >>> layer(torch.randn(3, 784, 5), torch.randint(256, (3, 784))).shape
        torch.Size([3])
    """

    def __init__(self, features: int, values: int) -> None:
        super().__init__(features, values)

    def forward(self, features: Tensor, values: Tensor) -> Tensor:  # type: ignore[override]
        """Return the log-likelihood (R,) of the values in nats, in float32 or float64.

        Args:
            features: (R, N, F).
            values: (R, N) int64 in 0 .. V - 1.

        Raises:
            ConfigurationError: if the shapes do not match, or the features are not floating.
        """
        check_floating("features", features)
        check_tensor(values, "values in a tensor of torch.int64", dtypes=INTEGERS)
        if features.dim() != 3 or features.shape[2] != self.in_features or values.shape != features.shape[:2]:
            raise ConfigurationError(
                f"Expected features (R, N, {self.in_features}) and values (R, N) but got {tuple(features.shape)} and"
                f" {tuple(values.shape)}."
            )
        if needs_all_scores(features):
            return _plain(features, self.weight, self.bias, values)
        return _LogLikelihood.apply(features, self.weight, self.bias, values, torch.is_grad_enabled())  # type: ignore[no-any-return, no-untyped-call]

    @torch.no_grad()
    def mean(self, features: Tensor) -> Tensor:
        """Return the expected values (R, N) of variables with given features (R, N, F), without a gradient."""
        check_floating("features", features)
        h, weight, bias = _widened(features, self.weight, self.bias)
        levels = torch.arange(self.out_features, device=h.device, dtype=h.dtype)
        rows = max(1, MOST_LOGITS // max(1, features.shape[1] * self.out_features))
        with torch.autocast(h.device.type, enabled=False):
            parts = [nnf.linear(part, weight, bias).softmax(-1) @ levels for part in torch.split(h, rows)]
        return torch.cat(parts).to(features.dtype)


class _LogLikelihood(torch.autograd.Function):
    """The log-likelihood; the pass that computes it for a row computes the derivative too."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, values: Tensor, differentiable: bool) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            h, weights, biases = _widened(features, weight, bias)
            likelihood, slopes, layer_slopes = log_likelihood(h, weights, biases, values, slopes=differentiable)
        if slopes is not None:
            ctx.save_for_backward(features, weight, bias, values, slopes, layer_slopes)
        return likelihood

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, bias, values, slopes, layer_slopes = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative may follow
            inputs = (features, weight, bias)
            needed = [x for x in inputs if x.requires_grad]
            grads = iter(torch.autograd.grad(_plain(*inputs, values), needed, gradient, create_graph=True))
            return (*[next(grads) if x.requires_grad else None for x in inputs], None, None)
        layer = (gradient @ layer_slopes.flatten(1)).view(layer_slopes.shape[1:])
        return gradient[:, None, None] * slopes, layer[1:].t(), layer[0], None, None


def _widened(features: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors in float64 if the features are, else in float32."""
    wide = torch.float64 if features.dtype == torch.float64 else torch.float32
    return features.to(wide), weight.to(wide), bias.to(wide)


def _plain(features: Tensor, weight: Tensor, bias: Tensor, values: Tensor) -> Tensor:
    """Return the log-likelihood in torch operations that have all derivatives."""
    with torch.autocast(features.device.type, enabled=False):
        logs = nnf.linear(*_widened(features, weight, bias)).log_softmax(-1)
        return logs.gather(-1, values.unsqueeze(-1)).squeeze(-1).sum(-1)
