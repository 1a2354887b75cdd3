"""The 1,797 handwritten digits of scikit-learn: real images without a download."""

from __future__ import annotations

import torch

from lit_sparse.data.base import Split, shuffled
from lit_sparse.data.images.base import ImageDataModule, Images
from lit_sparse.data.images.label_noise import LabelNoise
from lit_sparse.errors import ConfigurationError

__all__ = ["DigitsDataModule"]


class DigitsDataModule(ImageDataModule):
    """Handwritten digits of 8 x 8 pixels in 17 grey levels (Alpaydin & Kaynak 1998).

    Args:
        val_size: number of images held out for validation.
        test_size: number of images held out for the test.
        labelled: labelled training images: a fraction if <= 1, else a number; 0 for none.
        labelled_only: whether to drop the unlabelled images, as for a warm start.
        binarize: whether to draw each pixel from a Bernoulli distribution with its intensity as mean.
        jitter: whether to also train on images shifted by one pixel, nine per image.
        label_noise: noise in the labels of the training and validation images, taken together; None for no noise.
        epoch_size: number of images per epoch, drawn anew each time; None for all. If only some images are labelled, it is
            the number of unlabelled images.
        batch_size: labelled images per training batch and process, plus as many unlabelled images; all images if there is
            only one kind.
        eval_batch_size: images per batch of validation, test and prediction.
        num_workers: number of worker processes that fetch batches.
        seed: seed of the split, the choice of labels, the order and the binarization.

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
        labelled: float = 0.2,
        labelled_only: bool = False,
        binarize: bool = True,
        jitter: bool = False,
        label_noise: LabelNoise | None = None,
        epoch_size: int | None = None,
        batch_size: int = 64,
        eval_batch_size: int = 256,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            labelled=labelled,
            labelled_only=labelled_only,
            binarize=binarize,
            jitter=jitter,
            label_noise=label_noise,
            epoch_size=epoch_size,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            seed=seed,
        )
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
