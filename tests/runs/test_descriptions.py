"""Parts are built again from their descriptions, each value as the annotation of its argument declares it."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from lit_sparse.errors import CheckpointError
from lit_sparse.lightning.choice import LRSchedulerCallable, OptimizerCallable, pl
from lit_sparse.mappings import Fusedmax, LearnableEntmax, RegularizedArgmax, Softmax, SparseMAP, SparseMapping, TopKSparsemax
from lit_sparse.models import LitSparseModule
from lit_sparse.nn import EncoderDecoder
from lit_sparse.runs import builder
from lit_sparse.runs.allocation import Limits
from lit_sparse.runs.builder import build, plan, plan_arguments
from lit_sparse.runs.checkpoint_files import plan_module
from lit_sparse.runs.descriptions import describe
from lit_sparse.runs.trust import PARTS, trusting
from lit_sparse.structures import Budget, Structure
from lit_sparse.text import VocabularyOptions


class OwnMapping(Softmax):
    """A user's mapping."""


class OwnModule(nn.Module):
    """A user's module."""


def own_function(p: Tensor) -> Tensor:
    return p.square().sum(-1)


class Everything(nn.Module):
    """A module with an argument of each kind."""

    def __init__(
        self,
        count: int = 1,
        rate: float = 0.5,
        flag: bool = False,
        name: str | None = None,
        way: Literal["a", "b"] = "a",
        sizes: Sequence[int] = (),
        names: list[str] | None = None,
        pair: tuple[float, float] = (0.0, 1.0),
        table: dict[int, float] | None = None,
        potentials: Tensor | None = None,
        mixed: float | Tensor = 1.0,
        path: str | Path = "x",
        mapping: SparseMapping | None = None,
        layers: list[nn.Module] | None = None,
        omega: nn.Module | Callable[[Tensor], Any] | None = None,
        kind: type[nn.Module] = nn.Linear,
        options: VocabularyOptions | None = None,
        optimizer: OptimizerCallable = torch.optim.Adam,
        scheduler: LRSchedulerCallable | None = None,
        free=None,  # type: ignore[no-untyped-def]
    ) -> None:
        super().__init__()
        self.given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}


class Hostile(nn.Module):
    """A module whose constructor must not run."""

    def __init__(self) -> None:
        raise AssertionError("a constructor ran")


@pytest.mark.parametrize(
    "part", [TopKSparsemax(3, gamma=0.5), LearnableEntmax((4, 1, 1), 1.2), Fusedmax(0.7), SparseMAP(Budget(6, 2), max_iter=30)]
)
def test_a_part_is_built_again(part: Any) -> None:
    again = build("here", describe(part), SparseMapping)
    assert type(again) is type(part)
    assert describe(again) == describe(part)
    assert repr(again) == repr(part)


@pytest.mark.parametrize(
    ("description", "text"),
    [
        ({"class_path": "os.system", "init_args": {}}, "names 'os.system' at `class_path`"),
        ({"class_path": "builtins.eval"}, "names 'builtins.eval'"),
        ({"class_path": "lit_sparse.mappings.TopKSparsemax", "init_args": {"k": 0}}, "in here but: Expected argument `k`"),
        ({"class_path": "lit_sparse.mappings.TopKSparsemax", "init_args": {"size": 1}}, "has no argument 'size'"),
        ({"class_path": "lit_sparse.mappings.TopKSparsemax", "init_args": [3]}, "`init_args` of .* to be a dict"),
        ({"class_path": "lit_sparse.mappings.TopKSparsemax", "init_args.k": 3}, "only `class_path` and `init_args`"),
        ({"class_path": "lit_sparse.mappings.TopKSparsemaxx"}, "Did you mean 'TopKSparsemax'"),
        ({"class_path": "lit_sparse.risks.CVaR"}, "Expected a SparseMapping in here at `class_path`"),
        (
            {"class_path": "lit_sparse.mappings.SparseMAP", "init_args": {"structure": {"class_path": "os.getcwd"}}},
            r"names 'os.getcwd' at `structure.class_path`",
        ),
        (3, "Expected a SparseMapping in here"),
    ],
)
def test_other_descriptions_are_refused(description: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        build("here", description, SparseMapping)


def value_of(name: str, value: Any) -> Any:
    return plan_arguments("here", {name: value}, Everything).build("here").given[name]


def test_values_become_what_their_annotations_declare() -> None:
    linear = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 3}}
    for name, value, expected in (
        ("count", 3, 3),
        ("rate", 2, 2.0),
        ("rate", float("inf"), float("inf")),
        ("flag", True, True),
        ("name", "a: [b, c]", "a: [b, c]"),
        ("name", None, None),
        ("way", "b", "b"),
        ("sizes", [1, 2], [1, 2]),
        ("names", ["yes, of course", "{no}"], ["yes, of course", "{no}"]),
        ("pair", [1, 2], (1.0, 2.0)),
        ("table", {"3": 1}, {3: 1.0}),
        ("mixed", 2, 2.0),
        ("path", "../x.yaml", "../x.yaml"),
        ("free", {"a": [1, "word", None]}, {"a": [1, "word", None]}),
        ("kind", "torch.nn.ReLU", nn.ReLU),
    ):
        found = value_of(name, value)
        assert found == expected, name
        assert type(found) is type(expected), name
    assert torch.equal(value_of("potentials", [[1.0], [2.0]]), torch.tensor([[1.0], [2.0]]))
    assert torch.equal(value_of("mixed", [1.5]), torch.tensor([1.5]))
    assert isinstance(value_of("mapping", "lit_sparse.mappings.Sparsemax"), SparseMapping)
    assert [type(layer) for layer in value_of("layers", [linear, "torch.nn.ReLU"])] == [nn.Linear, nn.ReLU]
    assert isinstance(value_of("omega", "torch.nn.ReLU"), nn.Module)
    assert value_of("options", {"kind": "spaces"}).kind == "spaces"
    optimizer = value_of("optimizer", {"class_path": "torch.optim.Adam", "init_args": {"lr": 1, "betas": [0.5, 0.9]}})
    assert isinstance(optimizer, functools.partial)
    assert optimizer.keywords == {"lr": 1.0, "betas": (0.5, 0.9)}
    assert value_of("optimizer", "torch.optim.SGD") is torch.optim.SGD
    plateau = {"class_path": f"{pl.__name__}.cli.ReduceLROnPlateau", "init_args": {"monitor": "val/loss", "factor": 0.5}}
    assert value_of("scheduler", plateau).keywords["monitor"] == "val/loss"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", 1.5),
        ("count", True),
        ("count", "3"),
        ("rate", "0.5"),
        ("rate", 10**400),
        ("flag", 1),
        ("flag", "true"),
        ("name", 3),
        ("way", "c"),
        ("sizes", 3),
        ("sizes", "part.yaml"),
        ("sizes", ["1"]),
        ("names", "one"),
        ("pair", [1.0]),
        ("table", {"a": 1.0}),
        ("potentials", "1.0"),
        ("potentials", [["a"]]),
        ("mapping", {"class_path": "torch.nn.ReLU"}),
        ("mapping", {"init_args": {}}),
        ("mapping", "part.yaml"),
        ("layers", {"class_path": "torch.nn.ReLU"}),
        ("omega", "torch.linalg.norm"),
        ("omega", f"{__name__}.own_function"),
        ("kind", "lit_sparse.structures.Budget"),
        ("optimizer", {"class_path": "torch.nn.Linear"}),
        ("scheduler", {"class_path": "torch.optim.Adam"}),
        ("free", {"class_path": "torch.nn.ReLU"}),
        ("free", [{"class_path": "torch.nn.ReLU"}]),
        ("free", "torch.nn.ReLU"),
        ("free", '{"class_path": "torch.nn.ReLU"}'),
        ("free", "a b"),
        ("free", {"a.b": 1}),
        ("free", {1: 1}),
        ("free", torch.ones(2)),
    ],
)
def test_values_of_another_type_are_refused(name: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=name):
        plan_arguments("here", {name: value}, Everything)


def test_the_values_of_a_run_do_not_depend_on_a_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "word").touch()
    with pytest.raises(CheckpointError, match="a word or a number"):  # the command line's parser would read the file
        plan_arguments("here", {"free": "word"}, Everything)


def test_a_trusted_function_is_allowed() -> None:
    name = f"{__name__}.own_function"
    with trusting([name]):
        assert value_of("omega", name) is own_function
        with pytest.raises(CheckpointError):
            plan_arguments("here", {"mapping": name}, Everything)


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "posix.system",
        "subprocess.Popen",
        "torch.hub.load",
        "torch.fx.GraphModule",
        "torch.jit.ScriptModule",
        "torch.nn.Module.load_state_dict",
        "torch.nn.modules.module.torch.hub.load",
        "torch.nn.init.torch.overrides",
        "torch.nn.functional.relu",
        "torch.optim.swa_utils.AveragedModel",
        "torchmetrics.MetricCollection",
        "lit_sparse.cli.app.LitSparseCLI",
        "lit_sparse.cli.main",
        "lit_sparse.studies.search.sweep.Sweep",
        "lit_sparse.testing.MappingTester",
        "lit_sparse.runs.trust.import_module",
        "lit_sparse.data.readers.tables.Path",
        "lit_sparse.models.SemiSupervisedVAE.load_from_checkpoint",
        "builtins.eval",
        "this.s",
        "GraphModule",
        "lit_sparse",
        "a b.c",
        "",
    ],
)
def test_names_that_are_refused(name: str) -> None:
    for base in (nn.Module, SparseMapping, object):
        for found in ({"class_path": name}, name):
            with pytest.raises(CheckpointError) as refused:
                plan("x.ckpt", found, base)
            assert name in str(refused.value)
    assert "this" not in sys.modules


def test_names_that_are_allowed() -> None:
    for name, base in (
        ("lit_sparse.mappings.Sparsemax", SparseMapping),
        ("lit_sparse.structures.Budget", Structure),
        ("lit_sparse.nn.RecurrentBody", EncoderDecoder),
        ("lit_sparse.nn.encoder_decoder.recurrent.RecurrentBody", nn.Module),
        ("torch.nn.modules.linear.Linear", nn.Module),
        (f"{__name__}.OwnMapping", SparseMapping),
        (f"{__name__}.OwnModule", nn.Module),
    ):
        plan("x.ckpt", name, base)


def public_classes() -> Iterator[type]:
    """Yield the classes of the package that a program can import from a public name, and the ones in torch.nn."""
    extra = (
        "callbacks",
        "cli.app",
        "studies.search.sweep",
        "studies.jobs.engine",
        "studies.plan.study",
        "testing",
        "transport",
        "kernels",
    )
    for module in (*PARTS, *(f"lit_sparse.{name}" for name in extra), "torch.nn", "torch.optim", "torch.optim.lr_scheduler"):
        for value in vars(import_module(module)).values():
            if isinstance(value, type) and value.__module__.startswith(("lit_sparse.", "torch.")):
                yield value


def places() -> Iterator[tuple[type, str]]:
    """Yield the arguments of all parts that a description may name."""
    for owner in {*public_classes()}:
        if not inspect.isabstract(owner) and (not owner.__module__.startswith("lit_sparse.") or owner.__name__ != "Plan"):
            yield from ((owner, name) for name in builder._signature(owner)[0])


def classes_in(hint: Any) -> Iterator[type]:
    """Yield the classes in an annotation, of which a part in its place may be an instance."""
    if isinstance(hint, type) and not getattr(hint, "__args__", ()):
        yield hint
    for member in getattr(hint, "__args__", ()):
        yield from classes_in(member)
    if getattr(hint, "__origin__", None) is not None and "Callable" in str(hint):
        yield nn.Module


@pytest.mark.gate
def test_no_class_stands_where_its_base_is_not_declared() -> None:
    """Every class of the package and of torch.nn, in every argument of every one of them; nothing is built."""
    candidates = sorted({*public_classes(), Hostile}, key=lambda kind: (kind.__module__, kind.__qualname__))
    checked = stood = 0
    for owner, name in places():
        declared = tuple(classes_in(builder._signature(owner)[1].get(name)))
        for candidate in candidates:
            described = {"class_path": f"{candidate.__module__}.{candidate.__qualname__}"}
            checked += 1
            try:
                plan_arguments("here", {name: described}, owner)
            except CheckpointError:
                continue
            stood += 1
            assert issubclass(candidate, tuple(kind for kind in declared if kind is not object)), (owner, name, candidate)
    assert checked > 100_000
    assert 1000 < stood < checked / 10


def test_a_description_is_checked_before_anything_is_built() -> None:
    described = {"layers": [{"class_path": f"{__name__}.Hostile"}, {"class_path": "os.system"}]}
    with pytest.raises(CheckpointError, match=r"os\.system"):
        plan_arguments("here", described, Everything).build("here")


def test_malformed_descriptions_are_refused() -> None:
    itself: list[Any] = []
    itself.append(itself)
    grown: Any = ["x"]
    for _ in range(40):
        grown = [grown] * 3
    deep: Any = 1.0
    for _ in range(200):
        deep = [deep]
    for found in (itself, grown, deep, {"a": itself}, "&a [*a]", {1: 2}, {"a": {None: 1}}, torch.ones(2), {"a": torch.float32}):
        for name in ("mapping", "free", "sizes", "layers"):
            with pytest.raises(CheckpointError):
                plan_arguments("x.ckpt", {name: found}, Everything)
    for found in (3, [1], "text", {"_class_path": 4}, {"_class_path": ["os.system"]}, {3: 4}):
        with pytest.raises(CheckpointError):
            plan_module(Limits.of("x.ckpt", {}), found, LitSparseModule)


def test_text_of_a_union_that_takes_parts_is_a_word() -> None:
    layer = {"d_model": 4, "nhead": 2}
    plan_arguments("here", {**layer, "activation": "relu"}, nn.TransformerEncoderLayer)
    for text in ("torch.hub.load", json.dumps({"class_path": "torch.nn.ReLU"}), "x.yaml"):
        with pytest.raises(CheckpointError, match="activation"):
            plan_arguments("here", {**layer, "activation": text}, nn.TransformerEncoderLayer)


def test_every_part_of_the_package_can_be_described() -> None:
    """A class with arguments that no description can give is one that a checkpoint cannot hold."""
    described = build("here", describe(RegularizedArgmax(nn.Softplus())), SparseMapping)
    assert isinstance(described.omega, nn.Softplus)
    assert isinstance(described, Mapping | nn.Module)
