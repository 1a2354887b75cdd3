"""Configs by name: a file on disk comes first, then the package's config of that name; and keys that a parser would drop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lit_sparse.errors import ConfigurationError, did_you_mean

__all__ = ["FOLDER", "HERE", "check_empty", "config_names", "find_config", "first_line"]

#: Folder of the package's configs.
FOLDER = Path(__file__).parents[1] / "configs"
#: Folder of configs in the current folder.
HERE = Path("configs")


def config_names(kind: str = "") -> list[str]:
    """Return the names of the package's configs, such as ``ssvae/digits``.

    Args:
        kind: subfolder of the configs, such as ``studies``, to which names are relative.
    """
    return sorted(path.relative_to(FOLDER / kind).with_suffix("").as_posix() for path in (FOLDER / kind).rglob("*.yaml"))


def first_line(config: Path) -> str:
    """Return the first line of a config, its description, without the comment sign."""
    with config.open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").rstrip()


def find_config(name: str | Path, *, folder: Path | None = Path(), kind: str = "") -> Path:
    """Return the path of a config: of a file on disk, or else of the package's config of that name.

    The names ``ssvae/digits``, ``ssvae/digits.yaml`` and ``configs/ssvae/digits.yaml`` are equivalent.

    Args:
        name: path of a file, or name of a config.
        folder: folder that the path is relative to; None to find only the package's configs.
        kind: subfolder of the configs that names are relative to, such as ``studies``.

    Raises:
        ConfigurationError: if there is no such config.

    Example:
        >>> find_config("ssvae/digits").name
        'digits.yaml'
        >>> find_config("ssvae/digit")
        Traceback (most recent call last):
            ...
        lit_sparse.errors.ConfigurationError: Expected a file or the name of a config but got 'ssvae/digit'. Did you mean \
'ssvae/digits'? `lit-sparse configs` lists the names.
    """
    for path in _candidates(Path(name), folder, kind):
        if os.path.exists(path) and not path.is_dir():  # noqa: PTH110  (it takes names that are too long; a pipe is read, too)
            return path
    raise ConfigurationError(_refusal(Path(name), folder, kind))


def _candidates(name: Path, folder: Path | None, kind: str) -> Iterator[Path]:
    """Yield the paths that a name may stand for; those in a folder of configs never lead out of it."""
    if folder is not None:
        yield from (folder / name, folder / f"{name}.yaml")
    for place in (FOLDER,) if folder is None else (HERE, FOLDER):
        for inside in (kind, "") if kind else ("",):
            for spelled in (_short(name), f"{_short(name)}.yaml"):
                path = Path(os.path.normpath(Path(inside) / spelled))
                if not path.is_absolute() and ".." not in path.parts:
                    yield place / path


def _short(name: Path) -> str:
    """Return a name without the folder of configs."""
    return str(name.relative_to(HERE) if name.is_relative_to(HERE) else name)


def _refusal(name: Path, folder: Path | None, kind: str) -> str:
    """Return the message for an unknown name, with a near file or config."""
    names = config_names(kind)
    parent = None if folder is None else (folder / name).parent
    files = [path.name for path in parent.glob("*.yaml")] if parent is not None and os.path.isdir(parent) else []  # noqa: PTH112
    near = did_you_mean(name.name, files) or did_you_mean(_short(name).removesuffix(".yaml"), names)
    listed = f" Choose from: {', '.join(names)}." if kind else " `lit-sparse configs` lists the names."
    expected = f"{'' if folder is None else 'a file or '}the name of a {'study' if kind else 'config'}"
    return f"Expected {expected} but got {str(name)!r}.{near}{listed}"


def check_empty(given: Any, options: Any) -> None:
    """Refuse a key whose value is ``{}`` and that the options lack: the parser drops it, whatever its name.

    Args:
        given: what a config holds.
        options: the parsed options.

    Raises:
        ConfigurationError: with the name of the key.
    """
    if isinstance(given, list) and isinstance(options, list):
        for one, other in zip(given, options, strict=False):
            check_empty(one, other)
    if not isinstance(given, dict) or not hasattr(options, "get"):
        return
    if str(given.get("class_path")).split(".")[-1] not in ("None", str(options.get("class_path")).split(".")[-1]):
        return  # another class has replaced it
    known = vars(options) if hasattr(options, "__dict__") else options
    for name, value in given.items():
        if value == {} and name not in ("init_args", "dict_kwargs") and name not in options:
            raise ConfigurationError(f"There is no option {name!r}.{did_you_mean(str(name), known)} Correct or remove it.")
        check_empty(value, options.get(name))
