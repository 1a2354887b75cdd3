"""Many categorical variables that share one linear layer of logits, without a tensor of all their probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from lit_sparse.checks import FLOATS, INPUTS, MOST_INPUTS, Count, ranges
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.nn.categorical.kernel import log_likelihood
from lit_sparse.nn.encoder_decoder.base import INTEGERS
from lit_sparse.nn.output_layer.losses import needs_all_scores

__all__ = ["SharedCategorical"]

#: Number of logits in memory at a time for means.
MOST_LOGITS = 2**22


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
        _check_floating(features)
        if not isinstance(values, Tensor) or values.dtype not in INTEGERS:
            got = values.dtype if isinstance(values, Tensor) else full_name(values)
            raise ConfigurationError(f"Expected values in a tensor of torch.int64 but got {got}.")
        if features.dim() != 3 or features.shape[2] != self.in_features or values.shape != features.shape[:2]:
            raise ConfigurationError(
                f"Expected features (R, N, {self.in_features}) and values (R, N) but got {tuple(features.shape)} and"
                f" {tuple(values.shape)}."
            )
        if needs_all_scores(features):
            return _plain(features, self.weight, self.bias, values)
        likelihood: Tensor = _LogLikelihood.apply(features, self.weight, self.bias, values, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
        return likelihood

    @torch.no_grad()
    def mean(self, features: Tensor) -> Tensor:
        """Return the expected values (R, N) of variables with given features (R, N, F), without a gradient."""
        _check_floating(features)
        h, weight, bias = _widened(features, self.weight, self.bias)
        levels = torch.arange(self.out_features, device=h.device, dtype=h.dtype)
        rows = max(1, MOST_LOGITS // max(1, features.shape[1] * self.out_features))
        with torch.autocast(h.device.type, enabled=False):
            parts = [nnf.linear(part, weight, bias).softmax(-1) @ levels for part in torch.split(h, rows)]
        return torch.cat(parts).to(features.dtype)


def _check_floating(features: Tensor) -> None:
    if not isinstance(features, Tensor) or features.dtype not in FLOATS:
        got = features.dtype if isinstance(features, Tensor) else full_name(features)
        raise ConfigurationError(f"Expected floating features but got {got}. Convert them.")


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
