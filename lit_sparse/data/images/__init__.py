"""Data modules of images, and noise in their labels."""

from lit_sparse.data.images.base import ImageDataModule, Images
from lit_sparse.data.images.colored_digits import ColoredDigitsDataModule
from lit_sparse.data.images.digits import DigitsDataModule
from lit_sparse.data.images.label_noise import FeatureDependentNoise, LabelNoise, LabelsFromFile, SymmetricNoise
from lit_sparse.data.images.mnist import MNISTDataModule
from lit_sparse.data.images.own_images import ImageFolderDataModule, ImageTableDataModule

__all__ = [
    "ColoredDigitsDataModule",
    "DigitsDataModule",
    "FeatureDependentNoise",
    "ImageDataModule",
    "ImageFolderDataModule",
    "ImageTableDataModule",
    "Images",
    "LabelNoise",
    "LabelsFromFile",
    "MNISTDataModule",
    "SymmetricNoise",
]
