"""What a model takes from a checkpoint: initial weights and its risk's state, and errors for parts that it must be given."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lit_sparse.errors import CheckpointError
from lit_sparse.estimators import Sampler
from lit_sparse.lightning.choice import pl, rank_zero_info
from lit_sparse.runs.checkpoint_files import check_finite, check_kinds
from lit_sparse.runs.torch_files import read_torch_file

__all__ = ["load_initial_weights", "match_risk", "not_given", "read_weights"]

#: Prefixes of an estimator's and a risk's state in the state of a model.
ESTIMATOR, RISK = "estimator.", "risk."


def load_initial_weights(model: nn.Module, path: str) -> None:
    """Load initial weights from a checkpoint into a model, except the state of a sampler (such as a baseline) and of a risk.

    The parameters of other estimators are weights of the model, which are loaded if the checkpoint has them.

    Args:
        model: model before training.
        path: path of the checkpoint.

    Raises:
        CheckpointError: if the file is not a checkpoint, or its weights do not match the model.
    """
    weights, own = read_weights(path), model.state_dict()
    sampler = isinstance(getattr(model, "estimator", None), Sampler)

    def stays(name: str) -> bool:
        return name.startswith(RISK) or (_is_of_estimator(name) and (sampler or name not in weights))

    kept = {name: value for name, value in own.items() if stays(name)}
    read = {
        name: value for name, value in weights.items() if name in own or not (_is_of_estimator(name) or name.startswith(RISK))
    }
    check_kinds(model, {"state_dict": read})
    try:
        model.load_state_dict({**read, **kept})
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"The weights of {path!r} do not fit this model: {reason}. Use another checkpoint.") from error
    rank_zero_info(f"Training starts from the weights of {path}")


def _is_of_estimator(name: str) -> bool:
    """Return whether a name in a state belongs to the estimator but not to its mapping."""
    return name.startswith(ESTIMATOR) and not name.startswith(f"{ESTIMATOR}mapping.")


def read_weights(path: str) -> dict[str, Tensor]:
    """Return the weights (state dict) in a checkpoint.

    Raises:
        CheckpointError: if the file is not a checkpoint, or holds NaN.
    """
    source = f"{path!r} of `initial_weights`"
    checkpoint = read_torch_file(path, source)
    state = checkpoint.get("state_dict") if isinstance(checkpoint, dict) else None
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise CheckpointError(f"Expected {source} to be a checkpoint but got a file without state_dict. Give another.")
    check_finite(source, {"state_dict": state})
    return state


def match_risk(model: pl.LightningModule, checkpoint: dict[str, Any], *, continues: bool) -> None:
    """Replace the state of another risk in a checkpoint by the state of the model's own risk.

    Args:
        model: model that the checkpoint is loaded into.
        checkpoint: the checkpoint, changed in place.
        continues: whether a run is resumed, whose risk must be the same.

    Raises:
        CheckpointError: if a run would be resumed with another risk.
    """
    if "state_dict" not in checkpoint:  # a strategy that shards models has already restored and checked it
        return
    state = checkpoint["state_dict"]
    theirs = {name for name in state if name.startswith(RISK)}
    own = {name: value for name, value in model.state_dict().items() if name.startswith(RISK)}
    if theirs == own.keys():
        return
    if continues:
        raise CheckpointError(
            f"Expected the risk that the run was trained with but got {type(model.risk).__name__}. Use that risk, or start"
            " a new run from the weights: --model.init_args.initial_weights CHECKPOINT"
        )
    checkpoint["state_dict"] = {name: value for name, value in state.items() if name not in theirs} | own


def not_given(model: type, names: list[str]) -> CheckpointError:
    """Return the error for parts of a model that were built in Python, which a checkpoint cannot rebuild."""
    parts = ", ".join(f"{name}=..." for name in names)
    return CheckpointError(
        f"Expected {' and '.join(f'`{name}`' for name in names)} as arguments but got none, and the checkpoint cannot build"
        f" these parts. Give them, as in {model.__name__}.load_from_checkpoint(path, {parts}). A module that stores its"
        " arguments as attributes of the same names is built automatically."
    )
