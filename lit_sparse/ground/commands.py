"""The argument parser that the commands without Lightning's options have in common."""

from __future__ import annotations

from argparse import ArgumentParser

__all__ = ["command_parser"]


def command_parser(command: str, description: str, epilog: str | None = None) -> ArgumentParser:
    """Return the argument parser of a command that runs no model, without its options."""
    return ArgumentParser(prog=f"lit-sparse {command}", description=description, epilog=epilog, allow_abbrev=False)
