"""Data modules with seeded augmentation and loaders that resume in the middle of an epoch."""

from lit_sparse.ground import train_extra  # noqa: F401
from lit_sparse.data.activations import ActivationDataModule
from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.coreset import CoresetDataModule
from lit_sparse.data.images import (
    ColoredDigitsDataModule,
    DigitsDataModule,
    FeatureDependentNoise,
    ImageDataModule,
    ImageFolderDataModule,
    Images,
    ImageTableDataModule,
    LabelNoise,
    LabelsFromFile,
    MNISTDataModule,
    SymmetricNoise,
)
from lit_sparse.data.loader import EpochLoader
from lit_sparse.data.referential_game import ReferentialGameDataModule
from lit_sparse.data.regression import (
    CaliforniaHousingDataModule,
    RadialBases,
    RegressionDataModule,
    SyntheticRegressionDataModule,
    TableDataModule,
)
from lit_sparse.data.text import (
    EntailmentDataModule,
    PairDataModule,
    Ragged,
    SummarizationDataModule,
    TextDataModule,
    TranslationDataModule,
)
from lit_sparse.data.transport_samples import Points, TransportDataModule
from lit_sparse.ground.arguments import check_types
from lit_sparse.text import Vocabulary, VocabularyOptions

__all__ = [
    "ActivationDataModule",
    "CaliforniaHousingDataModule",
    "ColoredDigitsDataModule",
    "CoresetDataModule",
    "DigitsDataModule",
    "EntailmentDataModule",
    "EpochLoader",
    "FeatureDependentNoise",
    "ImageDataModule",
    "ImageFolderDataModule",
    "ImageTableDataModule",
    "Images",
    "LabelNoise",
    "LabelsFromFile",
    "MNISTDataModule",
    "PairDataModule",
    "Points",
    "RadialBases",
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

check_types(globals())
