"""Data modules of regression."""

from lit_sparse.data.regression.base import RegressionDataModule, SyntheticRegressionDataModule, TableDataModule
from lit_sparse.data.regression.california_housing import CaliforniaHousingDataModule
from lit_sparse.data.regression.radial_bases import RadialBases

__all__ = [
    "CaliforniaHousingDataModule",
    "RadialBases",
    "RegressionDataModule",
    "SyntheticRegressionDataModule",
    "TableDataModule",
]
