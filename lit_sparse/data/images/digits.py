"""The 1,797 handwritten digits of scikit-learn: real images without a download."""

from __future__ import annotations

from typing import Any

import torch

from lit_sparse.data.base import Split, shuffled
from lit_sparse.data.images.base import ImageDataModule, Images
from lit_sparse.errors import ConfigurationError

__all__ = ["DigitsDataModule"]


class DigitsDataModule(ImageDataModule):
    """Handwritten digits of 8 x 8 pixels in 17 grey levels (Alpaydin & Kaynak 1998).

    Args:
        val_size: number of images held out for validation.
        test_size: number of images held out for the test.
        options: options of :class:`~lit_sparse.data.ImageDataModule`.

    Raises:
        ConfigurationError: if no images remain for training.
    """

    shape = (8, 8)
    total = 1797

    def __init__(
        self,
        *,
        val_size: int = 180,
        test_size: int = 360,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if val_size < 1 or test_size < 1 or val_size + test_size >= self.total:
            raise ConfigurationError(
                f"Expected `val_size` and `test_size` to be positive with a sum below {self.total}, the number of digits, but"
                f" got {val_size} and {test_size}. Decrease them."
            )
        self.val_size = val_size
        self.test_size = test_size

    def load(self) -> dict[Split, Images]:
        """Read the digits from scikit-learn and split them at random."""
        from sklearn.datasets import load_digits

        data = load_digits()
        digits = Images(torch.from_numpy(data.data).float() / 16, torch.from_numpy(data.target).long())
        order = shuffled(self.total, self.seed)
        held_out = self.val_size + self.test_size
        rest = self.noisy(digits[torch.cat([order[held_out:], order[: self.val_size]])])
        return {
            "train": rest[: -self.val_size],
            "val": rest[-self.val_size :],
            "test": digits[order[self.val_size : held_out]],
        }
