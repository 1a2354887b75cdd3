"""Reads checkpoint files that are complete and hold only plain data, and builds the modules that they describe."""

from __future__ import annotations

import io
import re
import reprlib
import warnings
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, TypeVar

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem
from torch import Tensor

from lit_sparse.errors import CheckpointError, LitSparseError, cause_of
from lit_sparse.ground.pickles import check_torch_file
from lit_sparse.ground.state_checks import ANY, COUNT, SCALAR, DictOf, ListOf, at_most, check_state, is_of_kind
from lit_sparse.ground.stored import NotPlainError, open_inside, open_plain
from lit_sparse.runs.allocation import Limits
from lit_sparse.runs.descriptions import Plan, plan, plan_arguments
from lit_sparse.runs.shards import is_sharded, read_shards
from lit_sparse.runs.trust import trusting

__all__ = [
    "ROWS",
    "WRITTEN",
    "check_finite",
    "check_kinds",
    "check_removable",
    "check_resumable",
    "check_written",
    "is_url",
    "load_module",
    "local_copy",
    "plan_module",
    "read_checkpoint",
    "read_torch_file",
    "restoring_error",
]

Loaded = TypeVar("Loaded")
#: Further keys that Lightning reads in checkpoints of version 1.
OLD_KEYS = ("hparams", "module_arguments", "checkpoint_callback_best_model_path", "checkpoint_callback_best")
#: Keys under which ModelCheckpoint keeps the files that it has written and later removes.
WRITTEN = ("best_model_path", "kth_best_model_path", "last_model_path")
#: Counters of Lightning's progress.
COUNTERS = {"ready", "started", "processed", "completed"}
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
#: Bytes by which a tensor may be larger than its part of the file, as expanded ones are.
MOST_EXPANDED = 2**26
#: Number of values that any checkpoint may hold; lists that stand in lists several times can be billions.
MOST_SHARED = 10**6
#: Largest depth of dicts and lists in a checkpoint.
MOST_LEVELS = 60
SUGGESTION = "Use another checkpoint, such as one of checkpoints/ in a run folder."


def read_torch_file(file: str | Path | IO[bytes], source: str, *, within: Path | None = None, **options: Any) -> Any:
    """Return the content of a ``torch.save`` file without running code, and verify the checksums, which torch does not.

    Args:
        file: path or URL of a file, path of the folder of a sharded checkpoint, or an open file.
        source: name of the file in messages.
        within: folder out of which no link may lead; None for a file that the user names.
        options: further arguments of ``torch.load``.

    Raises:
        CheckpointError: if the file is damaged, or holds objects other than tensors, numbers, text, lists and dicts.
    """
    try:
        if isinstance(file, str | Path) and not is_url(file) and is_sharded(file):
            return read_shards(Path(file).resolve(), source, read_torch_file)
        if isinstance(file, str | Path):
            with open_plain(local_copy(file)) if within is None else open_inside(Path(file), within) as opened:
                return read_torch_file(opened, source, **options)
        file.seek(0)
        if not zipfile.is_zipfile(file):
            raise UnpicklingError("it is not an archive, which torch.save writes since torch 1.6")
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise zipfile.BadZipFile("a member of it is compressed, which torch never does")
            if archive.comment or min((member.header_offset for member in members), default=0):
                raise zipfile.BadZipFile("it holds more than the archive that torch writes")  # another archive, perhaps
            if sum(member.file_size for member in members) > file.seek(0, io.SEEK_END):
                raise zipfile.BadZipFile("its members overlap")
            broken = archive.testzip()
        if broken is not None:
            raise zipfile.BadZipFile(f"the checksum of {broken!r} in it is wrong")
        file.seek(0)
        check_torch_file(file)
        file.seek(0)
        found = torch.load(file, **{"map_location": "cpu", "weights_only": True, **options})
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise CheckpointError(f"Expected a checkpoint but the file {source} does not exist. Give the path of one.") from error
    except NotPlainError as error:
        raise CheckpointError(f"Expected {source} to be a plain file but it is a {error.kind}. Give a checkpoint.") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise CheckpointError(f"{source} is damaged: {error}. {SUGGESTION}") from error
    except (OSError, UnpicklingError) as error:
        reason = " ".join(str(error).split()).rstrip(".")[:300]
        raise CheckpointError(f"{source} cannot be read as a checkpoint: {reason}. {SUGGESTION}") from error
    except Exception as error:  # unpickling can raise any exception
        raise CheckpointError(
            f"{source} cannot be read as a checkpoint ({type(error).__name__}). It may be truncated, or hold objects that"
            f" run code when they are read. {SUGGESTION}"
        ) from error
    _check_tensors(source, found, stored=options.get("map_location") != "meta")
    return found


def _check_tensors(source: str, found: Any, *, stored: bool) -> None:
    """Check that each tensor is of a kind that can be read, and about as large as its part of the file.

    Args:
        source: name of the file in messages.
        found: content of the file.
        stored: whether the tensors have their values; others are not checked.

    Raises:
        CheckpointError: naming the tensor.
    """
    leaves = list(_leaves(source, found, ""))
    known: dict[int, int] = {}
    if _written_out(found, known) > max(MOST_SHARED, 2 * (len(leaves) + len(known))):
        raise CheckpointError(f"Expected {source} to hold few values at several places but got many. {SUGGESTION}")
    for place, value in leaves:
        if stored and isinstance(value, Tensor):
            plain = value.layout in (torch.strided, torch.sparse_coo) and not value.is_nested and not value.is_meta
            if not plain:
                raise CheckpointError(f"Expected plain tensors in {source} but got another kind at `{place[1:]}`. {SUGGESTION}")
            strided = value.layout == torch.strided
            if strided and value.numel() * value.element_size() > value.untyped_storage().nbytes() + MOST_EXPANDED:
                raise CheckpointError(
                    f"Expected tensors in {source} whose entries are all stored but got an expanded one at `{place[1:]}`."
                    f" {SUGGESTION}"
                )


def _written_out(found: Any, known: dict[int, int]) -> int:
    """Return the number of values in dicts and lists, where a list at several places counts at each of them."""
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list | tuple) else None
    if inner is None:
        return 1
    if id(found) not in known:
        known[id(found)] = 1 + sum(_written_out(value, known) for value in inner)
    return known[id(found)]


def read_checkpoint(
    file: str | Path | IO[bytes], source: str | None = None, map_location: Any = "cpu", within: Path | None = None
) -> dict[str, Any]:
    """Return a checkpoint of a Lightning module; its descriptions are not checked yet.

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
    """Check that training can continue from a checkpoint.

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
    """Check that no weight and no optimizer state is NaN.

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
    """Check that stored weights are real, complex, whole or logical numbers as the model's are, which are copied into it.

    Raises:
        CheckpointError: naming a weight.
    """
    stored = checkpoint.get("state_dict", {})
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        found = stored.get(name)
        if isinstance(found, Tensor) and not is_of_kind(found, value):
            raise CheckpointError(
                f"Expected numbers as of type {value.dtype} in `state_dict.{name}` but got {found.dtype}. {SUGGESTION}"
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
    """Build a Lightning module or data module from a checkpoint, in place of Lightning's ``load_from_checkpoint``.

    Args:
        base: class of the module, or a class above it.
        file: path or URL, or an open file.
        trust: import paths that the checkpoint may name in addition to the allowed ones.
        map_location: device of the weights.
        hparams_file: YAML file with the arguments, in place of those in the checkpoint.
        strict: whether file and model need the same weight names; by default as the model says.
        within: see :func:`read_torch_file`.
        arguments: arguments of the module that replace those in the checkpoint.

    Raises:
        CheckpointError: if the file is not a checkpoint, does not fit, or names a forbidden class.
    """
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
        module.load_state_dict(found["state_dict"], strict=module.strict_loading if strict is None else strict)
    except Exception as error:
        raise restoring_error(source, error) from error
    device = next((value.device for value in found["state_dict"].values() if isinstance(value, Tensor)), torch.device("cpu"))
    return module.to(device)  # type: ignore[no-any-return]


def plan_module(limits: Limits, described: Any, base: type, *, given: Collection[str] = ()) -> Plan:
    """Check the hyper-parameters of a checkpoint, and build nothing.

    Args:
        limits: limits of the checkpoint's model.
        described: arguments of the module, and its class under ``_class_path`` unless it is ``base``.
        base: class of the module, or a class above it.
        given: arguments that replace the stored ones, and are not checked.

    Raises:
        CheckpointError: if a class is not allowed, or a value does not fit its annotation.
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


def is_url(path: Any) -> bool:
    """Return whether a path is a URL for fsspec, such as ``s3://bucket/last.ckpt`` or ``zip://last.ckpt::runs.zip``."""
    return isinstance(path, str) and ("://" in path or "::" in path)


def local_copy(path: str | Path) -> Path:
    """Return the path of a file of this machine; a file elsewhere is copied once, and removed when the process ends.

    Args:
        path: path, or URL for fsspec.

    Raises:
        CheckpointError: if a file cannot be copied.
    """
    if not is_url(path):
        return Path(path).expanduser()
    try:
        found, inner = fsspec.core.url_to_fs(str(path))
        return Path(inner if isinstance(found, LocalFileSystem) else fsspec.open_local(f"simplecache::{path}"))
    except FileNotFoundError as error:
        raise CheckpointError(f"Expected a checkpoint but the file {path!r} does not exist. Give the path of one.") from error
    except Exception as error:  # each file system has errors of its own
        reason = " ".join(str(error).split()).rstrip(".")[:300] or type(error).__name__
        raise CheckpointError(f"{path!r} cannot be read as a checkpoint: {reason}. {SUGGESTION}") from error


def restoring_error(source: str, error: BaseException, what: str = "") -> LitSparseError:
    """Return this package's error in the chain of an error during restoring, or a new CheckpointError.

    Args:
        source: name of the file.
        error: the error.
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
    for place, value in [*counters.items(), *_leaves(source, checkpoint.get("loops"), "loops")]:
        counts = place in counters or place.rpartition(".")[2] in COUNTERS
        if counts and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise CheckpointError(
                f"Expected `{place}` in {source} to be a number >= 0 but got {reprlib.repr(value)}. {SUGGESTION}"
            )


def check_written(source: str, checkpoint: dict[str, Any]) -> None:
    """Check the files that states of ModelCheckpoint name; see :func:`check_removable`."""
    callbacks = checkpoint.get("callbacks")
    for state in callbacks.values() if isinstance(callbacks, dict) else ():
        if isinstance(state, dict):
            check_removable(source, state, state.get("dirpath"))


def check_removable(source: str, state: dict[str, Any], folder: Any) -> None:
    """Check the files that a state of ModelCheckpoint names, since Lightning removes them later.

    Args:
        source: name of the file in messages.
        state: the state.
        folder: folder of the checkpoints that the callback writes.

    Raises:
        CheckpointError: if one is not a checkpoint below the folder.
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
    for place, value in _leaves(source, found, ""):
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()) and bool(value.isnan().any()):
            return place.removeprefix(".")
    return None


def _leaves(source: str, found: Any, place: str, level: int = 0, seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the values in dicts and lists with their places; a list that stands at several places is entered once."""
    seen = set() if seen is None else seen
    if level > MOST_LEVELS:
        raise CheckpointError(f"{source} has more than {MOST_LEVELS} levels of nesting at `{place[:100]}`. {SUGGESTION}")
    if isinstance(found, OrderedDict) and vars(found).keys() - {"_metadata"}:  # an attribute could hide a method
        raise CheckpointError(f"Expected plain dicts in {source} but got one with attributes at `{place[1:100]}`. {SUGGESTION}")
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list | tuple) else None
    if inner is None:
        yield place, found
    elif id(found) not in seen:
        for key, value in inner:
            yield from _leaves(source, value, f"{place}.{key}", level + 1, seen)
        seen.add(id(found))
