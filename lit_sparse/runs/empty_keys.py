"""Refuses keys that a parser would drop."""

from __future__ import annotations

from typing import Any

from lit_sparse.errors import ConfigurationError, did_you_mean

__all__ = ["check_empty"]


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
