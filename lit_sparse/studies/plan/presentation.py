"""Tables, figures and comparisons of a study, as its file declares them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from lit_sparse.errors import ConfigurationError

__all__ = ["SUMMARY", "Column", "Compare", "Figure", "Panel", "Ranks", "Scalar", "Table", "check_value"]

Scalar: TypeAlias = str | int | float | bool | None
#: ``sum(train/NAME)`` and its like.
SUMMARY = re.compile(r"(first|last|sum|min|max|count|argmax|argmin)\((.+)\)")


def check_value(name: str, value: str) -> None:
    """Check that a text is the name of a logged value, or a summary such as ``max(val/accuracy)``.

    Raises:
        ConfigurationError: if it is empty, or begins like a summary and is none.
    """
    if not value.strip() or (re.match(r"[a-z]+\(", value) and not SUMMARY.fullmatch(value)):
        raise ConfigurationError(f"Expected {name} to be a name, or a summary such as max(val/accuracy), but got {value!r}.")


@dataclass(frozen=True)
class Column:
    """Column of a results table, ``factor * value + offset``, summarized over the seeds of a cell.

    Attributes:
        value: name of a number in the rows: ``test/NAME``, ``SCORE/NAME``, or the last value of a logged ``train/NAME`` or
            ``val/NAME``. ``first``, ``sum``, ``min``, ``max``, ``count``, ``argmin`` and ``argmax`` (the epoch, from 1) of
            a logged value are written as in ``sum(train/decoder_calls_total)``.
        title: header of the column.
        factor: factor of the value.
        offset: number added to the scaled value.
        form: format string of a number.
        show: how the seeds are summarized: ``mean`` (with the standard deviation), ``median``, ``min``, ``max``, ``range``
            (median, least to most), or ``above X``, the number of seeds above X.
        published: key of the column's published values in the study's CSV file of published values.
        best: ``min`` or ``max`` to set the best line in bold.
    """

    value: str
    title: str = ""
    factor: float = 1.0
    offset: float = 0.0
    form: str = ".2f"
    show: str = "mean"
    published: str | None = None
    best: str | None = None


@dataclass(frozen=True)
class Table:
    """Table of results with one line per cell, or a pivot table of one value over two keys of the rows.

    Attributes:
        title: heading of the table.
        columns: names of the columns to show; by default all.
        value: for a pivot table, name of the column shown over ``lines`` and ``across``, in one table per value of ``by``.
        lines: key of the rows with a line for each value.
        across: key of the rows with a column for each value, or ``cell``.
        by: key of the rows with a table for each value.
        where: key of the rows -> values to include; other rows are left out.
        keys: keys of the rows that are shown as columns.
        least: name of a column; each cell is shown at the point of its grid where the column's median over the seeds is
            smallest.
    """

    title: str = ""
    columns: list[str] | None = None
    keys: list[str] = field(default_factory=list)
    least: str | None = None
    value: list[str] = field(default_factory=list)
    lines: str | None = None
    across: str = "cell"
    by: str | None = None
    where: dict[str, list[Scalar]] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """Panel of a figure: a value for each cell, against epochs or against a key of the rows.

    Attributes:
        value: name of a logged value, or of a number in the rows.
        label: label of the vertical axis.
        x: horizontal axis: ``epoch``, ``step``, ``cumulative NAME`` for the sum of a logged value up to an epoch, a key of
            the rows, or a number in the rows, whose median over the seeds of a cell is drawn.
        x_label: label of the horizontal axis; by default x.
        factor: factor of the value.
        offset: number added to the scaled value.
        log: whether the vertical axis is logarithmic; ``x`` for the horizontal axis, ``both`` for both.
        band: two quantiles over the seeds, or names of two logged values, between which the area is filled.
        limits: limits of the vertical axis.
    """

    value: str
    label: str = ""
    x: str = "epoch"
    x_label: str = ""
    factor: float = 1.0
    offset: float = 0.0
    log: bool | str = False
    band: list[float | str] = field(default_factory=lambda: [0.0, 1.0])
    limits: list[float | None] | None = None

    @property
    def cumulative(self) -> str:
        """Name of the logged value whose cumulative sum is the horizontal axis, or an empty string."""
        return self.x.removeprefix("cumulative ") if self.x.startswith("cumulative ") else ""

    @property
    def band_keys(self) -> list[str]:
        """Names of the two logged values between which the band is drawn; none if it is drawn between quantiles."""
        return [end for end in self.band if isinstance(end, str)]


@dataclass(frozen=True)
class Figure:
    """Figure with panels side by side, in a row for each value of ``by``.

    Attributes:
        panels: the panels.
        by: key of the rows with a row of panels for each value.
        lines: key of the rows with a line for each value, by default the titles of the cells; None for one line.
        suffix: suffix of the file's name.
        where: key of the rows -> values to include; other rows are left out.
        least: name of a column; each cell is drawn at the point of its grid where the column's median over the seeds is
            smallest.
        alt: description of the figure for screen readers.
    """

    panels: list[Panel]
    by: str | None = None
    lines: str | None = "title"
    suffix: str = ""
    where: dict[str, list[Scalar]] = field(default_factory=dict)
    least: str | None = None
    alt: str = ""


@dataclass(frozen=True)
class Ranks:
    """Comparison of a study's cells by ranks over the seeds.

    Attributes:
        column: name of the compared column, whose smallest value has the first rank, or its largest with ``best: max``.
        trim: number of best and worst seeds of each cell that are left out.
        level: significance level.
    """

    column: str
    trim: int = 4
    level: float = 0.05


@dataclass(frozen=True)
class Compare:
    """Comparison of each cell with the best one by a paired bootstrap.

    Attributes:
        column: name of the compared column.
        samples: name of the scores of resampled test inputs.
    """

    column: str
    samples: str
