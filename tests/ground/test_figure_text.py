"""Names are drawn as they are, wherever a figure shows them."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from lit_sparse.ground.figure_text import literal
from lit_sparse.studies.pages.figures import draw_front
from lit_sparse.studies.pages.statistics import compare, critical_difference_diagram

FORMULA = r"$\frac$"


def test_formulas_and_backslashes_are_text() -> None:
    for name in (FORMULA, "$x$", r"\$", r"a\$b$c$", "$"):
        figure = Figure(figsize=(3, 1))
        shown = figure.text(0, 0, literal(name))
        plain = figure.text(0, 0.5, name, parse_math=False)
        assert shown.get_window_extent().width == plain.get_window_extent().width, name


def test_other_figures_of_names(tmp_path: Path) -> None:
    draw_front([[1.0, 2.0], [2.0, 1.0]], [True, True], [FORMULA, "y" * 3000], tmp_path / "front.png")
    figure = Figure()
    critical_difference_diagram(figure.subplots(), compare({FORMULA: [1.0, 2.0, 3.0], "$": [2.0, 3.0, 4.5]}))
    figure.savefig(tmp_path / "ranks.png")
