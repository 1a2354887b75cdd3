"""The small convolutional network."""

from __future__ import annotations

import torch

from lit_sparse.nn import ConvNet


def test_planes_of_color_are_channels_of_the_first_convolution() -> None:
    network = ConvNet(8, 8, outputs=2, channels=(4,), hidden=5, colors=3)
    images = torch.rand(6, 3, 8, 8)
    expected = network.head(network.features(images))
    assert expected.shape == (6, 2)
    torch.testing.assert_close(network(images.flatten(1)), expected)
