"""Checks the files of a saved transformers model before they are loaded, because they may come from anyone.

A config of transformers holds more than sizes: some keys choose code, kernels or files from elsewhere.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from lit_sparse.errors import CheckpointError, ConfigurationError, LitSparseError, printable
from lit_sparse.ground.state_checks import entries
from lit_sparse.ground.stored import open_plain, parse_json, read_json
from lit_sparse.hf.registry import import_transformers
from lit_sparse.runs.allocation import SPARE_ELEMENTS, SPARE_PARAMETERS, Limits
from lit_sparse.runs.checkpoint_files import restoring_error

__all__ = ["SavedFiles", "place_of", "read_saved", "unreadable"]

#: Keys that choose code or files; keys that start with an underscore are transformers' own, and dropped.
ACTING = {
    *("attn_implementation", "backbone", "custom_pipelines", "distributed_config", "experts_implementation", "fusion_config"),
    *("kernel_config", "model_args", "quantization_config", "transformers_weights", "trust_remote_code", "use_kernels"),
    "use_pretrained_backbone",
}
#: Largest number of layers, labels and the like, for each of which a config makes an entry.
MOST = 10**5


class SavedFiles:
    """Files of a saved transformers model, which are checked before they are loaded.

    Args:
        path: folder, or name on the Hugging Face hub.
        shared: arguments of transformers that locate the files.
        variant: variant in the names of the weight files.
    """

    def __init__(self, path: str, shared: Mapping[str, Any], variant: str | None) -> None:
        self.path, self.shared, self.variant = path, shared, variant

    def config(self, *, trust_remote_code: bool) -> Any:
        """Return the transformers config of the saved model, after a check.

        Args:
            trust_remote_code: whether the user allows the config to name code.

        Raises:
            CheckpointError: if it is damaged, or names code or files.
        """
        transformers = import_transformers()
        content, source = self._json("config.json"), f"the config of {self.path!r}"
        if content is None:
            raise CheckpointError(f"Expected a saved model in {self.path!r} but there is no config.json. Give its folder.")
        content = _plain(content, source)
        if trust_remote_code:
            return transformers.AutoConfig.from_pretrained(self.path, **self.shared, trust_remote_code=True)
        kind = content.get("model_type")
        if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
            raise CheckpointError(f"Expected {source} to name a transformers model but got {kind!r:.80}. Update transformers.")
        try:
            return transformers.CONFIG_MAPPING[kind].from_dict(content)
        except Exception as error:  # its constructor raises anything
            raise restoring_error(source, error) from error

    def limits(self) -> Limits:
        """Return the largest sizes that a model with the saved weights may have, after a check of the other files.

        Raises:
            CheckpointError: if a file is damaged, or is a link out of the folder.
        """
        if self._file("adapter_config.json") is not None:
            raise CheckpointError(
                f"{self.path!r} holds an adapter, whose config names the model to load. Load that model, then the adapter with"
                " peft."
            )
        self._json("generation_config.json")
        elements = parameters = 0
        for name in self._weights():
            if (file := self._file(name)) is not None:  # transformers says what is missing
                sizes = _sizes(file)
                elements, parameters = elements + sum(sizes), parameters + len(sizes)
        return Limits(f"the config of {self.path!r}", 2 * elements + SPARE_ELEMENTS, 2 * parameters + SPARE_PARAMETERS)

    def model(self, kind: str) -> Any:
        """Return the model, whose attention is softmax, after a check of its files.

        Args:
            kind: class of transformers that loads it, such as ``AutoModel``.

        Raises:
            CheckpointError: if a file is damaged, or chooses code or files; see :meth:`config` and :meth:`limits`.
        """
        config, limits = self.config(trust_remote_code=False), self.limits()
        try:
            with limits.kept():
                loader = getattr(import_transformers(), kind)
                return loader.from_pretrained(self.path, config=config, use_safetensors=True, **self.shared)
        except Exception as error:  # wrong values of a config raise anything
            raise restoring_error(limits.source, error) from error

    def tokenizer(self, check: Callable[[Any], object]) -> Any:
        """Return the tokenizer, after a check of its files.

        Args:
            check: function that refuses the content of a ``tokenizer.json`` which may hang or panic.

        Raises:
            CheckpointError: if a file is damaged, or leads elsewhere.
        """
        transformers, folder = import_transformers(), Path(self.path)
        try:
            for path in folder.iterdir() if folder.is_dir() else ():
                if not path.is_dir():
                    open_plain(place_of(path, folder)).close()
            if (file := self._file("tokenizer.json")) is not None and (content := parse_json(file, None)) is not None:
                check(content[0])
            return transformers.AutoTokenizer.from_pretrained(self.path, **self.shared)
        except LitSparseError:
            raise
        except Exception as error:  # wrong values of a file raise anything
            raise unreadable(f"The tokenizer of {self.path!r}", error) from error

    def _weights(self) -> list[str]:
        """Return the names of the files of the weights."""
        middle = f".{self.variant}" if self.variant else ""
        whole, index = f"model{middle}.safetensors", f"model.safetensors.index{middle}.json"
        if list(Path(self.path, self.shared.get("subfolder") or "").glob("shard-*.safetensors")):  # they would come first
            raise CheckpointError(f"Expected one model in {self.path!r} but got parts of several processes. Save it whole.")
        if self._file(whole) is not None or (content := self._json(index)) is None:
            return [whole]
        places = content.get("weight_map")
        names = sorted({str(name)[:200] for name in places.values()}) if isinstance(places, dict) else [""]
        inside = (Path(name).name == name and name.endswith(".safetensors") and self._file(name) for name in names)
        if odd := [name for name, file in zip(names, inside, strict=True) if not file]:
            raise CheckpointError(f"{index} in {self.path!r} names the weights {odd[0]!r}, which are not a file beside it.")
        return names

    def _file(self, name: str) -> Path | None:
        """Return the path of a file, fetched from the hub if need be, or None if there is none."""
        cached_file = import_module("transformers.utils").cached_file
        try:
            found = cached_file(self.path, name, **self.shared, _raise_exceptions_for_missing_entries=False)
        except (OSError, ValueError) as error:  # no such folder, and no name on the hub
            raise unreadable(f"{name} of {self.path!r}", error) from error
        if found is None:
            return None
        return place_of(Path(found), Path(self.path) if Path(self.path).is_dir() else Path(found).parent)

    def _json(self, name: str) -> dict[Any, Any] | None:
        file = self._file(name)
        content = None if file is None else read_saved(file)
        _check_printable(content, f"{name} of {self.path!r}")
        return content


def _check_printable(content: Any, source: str) -> None:
    """Check that all texts can be printed, since transformers prints those that it does not know.

    Raises:
        CheckpointError: with the text.
    """
    pending = [content]
    while pending:
        value = pending.pop()
        if isinstance(value, dict | list):
            pending += [*value, *value.values()] if isinstance(value, dict) else value
        elif isinstance(value, str) and printable(value) != value:
            raise CheckpointError(f"Expected {source} to contain printable text but got {reprlib.repr(value)}.")


def _plain(content: dict[Any, Any], source: str) -> dict[Any, Any]:
    """Return a config without transformers' own entries, after a check of the others at each level.

    Raises:
        CheckpointError: naming the key.
    """
    for key, value in content.items():
        acts = key in ACTING and value is not None and value is not False
        elsewhere = key == "architecture" and ":" in str(value)  # timm's name of a place
        wrong = acts or elsewhere or (key == "backbone_config" and isinstance(value, str))
        if key == "architectures" and value is not None:
            wrong = not isinstance(value, list) or not all(isinstance(name, str) for name in value)
        if key in ("dtype", "torch_dtype") and value is not None:
            wrong = not isinstance(value, str) or not isinstance(getattr(torch, value, None), torch.dtype)
        if isinstance(value, int) and (key.startswith("num_") or "layer" in key):
            wrong = value > MOST
        if isinstance(value, list):
            numbers = [number for _, number in entries("", value)]
            wrong = wrong or max((n for n in numbers if isinstance(n, int)), default=0) * len(numbers) > 100 * MOST
        if wrong:
            raise CheckpointError(
                f"Expected {source} to describe a model alone but got {key!r} = {reprlib.repr(value)}. Remove the key, or give"
                " the argument when you load."
            )
    return {
        key: _plain_value(value, source)
        for key, value in content.items()
        if not key.startswith("_") and key not in ("auto_map", "name_or_path")
    }


def _plain_value(value: Any, source: str) -> Any:
    if isinstance(value, list):
        return [_plain_value(item, source) for item in value]
    return _plain(value, source) if isinstance(value, dict) else value


def _sizes(file: Path) -> list[int]:
    """Return the number of elements of each tensor in a file of safetensors.

    Raises:
        CheckpointError: if the file is damaged.
    """
    safetensors = import_module("safetensors")
    try:
        with open_plain(file), safetensors.safe_open(file, "pt") as opened:
            if not "".join(opened.keys()).isprintable():  # transformers prints those that it does not know
                raise OSError("the name of a tensor has characters that cannot be printed")
            slices = [opened.get_slice(name) for name in opened.keys()]  # noqa: SIM118
            if any(each.get_dtype().startswith("C") for each in slices):  # transformers drops the imaginary parts
                raise OSError("expected real numbers but got complex ones")
            return [math.prod(each.get_shape()) for each in slices]
    except (OSError, safetensors.SafetensorError) as error:
        raise unreadable(f"The weights {str(file)!r}", error) from error


def read_saved(path: Path) -> dict[Any, Any] | None:
    """Return the dict in a JSON file of a saved model, or None if the file does not exist.

    Raises:
        CheckpointError: if it is damaged.
    """
    try:
        return read_json(path)
    except ConfigurationError as error:
        raise CheckpointError(str(error)) from error


def place_of(path: Path, folder: Path) -> Path:
    """Return the path of a file in a folder, following the links that a hub cache makes to its own blobs.

    Raises:
        CheckpointError: if a link leads out of the repository.
    """
    try:
        real, root = path.resolve(), folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links, or a null byte
        raise unreadable(repr(str(path)), error) from error
    snapshots = next((parent for parent in root.parents if parent.name == "snapshots"), None)
    if not real.is_relative_to(root) and not (snapshots and real.is_relative_to(snapshots.with_name("blobs"))):
        raise CheckpointError(
            f"Expected {str(path)!r} to be in its folder but it is a link out of it, to {str(real)!r}. Copy the file there."
        )
    return real


def unreadable(what: str, error: Exception) -> CheckpointError:
    """Return the error for a file of a saved model that is missing or damaged."""
    reason = " ".join(str(error).split())[:300].rstrip(".")
    return CheckpointError(f"{what} cannot be read: {reason}. Fetch or save the model again.")
