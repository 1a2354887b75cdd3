"""Files of torch: what is in them is checked before anything is made of it.

A checkpoint may also be a folder to which several processes have written, each its part of the weights. torch's own reader
unpickles whatever such a folder holds, which may run any code. Here only plain data are read.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem
from torch import Tensor

from lit_sparse.errors import CheckpointError
from lit_sparse.ground.distributed import SHARD_NAMES, unflatten
from lit_sparse.ground.pickles import check_pickle, check_torch_file
from lit_sparse.ground.stored import NotPlainError, open_inside, open_plain

__all__ = ["SUGGESTION", "is_sharded", "is_url", "leaves", "local_copy", "read_torch_file"]

SUGGESTION = "Use another checkpoint, such as one of checkpoints/ in a run folder."
#: Bytes by which a tensor may be larger than its part of the file, as expanded ones are.
MOST_EXPANDED = 2**26
#: Number of times that the values of a file may be shared between its tensors, beside a few that are expanded.
MOST_TIMES, MOST_BESIDE = 100, 2**28
#: Number of values that any checkpoint may hold; lists that stand in lists several times can be billions.
MOST_SHARED = 10**6
#: Largest depth of dicts and lists in a checkpoint.
MOST_LEVELS = 60
#: File of what a checkpoint holds besides tensors, and the list of its tensors.
META, TENSORS = "meta.pt", ".metadata"
#: What the list of tensors names.
NAMED = {*SHARD_NAMES, "torch.serialization._get_layout", "torch.Size", "pathlib.PosixPath", "pathlib.WindowsPath"}
#: Largest list, and most bytes of the list of tensors.
MOST_ITEMS, MOST_BYTES = 10_000, 2**27


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
            return _read_shards(Path(file).resolve(), source)
        if isinstance(file, str | Path):
            with open_plain(local_copy(file)) if within is None else open_inside(Path(file), within) as opened:
                return read_torch_file(opened, source, **options)
        file.seek(0)
        if not zipfile.is_zipfile(file):
            raise pickle.UnpicklingError("it is not an archive, which torch.save writes since torch 1.6")
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
    except (OSError, pickle.UnpicklingError) as error:
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
    """Check that each tensor is of a kind that can be read, and about as large as its part of the file, as are all together.

    Args:
        source: name of the file in messages.
        found: content of the file.
        stored: whether the tensors have their values; others are not checked.

    Raises:
        CheckpointError: naming the tensor.
    """
    held = list(leaves(source, found, ""))
    known: dict[int, int] = {}
    if _written_out(found, known) > max(MOST_SHARED, 2 * (len(held) + len(known))):
        raise CheckpointError(f"Expected {source} to share few values between places but many are shared. {SUGGESTION}")
    for place, value in held:
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
    dense = [value for _, value in held if stored and isinstance(value, Tensor) and value.layout == torch.strided]
    storages = {value.untyped_storage()._cdata: value.untyped_storage().nbytes() for value in dense if not value.is_nested}
    size = sum(value.numel() * value.element_size() for value in dense)
    if size > MOST_TIMES * sum(storages.values()) + MOST_BESIDE:
        raise CheckpointError(
            f"Expected tensors in {source} that share few values but they unpack to {size:,} bytes. {SUGGESTION}"
        )


def _written_out(found: Any, known: dict[int, int]) -> int:
    """Return the number of values in dicts and lists, where a list at several places counts at each of them."""
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list | tuple) else None
    if inner is None:
        return 1
    if id(found) not in known:
        known[id(found)] = 1 + sum(_written_out(value, known) for value in inner)
    return known[id(found)]


def leaves(source: str, found: Any, place: str, level: int = 0, seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield all values in nested dicts and lists with their paths; a list that occurs several times is visited once.

    Raises:
        CheckpointError: if values are nested too deeply, or a dict has attributes.
    """
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
            yield from leaves(source, value, f"{place}.{key}", level + 1, seen)
        seen.add(id(found))


def is_url(path: Any) -> bool:
    """Return whether a path is an fsspec URL, such as ``s3://bucket/last.ckpt`` or ``zip://last.ckpt::runs.zip``."""
    return isinstance(path, str) and ("://" in path or "::" in path)


def local_copy(path: str | Path) -> Path:
    """Return the local path of a file; a remote file is copied once, and the copy is removed when the process ends.

    Args:
        path: path, or fsspec URL.

    Raises:
        CheckpointError: if the file cannot be copied.
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


def is_sharded(path: str | Path) -> bool:
    """Return whether a path is the folder of a sharded checkpoint."""
    return (Path(path) / META).is_file() and (Path(path) / TENSORS).is_file()


class _Unpickler(pickle.Unpickler):
    """Finds only classes of the list of tensors, and types of numbers."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if f"{module}.{name}" in NAMED or module == "torch" else None
        if found is None or (module == "torch" and name != "Size" and not isinstance(found, torch.dtype)):
            raise pickle.UnpicklingError(f"{module}.{name} is not part of plain data")
        return found


def _read_shards(folder: Path, source: str) -> dict[str, Any]:
    """Return the content of a sharded checkpoint as if it were a single file, with whole tensors.

    Args:
        folder: folder of the checkpoint.
        source: name of the folder in messages.

    Raises:
        CheckpointError: if it is damaged, or holds anything but plain data.
    """
    found = read_torch_file(folder / META, source, within=folder)
    try:
        with open_plain(folder / TENSORS, folder) as file:
            content = file.read(MOST_BYTES)
        check_pickle(content, NAMED)
        listed = _Unpickler(io.BytesIO(content)).load()
        flat = _tensors(folder, source, listed)
        if any(type(step) is int and step >= MOST_ITEMS for step in chain.from_iterable(listed.planner_data.values())):
            raise ValueError("its lists are too long")
        parts = unflatten(flat, listed.planner_data)
        optimizers = [parts[f"optimizer_{number}"] for number in range(len(parts) - 1)]
        return {**found, "state_dict": parts["state_dict"], "optimizer_states": optimizers}
    except CheckpointError:
        raise
    except Exception as error:  # unpickling can raise any exception
        reason = " ".join(str(error).split()).rstrip(".")[:300]
        raise CheckpointError(
            f"{source} cannot be read as a sharded checkpoint: {type(error).__name__}: {reason}. Use another checkpoint."
        ) from error


def _tensors(folder: Path, source: str, listed: Any) -> dict[str, Any]:
    """Return the tensors and other values by name."""
    places = {(index.fqn, tuple(index.offset or ())): place for index, place in listed.storage_data.items()}
    sizes = {}
    for file in {place.relative_path for place in places.values()}:
        if Path(file).name != file:
            raise ValueError(f"{file!r} is not a plain file of it")
        with open_plain(folder / file, folder) as opened:
            sizes[file] = opened.seek(0, io.SEEK_END)
    left = {"bytes": 2 * sum(sizes.values())}  # each is read once, and stored once

    def spend(name: str, size: int) -> None:
        left["bytes"] -= abs(size)
        if left["bytes"] < 0:
            raise ValueError(f"{name} is larger than its files")

    flat: dict[str, Any] = {}

    def part(name: str, offset: tuple[int, ...]) -> Any:
        place = places[name, offset]
        if getattr(place, "transform_descriptors", None):
            raise ValueError(f"{name} is transformed")
        spend(name, place.length)
        with open_plain(folder / place.relative_path, folder) as file:
            file.seek(place.offset)
            return read_torch_file(io.BytesIO(file.read(max(0, place.length))), source)

    for name, entry in listed.state_dict_metadata.items():
        if not hasattr(entry, "chunks"):
            flat[name] = part(name, ())
            continue
        whole = torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
        spend(name, whole.nbytes)
        if sum(math.prod(chunk.sizes) for chunk in entry.chunks) != whole.numel():
            raise ValueError(f"{name} lacks a part, or has one twice")
        flat[name] = torch.zeros(entry.size, dtype=entry.properties.dtype)
        for chunk in entry.chunks:
            where = tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))
            shard = part(name, tuple(chunk.offsets))
            if not isinstance(shard, Tensor) or shard.shape != flat[name][where].shape:
                raise ValueError(f"{name} has a part of another shape")
            flat[name][where] = shard
    return flat
