"""The command ``lit-sparse configs``: list, print and copy the package's configs."""

from __future__ import annotations

import argparse
import errno
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.commands import command_parser
from lit_sparse.ground.files import replaced
from lit_sparse.runs.config_files import FOLDER, HERE, config_names, find_config, first_line

__all__ = ["listed", "main", "parser"]


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``lit-sparse configs``."""
    found = command_parser(
        "configs",
        "List the package's configs, or print or copy one.",
        "Train with a config: lit-sparse fit -c NAME. A file configs/NAME.yaml in the current folder is used first.",
    )
    found.add_argument("name", nargs="?", help="config to print, such as ssvae/digits")
    found.add_argument("--copy", nargs="?", const="", metavar="PATH", help="write it to a file; configs/NAME.yaml by default")
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the command ``lit-sparse configs``: list all configs, or print or copy one.

    Raises:
        ConfigurationError: for an unknown name, or a target file that already exists.
    """
    options = parser().parse_args(list(arguments))
    if options.name is None:
        if options.copy is not None:
            raise ConfigurationError("Expected the name of a config with --copy but got none. `lit-sparse configs` lists them.")
        print("\n".join(listed()))
        return 0
    config = find_config(options.name, folder=None)
    if options.copy is None:
        print(config.read_text(encoding="utf-8"), end="")
        return 0
    copied = _copied(config, Path(options.copy) if options.copy else HERE / config.relative_to(FOLDER))
    study = config.parent == FOLDER / "studies"
    print(f"{copied}\nuse it with: lit-sparse {f'study {copied}' if study else f'fit -c {copied}'}")
    return 0


def listed() -> list[str]:
    """Return the lines of the list of configs: a heading for each folder, then its configs with their first lines."""
    lines = []
    names = config_names()
    width = max(map(len, names))
    for folder, members in groupby(sorted(names, key=lambda name: name.rpartition("/")), lambda name: name.rpartition("/")[0]):
        lines += [f"{folder}:", *(f"  {name:<{width}}  {first_line(FOLDER / f'{name}.yaml')}" for name in members), ""]
    return [*lines, "`lit-sparse configs NAME` prints one, and `--copy` writes it to a file to change."]


def _copied(config: Path, path: Path) -> Path:
    """Copy a config to a new file, and return its path."""
    if path.is_dir():
        path = path / config.name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() or path.is_symlink():
            raise FileExistsError(errno.EEXIST, "it exists")
        with replaced(path, "w") as file:
            file.write(config.read_text(encoding="utf-8"))
    except OSError as error:
        why = "it exists" if path.exists() else f"got: {error.strerror}"
        raise ConfigurationError(
            f"Expected to write the new file {str(path)!r} but {why}. Give another path with --copy PATH."
        ) from error
    return path
