"""Entries of a checkpoint that continue a run from any step, in addition to those of Lightning."""

from __future__ import annotations

from typing import Any

from lit_sparse.errors import CheckpointError
from lit_sparse.lightning import pl
from lit_sparse.lightning_internals import describe_end, describe_progress, settle_counters
from lit_sparse.lightning_states import describe_states
from lit_sparse.models.warm_start import RISK

__all__ = ["is_fitting", "match_risk", "not_given", "store_progress"]


def store_progress(model: pl.LightningModule, checkpoint: dict[str, Any], limits: dict[str, Any]) -> None:
    """Store the position of a training in a checkpoint, and whether it has ended under its limits."""
    if is_fitting(model):
        checkpoint["end"] = describe_end(model.trainer, limits)
        settle_counters(model.trainer, checkpoint["loops"]["fit_loop"])
        checkpoint["progress"] = describe_progress(model.trainer)
        checkpoint["states"] = describe_states(model.trainer)


def match_risk(model: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
    """Drop the state of another risk from a checkpoint.

    Raises:
        CheckpointError: if a run is to be continued with another risk.
    """
    if "state_dict" not in checkpoint:  # a strategy that shards models has already restored and checked it
        return
    state = checkpoint["state_dict"]
    theirs = {name for name in state if name.startswith(RISK)}
    own = {name: value for name, value in model.state_dict().items() if name.startswith(RISK)}
    if theirs == own.keys():
        return
    if is_fitting(model):
        raise CheckpointError(
            f"Expected the risk that the run was trained with but got {type(model.risk).__name__}. Use that risk, or start"
            " a new run from the weights: --model.init_args.initial_weights CHECKPOINT"
        )
    checkpoint["state_dict"] = {name: value for name, value in state.items() if name not in theirs} | own


def is_fitting(model: pl.LightningModule) -> bool:
    """Return whether a trainer is training this model."""
    return model._trainer is not None and model._trainer.state.fn == "fit"


def not_given(model: type, names: list[str]) -> CheckpointError:
    """Return the error for parts that were built in Python, which a checkpoint cannot build."""
    parts = ", ".join(f"{name}=..." for name in names)
    return CheckpointError(
        f"Expected {' and '.join(f'`{name}`' for name in names)} as arguments but got none, and the checkpoint cannot build"
        f" these parts. Give them, as in {model.__name__}.load_from_checkpoint(path, {parts}). A module that stores its"
        " arguments as attributes of the same names is built automatically."
    )
