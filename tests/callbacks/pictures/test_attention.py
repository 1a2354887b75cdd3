"""Attention is drawn as it is: zeros grey, equal neighbours as one, tied weights under the same bullet."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.markers import MarkerStyle
from pytorch_lightning.loggers import TensorBoardLogger
from torch import Tensor

from lit_sparse.callbacks import AttentionPlot, draw_attention
from lit_sparse.callbacks.pictures.attention import _place_in_line
from lit_sparse.callbacks.pictures.heat_maps import GREY, LARGEST, Attention, figure_of
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.mappings import Fusedmax, Oscarmax, SparseMapping
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
@settings(max_examples=30, deadline=None)
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
    assert not any(label.get_parse_math() or label.get_usetex() for label in labels)
    shown = [label.get_text() for label in axis.get_xticklabels()]
    assert shown[0] == "$x_1^{$"
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


def test_long_sentences_get_wide_figures_that_hold_their_tokens() -> None:
    sizes = []
    for length in (5, 40, 400):
        tokens = [f"token{i}" for i in range(length)]
        figure = figure_of(Attention(torch.eye(5, length), tokens, ["a rather long token"] * 5, "a title " * 50), "neighbours")
        box = figure.get_tightbbox(figure.canvas.get_renderer())
        width, height = figure.get_size_inches()
        assert -0.01 <= box.x0 < box.x1 <= width + 0.01
        assert -0.01 <= box.y0 < box.y1 <= height + 0.01
        sizes.append(width)
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


def sentence(index: int, heads: int = 0) -> Attention:
    """An example that is a function of its index: attention of a sentence of some length over another."""
    generator = torch.Generator().manual_seed(index)
    source = [f"{index}s{i}" for i in range(2 + index % 5)]
    output = [f"{index}t{i}" for i in range(1 + index % 3)]
    shape = (*([heads] if heads else []), len(output), len(source))
    return Attention(F.sparsemax(torch.randn(shape, generator=generator)), source, output, f"example {index}")


def artifacts(indices: list[int], heads: int = 0) -> dict[str, Any]:
    """A padded batch of examples."""
    found = [sentence(index, heads) for index in indices]
    high, wide = max(len(one.output) for one in found), max(len(one.source) for one in found)
    padded = [torch.nn.functional.pad(one.weights, (0, wide - len(one.source), 0, high - len(one.output))) for one in found]
    return {
        "attention": torch.stack(padded),
        "source_tokens": [one.source for one in found],
        "output_tokens": [one.output for one in found],
        "index": torch.tensor(indices),
        "title": [one.title for one in found],
    }


class Batches:
    """What Lightning takes for one loader; it takes a list for several."""

    def __init__(self, indices: Tensor, size: int) -> None:
        self.batches = indices.split(size)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.batches)


class Reader(pl.LightningModule):
    """Pays attention without learning anything; every process takes every n-th example."""

    def __init__(self, examples: int = 23, batch_size: int = 4, heads: int = 0, attends: bool = True) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.examples, self.batch_size, self.heads, self.attends = examples, batch_size, heads, attends

    def _loader(self, examples: int) -> Batches:
        rank, world = self.trainer.global_rank, self.trainer.world_size
        return Batches(torch.arange(rank, examples, world), self.batch_size)

    def train_dataloader(self) -> Batches:
        return self._loader(4)

    def val_dataloader(self) -> Batches:
        return self._loader(self.examples)

    test_dataloader = val_dataloader

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.weight.square()

    def validation_step(self, batch: Tensor, batch_idx: int) -> dict[str, Any]:
        shift = 100 * self.current_epoch if self.trainer.state.fn == "fit" else 0
        return {"artifacts": artifacts((batch + shift).tolist(), self.heads) if self.attends else {}}

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(*callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="cpu", callbacks=list(callbacks), **{"logger": False, **quiet, **options})


def pictures(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "pictures" / "attention").iterdir()}


def test_pictures_of_a_test_do_not_depend_on_batches(tmp_path: Path) -> None:
    found = []
    for size in (1, 4, 23):
        folder = tmp_path / str(size)
        trainer(AttentionPlot(3, folder=str(folder))).test(Reader(batch_size=size), verbose=False)
        found.append(pictures(folder))
    assert found[0] == found[1] == found[2]
    chosen = sorted(range(23), key=_place_in_line)[:3]
    assert set(found[0]) == {f"{index}.{ending}" for index in chosen for ending in ("png", "svg")}
    assert float(imread(tmp_path / "1" / "pictures" / "attention" / f"{chosen[0]}.png")[..., :3].std()) > 0.01
    for name, data in found[0].items():
        if name.endswith("svg"):
            ElementTree.fromstring(data)


def test_the_choice_is_spread_and_fair() -> None:
    """What is chosen of more examples holds no more of the first ones than chance gives."""
    chosen = sorted(range(10_000), key=_place_in_line)[:400]
    assert 4000 < np.mean(chosen) < 6000
    assert len({index % 10 for index in chosen}) == 10


def test_named_examples_of_the_last_epoch_are_drawn_at_the_end_of_training(tmp_path: Path) -> None:
    seen: list[bool] = []

    class Watch(pl.Callback):
        def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            seen.append((tmp_path / "pictures").exists())

    plot = AttentionPlot([7, 102, 0], formats=("svg",), folder=str(tmp_path))
    with pytest.warns(UserWarning, match=r"found no example of index 7, 0; it drew \[102\]"):
        trainer(plot, Watch(), max_epochs=2).fit(Reader())
    assert set(pictures(tmp_path)) == {"102.svg"}
    assert seen == [False] * 3, "nothing is drawn after a sanity check or within training"


def test_a_sanity_check_is_ignored(tmp_path: Path) -> None:
    class Interrupt(pl.Callback):
        def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            trainer.limit_val_batches = 0

    trainer(plot := AttentionPlot(2, folder=str(tmp_path)), Interrupt(), max_epochs=1, limit_val_batches=1).fit(Reader())
    assert plot._kept == {}
    checking = SimpleNamespace(sanity_checking=True)
    plot.on_validation_batch_end(checking, None, {"artifacts": artifacts([1])}, None, 0)  # type: ignore[arg-type]
    assert plot._kept == {}


def test_models_without_attention_are_left_alone(tmp_path: Path) -> None:
    trainer(AttentionPlot([3], folder=str(tmp_path))).test(Reader(attends=False), verbose=False)
    plot = AttentionPlot(folder=str(tmp_path))
    for outputs in (None, torch.zeros(()), {}, {"artifacts": {"images": torch.zeros(1, 4)}}):
        plot.on_test_batch_end(None, None, outputs, None, 0)  # type: ignore[arg-type]
    assert plot._kept == {}
    assert list(tmp_path.iterdir()) == []


def test_only_chosen_examples_are_kept_and_no_batch_with_them() -> None:
    plot = AttentionPlot(2)
    batch = artifacts(list(range(50)))
    for start in range(0, 500, 50):
        plot.on_test_batch_end(None, None, {"artifacts": {**batch, "index": batch["index"] + start}}, None, 0)  # type: ignore[arg-type]
        assert len(plot._kept) == 2
    for example in plot._kept.values():
        assert example.weights.untyped_storage().nbytes() == 4 * len(example.source) * len(example.output)
    assert set(plot._kept) == set(sorted(range(500), key=_place_in_line)[:2])


def test_several_loaders_and_repeated_examples() -> None:
    """An index stands for one example: that of the first loader, and the first time it is seen."""
    plot = AttentionPlot([1])
    plot.on_test_batch_end(None, None, {"artifacts": artifacts([1])}, None, 0, 1)  # type: ignore[arg-type]
    assert plot._kept == {}
    plot.on_test_batch_end(None, None, {"artifacts": artifacts([1])}, None, 0, 0)  # type: ignore[arg-type]
    kept = plot._kept[1]
    plot.on_test_batch_end(None, None, {"artifacts": artifacts([1])}, None, 1, 0)  # type: ignore[arg-type]
    assert plot._kept[1] is kept


@pytest.mark.parametrize(
    ("mapping", "groups", "marked"),
    [
        (Oscarmax(), None, True),
        (Fusedmax(), None, False),
        (Oscarmax(), "none", False),
        (None, None, False),
        (None, "tied", True),
    ],
)
def test_groups_are_those_of_the_mapping(tmp_path: Path, mapping: SparseMapping | None, groups: Any, marked: bool) -> None:
    module = Reader()
    if mapping is not None:
        module.mapping = mapping
    plot = AttentionPlot([2], groups, ("svg",), str(tmp_path))
    batch = artifacts([2])
    batch["attention"] = torch.full_like(batch["attention"], 0.1)
    plot.on_test_batch_end(None, module, {"artifacts": batch}, None, 0)  # type: ignore[arg-type]
    plot.on_test_end(trainer(), module)
    assert ('id="group_0"' in pictures(tmp_path)["2.svg"].decode()) == marked


def test_tokens_without_weights_are_an_error() -> None:
    batch = artifacts([4])
    batch["source_tokens"][0].append("more")
    with pytest.raises(DataError, match=r"2 output tokens and 7 source tokens.* but got \(2, 6\)"):
        AttentionPlot(1).on_test_batch_end(None, None, {"artifacts": batch}, None, 0)  # type: ignore[arg-type]


def test_heads_and_tensorboard(tmp_path: Path) -> None:
    logger = TensorBoardLogger(str(tmp_path), name="", version="")
    trainer(AttentionPlot([2, 5], "tied"), logger=logger).test(Reader(heads=3), verbose=False)
    assert set(pictures(tmp_path)) == {f"{index}.{ending}" for index in (2, 5) for ending in ("png", "svg")}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger.finalize("success")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["images"]) == {"attention/2", "attention/5"}


@pytest.mark.process
def test_two_processes_draw_what_one_does(tmp_path: Path) -> None:
    """The chosen examples come together on the first process; the odd one out has one batch more than the other."""
    for name, options in (("one", {}), ("two", {"strategy": "ddp_spawn", "devices": 2})):
        random = AttentionPlot(5, folder=str(tmp_path / name))
        named = AttentionPlot([3, 4], formats=("svg",), folder=str(tmp_path / f"{name} named"))
        run = trainer(random, named, use_distributed_sampler=False, **options)
        run.test(Reader(examples=21, batch_size=5), verbose=False)
    one, two = (pictures(tmp_path / name) for name in ("one", "two"))
    chosen = sorted(range(21), key=_place_in_line)[:5]
    assert {index % 2 for index in chosen} == {0, 1}, "both processes hold some"
    assert set(one) == {f"{index}.{ending}" for index in chosen for ending in ("png", "svg")}
    assert one == two
    assert pictures(tmp_path / "one named") == pictures(tmp_path / "two named")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"examples": 0}, "`examples` to be an integer of at least 1 but got 0"),
        ({"examples": True}, "`examples` to be an integer of at least 1 but got True"),
        ({"examples": "4"}, "`examples`"),
        ({"examples": []}, r"list of different indices such as \[0, 7, 12\], but got \[\]"),
        ({"examples": [1, 1]}, "list of different indices"),
        ({"examples": [-1]}, "list of different indices"),
        ({"groups": "all"}, "`groups` to be one of"),
        ({"formats": ("jpg",)}, "`formats` to be one of"),
        ({"formats": "png"}, "`formats` to be one or several of"),
        ({"formats": ()}, "`formats` to be one or several of"),
        ({"folder": 3}, "`folder` to be a path or None but got 3"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AttentionPlot(**arguments)


@pytest.fixture
def from_config() -> Callable[[dict[str, Any]], Any]:
    """Build a callback as a config does."""
    from jsonargparse import ArgumentParser

    def build(arguments: dict[str, Any]) -> Any:
        parser = ArgumentParser(exit_on_error=False)
        parser.add_subclass_arguments(AttentionPlot, "plot")
        path = f"{AttentionPlot.__module__}.AttentionPlot"
        return parser.instantiate(parser.parse_object({"plot": {"class_path": path, "init_args": arguments}})).plot

    return build


def test_a_config_builds_it(from_config: Callable[[dict[str, Any]], Any]) -> None:
    plot = from_config({"examples": [0, 7, 12], "groups": "tied", "formats": ["svg"]})
    assert (plot.examples, plot.groups, plot.formats, plot.folder) == ([0, 7, 12], "tied", ("svg",), None)
    assert from_config({"examples": 6}).examples == 6
    assert from_config({}).groups is None
