"""Notes on arguments that are kept when an option or a later config replaces a class."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pydoc import locate
from typing import Any

from lit_sparse.ground.arguments import constructor_parameters

__all__ = ["kept_arguments"]

#: A class and its arguments, as in a config.
Described = Mapping[str, Any]


def kept_arguments(contents: Sequence[Described], options: Sequence[str], parsed: Described) -> list[str]:
    """Return a note for each class in a config that was replaced by another one, which keeps some of the config's arguments.

    Arguments that the options or a later config give, and defaults of the new class, are not named.

    Args:
        contents: what the configs hold, in their order.
        options: words of the command that override the configs.
        parsed: the config that they gave.

    Example:
        >>> config = {"model": {"class_path": "A", "init_args": {"lam": 1.0, "rho": 0.1}}}
        >>> kept_arguments([config], ["--model=B"], {"model": {"class_path": "b.B", "init_args": {"lam": 1.0, "mu": 2.0}}})
        ['model is B in place of A. It keeps lam=1.0 of the config, and drops rho.']
    """
    notes: dict[str, None] = {}
    for place, content in enumerate(contents):
        for path, before, now in _replaced(content, parsed, ()):
            later = [*(_at(one, path) for one in contents[place + 1 :])]
            given = before.get("init_args") or {}
            stated = {name for one in later for name in one.get("init_args") or {}}
            stated |= {name for name in given if any(re.search(rf"\b{re.escape(name)}\b", word) for word in options)}
            taken, defaults = now.get("init_args") or {}, _defaults(now)
            new = {name: taken[name] for name in given if name in taken and name not in stated}
            kept = [f"{name}={_short(value)}" for name, value in new.items() if name not in defaults or defaults[name] != value]
            dropped = [name for name in given if name not in taken]
            if kept:
                text = f"{'.'.join(path)} is {_name(now)} in place of {_name(before)}. It keeps {', '.join(kept)} of the config"
                notes[f"{text}, and drops {', '.join(dropped)}." if dropped else f"{text}."] = None
    return [*notes]


def _replaced(before: Any, now: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Described, Described]]:
    """Yield the place of each class of a config that is another class now, with both."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return
    if before.get("class_path") and now.get("class_path") and _name(before) != _name(now):
        yield path, before, now
    for key, value in before.items():
        if key in now:
            yield from _replaced(value, now[key], path if key == "init_args" else (*path, str(key)))


def _at(content: Any, path: tuple[str, ...]) -> Described:
    for key in path:
        if isinstance(content, Mapping) and key not in content:
            content = content.get("init_args")
        content = content.get(key) if isinstance(content, Mapping) else None
    return content if isinstance(content, Mapping) else {}


def _name(described: Described) -> str:
    return str(described["class_path"]).rpartition(".")[2]


def _defaults(described: Described) -> dict[str, Any]:
    """Return the defaults of a class, which the parser has imported."""
    found = locate(str(described["class_path"]))
    return {key: each.default for key, each in constructor_parameters(found).items()} if isinstance(found, type) else {}


def _short(value: Any) -> Any:
    return _name(value) if isinstance(value, Mapping) and "class_path" in value else value
