"""The 1,797 handwritten digits of scikit-learn: real images without a download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lit_sparse.data.images.base import ImageDataModule, Images
from lit_sparse.data.splits import Split, held_out, shuffled

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

    def read(self) -> Images:
        """Read the digits from scikit-learn."""
        table = torch.from_numpy(_table())
        return Images(table[:, :-1].float() / 16, table[:, -1].long(), places=torch.arange(len(table)))

    def load(self) -> dict[Split, Images]:
        """Read the digits and split them at random."""
        digits = self.read()
        order = shuffled(self.total, self.seed)
        end = self.val_size + self.test_size
        rest = self.noisy(digits[torch.cat([order[end:], order[: self.val_size]])])
        return {
            "train": rest[: -self.val_size],
            "val": rest[-self.val_size :],
            "test": digits[order[self.val_size : end]],
        }


def _table() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the rows of scikit-learn's file, 64 pixels and a label each, without the import of scikit-learn and pandas."""
    package = find_spec("sklearn")
    for folder in package.submodule_search_locations or () if package else ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits

    data = load_digits()
    return np.column_stack([data.data, data.target])
