"""Figures, and the text in them: names and tokens with any characters."""

from __future__ import annotations

import unicodedata
from itertools import islice
from typing import Any

__all__ = ["literal", "new_figure"]


def literal(text: str, longest: int = 40) -> str:
    r"""Return a text in a form that matplotlib draws literally, on one line.

    Dollar signs, which would start a formula, control characters and line breaks are escaped, characters without a glyph in
    matplotlib's ``font.family`` are replaced, and a long text is truncated.

    Args:
        text: a name or token.
        longest: number of characters that are shown.

    Example:
        >>> print(literal("a\nb\x00"), literal("$x$"), literal("Donaudampfschifffahrt", 8))
        a\nb\x00 \$x\$ Donauda…
    """
    # Control characters, lone surrogates, unassigned code points (invalid in XML), line and paragraph separators.
    escaped = (
        letter.encode("unicode_escape").decode() if unicodedata.category(letter) in ("Cc", "Cs", "Cn", "Zl", "Zp") else letter
        for letter in text
    )
    shown = "".join(islice(escaped, longest + 1))
    if len(shown) > longest:
        shown = f"{shown[: longest - 1]}…"
    known = {letter for letter in {*shown, "\ufffd", "?"} if _has_glyph(letter)}
    other = next((letter for letter in "\ufffd?" if letter in known), "")
    return "".join(letter if letter in known else other for letter in shown).replace("$", r"\$")


def new_figure(rows: int, columns: int, width: float, height: float, constrained: bool = False) -> tuple[Any, list[Any]]:
    """Return a matplotlib figure and its axes, created without pyplot or a display.

    With ``constrained``, the layout leaves space for labels.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained" if constrained else None)
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _has_glyph(letter: str) -> bool:
    """Return whether one of matplotlib's configured fonts has a glyph for a character."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    paths = []
    for family in FontProperties().get_family():
        try:
            paths.append(findfont(FontProperties(family=family), fallback_to_default=False))
        except ValueError:  # not installed: matplotlib tries the next
            continue
    return any(get_font(path).get_char_index(ord(letter)) for path in paths or [findfont(FontProperties())])
