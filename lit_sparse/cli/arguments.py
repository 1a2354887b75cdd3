"""Splits the words of a command: configs and a checkpoint, which its options change, and the options."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml
from typing_extensions import Self

from lit_sparse.cli.configs import ENDINGS, load_yaml, read_config, with_full_name
from lit_sparse.config_files import find_config
from lit_sparse.errors import ConfigurationError

__all__ = ["Given"]


class Given(NamedTuple):
    """The words of a command, apart.

    Attributes:
        config: the first config, after which runs are named; None without one.
        configs: paths of configs, or contents in their place.
        contents: what the configs hold.
        options: the other options.
        checkpoint: path of a checkpoint, ``"last"`` or ``"best"``; None without one.
        trusted: names that a checkpoint may use.
    """

    config: str | None
    configs: list[str]
    contents: list[dict[str, Any]]
    options: list[str]
    checkpoint: str | None
    trusted: list[str]

    @classmethod
    def of(cls, words: list[str]) -> Self:
        """Split the words after the name of a command.

        Raises:
            ConfigurationError: for an unknown config, or one that cannot be read.
        """
        parser = _Parser(add_help=False, allow_abbrev=False)
        parser.add_argument("-c", "--config", action="append", default=[])
        parser.add_argument("--ckpt_path")
        parser.add_argument("--trust", action="append", default=[])
        found, options = parser.parse_known_args(words)
        paths, configs, contents, checkpoint = [], [], [], None
        names: list[Any] = []
        for value in found.config:
            content = None if value.endswith(ENDINGS) else _in_yaml(value)
            given = isinstance(content, dict)
            paths.append(value if given else str(find_config(value)))
            text = value if given else read_config(paths[-1])
            configs.append(text if given or not Path(paths[-1]).is_file() else paths[-1])  # a pipe can be read only once
            contents.append(content := load_yaml(text))
            checkpoint = content.get("ckpt_path", checkpoint)
            names.append(content.get("trust"))
        names += [_in_yaml(name) or name for name in found.trust]
        trusted = [str(name) for some in names if some for name in (some if isinstance(some, list) else [some])]
        options = [with_full_name(word) for word in options]
        return cls(
            next(iter(paths), None), configs, contents, options, found.ckpt_path or checkpoint, list(dict.fromkeys(trusted))
        )

    @property
    def words(self) -> list[str]:
        """The configs, and then the options, which override them wherever they stood."""
        return [*(word for path in self.configs for word in ("-c", path)), *self.options]

    @property
    def model_options(self) -> list[str]:
        """The options of the model."""
        found, chosen = [], False
        for word in self.options:
            if word.startswith("-"):
                name = word.partition("=")[0]
                chosen = name == "--model" or name.startswith("--model.")
            if chosen:
                found.append(word)
        return found

    @property
    def texts(self) -> set[str]:
        """All texts in the configs, in the options and in YAML that these hold or name."""
        values = [word.partition("=")[2] if word.startswith("--") else word for word in self.options]
        return {*_texts_in(self.contents), *_texts_in(values), *self.trusted}


class _Parser(argparse.ArgumentParser):
    """Parser whose errors are the package's."""

    def error(self, message: str) -> NoReturn:
        """Raise a ConfigurationError."""
        raise ConfigurationError(message)


def _texts_in(value: Any, seen: Collection[int] = ()) -> Iterator[str]:
    """Yield all texts in a value, also those in YAML that a text is or names."""
    if isinstance(value, str):
        yield value
        value = _in_yaml(value)
    if isinstance(value, dict | list) and id(value) not in seen:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(item, (*seen, id(value)))


def _in_yaml(text: str) -> Any:
    """Return the list or dict that a text is in YAML, or that is in the file that it names; else None."""
    try:
        if text.endswith(ENDINGS) and Path(text).is_file():
            text = read_config(text)
        found = load_yaml(text) if any(sign in text for sign in "{[:-\n") else None
    except (yaml.YAMLError, ValueError, OSError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None
