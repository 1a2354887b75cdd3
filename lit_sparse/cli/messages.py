"""Turns the parser's pages about unions and subclasses into one sentence that says what to change."""

from __future__ import annotations

from lit_sparse.errors import LitSparseError

__all__ = ["plain_message"]


def plain_message(message: str, error: BaseException | None = None) -> str:
    """Return the gist of a parser's message.

    Args:
        message: what the parser would have printed.
        error: the exception behind it.
    """
    for cause in _chain(error):
        if isinstance(cause, LitSparseError):
            return str(cause)
    return message
