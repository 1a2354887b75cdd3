"""Data modules: splits, seeded augmentation, loaders that resume in the middle of an epoch."""

from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.california_housing import CaliforniaHousingDataModule
from lit_sparse.data.catalogue_pairs import CatalogueDataModule
from lit_sparse.data.coreset import CoresetDataModule
from lit_sparse.data.digits import DigitsDataModule
from lit_sparse.data.entailment import EntailmentDataModule
from lit_sparse.data.images import ImageDataModule, Images
from lit_sparse.data.label_noise import FeatureDependentNoise, LabelNoise, LabelsFromFile, SymmetricNoise
from lit_sparse.data.loader import EpochLoader
from lit_sparse.data.measures import GaussianMixture, Measure
from lit_sparse.data.mnist import MNISTDataModule
from lit_sparse.data.own_images import ImageFolderDataModule, ImageTableDataModule
from lit_sparse.data.ragged import Ragged
from lit_sparse.data.referential_game import ReferentialGameDataModule
from lit_sparse.data.regression import RegressionDataModule, SyntheticRegressionDataModule, TableDataModule
from lit_sparse.data.summarization import SummarizationDataModule
from lit_sparse.data.text import TextDataModule
from lit_sparse.data.translation import PairDataModule, TranslationDataModule
from lit_sparse.data.transport import Points, TransportDataModule
from lit_sparse.vocab import Vocabulary, VocabularyOptions

__all__ = [
    "CaliforniaHousingDataModule",
    "CatalogueDataModule",
    "CoresetDataModule",
    "DigitsDataModule",
    "EntailmentDataModule",
    "EpochLoader",
    "FeatureDependentNoise",
    "GaussianMixture",
    "ImageDataModule",
    "ImageFolderDataModule",
    "ImageTableDataModule",
    "Images",
    "LabelNoise",
    "LabelsFromFile",
    "MNISTDataModule",
    "Measure",
    "PairDataModule",
    "Points",
    "Ragged",
    "ReferentialGameDataModule",
    "RegressionDataModule",
    "ResumableDataModule",
    "SummarizationDataModule",
    "SymmetricNoise",
    "SyntheticRegressionDataModule",
    "TableDataModule",
    "TextDataModule",
    "TranslationDataModule",
    "TransportDataModule",
    "Vocabulary",
    "VocabularyOptions",
]
