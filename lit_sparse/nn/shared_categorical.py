"""Many categorical variables that share one linear layer of logits, without a tensor of all their probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lit_sparse.errors import ConfigurationError

__all__ = ["SharedCategorical"]

# Number of logits in memory at a time: on the CPU as many as fit into its caches, elsewhere enough to occupy the device.
CPU_LOGITS, OTHER_LOGITS = 2**18, 2**26


class SharedCategorical(nn.Linear):
    """Log-likelihood of N categorical variables with V values, whose logits are a shared linear function of F features.

    ``log p(x) = sum over n of log softmax(W h_n + b)[x_n]``, for example for the grey levels of an image's pixels. Logits are
    computed for a few rows at a time and not stored. The backward pass stores tensors of the size of the features, instead of
    N V probabilities per row. It has no second derivative.

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
        """Return the log-likelihood (R,) in nats, in float32 or float64.

        Args:
            features: (R, N, F).
            values: (R, N) int64 in 0 .. V - 1.

        Raises:
            ConfigurationError: if the shapes do not fit.
        """
        if features.dim() != 3 or features.shape[2] != self.in_features or values.shape != features.shape[:2]:
            raise ConfigurationError(
                f"Expected features (R, N, {self.in_features}) and values (R, N) but got {tuple(features.shape)} and"
                f" {tuple(values.shape)}."
            )
        likelihood: Tensor = _LogLikelihood.apply(features, self.weight, self.bias, values, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
        return likelihood

    @torch.no_grad()
    def mean(self, features: Tensor) -> Tensor:
        """Return the expected values (R, N) of variables with these features (R, N, F); no gradient."""
        levels = torch.arange(self.out_features, device=features.device, dtype=features.dtype)
        expected = features.new_empty(features.shape[:2])
        for part in _parts(features, self.out_features):
            expected[part] = super().forward(features[part]).softmax(-1) @ levels
        return expected


class _LogLikelihood(torch.autograd.Function):
    """The log-likelihood, and its derivative, which one pass over the logits gives for each row."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, values: Tensor, differentiable: bool) -> Tensor:
        wide = torch.float64 if features.dtype == torch.float64 else torch.float32
        with torch.autocast(features.device.type, enabled=False):
            h, layer = nn.functional.pad(features.to(wide), (0, 1), value=1.0), torch.cat([weight, bias[:, None]], 1).to(wide)
            if not differentiable:
                return _likelihood(h, layer, values)
            likelihood, slopes, layer_slopes = _with_slopes(h, layer, values)
        ctx.save_for_backward(slopes, layer_slopes)
        return likelihood

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        slopes, layer_slopes = ctx.saved_tensors
        layer = torch.einsum("r,rfv->vf", gradient, layer_slopes)
        return gradient[:, None, None] * slopes, layer[:, :-1], layer[:, -1], None, None


def _parts(features: Tensor, values: int) -> Iterator[slice]:
    """Cut rows into parts whose logits are held together."""
    most = CPU_LOGITS if features.device.type == "cpu" else OTHER_LOGITS
    step = max(1, most // max(1, features.shape[1] * values))
    return (slice(start, start + step) for start in range(0, len(features), step))


def _likelihood(h: Tensor, layer: Tensor, values: Tensor) -> Tensor:
    """Return the log-likelihood (R,) of features (R, N, F + 1), the last of them 1, under a layer (V, F + 1)."""
    likelihood = h.new_empty(len(h))
    for part in _parts(h, len(layer)):
        logs = (h[part] @ layer.t()).log_softmax(-1)
        likelihood[part] = logs.gather(-1, values[part].unsqueeze(-1)).squeeze(-1).sum(-1)
    return likelihood


def _with_slopes(h: Tensor, layer: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same, its derivative (R, N, F) in the features, and each row's (R, F + 1, V) in the layer."""
    rows, places, width = h.shape
    likelihood, slopes = h.new_empty(rows), h.new_empty(rows, places, width - 1)
    layer_slopes = h.new_empty(rows, width, len(layer))
    for part in _parts(h, len(layer)):
        logits, seen = h[part] @ layer.t(), values[part].unsqueeze(-1)
        chosen, top = logits.gather(-1, seen), logits.amax(-1, keepdim=True)
        odds = logits.sub_(top).exp_()
        total = odds.sum(-1, keepdim=True)
        likelihood[part] = (chosen - top - total.log()).squeeze(-1).sum(-1)
        excess = odds.div_(-total).scatter_add_(-1, seen, torch.ones_like(total))  # one-hot less probabilities
        # The layer from the left: from the right, CPU libraries take four times as long for so few columns.
        slopes[part] = (layer[:, :-1].t() @ excess.transpose(1, 2)).transpose(1, 2)
        torch.matmul(h[part].transpose(1, 2), excess, out=layer_slopes[part])
    return likelihood, slopes, layer_slopes
