"""Digits whose color predicts their class in training, but not in the test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from typing_extensions import override

from lit_sparse.checks import Number, ranges
from lit_sparse.data.images.base import STREAMS, Images
from lit_sparse.data.images.digits import DigitsDataModule
from lit_sparse.data.splits import Split
from lit_sparse.random import seeded_uniform

__all__ = ["ColoredDigitsDataModule"]


@ranges(correlation=Number(0.0, 1.0))
class ColoredDigitsDataModule(DigitsDataModule):
    """Data module of red and green digits, whose color predicts the class in training but not in the test.

    The classes are the digits 0 to 4 and 5 to 9.

    In training, a digit of class 0 is red and one of class 1 is green, except for a share of ``1 - correlation``. In
    validation and test, both colors are equally likely. A model that relies on the color fails in the two groups that are
    rare in training. Batches also hold ``group`` (B,): 0 and 1 for red and green digits of class 0, 2 and 3 for digits
    of class 1; -100 if unlabelled. Groups 1 and 2 are the rare ones. Pixels (B, 128) are a red and a green plane of 8 x 8.

    Args:
        correlation: share of the training digits that have the color of their class.
        options: options of :class:`~lit_sparse.data.DigitsDataModule`.

    Raises:
        ConfigurationError: for a share outside 0 .. 1.

    Source: after Arjovsky, Bottou, Gulrajani & Lopez-Paz (2019), Invariant Risk Minimization, section 5.2,
    arXiv:1907.02893. They also change a quarter of the labels at random; for that, use ``label_noise``.
    """

    classes = 2

    def __init__(self, *, correlation: float = 0.95, **options: Any) -> None:
        super().__init__(**options)
        self.correlation = correlation

    @override
    def read(self) -> Images:
        digits = super().read()
        return replace(digits, labels=(digits.labels >= 5).long())

    @override
    def load(self) -> dict[Split, Images]:
        return {split: self._colored(images, split) for split, images in super().load().items()}

    def _colored(self, images: Images, split: Split) -> Images:
        share = self.correlation if split == "train" else 0.5
        alike = seeded_uniform(self.seed, torch.arange(len(images)), (), stream=10 + STREAMS[split]) < share
        color = torch.where(alike, images.labels, 1 - images.labels)  # 0 is red
        pixels = (images.pixels.unsqueeze(1) * torch.nn.functional.one_hot(color, 2).unsqueeze(2)).flatten(1)
        return replace(images, pixels=pixels, groups=2 * images.labels + color)
