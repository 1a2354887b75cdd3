"""Data modules: splits, seeded augmentation, loaders that resume in the middle of an epoch."""

from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.digits import DigitsDataModule
from lit_sparse.data.images import ImageDataModule
from lit_sparse.data.loader import EpochLoader
from lit_sparse.data.mnist import MNISTDataModule
from lit_sparse.data.referential_game import ReferentialGameDataModule

__all__ = [
    "DigitsDataModule",
    "EpochLoader",
    "ImageDataModule",
    "MNISTDataModule",
    "ReferentialGameDataModule",
    "ResumableDataModule",
]
