"""Small networks: a multi-layer perceptron, and a convolutional one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from lit_sparse.checks import FEATURES, MOST_INPUTS, WIDTHS, check_count, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.nn.inputs import check_input

__all__ = ["MLP", "ConvNet"]


class MLP(nn.Sequential):
    """Multi-layer perceptron: linear layers with ReLU between them.

    Args:
        sizes: width of the input, of each hidden layer and of the output.

    Raises:
        ConfigurationError: for fewer than two widths, or one that is negative, or too large to be meant.

    Example:
        >>> MLP([784, 256, 10])[0].in_features
        784
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        widths = [check_count("sizes", size, 0, MOST_INPUTS) for size in sizes]
        if len(widths) < 2:
            raise ConfigurationError(f"Expected `sizes` to have the widths of the input and the output but got {widths}.")
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
        check_input("inputs", input, ("...", self.sizes[0]), next(self.parameters(), None))
        return super().forward(input)  # type: ignore[no-any-return, no-untyped-call]


@ranges(height=FEATURES, width=FEATURES, outputs=FEATURES, channels=WIDTHS, hidden=FEATURES, colors=FEATURES)
class ConvNet(nn.Module):
    """Small convolutional network: 3 x 3 convolutions with ReLU and 2 x 2 max-pooling, then a hidden layer and scores.

    Args:
        height: height of an image in pixels.
        width: width of an image in pixels.
        outputs: number of scores.
        channels: number of output channels of each convolution.
        hidden: number of units of the hidden layer.
        colors: number of channels of an image: 1 for grey levels, 3 for colors.

    Raises:
        ConfigurationError: for a number below 1, or images too small for so many convolutions.

    Example:
        >>> import torch
        >>> ConvNet(28, 28)(torch.rand(2, 784)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        height: int = 28,
        width: int = 28,
        outputs: int = 10,
        channels: Sequence[int] = (32, 64),
        hidden: int = 128,
        colors: int = 1,
    ) -> None:
        super().__init__()
        self.height, self.width, self.outputs, self.channels = height, width, outputs, channels
        self.hidden, self.colors = hidden, colors
        layers: list[nn.Module] = []
        for before, after in zip((self.colors, *self.channels), self.channels, strict=False):
            layers += [nn.Conv2d(before, after, 3), nn.ReLU(), nn.MaxPool2d(2)]
            height, width = (height - 2) // 2, (width - 2) // 2
        if min(height, width) < 1:
            raise ConfigurationError(
                f"Expected images large enough for {len(self.channels)} convolutions but got {self.height} x {self.width}."
            )
        last = self.channels[-1] if self.channels else self.colors
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Sequential(
            nn.Linear(last * height * width, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.outputs)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Return scores (B, outputs) of images (B, colors * height * width).

        Raises:
            ConfigurationError: for images of another size or dtype.
        """
        check_input("images", pixels, ("...",), next(self.head.parameters(), None))
        if pixels.shape[1:].numel() != self.colors * self.height * self.width:
            raise ConfigurationError(
                f"Expected images of {self.colors} x {self.height} x {self.width} values for this ConvNet but got"
                f" {tuple(pixels.shape[1:])}. Set `colors`, `height` and `width`."
            )
        scores: Tensor = self.head(self.features(pixels.reshape(pixels.shape[0], self.colors, self.height, self.width)))
        return scores
