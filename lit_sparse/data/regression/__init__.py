"""Data modules for regression."""

from lit_sparse.data.regression.base import RegressionDataModule
from lit_sparse.data.regression.california_housing import CaliforniaHousingDataModule
from lit_sparse.data.regression.radial_bases import RadialBases
from lit_sparse.data.regression.synthetic import SyntheticRegressionDataModule
from lit_sparse.data.regression.tables import TableDataModule

__all__ = [
    "CaliforniaHousingDataModule",
    "RadialBases",
    "RegressionDataModule",
    "SyntheticRegressionDataModule",
    "TableDataModule",
]
