"""A multi-layer perceptron."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from lit_sparse.checks import MOST_INPUTS, check_count
from lit_sparse.nn.inputs import check_input

__all__ = ["MLP"]


class MLP(nn.Sequential):
    """Multi-layer perceptron: linear layers with ReLU between them.

    Args:
        sizes: width of the input, of each hidden layer and of the output.

    Raises:
        ConfigurationError: if a width is negative, or too large to be meant.

    Example:
        >>> MLP([784, 256, 10])[0].in_features
        784
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        widths = [check_count("sizes", size, 0, MOST_INPUTS) for size in sizes]
        layers: list[nn.Module] = []
        for i, (before, after) in enumerate(itertools.pairwise(widths)):
            if i > 0:
                layers.append(nn.ReLU())
            layers.append(nn.Linear(before, after))
        super().__init__(*layers)
        self.sizes = widths

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (torch's name)
        """Return the output (..., last size) for inputs (..., first size).

        Raises:
            ConfigurationError: for inputs of another shape or dtype.
        """
        if len(self):
            check_input("inputs", input, ("...", self.sizes[0]), next(self.parameters(), None))
        output: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
        return output
