"""The Lightning that this package uses, ``pytorch_lightning`` or ``lightning.pytorch``: the only module that imports either.

The two packages have the same classes under different names, and a Trainer of one refuses models of the other. The choice is
made once, when the first subpackage that needs Lightning is imported:

1. the one named by the environment variable ``LIT_SPARSE_LIGHTNING`` (``pytorch_lightning`` or ``lightning``), if it is set;
2. the one that is already imported;
3. the one that is installed, ``pytorch_lightning`` if both are.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lit_sparse.ground import train_extra
from lit_sparse.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    import pytorch_lightning as pl
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.utilities import move_data_to_device
    from pytorch_lightning.callbacks import (
        BasePredictionWriter,
        Checkpoint,
        EarlyStopping,
        ModelCheckpoint,
        ModelPruning,
        ModelSummary,
        ProgressBar,
        StochasticWeightAveraging,
        Timer,
    )
    from pytorch_lightning.callbacks.early_stopping import EarlyStoppingReason
    from pytorch_lightning.cli import (
        LightningArgumentParser,
        LightningCLI,
        LRSchedulerCallable,
        OptimizerCallable,
        SaveConfigCallback,
    )
    from pytorch_lightning.core.mixins.hparams_mixin import _given_hyperparameters
    from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger
    from pytorch_lightning.loggers.csv_logs import ExperimentWriter
    from pytorch_lightning.overrides.distributed import _IndexBatchSamplerWrapper
    from pytorch_lightning.plugins import DoublePrecision, MixedPrecision, Precision, TorchCheckpointIO
    from pytorch_lightning.strategies import ModelParallelStrategy
    from pytorch_lightning.trainer.call import _call_callback_hooks, _call_lightning_module_hook
    from pytorch_lightning.utilities import rank_zero_info, rank_zero_only, rank_zero_warn
    from pytorch_lightning.utilities.enums import GradClipAlgorithmType
    from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException  # type: ignore[attr-defined]

#: Submodules of Lightning with the names above. They are imported on first use, the last one late: it takes a second.
PLACES = (
    *("callbacks", "callbacks.early_stopping", "core.mixins.hparams_mixin", "loggers", "loggers.csv_logs"),
    *("overrides.distributed", "plugins", "plugins.environments", "strategies", "trainer.call", "utilities"),
    *("utilities.enums", "utilities.exceptions", "cli"),
)

#: Package to install -> name to import.
NAMES = {"pytorch_lightning": "pytorch_lightning", "lightning": "lightning.pytorch"}

#: Oldest version: those before read the function that builds a model from its checkpoint (CVE-2026-58659), and two of the
#: twin package are malicious uploads.
OLDEST = (2, 6, 6)

VARIABLE = "LIT_SPARSE_LIGHTNING"

#: Options of Lightning's ``log`` for a value that is equal on all processes; a mean of three equal numbers may be rounded.
AGREED: dict[str, Any] = {"sync_dist": True, "reduce_fx": "max"}


def choose() -> str:
    """Return the name of the Lightning package to import, ``pytorch_lightning`` or ``lightning.pytorch``.

    Raises:
        ConfigurationError: if the environment variable names neither.
        MissingExtraError: if the choice is not installed or too old.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked and asked not in NAMES:
        raise ConfigurationError(f"Expected {VARIABLE} to be one of {', '.join(NAMES)} but got {asked!r}.")
    imported = [package for package, name in NAMES.items() if name in sys.modules]
    installed = [package for package in NAMES if find_spec(package)]
    package = asked or (imported or installed or ["pytorch_lightning"])[0]
    version = metadata.version(package) if package in installed else ""
    if tuple(int(number) for number in re.findall(r"\d+", version)[:3]) < OLDEST:
        raise MissingExtraError(
            "The command line, models and data modules",
            "train",
            f" with {package} 2.6.6 or newer, because a checkpoint can run code in earlier ones, but got {version or 'none'}",
            "" if package == "pytorch_lightning" else f'pip install "{package}>=2.6.6"',  # the extra has the other one
        )
    return NAMES[package]


#: ``"pytorch_lightning"`` or ``"lightning.pytorch"``.
NAME = choose()
#: The other one.
OTHER = next(name for name in NAMES.values() if name != NAME)

if not TYPE_CHECKING:
    pl = import_module(NAME)

    def __getattr__(name: str) -> Any:
        """Return a name of Lightning, and import its submodule."""
        for place in PLACES if not name.startswith("__") else ():
            if hasattr(module := import_module(f"{NAME}.{place}"), name):
                return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def chosen_path(path: str) -> str:
    """Return the import path of a class of either Lightning package as the chosen package's; other texts are unchanged."""
    return NAME + path.removeprefix(OTHER) if path.startswith(f"{OTHER}.") else path


def check_pairing() -> None:
    """Warn if the other Lightning package is imported too, because its Trainer refuses models and data modules of this one."""
    if OTHER in sys.modules:
        warnings.warn(
            f"lit_sparse uses `{NAME}`, but `{OTHER}` is also imported, and its Trainer refuses models and data modules"
            f" of lit_sparse. Import the Trainer from `{NAME}`, or import `{OTHER}` before lit_sparse, or set"
            f" {VARIABLE}={OTHER.partition('.')[0]}.",
            stacklevel=3,
        )
