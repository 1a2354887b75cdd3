"""The settings in which runs differ, as short names and texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_sparse.ground.files import matching
from lit_sparse.ground.stored import read_yaml
from lit_sparse.runs.folders import differences
from lit_sparse.studies.pages.tables import MISSING

__all__ = ["config_file", "read_config", "setting_text", "settings_of", "short_name", "short_names"]

#: Options that differ between all runs, and ends of such options.
FREE, PLACES = ("output_dir", "name", "ckpt_path"), ("default_root_dir", "save_dir")
#: Largest numbers of settings, and of characters of one.
SETTINGS, LONGEST = 12, 60
#: Path of a class.
CLASS = re.compile(r"(\w+\.)+[A-Z]\w*")


def config_file(folder: Path) -> Path:
    """Return the path of a run's config; a program's config is next to its logs."""
    return max(matching(folder, "fit/**/config.yaml"), default=folder / "config.yaml")


def read_config(folder: Path, root: Path) -> dict[Any, Any]:
    """Return the config of a run, without entries that differ between all runs, such as its folder.

    Args:
        folder: the run folder.
        root: folder below which links are refused.
    """
    return {key: value for key, value in (read_yaml(config_file(folder), root) or {}).items() if key not in FREE}


def settings_of(configs: Mapping[str, dict[Any, Any]]) -> dict[str, dict[str, str]]:
    """Return, for each run, short names and values of the settings in which the runs' configs differ.

    Args:
        configs: name of a run -> its config.

    Example:
        >>> settings_of(
        ...     {
        ...         "a": {"model": {"lr": 0.1, "width": 8}},
        ...         "b": {"model": {"lr": 0.2, "width": 8}},
        ...     }
        ... )
        {'a': {'lr': '0.1'}, 'b': {'lr': '0.2'}}
    """
    first = next(iter(configs.values()))
    changed = [{key: (old, new) for key, old, new in differences(first, config)} for config in configs.values()]
    keys = list(dict.fromkeys(key for change in changed for key in change if key.rpartition(".")[2] not in PLACES))
    classes = tuple(f"{key.removesuffix('.class_path')}.init_args." for key in keys if key.endswith(".class_path"))
    settings: dict[str, list[str]] = {}
    for key, short in short_names(keys).items():
        base = next(change[key][0] for change in changed if key in change)
        values = [setting_text(change.get(key, (base, base))[1]) for change in changed]
        if len({*values} - {MISSING}) > 1 or not key.startswith(classes):  # other classes have other arguments
            settings[short] = values
    kept = list(settings.items())[:SETTINGS]
    return {name: {key: values[place] for key, values in kept} for place, name in enumerate(configs)}


def short_name(key: str) -> str:
    """Return the last part of an option's name that says what it sets."""
    return key.replace(".init_args", "").removesuffix(".class_path").rpartition(".")[2][:LONGEST]


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return option -> its short name, or its whole name where another has the same short name."""
    shorts = [short_name(key) for key in keys]
    return {key: short if shorts.count(short) == 1 else key for key, short in zip(keys, shorts, strict=True)}


def setting_text(value: Any) -> str:
    """Return a setting as a short text: a class by its name and arguments."""
    if isinstance(value, dict) and "class_path" in value:
        given = value.get("init_args")
        words = [f"{key}={setting_text(one)}" for key, one in given.items()] if isinstance(given, dict) else []
        value = f"{setting_text(value['class_path'])}({', '.join(words)})"
    elif isinstance(value, str) and CLASS.fullmatch(value):
        value = value.rpartition(".")[2]
    text = MISSING if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
