"""The command ``lit-sparse completion``: the script with which a shell completes commands, options, configs and parts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

from lit_sparse.cli import COMMANDS, MODULES
from lit_sparse.cli.app import LitSparseCLI
from lit_sparse.cli.show_parts import KINDS, described
from lit_sparse.errors import MissingExtraError
from lit_sparse.ground.commands import command_parser
from lit_sparse.runs.config_files import config_names

__all__ = ["main", "parser"]

#: Shell -> function that completes the name of a config, or a file.
CONFIGS = {
    "bash": "_lit_sparse_configs() {{\n  local IFS=$' \\n'\n  compgen -W '{0}' -- \"$1\"\n  compgen -f -- \"$1\"\n}}",
    "zsh": "_lit_sparse_configs() {{ _alternative 'configs:config:({0})' 'files:file:_files' }}",
}


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``lit-sparse completion``."""
    found = command_parser("completion", "Print the script with which a shell completes the command line.")
    found.add_argument("shell", choices=list(CONFIGS))
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the command ``lit-sparse completion``: print the completion script of a shell.

    Raises:
        MissingExtraError: without shtab.
    """
    shell = parser().parse_args(list(arguments)).shell
    try:
        import shtab
    except ImportError as error:
        raise MissingExtraError("Scripts for shells", "completion") from error
    print(shtab.complete(_everything(), shell, preamble={shell: CONFIGS[shell].format(" ".join(config_names()))}))  # type: ignore[arg-type]
    return 0


def _everything() -> argparse.ArgumentParser:
    """Return one parser with all commands and their options."""
    root = argparse.ArgumentParser(prog="lit-sparse")
    root.add_argument("--version", action="version")
    commands = root.add_subparsers()
    parts = {option.split()[0]: list(described(room, base)) for option, room, base in KINDS.values() if room}
    for name, what in COMMANDS.items():
        own = name in MODULES
        options = import_module(MODULES[name]).parser() if own else LitSparseCLI.parser_of([name])
        command = commands.add_parser(name, help=what, parents=[options], add_help=False)
        if not own:
            for option, names in parts.items():
                if option not in command._option_string_actions:
                    command.add_argument(option, choices=names)
        for action in command._actions:
            _complete(action, name, parts)
    return root


def _complete(action: argparse.Action, command: str, parts: dict[str, list[str]]) -> None:
    """Set what completes the value of an option."""
    names = [names for option in action.option_strings if (names := parts.get(option))]
    if command == "list" and action.dest == "kind":
        names = [list(KINDS)]
    if command == "study" and action.dest == "study":
        names = [config_names("studies")]
    if names:
        action.choices = names[0]
    if action.dest == "config" or (command == "configs" and action.dest == "name"):
        action.complete = dict.fromkeys(CONFIGS, "_lit_sparse_configs")  # type: ignore[attr-defined]
    elif action.metavar and str(action.metavar).startswith("{true"):
        action.choices = str(action.metavar).strip("{}").split(",")
