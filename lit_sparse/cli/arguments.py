"""Splits the words of a command: configs and a checkpoint, which its options change, and the options."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any, NamedTuple, NoReturn

import yaml
from typing_extensions import Self

from lit_sparse.cli.configs import ENDINGS, NESTED, in_model, load_yaml, read_config, with_full_name
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.stored import is_file
from lit_sparse.runs.config_files import find_config

__all__ = ["Given"]

#: Text without spaces, quotes and signs of YAML.
WORD = re.compile(r"""[^\s"'{}\[\],=\\]+""")


class Given(NamedTuple):
    """The arguments of a command, split into configs, options and a checkpoint.

    Attributes:
        config: the first config, which gives runs their name; None without one.
        configs: paths of configs, or their contents.
        contents: contents of the configs.
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
        """Return the arguments after the name of a command, split into configs, options and a checkpoint.

        Raises:
            ConfigurationError: for an unknown config, or one that cannot be read.
        """
        parser = _Parser(add_help=False, allow_abbrev=False)
        parser.add_argument("-c", "--config", action="append", default=[])
        parser.add_argument("--ckpt_path")
        parser.add_argument("--trust", action="append", default=[])
        found, options = parser.parse_known_args(words)
        configs, paths, contents = [], [], []
        for value in found.config:
            inline = not value.endswith(ENDINGS) and isinstance(_in_yaml(value), dict)
            paths.append(value if inline else str(find_config(value)))
            text = value if inline else read_config(paths[-1])
            configs.append(text if inline or not is_file(paths[-1]) else paths[-1])  # a pipe can be read only once
            contents.append(in_model(load_yaml(text)))
        stored = [content["ckpt_path"] for content in contents if isinstance(content.get("ckpt_path", 0), str | None)]
        checkpoint = next(reversed(stored), None)  # the parser refuses other types
        some = [*(content.get("trust") for content in contents), *(_in_yaml(name) or name for name in found.trust)]
        lists = [[names] if isinstance(names, str) else names for names in some if isinstance(names, str | list)]
        trusted = dict.fromkeys(str(name) for names in lists for name in names)
        return cls(
            next(iter(paths), None),
            configs,
            contents,
            [with_full_name(word) for word in options],
            checkpoint if found.ckpt_path is None else found.ckpt_path,
            [*trusted],
        )

    @property
    def words(self) -> list[str]:
        """The configs followed by the options, which override the configs wherever they stood."""
        return [*(word for path in self.configs for word in ("-c", path)), *self.options]

    @property
    def model_options(self) -> list[str]:
        """The options that set the model."""
        found, chosen = [], False
        for word in self.options:
            if word.startswith("-"):
                name = word.partition("=")[0]
                chosen = name == "--model" or name.startswith("--model.")
            if chosen:
                found.append(word)
        return found

    @property
    def names(self) -> set[str]:
        """Names that a checkpoint may use: those in the configs' models and the model's options, and modules of all configs."""
        files = [_in_yaml(word.rpartition("=")[2]) for word in self.model_options if word.endswith(ENDINGS)]
        models = [*(content.get("model") for content in self.contents), self.model_options, files]
        modules = {f"{word.rpartition('.')[0]}." for word in _words_in(self.contents)}
        return {*_words_in(models), *self.trusted, *modules}


class _Parser(argparse.ArgumentParser):
    """Parser whose errors are the package's."""

    def error(self, message: str) -> NoReturn:
        """Raise a ConfigurationError."""
        raise ConfigurationError(message)


def _words_in(values: list[Any]) -> list[str]:
    return WORD.findall(json.dumps(values, default=str, ensure_ascii=False).replace("\\n", " "))


def _in_yaml(text: str) -> Any:
    """Return the list or dict that a text is in YAML, or that is in the file that it names; else None."""
    try:
        if text.endswith(ENDINGS) and is_file(text):
            text = read_config(text)
        found = load_yaml(text) if any(sign in text for sign in NESTED) else None
    except (yaml.YAMLError, ValueError, OSError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None
