"""The callback that draws attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from matplotlib.image import imread
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor

from lit_sparse.callbacks import AttentionPlot
from lit_sparse.callbacks.pictures.attention import _place_in_line
from lit_sparse.callbacks.pictures.base import Format
from lit_sparse.callbacks.pictures.heat_maps import Attention
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.mappings import Fusedmax, Oscarmax, SparseMapping
from lit_sparse.mappings import functional as F
from tests.support.processes import sharing_imports


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
    """Batches that Lightning takes for a single loader."""

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


@pytest.mark.gate
def test_pictures_of_a_test_do_not_depend_on_batches(tmp_path: Path) -> None:
    found = []
    for size in (1, 4, 23):
        folder = tmp_path / str(size)
        trainer(AttentionPlot(3, folder=str(folder))).test(Reader(batch_size=size), verbose=False)
        found.append(pictures(folder))
    assert found[0] == found[1] == found[2]
    chosen = sorted(range(23), key=_place_in_line)[:3]
    assert set(found[0]) == {f"{index}.{ending}" for index in chosen for ending in ("png", "svg", "json")}
    assert float(imread(tmp_path / "1" / "pictures" / "attention" / f"{chosen[0]}.png")[..., :3].std()) > 0.01
    for name, data in found[0].items():
        if name.endswith("svg"):
            ElementTree.fromstring(data)


def test_the_choice_is_spread_and_fair() -> None:
    """A choice among more examples contains the first ones only by chance."""
    chosen = sorted(range(10_000), key=_place_in_line)[:400]
    assert 4000 < np.mean(chosen) < 6000
    assert len({index % 10 for index in chosen}) == 10


@pytest.mark.gate
def test_named_examples_of_the_last_epoch_are_drawn_at_the_end_of_training(tmp_path: Path) -> None:
    seen: list[bool] = []

    class Watch(pl.Callback):
        def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            seen.append((tmp_path / "pictures").exists())

    plot = AttentionPlot([7, 102, 0], formats=("svg",), folder=str(tmp_path))
    with pytest.warns(UserWarning, match=r"found no example with index 7, 0; it drew \[102\]"):
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
    """An index stands for one example: the first loader's, and the first time it is seen."""
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
    assert set(pictures(tmp_path)) == {f"{index}.{ending}" for index in (2, 5) for ending in ("png", "svg", "json")}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger.finalize("success")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["images"]) == {"attention/2", "attention/5"}


@pytest.mark.parametrize("ending", ["png", "svg", "json"])
def test_one_format(ending: Format, tmp_path: Path) -> None:
    """TensorBoard has the picture also if no file does."""
    logger = TensorBoardLogger(str(tmp_path), name="", version="")
    trainer(AttentionPlot([2], formats=(ending,)), logger=logger).test(Reader(), verbose=False)
    assert set(pictures(tmp_path)) == {f"2.{ending}"}
    assert (tmp_path / "pictures" / "attention" / f"2.{ending}").stat().st_size > 100
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger.finalize("success")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (shown,) = events.Images("attention/2")
    pixels = imread(BytesIO(shown.encoded_image_string), format="png")
    assert pixels.shape == (shown.height, shown.width, 3)
    if ending == "png":
        written = imread(tmp_path / "pictures" / "attention" / "2.png")[..., :3]
        assert abs(pixels - written).max() <= 1 / 255


@pytest.mark.slow
def test_two_processes_draw_what_one_does(tmp_path: Path) -> None:
    """The chosen examples come together on the first process; the odd one out has one batch more than the other."""
    for name, options in (("one", {}), ("two", {"strategy": DDPStrategy(start_method=sharing_imports()), "devices": 2})):
        random = AttentionPlot(5, folder=str(tmp_path / name))
        named = AttentionPlot([3, 4], formats=("svg",), folder=str(tmp_path / f"{name} named"))
        run = trainer(random, named, use_distributed_sampler=False, **options)
        run.test(Reader(examples=21, batch_size=5), verbose=False)
    one, two = (pictures(tmp_path / name) for name in ("one", "two"))
    chosen = sorted(range(21), key=_place_in_line)[:5]
    assert {index % 2 for index in chosen} == {0, 1}, "both processes hold some"
    assert set(one) == {f"{index}.{ending}" for index in chosen for ending in ("png", "svg", "json")}
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
