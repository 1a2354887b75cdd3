"""Radial basis functions."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_sparse.checks import FEATURES, FLOATS, POSITIVE, check_positive, check_tensor, ranges
from lit_sparse.errors import ConfigurationError

__all__ = ["RadialBases"]


@ranges(per_scale=FEATURES, constant_scale=POSITIVE)
class RadialBases:
    r"""Gaussian radial basis functions of several scales, around centres sampled from the data.

    .. math:: \varphi(x) = e^{-\lVert x - c \rVert^2 / (2 s^2)}

    where c is the centre and s the scale of a function.

    An additional, nearly constant function with a large scale is centred at the mean of the data.

    Args:
        scales: scales s, in units of x.
        per_scale: number of functions per scale.
        constant_scale: scale of the additional function.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Campbell & Beronov (2019), Sparse Variational Inference, section 4.2, arXiv:1906.03329.

    Example:
        >>> bases = RadialBases(per_scale=5)
        >>> x = torch.randn(20, 2)
        >>> bases(x, bases.centres(x)).shape  # six scales
        torch.Size([20, 31])
    """

    def __init__(
        self,
        scales: tuple[float, ...] = (0.2, 0.4, 0.8, 1.2, 1.6, 2.0),
        *,
        per_scale: int = 50,
        constant_scale: float = 100.0,
    ) -> None:
        self.scales = tuple(check_positive("scales", float(scale)) for scale in scales)
        if not self.scales:
            raise ConfigurationError("Expected argument `scales` to contain at least one width but got none.")
        self.per_scale, self.constant_scale = per_scale, constant_scale

    def __len__(self) -> int:
        return len(self.scales) * self.per_scale + 1

    def centres(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the centres (K, D) of all functions, sampled from rows x (N, D).

        Raises:
            ConfigurationError: if there are fewer rows than functions per scale.
        """
        if len(x) < self.per_scale:
            raise ConfigurationError(
                f"Expected `per_scale` to be at most {len(x)}, the number of rows, but got {self.per_scale}. Decrease it."
            )
        drawn = [x[torch.randperm(len(x), generator=generator)[: self.per_scale]] for _ in self.scales]
        return torch.cat([*drawn, x.mean(0, keepdim=True)])

    def __call__(self, x: Tensor, centres: Tensor) -> Tensor:
        """Return the values (N, K) of all functions at rows x (N, D)."""
        check_tensor(x, "x (N, D), floating,", shape=(None, None), dtypes=FLOATS)
        what = f"centres ({len(self)}, {x.shape[1]}), floating,"
        check_tensor(centres, what, shape=(len(self), x.shape[1]), dtypes=FLOATS)
        scales = torch.tensor([*(scale for scale in self.scales for _ in range(self.per_scale)), self.constant_scale]).to(x)
        distances = (x.unsqueeze(1) - centres).square().sum(-1)
        return torch.exp(-0.5 * distances / scales.square())
