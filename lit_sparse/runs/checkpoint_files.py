"""Reads checkpoint files, which must be complete and hold only plain data, and builds the modules that they describe."""

from __future__ import annotations

import io
import re
import reprlib
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from torch import Tensor

from lit_sparse.errors import CheckpointError, ConfigurationError, LitSparseError, cause_of, full_name
from lit_sparse.ground.state_checks import ANY, COUNT, SCALAR, DictOf, ListOf, at_most, check_state, is_of_kind
from lit_sparse.runs.allocation import Limits
from lit_sparse.runs.builder import Plan, plan, plan_arguments
from lit_sparse.runs.torch_files import SUGGESTION, leaves, read_torch_file
from lit_sparse.runs.trust import trusting

__all__ = [
    "LOGGED_STEP",
    "ROWS",
    "SUGGESTION",
    "WRITTEN",
    "check_finite",
    "check_kinds",
    "check_removable",
    "check_resumable",
    "check_written",
    "leaves",
    "load_module",
    "plan_module",
    "read_checkpoint",
    "restoring_error",
]

Loaded = TypeVar("Loaded")
#: Further keys that Lightning reads in checkpoints of version 1.
OLD_KEYS = ("hparams", "module_arguments", "checkpoint_callback_best_model_path", "checkpoint_callback_best")
#: Keys under which ModelCheckpoint keeps the files that it has written and later removes.
WRITTEN = ("best_model_path", "kth_best_model_path", "last_model_path")
#: Last name of Lightning's step of logged rows, and of the counters of its progress.
LOGGED_STEP = "_batches_that_stepped"
COUNTERS = {"ready", "started", "processed", "completed", LOGGED_STEP}
#: Key of the number of rows in ``metrics.csv`` when the checkpoint was written, if the run has that file.
ROWS = "metrics_rows"
#: Examples of what a run continues with besides Lightning's states.
RESUMED: dict[str, Any] = {
    "training_seed": at_most(2**63 - 1),
    "progress": {"metrics": DictOf(SCALAR), "plateau": True},
    "end": {"stops": True, "limits": DictOf(ANY), "pending": True},
    "states": DictOf(ANY),
    "undescribed": ListOf(""),
    ROWS: COUNT,
}
#: Major version of Lightning whose checkpoints are supported.
MAJOR = 2


def read_checkpoint(
    file: str | Path | IO[bytes], source: str | None = None, map_location: Any = "cpu", within: Path | None = None
) -> dict[str, Any]:
    """Return the content of a Lightning checkpoint; its descriptions are not checked yet.

    Args:
        file: path of a file or of the folder of a sharded checkpoint, URL, or an open file.
        source: name of the file in messages; by default its path.
        map_location: device of the tensors.
        within: see :func:`read_torch_file`.

    Raises:
        CheckpointError: if the file is not a checkpoint.
    """
    source = source or repr(str(file))
    found = read_torch_file(file, source, within=within, map_location=map_location)
    if isinstance(found, dict) and found and all(isinstance(value, Tensor) for value in found.values()):
        raise CheckpointError(f"{source} is a bare state dict: it holds weights but not the model's arguments. {SUGGESTION}")
    if not isinstance(found, dict) or not isinstance(found.get("state_dict"), dict):
        holds = "no state_dict" if isinstance(found, dict) else f"an object of type {type(found).__name__}"
        raise CheckpointError(f"Expected {source} to be a checkpoint of a Lightning module but it holds {holds}. {SUGGESTION}")
    for name, value in found["state_dict"].items():
        if not isinstance(name, str):
            raise CheckpointError(
                f"Expected names of weights in {source} to be text but got {reprlib.repr(name)}. {SUGGESTION}"
            )
        if callable(value) and not isinstance(value, Tensor):
            raise CheckpointError(f"Expected weights in {source} but `{name[:100]}` is {reprlib.repr(value)}. {SUGGESTION}")
    _check_version(source, found.get("pytorch-lightning_version"))
    old = [key for key in OLD_KEYS if key in found]
    if old:
        raise CheckpointError(f"{source} has the entry `{old[0]}` of an unsupported version of Lightning. {SUGGESTION}")
    _check_counters(source, found)
    return found


def check_resumable(source: str, checkpoint: dict[str, Any]) -> None:
    """Check that training can be resumed from a checkpoint.

    Raises:
        CheckpointError: if it holds only weights, or malformed states.
    """
    missing = [key for key in ("optimizer_states", "lr_schedulers", "loops") if key not in checkpoint]
    if checkpoint.get("optimizer_states") == [] and checkpoint.get("global_step"):  # those steps had an optimizer
        missing = ["optimizer_states"]
    if missing:
        raise CheckpointError(
            f"{source} holds no {' and no '.join(missing)}, so training cannot continue from it. Start a new run from its"
            " weights: --model.init_args.initial_weights CHECKPOINT"
        )
    for name, example in RESUMED.items():
        if name in checkpoint or name != ROWS:
            check_state(source, name, checkpoint.get(name), example)


def check_finite(source: str, checkpoint: dict[str, Any]) -> None:
    """Check that no weight and no optimizer state in a checkpoint is NaN.

    Raises:
        CheckpointError: if a value is NaN.
    """
    broken = _nan_in(source, checkpoint["state_dict"]) or _nan_in(source, checkpoint.get("optimizer_states"))
    if broken:
        raise CheckpointError(
            f"{source} holds NaN in `{broken}`: training has diverged. Use an earlier checkpoint, or train with a smaller"
            " learning rate."
        )


def check_kinds(model: torch.nn.Module, checkpoint: dict[str, Any]) -> None:
    """Check that stored weights have the same kind of numbers (real, complex, integer or boolean) as the model's.

    Raises:
        CheckpointError: if a weight differs; the message names it.
    """
    stored = checkpoint.get("state_dict", {})
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        found = stored.get(name)
        if isinstance(found, Tensor) and not is_of_kind(found, value):
            raise CheckpointError(
                f"Expected values of type {value.dtype} in `state_dict.{name}` but got {found.dtype}. {SUGGESTION}"
            )


def load_module(
    base: type[Loaded],
    file: str | Path | IO[bytes],
    *,
    trust: Collection[str] = (),
    map_location: Any = "cpu",
    hparams_file: str | Path | None = None,
    strict: bool | None = None,
    within: Path | None = None,
    **arguments: Any,
) -> Loaded:
    """Return a Lightning module or data module built from a checkpoint, in place of ``load_from_checkpoint``.

    Args:
        base: class of the module, or one of its base classes.
        file: path or URL, or an open file.
        trust: import paths that the checkpoint may name in addition to the allowed ones.
        map_location: device of the weights.
        hparams_file: YAML file with the arguments, in place of those in the checkpoint.
        strict: whether file and model must have the same weight names; by default the model's setting.
        within: see :func:`read_torch_file`.
        arguments: arguments of the module that replace those in the checkpoint.

    Raises:
        CheckpointError: if the file is not a checkpoint, does not match the model, or names a forbidden class.
    """
    if not isinstance(file, str | Path) and not hasattr(file, "read"):
        raise ConfigurationError(f"Expected a path, a URL or an open file as checkpoint but got {full_name(file)}.")
    source = repr(str(file)) if isinstance(file, str | Path) else "the checkpoint"
    content = file if isinstance(file, str | Path) else io.BytesIO(file.read())
    found: Any = read_checkpoint(content, source, map_location, within)
    try:
        check_finite(source, found)
    except CheckpointError as error:
        warnings.warn(str(error), stacklevel=3)
    kind: Any = base
    described = found.get(kind.CHECKPOINT_HYPER_PARAMS_KEY) if hparams_file is None else _arguments_in(hparams_file)
    with trusting(trust):
        limits = Limits.of(source, found["state_dict"])
        planned = plan_module(limits, described, base, given=arguments)
    try:
        with limits.kept():
            module = planned._replace(arguments=planned.arguments | arguments).build(source)
            if not hasattr(module, "configure_model"):
                state = found.get(type(module).__qualname__)
                if state is not None:
                    module.load_state_dict(state)
                return module  # type: ignore[no-any-return]
            module.configure_model()
        module.on_load_checkpoint(found)
        check_kinds(module, found)
        module.load_state_dict(found["state_dict"], strict=module.strict_loading if strict is None else strict)
    except Exception as error:
        raise restoring_error(source, error) from error
    device = next((value.device for value in found["state_dict"].values() if isinstance(value, Tensor)), torch.device("cpu"))
    return module.to(device)  # type: ignore[no-any-return]


def plan_module(limits: Limits, described: Any, base: type, *, given: Collection[str] = ()) -> Plan:
    """Check the hyperparameters of a checkpoint, without building anything.

    Args:
        limits: limits of the checkpoint's model.
        described: arguments of the module, and its class under ``_class_path`` unless it is ``base``.
        base: class of the module, or one of its base classes.
        given: arguments that replace the stored ones, and are not checked.

    Raises:
        CheckpointError: if a class is not allowed, or a value does not match its annotation.
    """
    source, longest = limits.source, limits.parameters
    if not isinstance(described, dict | None):
        raise CheckpointError(f"Expected hyper-parameters in {source} to be a dict but got {type(described).__name__}.")
    described = described or {}
    arguments = {name: value for name, value in described.items() if name not in given and not str(name).startswith("_")}
    if "_class_path" not in described:
        return plan_arguments(source, arguments, base, longest)
    return plan(source, {"class_path": described["_class_path"], "init_args": arguments}, base, longest)


def _arguments_in(path: str | Path) -> Any:
    """Return the arguments in a YAML file that the user names."""
    import yaml

    return yaml.safe_load(Path(path).read_text(encoding="utf-8"))


def restoring_error(source: str, error: BaseException, what: str = "") -> LitSparseError:
    """Return the package's own error among the causes of an error during restoring, or a new CheckpointError.

    Args:
        source: name of the file.
        error: error during restoring.
        what: name of the state that was being restored.
    """
    if (own := cause_of(error, LitSparseError)) is not None:
        return own
    reason = " ".join(str(error).split())[:300]
    where = f"`{what}`: " if what else ""
    return CheckpointError(
        f"{source} does not fit the model, or is damaged: {where}{type(error).__name__}: {reason}. {SUGGESTION}"
    )


def _check_version(source: str, version: Any) -> None:
    found = re.match(r"(\d+)\.\d", version) if isinstance(version, str) else None
    if found is None or found[1] != str(MAJOR):
        raise CheckpointError(
            f"Expected {source} to name the version of Lightning that wrote it, {MAJOR}.x, but got {reprlib.repr(version)}."
            f" {SUGGESTION}"
        )


def _check_counters(source: str, checkpoint: dict[str, Any]) -> None:
    counters = {key: checkpoint[key] for key in ("epoch", "global_step") if key in checkpoint}
    for place, value in [*counters.items(), *leaves(source, checkpoint.get("loops"), "loops")]:
        counts = place in counters or place.rpartition(".")[2] in COUNTERS
        if counts and not COUNT.holds(value):
            raise CheckpointError(
                f"Expected `{place}` in {source} to be a number from 0 to 2**53 but got {reprlib.repr(value)}. {SUGGESTION}"
            )


def check_written(source: str, checkpoint: dict[str, Any]) -> None:
    """Check the files named by states of ModelCheckpoint in a checkpoint; see :func:`check_removable`."""
    callbacks = checkpoint.get("callbacks")
    for state in callbacks.values() if isinstance(callbacks, dict) else ():
        if isinstance(state, dict):
            check_removable(source, state, state.get("dirpath"))


def check_removable(source: str, state: dict[str, Any], folder: Any) -> None:
    """Check the files that a state of ModelCheckpoint names, which Lightning may later remove.

    Args:
        source: name of the file in messages.
        state: stored state of the callback.
        folder: folder of the checkpoints that the callback writes.

    Raises:
        CheckpointError: if a file is not a checkpoint below the folder.
    """
    best = state.get("best_k_models") or {}
    paths = [state.get(key) or "" for key in WRITTEN] + list(best)
    if not isinstance(best, dict) or not all(isinstance(path, str) for path in [*paths, folder or ""]):
        raise CheckpointError(f"Expected paths in the state of a callback in {source} but got another type. {SUGGESTION}")
    for path in filter(None, paths):
        if not _is_written(path, (folder or "").rstrip("/")):
            raise CheckpointError(
                f"Expected {source} to name checkpoints in {folder!r} but got {path!r}, which may be another file. {SUGGESTION}"
            )


def _is_written(path: str, folder: str) -> bool:
    """Return whether a path is one of a checkpoint in a folder; there need not be a file."""
    inner = re.split(r"[/\\]", path.removeprefix(folder))
    if not folder or not path.startswith(folder) or inner[0] or ".." in inner or "::" in path:
        return False
    try:
        found = Path(path).resolve()  # a link may lead elsewhere
        kept = found.is_file() or (found / "meta.pt").is_file() or not found.exists()  # sharded ones are folders
        return kept and path.endswith(".ckpt") and found.suffix == ".ckpt" and Path(folder).resolve() in found.parents
    except (OSError, RuntimeError, ValueError):
        return False


def _nan_in(source: str, found: Any) -> str | None:
    for place, value in leaves(source, found, ""):
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()) and bool(value.isnan().any()):
            return place.removeprefix(".")
    return None
