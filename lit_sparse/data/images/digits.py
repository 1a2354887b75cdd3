"""The 1,797 handwritten digits of scikit-learn: real images without a download."""

from __future__ import annotations

from typing import Any

import torch

from lit_sparse.data.base import Split, held_out, shuffled
from lit_sparse.data.images.base import ImageDataModule, Images

__all__ = ["DigitsDataModule"]


class DigitsDataModule(ImageDataModule):
    """Handwritten digits of 8 x 8 pixels in 17 grey levels (Alpaydin & Kaynak 1998).

    Args:
        val_size: images held out for validation: a fraction if below 1, else a number.
        test_size: images held out for the test: a fraction if below 1, else a number.
        options: options of :class:`~lit_sparse.data.ImageDataModule`.

    Raises:
        ConfigurationError: if no images remain for training.
    """

    shape = (8, 8)
    total = 1797

    def __init__(
        self,
        *,
        val_size: int | float = 180,
        test_size: int | float = 360,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.test_size = held_out("test_size", test_size, self.total, self.total - 1)
        self.val_size = held_out("val_size", val_size, self.total, self.total - self.test_size)

    def load(self) -> dict[Split, Images]:
        """Read the digits from scikit-learn and split them at random."""
        from sklearn.datasets import load_digits

        data = load_digits()
        digits = Images(torch.from_numpy(data.data).float() / 16, torch.from_numpy(data.target).long())
        order = shuffled(self.total, self.seed)
        end = self.val_size + self.test_size
        rest = self.noisy(digits[torch.cat([order[end:], order[: self.val_size]])])
        return {
            "train": rest[: -self.val_size],
            "val": rest[-self.val_size :],
            "test": digits[order[self.val_size : end]],
        }
