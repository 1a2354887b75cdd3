"""Functions of the command line's arguments and configs, called before anything is built."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from lit_sparse.config_files import find_config
from lit_sparse.stored import open_plain

__all__ = [
    "as_yaml_file",
    "chosen_options",
    "configs_first",
    "model_named_by_user",
    "named_by_user",
    "split_model_options",
    "value_of",
    "values_of",
    "with_config_files",
    "without",
]


def value_of(args: list[str], option: str) -> str | None:
    """Return the first value of an option, given as ``--option value`` or ``--option=value``."""
    for i, arg in enumerate(args):
        if arg == option and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(f"{option}="):
            return arg.split("=", 1)[1]
    return None


def values_of(args: list[str], option: str) -> list[str]:
    """Return all values of an option."""
    values = []
    while (value := value_of(args, option)) is not None:
        values.append(value)
        place = next(i for i, arg in enumerate(args) if arg == option or arg.startswith(f"{option}="))
        args = args[place + (2 if args[place] == option else 1) :]
    return values


def without(args: list[str], option: str) -> list[str]:
    """Return the arguments without an option and its value."""
    kept, skip = [], False
    for arg in args:
        if skip:
            skip = False
        elif arg == option:
            skip = True
        elif not arg.startswith(f"{option}="):
            kept.append(arg)
    return kept


def configs_first(args: list[str]) -> list[str]:
    """Move configs before the options, so that options override them in any order."""
    configs: list[str] = []
    others: list[str] = []
    waiting = list(args)
    while waiting:
        arg = waiting.pop(0)
        named = arg in ("-c", "--config")
        chosen = configs if named or arg.startswith(("-c=", "--config=")) else others
        chosen.append(arg)
        if named and waiting:
            chosen.append(waiting.pop(0))
    return configs + others


def with_config_files(args: list[str]) -> list[str]:
    """Return the arguments with the files of configs in place of their names.

    Args:
        args: arguments after the command. The value of ``-c`` may also be the content of a config.

    Raises:
        ConfigurationError: for an unknown name.
    """
    found, named = [], False
    for arg in args:
        sign = next((sign for sign in ("-c=", "--config=") if arg.startswith(sign)), "")
        value = arg.removeprefix(sign)
        if (named or sign) and not _is_content(value):
            arg = f"{sign}{find_config(value)}"
        found.append(arg)
        named = arg in ("-c", "--config")
    return found


def _is_content(value: str) -> bool:
    """Return whether a text is YAML of a mapping, not a name."""
    try:
        return isinstance(yaml.safe_load(value), dict)
    except (yaml.YAMLError, RecursionError):
        return False


def split_model_options(args: list[str]) -> tuple[list[str], list[str]]:
    """Split arguments into options of the model and all others."""
    model: list[str] = []
    others: list[str] = []
    chosen = others
    for arg in args:
        if arg.startswith("-"):
            name = arg.split("=", 1)[0]
            chosen = model if name == "--model" or name.startswith("--model.") else others
        chosen.append(arg)
    return model, others


def chosen_options(args: list[str], names: Collection[str]) -> list[str]:
    """Return the model's options that set an argument of the given names, or a part of it."""
    kept: list[str] = []
    chosen = False
    for arg in args:
        if arg.startswith("--"):
            option = arg.split("=", 1)[0].removeprefix("--model.").removeprefix("init_args.").rstrip("+")
            chosen = option.split(".")[0] in names
        if chosen:
            kept.append(arg)
    return kept


def named_by_user(args: list[str]) -> tuple[list[str], set[str], set[str]]:
    """Return the names by ``--trust``, the names in configs and options of the model, and the classes of all parts.

    Args:
        args: arguments after the command.
    """
    trusted: list[str] = []
    texts: set[str] = set()
    classes: set[str] = set()
    for config in (_yaml_of(path) for path in values_of(args, "-c") + values_of(args, "--config")):
        if isinstance(config, dict):
            trusted += _listed(config.get("trust"))
            texts |= set(_texts_in(config.get("model")))
            classes |= {text for text in _texts_in(config) if re.fullmatch(r"\w+(\.\w+)+", text)}
    for value in values_of(args, "--trust"):
        trusted += _listed(yaml.safe_load(value) if value.startswith("[") else value)
    for arg in (arg.partition("=")[2] if arg.startswith("--") else arg for arg in split_model_options(args)[0]):
        texts |= set(_texts_in(arg))
        if arg.endswith((".yaml", ".yml", ".json")):
            texts |= set(_texts_in(_yaml_of(arg)))
    return list(dict.fromkeys(trusted)), texts | set(trusted), classes


def _texts_in(value: Any, seen: Collection[int] = ()) -> Iterator[str]:
    """Yield all texts in the user's description, also those inside YAML texts."""
    if isinstance(value, str):
        yield value
        value = _as_yaml(value)
    if isinstance(value, dict | list) and id(value) not in seen:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(item, (*seen, id(value)))


def _as_yaml(text: str) -> Any:
    """Return the list or dict that a text is in YAML, or None."""
    try:
        found = yaml.safe_load(text) if any(sign in text for sign in "{[:-\n") else None
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def _listed(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [] if value is None else [str(value)]


def model_named_by_user(args: list[str]) -> str | None:
    """Return the last class of the model that configs and options name, or None."""
    name: Any = None
    for path in values_of(args, "-c") + values_of(args, "--config"):
        config = _yaml_of(path)
        model = config.get("model") if isinstance(config, dict) else None
        name = (model.get("class_path") if isinstance(model, dict) else model) or name
    for option in ("--model", "--model.class_path"):
        name = ([name, *values_of(args, option)])[-1]
    return name if isinstance(name, str) and re.fullmatch(r"[\w.]+", name) and not name.endswith(".yaml") else None


def _yaml_of(path: str) -> Any:
    """Return the content of a config, or None if the parser will refuse it."""
    try:
        with open_plain(path) as file:
            return yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None


@contextmanager
def as_yaml_file(content: dict[str, Any]) -> Iterator[str]:
    """Write a temporary YAML file with this content and give its path."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.yaml"
        path.write_text(yaml.safe_dump(json.loads(json.dumps(content))))  # only plain dicts and lists
        yield str(path)
