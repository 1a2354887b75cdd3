"""Attention is drawn as it is: zeros grey, equal neighbours as one, tied weights under the same bullet."""

from __future__ import annotations

import io
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.text import Text

from lit_sparse.callbacks import draw_attention
from lit_sparse.callbacks.pictures.heat_maps import GREY, LARGEST, Attention, figure_of
from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import functional as F

SOURCE = ["the", "boy", "rides", "a", "small", "grey", "horse", "."]
NASTY = [
    "$x_1^{$",
    r"$\frac{a}{b}$",
    "_^",
    "100%",
    "#{}~&",
    "<b>&amp;",
    "--",
    "]]>",
    "",
    " ",
    "a\nb",
    "\x00",
    "\x1b",
    "\u2028",
    "שלום",
    "مرحبا",
    "中文",
    "पढ़ना",
    "😀",
    "👩\u200d👩\u200d👧",
    "\u200f",
    "e\u0301",
    "\ud800",
    "\uffff",
    "\ue000",
    "x" * 500,
]


def drawn(weights: Any, *, side: float = 3.0, **options: Any) -> dict[str, Any]:
    """Draw, and return what was drawn by name."""
    rows, columns = len(weights), len(weights[0]) if len(weights) else 0
    axis = Figure(figsize=(side, side)).subplots()
    draw_attention(axis, weights, [f"s{i}" for i in range(columns)], [f"t{i}" for i in range(rows)], **options)
    return {artist.get_gid(): artist for artist in axis.collections}


def boxes(collection: Any) -> set[tuple[int, int, int]]:
    """Return row, first column and the column behind the last of each run."""
    corners = [path.vertices for path in collection.get_paths()]
    return {(int(c[:, 1].min()), int(c[:, 0].min()), int(c[:, 0].max())) for c in corners}


def count(artists: dict[str, Any], name: str) -> int:
    return len(artists[name].get_paths()) if name in artists else 0


def test_zeros_are_grey_and_equal_neighbours_have_no_border() -> None:
    weights = [[0.0, 0.25, 0.25, 0.5, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0, 0.5, -0.0]]
    found = drawn(weights)
    assert boxes(found["zeros"]) == {(0, 0, 1), (0, 4, 6), (1, 1, 4), (1, 5, 6)}
    assert boxes(found["weights"]) == {(0, 1, 3), (0, 3, 4), (1, 0, 1), (1, 4, 5)}
    segments = {tuple(map(tuple, segment.tolist())) for segment in found["borders"].get_segments()}
    assert segments == {((x, y), (x, y + 1)) for y, x in ((0, 1), (0, 3), (0, 4), (1, 1), (1, 4), (1, 5))}
    assert count(found, "rows") == 1
    assert count(found, "crosses") == 0
    assert found["zeros"].get_facecolor().tolist() == [[float(GREY)] * 3 + [1.0]]
    assert not any(name.startswith("group") for name in found)


def test_only_zero_itself_is_grey_and_only_equal_is_equal() -> None:
    nearly = float(np.nextafter(np.float32(0.5), np.float32(1)))
    found = drawn(torch.tensor([[1e-45, 0.5, nearly, 0.0]]))
    assert boxes(found["zeros"]) == {(0, 3, 4)}
    assert boxes(found["weights"]) == {(0, 0, 1), (0, 1, 2), (0, 2, 3)}
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        found = drawn(torch.tensor([[0.3, 0.3, 0.4, 0.0]], dtype=dtype).requires_grad_())
        assert boxes(found["weights"]) == {(0, 0, 2), (0, 2, 3)}, dtype
    nearly = float(np.nextafter(0.5, 1))
    assert boxes(drawn(torch.tensor([[0.5, nearly]], dtype=torch.float64))["weights"]) == {(0, 0, 1), (0, 1, 2)}


def test_darker_is_nearer_to_the_largest_of_the_row() -> None:
    colours = drawn([[0.5, 0.3, 0.2], [0.02, 0.03, 0.95]])["weights"].get_facecolor()
    brightness = colours[:, :3].sum(1)
    assert brightness[0] < brightness[1] < brightness[2]
    assert brightness[5] < brightness[4] < brightness[3]
    assert brightness[0] == brightness[5]


def test_groups_that_are_not_to_be_seen() -> None:
    found = drawn([[0.25, 0.25, 0.5, 0.0, 0.0]], groups="none")
    assert boxes(found["weights"]) == {(0, 0, 1), (0, 1, 2), (0, 2, 3)}
    assert boxes(found["zeros"]) == {(0, 3, 5)}
    assert count(found, "borders") == 3


def shape_of(scatter: Any) -> bytes:
    path = scatter.get_paths()[0]
    return bytes(path.vertices.tobytes())


def test_tied_weights_have_one_kind_of_bullet_a_group() -> None:
    weights = [[0.1, 0.2, 0.1, 0.0, 0.2, 0.4, 0.0], [0.0, 0.4, 0.1, 0.4, 0.0, 0.0, 0.1], [0.3, 0.7, 0.0, 0.0, 0.0, 0.0, 0.0]]
    found = drawn(weights, groups="tied")
    places = {
        name: {(int(y), int(x)) for x, y in artist.get_offsets()} for name, artist in found.items() if name.startswith("group")
    }
    assert places == {"group_0": {(0, 0), (0, 2), (1, 1), (1, 3)}, "group_1": {(0, 1), (0, 4), (1, 2), (1, 6)}}
    assert np.all(found["group_0"].get_offsets() % 1 == 0.5), "in the middle of their cells"
    assert shape_of(found["group_0"]) != shape_of(found["group_1"])
    circle = MarkerStyle("o")
    assert shape_of(found["group_0"]) == circle.get_path().transformed(circle.get_transform()).vertices.tobytes()
    assert boxes(found["zeros"]) == boxes(drawn(weights)["zeros"])


def test_many_groups_of_a_row_are_told_apart() -> None:
    found = drawn([[float(1 + i % 16) for i in range(32)]], groups="tied")
    groups = [artist for name, artist in found.items() if name.startswith("group")]
    kinds = {(shape_of(artist), len(artist.get_facecolors()) > 0) for artist in groups}
    assert len(groups) == len(kinds) == 16
    assert all(len(artist.get_offsets()) == 2 for artist in groups)


def test_bullets_are_seen_on_dark_and_on_light() -> None:
    dark, light = (drawn([row], groups="tied")["group_0"].get_facecolors() for row in ([0.5, 0.5, 0.0], [0.02, 0.02, 0.96]))
    assert dark[:, :3].min() == 1
    assert light[:, :3].max() == 0


@given(st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.5]), min_size=6, max_size=6), min_size=1, max_size=4))
@settings(max_examples=30)
def test_what_is_drawn_is_what_a_loop_finds(rows: list[list[float]]) -> None:
    found = drawn(rows, groups="tied")
    runs: dict[str, set[tuple[int, int, int]]] = {"zeros": set(), "weights": set()}
    for y, row in enumerate(rows):
        x = 0
        for value, group in groupby(row):
            size = len(list(group))
            runs["weights" if value else "zeros"].add((y, x, x + size))
            x += size
    assert {name: boxes(found[name]) for name in runs} == runs
    assert count(found, "borders") == sum(map(len, runs.values())) - len(rows)
    marks = sum(len(artist.get_offsets()) for name, artist in found.items() if name.startswith("group"))
    assert marks == sum(value > 0 and row.count(value) > 1 for row in rows for value in row)


@pytest.mark.slow
def test_mappings_draw_what_they_promise() -> None:
    torch.manual_seed(0)
    scores = torch.randn(5, 12)
    dense, fused, tied = (
        drawn(weights, groups="tied") for weights in (F.softmax(scores), F.fusedmax(scores, 0.5), F.oscarmax(scores, 0.2))
    )
    assert (count(dense, "zeros"), count(dense, "weights"), count(dense, "borders")) == (0, 60, 55)
    assert "group_0" not in dense
    assert count(fused, "zeros") > 0
    assert any(stop - start > 1 for _, start, stop in boxes(fused["weights"]))
    assert "group_0" in tied


def test_what_is_no_weight_is_crossed_out() -> None:
    found = drawn([[float("nan"), float("nan"), 0.0], [-1.0, 0.5, float("inf")]], groups="tied")
    assert count(found, "crosses") == 2 * 4
    assert boxes(found["zeros"]) == {(0, 2, 3)}
    assert boxes(found["weights"]) == {(1, 1, 2)}
    assert "group_0" not in found


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1), (1, 40)])
def test_any_number_of_tokens(shape: tuple[int, int]) -> None:
    axis = Figure().subplots()
    draw_attention(axis, np.zeros(shape), ["a"] * shape[1], ["b"] * shape[0], groups="tied")
    found = {artist.get_gid(): artist for artist in axis.collections}
    assert len(boxes(found["zeros"])) == (shape[0] if shape[1] else 0)
    figure = figure_of(Attention(torch.zeros(shape), ["a"] * shape[1], ["b"] * shape[0]), "tied")
    figure.savefig(io.BytesIO())


def test_arguments_that_do_not_fit() -> None:
    axis = Figure().subplots()
    with pytest.raises(ConfigurationError, match=r"`weights` to have shape \(1, 2\).* but got \(2, 1\)"):
        draw_attention(axis, torch.zeros(2, 1), ["a", "b"], ["c"])
    with pytest.raises(ConfigurationError, match="`groups` to be one of"):
        draw_attention(axis, torch.zeros(1, 1), ["a"], ["c"], groups="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_any_token_is_drawn_without_a_warning(ending: str) -> None:
    size = len(NASTY)
    figure = Figure()
    draw_attention(figure.subplots(), torch.eye(size), NASTY, NASTY[::-1])
    axis = figure.axes[0]
    labels = [*axis.get_xticklabels(), *axis.get_yticklabels()]
    assert not any(is_math_text(label.get_text()) or label.get_usetex() for label in labels)
    shown = [label.get_text() for label in axis.get_xticklabels()]
    assert shown[0] == r"\$x_1^{\$"
    assert shown[NASTY.index("a\nb")] == r"a\nb"
    assert shown[NASTY.index("\x00")] == r"\x00"
    assert shown[NASTY.index("שלום")] == "שלום"
    assert len(shown[-1]) < 30
    file = io.BytesIO()
    figure.savefig(file, format=ending)
    if ending == "svg":
        ElementTree.fromstring(file.getvalue())
        assert b"<image" not in file.getvalue(), "no pixels"


def test_what_the_users_fonts_lack_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computer Modern has neither Cyrillic letters nor a sign for what it lacks."""
    import matplotlib
    from matplotlib import font_manager

    monkeypatch.setattr(font_manager.fontManager, "ttflist", [*font_manager.fontManager.ttflist])
    font_manager.fontManager.addfont(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "cmtt10.ttf")
    with matplotlib.rc_context({"font.family": ["no such font", "cmtt10"]}):
        figure = Figure()
        draw_attention(figure.subplots(), torch.eye(2), ["жa", "a"], ["ש", "b"])
        assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["?a", "a"]
        figure.savefig(io.BytesIO())


@pytest.mark.gate
def test_long_sentences_get_wide_figures_whose_text_can_be_read() -> None:
    sizes = []
    for length in (5, 40, 400):
        tokens = [f"token{i}" for i in range(length)]
        figure = figure_of(Attention(torch.eye(5, length), tokens, ["a rather long token"] * 5, "a title " * 50), "neighbours")
        sizes.append(figure.get_tightbbox(figure.canvas.get_renderer()).width)
        labels = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
        assert {text.get_fontsize() for text in labels} == {9.0}
        axis = figure.axes[0]
        assert len(axis.get_xticks()) == (length if length < 400 else 200), "as many tokens as there is room for"
        assert axis.get_xlabel() == "source"
        assert "grey: 0" in axis.child_axes[0].get_ylabel()
    assert sizes[0] < sizes[1] < sizes[2] < LARGEST + 5


def test_heads_are_panels_of_one_figure() -> None:
    weights = torch.softmax(torch.randn(5, 3, 8), -1)
    figure = figure_of(Attention(weights, SOURCE, ["a", "b", "c"], "five heads"), "neighbours")
    panels = [axis for axis in figure.axes if axis.get_title()]
    assert [axis.get_title() for axis in panels] == [f"head {number}" for number in range(1, 6)]
    assert all(len(axis.get_xticks()) == 8 for axis in panels)
    places = [axis.get_position() for axis in panels]
    apart = all(a.x1 < b.x0 or b.x1 < a.x0 or a.y1 < b.y0 or b.y1 < a.y0 for i, a in enumerate(places) for b in places[:i])
    assert apart, "panels do not overlap"
    assert panels[0].texts[0].get_text() == "five heads"
