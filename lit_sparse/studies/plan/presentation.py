"""Tables, figures and comparisons of a study, as its file declares them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Column", "Compare", "Figure", "Panel", "Ranks", "Scalar", "Table"]

Scalar: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True)
class Column:
    """A column of a table: ``factor * value + offset`` of the rows of a cell.

    Attributes:
        value: name of a number in the rows: ``test/NAME``, ``SCORE/NAME``, or the last value of a logged ``train/NAME`` or
            ``val/NAME``. ``first``, ``sum``, ``min``, ``max``, ``count``, ``argmin`` and ``argmax`` (the epoch, from 1) of a
            logged value are written as in ``sum(train/decoder_calls_total)``.
        title: heading.
        factor: factor.
        offset: added to it.
        form: format of a number.
        show: how the seeds are summarized: ``mean`` (with the standard deviation), ``median``, ``min``, ``max``, ``range``
            (median, least to most), or ``above X``, the number of seeds above X.
        published: key of the published values in the study's file of such, a column for each cell.
        best: ``min`` or ``max`` if the best line is set in bold.
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
    """A table: a line for each cell, or one value over two keys of the rows.

    Attributes:
        title: heading.
        columns: names of columns; by default all.
        value: name of the column that is shown over ``lines`` and ``across``, for each value of ``by``.
        lines: key of the rows.
        across: key of the rows, or ``cell``.
        by: key of the rows.
        where: key of the rows -> values; other rows are left out.
        keys: keys of the rows that are shown in the line of a cell.
        least: column; each cell is shown at the point of its grid where the column's median over the seeds is least.
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
    """A panel of a figure: a column's value for each cell, against epochs or against a key of the rows.

    Attributes:
        value: name of a logged value, or of a number in the rows.
        label: label of the axis.
        x: ``epoch``, ``step``, ``cumulative NAME`` for the sum of a logged value up to an epoch, a key of the rows, or a
            number in the rows, whose median over the seeds of a cell is drawn.
        x_label: label of the horizontal axis; by default x.
        factor: factor of the value.
        offset: added to it.
        log: whether the axis of the value is logarithmic; ``x`` for the other axis, ``both`` for both.
        band: quantiles of the seeds between which an area is filled; two names of logged values draw theirs.
        limits: limits of the axis.
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
        """Name of the logged value whose sum is x, or an empty string."""
        return self.x.removeprefix("cumulative ") if self.x.startswith("cumulative ") else ""

    @property
    def band_keys(self) -> list[str]:
        """Names of the logged values that the band is between, or none for quantiles."""
        return [end for end in self.band if isinstance(end, str)]


@dataclass(frozen=True)
class Figure:
    """A figure of some panels next to each other, in a row for each value of ``by``.

    Attributes:
        panels: the panels.
        by: key of the rows.
        lines: key of the rows with a line for each value, by default the titles of the cells; None for one line.
        suffix: end of the file's name.
        where: key of the rows -> values; other rows are left out.
        least: column; each cell is drawn at the point of its grid where the column's median over the seeds is least.
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
    """A comparison of the cells by ranks.

    Attributes:
        column: column that is compared.
        trim: number of best and worst seeds of each cell that are left out.
        level: level of significance.
    """

    column: str
    trim: int = 4
    level: float = 0.05


@dataclass(frozen=True)
class Compare:
    """A comparison of each cell with the best one by a paired bootstrap.

    Attributes:
        column: column that is compared.
        samples: name of the scores of resampled test inputs.
    """

    column: str
    samples: str
