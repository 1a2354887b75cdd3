"""Splits the words of a command, and reads their YAML, with unique keys and errors with file and line."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml
from jsonargparse import get_loader, set_loader
from typing_extensions import Self

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.stored import is_file, open_plain
from lit_sparse.ground.yaml_loaders import Loader, SecondKeyError, written_out
from lit_sparse.lightning.choice import NAME, OTHER, chosen_path
from lit_sparse.runs.config_files import find_config

__all__ = ["ENDINGS", "MODE", "Given", "in_model", "load_yaml", "read_config", "unreadable"]

#: Most values of a config, aliases written out: some nested aliases stand for billions, which would not end.
MOST_VALUES = 300_000
#: Endings of the names of YAML files.
ENDINGS = (".yaml", ".yml", ".json")
#: Signs without which a text is no list and no dict.
NESTED = "{[:-\n"
#: Name of the parser mode that loads values by :func:`_load`. The mode "yaml" stays unchanged for the user's own parsers.
MODE = "lit_sparse_yaml"
#: A name that is short for two classes, of which Lightning's has a ``monitor``; torch's class cannot be used without it.
FULL_NAMES = {"ReduceLROnPlateau": f"{NAME}.cli.ReduceLROnPlateau"}

#: Options of Lightning's command line that are arguments of the model here.
OF_MODEL = ("optimizer", "lr_scheduler")
OF_MODEL_OPTION = re.compile(rf"^--(?=(?:{'|'.join(OF_MODEL)})(?:[.=]|$))")

#: Text without spaces, quotes and signs of YAML.
WORD = re.compile(r"""[^\s"'{}\[\],=\\]+""")
#: The loader of jsonargparse, without its checks.
load_yaml = get_loader("yaml")


def read_config(path: str | Path) -> str:
    """Return the text of a config file after a check.

    Args:
        path: path of the file.

    Raises:
        ConfigurationError: if the file is unreadable, not UTF-8, not YAML, or has a key twice.
    """
    name = repr(str(path))
    try:
        with open_plain(path) if Path(path).is_file() else Path(path).open("rb") as file:  # a pipe is read, too
            text = file.read().decode("utf-8-sig")
        content = _loaded(text, name)
    except OSError as error:
        raise ConfigurationError(
            f"Expected to read the config {name} but got: {error.strerror}. Check the path and its permissions."
        ) from error
    except ConfigurationError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # the latter of bytes, of an impossible date, of thousands of digits
        raise ConfigurationError(unreadable(error, name)) from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"Expected lines of `key: value` but got none in {name}. Check the path, or add the keys.")
    trainer = content.get("trainer")
    if isinstance(trainer, list | int | float):  # the parser would take it for no options
        raise ConfigurationError(f"Expected options of the trainer but got {trainer!r} in {name}. Write them as `key: value`.")
    return text


def unreadable(error: yaml.YAMLError | ValueError, name: str) -> str:
    """Return the message for a text that is not YAML in UTF-8, or has malformed values."""
    if isinstance(error, UnicodeDecodeError):
        byte = hex(error.object[error.start])
        return (
            f"Expected a config in UTF-8 but got byte {byte} at position {error.start} of {name}. Save the file as UTF-8, or"
            " check the path."
        )
    if not isinstance(error, yaml.MarkedYAMLError):
        return f"Expected YAML but got, in {name}: {' '.join(str(error).split())}. Check the path."
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1} of " if mark else ""
    return f"Expected YAML but got, in {where}{name}: {error.problem}. Correct the line."


def _loaded(text: str, name: str) -> Any:
    """Load YAML, with full names of classes.

    Raises:
        ConfigurationError: if a mapping has a key twice, a value contains itself, or aliases stand for too many values.
    """
    try:
        if written_out(yaml.compose(text, Loader)) > MOST_VALUES:
            raise ConfigurationError(
                f"Expected at most {MOST_VALUES:,} values, with aliases expanded, but got more in {name}. Write fewer aliases."
            )
        return _with_full_names(load_yaml(text))
    except SecondKeyError as error:
        raise ConfigurationError(
            f"Expected each key once but got {error.key!r} in line {error.first + 1} and in line {error.second + 1} of {name}."
            " Remove one of the two."
        ) from error
    except RecursionError as error:
        raise ConfigurationError(
            f"Expected finite values but got one that contains itself through an alias, or is nested too deeply, in {name}."
            " Write the value instead of the alias."
        ) from error


def in_model(content: Any) -> Any:
    """Return a config whose optimizer and scheduler are arguments of its model, even if they stood at its top level.

    Raises:
        ConfigurationError: if one of them stands at both places.

    Example:
        >>> in_model({"optimizer": "AdamW", "data": "DigitsDataModule"})
        {'data': 'DigitsDataModule', 'model': {'init_args': {'optimizer': 'AdamW'}}}
    """
    own = {name: content[name] for name in OF_MODEL if name in content} if isinstance(content, dict) else {}
    if not own:
        return content
    rest = {name: value for name, value in content.items() if name not in own}
    model = rest.get("model")
    model = {"class_path": model} if isinstance(model, str) else dict(model or {})
    arguments = model.get("init_args") or {}
    if twice := [name for name in own if name in arguments]:
        raise ConfigurationError(f"Expected one `{twice[0]}` but got another one in `model.init_args`. Remove one of them.")
    return {**rest, "model": {**model, "init_args": {**arguments, **own}}}


def _load(text: str) -> Any:
    """Load a value of the command line or of a config; one without a sign of a list or a dict has no keys to check."""
    return _loaded(text, "a value") if any(sign in text for sign in NESTED) else _with_full_names(load_yaml(text))


def _with_full_names(value: Any) -> Any:
    """Replace short class names that belong to two classes, and names of classes of the other Lightning."""
    if isinstance(value, dict):
        return {key: _with_full_names(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_full_names(entry) for entry in value]
    if isinstance(value, str) and (value in FULL_NAMES or value.startswith(f"{OTHER}.")):
        return FULL_NAMES.get(value, chosen_path(value))
    return value


def with_full_name(arg: str) -> str:
    """Return a command-line argument with full names of options and classes in place of ambiguous short ones.

    Example:
        >>> arg = with_full_name("--lr_scheduler=ReduceLROnPlateau")
        >>> arg.removesuffix(".cli.ReduceLROnPlateau")
        '--model.lr_scheduler=pytorch_lightning'
    """
    option, sign, value = OF_MODEL_OPTION.sub("--model.", arg).rpartition("=")
    return f"{option}{sign}{_with_full_names(value)}"


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


set_loader(MODE, _load, (yaml.YAMLError,))
