"""The command ``lit-sparse select``: a coreset of the training examples of any data module, and whether it pays off."""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from typing_extensions import override

from lit_sparse.callbacks.pictures.base import new_figure
from lit_sparse.checks import check_count
from lit_sparse.cli.app import LitSparseCLI
from lit_sparse.cli.stopping import quiet
from lit_sparse.coresets import Coreset, CoresetSelector, Examples, SelectionState, Uniform, Vectors, VectorSource
from lit_sparse.data import CoresetDataModule
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.distributed import gather_objects, group_for_run, is_first, join_launched, world_size
from lit_sparse.ground.files import replaced
from lit_sparse.ground.stored import read_table, read_yaml
from lit_sparse.lightning.choice import LightningArgumentParser, pl
from lit_sparse.runs.folders import claim_folder, differences, numbered
from lit_sparse.runs.status import take

__all__ = ["NoModel", "SelectCLI", "main", "parser"]

#: Divisors of k: the sizes of the picture.
PARTS = (16, 8, 4, 2, 1)
#: Steps of a trial training whose time is measured, those before them, and its largest duration in seconds.
TIMED_STEPS, WARM_UP, LONGEST_TRIAL = 20, 3, 30
#: File of a row for each size.
TABLE = "objective.csv"
COLUMNS = ("k", "examples", "objective", "relative", "uniform", "seconds")


def options(
    k: float | None = None,
    vectors: VectorSource | Callable[[Examples], Any] | None = None,
    stratify: str | None = None,
    sizes: list[int] | None = None,
    every: int = 10,
    resume: bool = False,
) -> None:
    """Declare the options of a selection besides its selector.

    Args:
        k: Number of examples; a fraction if below 1.
        vectors: Projection, vectors, or a function of examples.
        stratify: Entry of batches with classes; examples are selected from each class separately.
        sizes: Sizes in the table and the picture; k / 16 to k by default.
        every: Number of the selector's steps between two saved states.
        resume: Whether to continue the newest selection of the config.
    """


class NoModel(pl.LightningModule):
    """Empty model for configs that have only data."""


class SelectCLI(LitSparseCLI):
    """LightningCLI of ``lit-sparse select``: parses the options of ``fit`` and of a selection, and builds data and model.

    Args:
        args: arguments after ``lit-sparse select``.

    Raises:
        LitSparseError: if an argument is invalid; the message says what to change.
    """

    shown = "select"

    def __init__(self, args: Sequence[str]) -> None:
        super().__init__(["fit", *args], execute=False)

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        super().add_arguments_to_parser(parser)
        parser.set_defaults({"model": {"class_path": f"{NoModel.__module__}.{NoModel.__name__}"}})
        parser.add_subclass_arguments(
            CoresetSelector, "selector", fail_untyped=False, required=False, help="Class of the selector."
        )
        parser.add_argument_group("selection").add_function_arguments(options, as_group=False)

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Build no trainer, because a selection needs none, and its processes may come from any launcher."""

    def option(self, name: str) -> Any:
        """Return the value of an option, instantiated if it is a class."""
        return self._get(self.config_init, name)

    def data_module(self) -> CoresetDataModule:
        """Return the coreset data module of the config, or one built from its data and the options of the command.

        Raises:
            ConfigurationError: if a selector, k or vectors are missing, or given twice.
        """
        given = {name: self.option(name) for name in ("selector", "k", "vectors", "stratify")}
        named = [f"--{name}" for name, value in given.items() if value is not None]
        if isinstance(self.datamodule, CoresetDataModule):
            if named:
                raise ConfigurationError(
                    f"Expected options of the CoresetDataModule but got {', '.join(named)}. Write"
                    f" --data.{named[0][2:]} instead."
                )
            return self.datamodule
        missing = [f"--{name}" for name in ("selector", "k", "vectors") if given[name] is None]
        if missing:
            name = type(self.datamodule).__name__
            raise ConfigurationError(
                f"Expected a selector, k and vectors for {name} but {', '.join(missing)} is missing. Give it, as in"
                " --selector NonnegativeOMP --k 100 --vectors my_module.function, or use a config of CoresetDataModule."
            )
        return CoresetDataModule(self.datamodule, **given, seed=int(self.option("seed_everything") or 0))

    def folder(self) -> Path:
        """Return a new run folder with the config, or the newest one with ``--resume``; the same on all processes.

        Raises:
            ConfigurationError: if there is none to resume, or it has another config.
        """
        experiment = self._experiment()
        parent = experiment / "select"
        folder = None
        if is_first():
            folder = (
                max(numbered(parent), key=lambda other: (_has_begun(other), int(other.name)), default=None)
                if self.option("resume")
                else claim_folder(experiment, "select", first_process=True)
            )
        folder = gather_objects(folder)[0]
        if folder is None:
            raise ConfigurationError(f"Expected a selection in {str(parent)!r} to resume but got none. Leave out --resume.")
        if is_first():
            self.run_folder, self._status = folder, take(folder)
        now = yaml.safe_load(self.parser.dump(self.config, skip_validation=True))["fit"]
        now = {name: value for name, value in now.items() if name not in ("resume", "every")}
        path = folder / "config.yaml"
        if self.option("resume"):
            before = read_yaml(path, folder) or {}
            if others := [f"{name} {new!r}, was {old!r}" for name, old, new in differences(before, now)]:
                raise ConfigurationError(
                    f"Expected the options with which {str(folder)!r} was started but got: {'; '.join(others)[:300]}. Use its"
                    " options."
                )
        elif is_first():
            with replaced(path, "w") as file:
                yaml.safe_dump(now, file, sort_keys=False)
        return folder


def _has_begun(folder: Path) -> bool:
    """Return whether a selection in a folder has a state or a coreset; one that was refused has none."""
    return any((folder / "states").glob("*")) or (folder / TABLE).is_file()


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of ``lit-sparse select``."""
    return SelectCLI.parser_of([])  # type: ignore[no-any-return]


def main(arguments: Sequence[str]) -> int:
    """Run the command ``lit-sparse select``: select a coreset, and write it to a run folder with its costs and a picture.

    Raises:
        LitSparseError: if an argument is invalid; the message says what to change.
    """
    with quiet(), group_for_run():
        join_launched()
        cli = SelectCLI(arguments)
        data = cli.data_module()
        sizes = [check_count("sizes", size) for size in cli.option("sizes") or ()]
        check_count("every", cli.option("every"))
        with cli.folder_if_used():
            folder = cli.folder()
            if is_first():
                print(f"run folder: {folder}", flush=True)
            data.prepare_data()
            data.setup("fit")
            rows, making = _select(data, folder, sizes, cli.option("every"))
            if is_first():
                coreset, spent = _report(folder, rows, data.k, making)
                if world_size() == 1 and not isinstance(cli.model, NoModel):
                    _weigh(data, cli.model, coreset, spent, cli.option("trainer").get("max_epochs"))
            cli.finish()
    return 0


def _select(data: CoresetDataModule, folder: Path, sizes: list[int], every: int) -> tuple[list[dict[str, str]], float]:
    """Select coresets of all sizes, the largest last, and write a row and a file of each; those that exist are kept.

    Returns:
        The rows of all sizes, and the seconds that the vectors took.
    """
    largest = data.k
    ks = sorted({*(sizes or [max(data.smallest, largest // part) for part in PARTS]), largest})
    if ks[-1] > largest:
        raise ConfigurationError(f"Expected `sizes` of at most k = {largest} but got {ks[-1]}. Decrease it, or increase k.")
    began = time.perf_counter()
    vectors, selector = data.candidates()
    whole = float(vectors.total.square().sum())
    making = time.perf_counter() - began
    table = folder / TABLE
    rows = read_table(table, folder, needed=COLUMNS, filled=COLUMNS, integers=["k"], numbers=COLUMNS) if is_first() else []
    for row in rows:
        _check_row(row, folder, data, vectors, whole)
    rows = gather_objects(rows)[0]
    done = {int(row["k"]) for row in rows}
    if len(done) < len(rows):
        raise ConfigurationError(f"Expected one row for each k in {str(table)!r} but got more. Remove one of them.")
    for k in ks:
        if k in done:
            continue
        began = time.perf_counter()
        state = SelectionState(folder / "states" / f"{k}.pt", every=every)
        coreset = data.select(vectors, selector, k, state)
        seconds = time.perf_counter() - began
        uniform = data.select(vectors, Uniform(), k).objective / whole
        values = (k, len(coreset), coreset.objective, coreset.objective / whole, uniform, seconds)
        rows.append(dict(zip(COLUMNS, map(str, values), strict=True)))
        if is_first():
            coreset.save(folder / "coresets" / f"{k}.npz")
            _write(table, rows)
    return rows, making


def _check_row(row: dict[str, str], folder: Path, data: CoresetDataModule, vectors: Vectors, whole: float) -> None:
    """Check that a row describes the coreset of its size, and that it is one of these examples, with its objective.

    Raises:
        ConfigurationError: naming the size.
    """
    coreset = Coreset.load(path := folder / "coresets" / f"{row['k']}.npz")
    numbers = [float(row[name]) for name in COLUMNS[1:]]
    known = [len(coreset), coreset.objective, coreset.objective / whole]
    fits = all(math.isclose(*pair, rel_tol=1e-6) for pair in zip(numbers, known, strict=False))
    size = vectors.shape[0]
    if fits and coreset.size == size and world_size() == 1:  # several processes have parts of the vectors
        rounding = 1e-3 * coreset.objective + 1e-5 * whole
        fits = abs(data.objective(vectors, coreset) - coreset.objective) <= rounding
    if not fits or coreset.size != size or len(coreset) > int(row["k"]) or not all(0 <= it < math.inf for it in numbers):
        raise ConfigurationError(
            f"Expected the row of k = {row['k']} in {str(folder / TABLE)!r} to describe {str(path)!r}, a coreset of {size}"
            " examples, but it does not. Remove the row, and give the command again."
        )


def _report(folder: Path, rows: list[dict[str, str]], largest: int, making: float) -> tuple[Coreset, float]:
    """Write the coreset, the picture and the costs, and print them; return the coreset and the seconds that it took."""
    coreset = Coreset.load(folder / "coresets" / f"{largest}.npz")
    coreset.save(folder / "coreset.npz")
    _draw(rows, folder / "objective.png")
    selecting = next(float(row["seconds"]) for row in rows if int(row["k"]) == largest)
    others = sum(float(row["seconds"]) for row in rows) - selecting
    _write(folder / "cost.csv", [{"making": str(making), "selecting": str(selecting)}])
    print("\n".join(["", *_table(rows), ""]))
    print(f"coreset: {coreset}: {folder / 'coreset.npz'}")
    print(
        f"cost: {making:.3g} s for the vectors, {selecting:.3g} s for k = {largest}, {others:.3g} s for the other sizes,"
        f" at most {_memory():.3g} GB of memory"
    )
    rest, spent = coreset.size - len(coreset), making + selecting
    print(
        f"Selection pays off if training on the other {rest:,} examples takes more than {spent:.3g} s, which is"
        f" {1e6 * spent / max(1, rest):.3g} microseconds per example.",
        flush=True,
    )
    return coreset, spent


def _weigh(data: CoresetDataModule, model: pl.LightningModule, coreset: Coreset, spent: float, epochs: int | None) -> None:
    """Time a training step on all data, and print whether the coreset saves more time than it costs."""
    watch = _Watch()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=WARM_UP + TIMED_STEPS,
        max_time={"seconds": LONGEST_TRIAL},
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch],
    )
    trainer.fit(model, data.base)
    if not (timed := watch.seconds[WARM_UP:]):
        return
    epochs = epochs if epochs is not None and epochs > 0 else 1000  # Lightning's default
    all_seconds = median(timed) * trainer.num_training_batches * epochs
    small = all_seconds * len(coreset) / coreset.size
    saved = all_seconds - small
    verdict = "saves more than it costs" if saved > spent else "costs more than it saves"
    print(
        f"Training {epochs} epochs on this processor takes about {all_seconds:.3g} s on all {coreset.size:,} examples and"
        f" {small:.3g} s on the coreset. Selection took {spent:.3g} s and saves {saved:.3g} s: it {verdict}.",
        flush=True,
    )


class _Watch(pl.Callback):
    """The seconds of training steps after the first ones."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        """Start the watch."""
        self._began = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        """Note the time."""
        self.seconds.append(time.perf_counter() - self._began)


def _draw(rows: list[dict[str, str]], path: Path) -> None:
    """Draw the objective against k, with the objective of a random choice."""
    figure, (axes,) = new_figure(1, 1, 5.0, 3.5)
    ordered = sorted(rows, key=lambda row: int(row["k"]))
    ks = [int(row["k"]) for row in ordered]
    for column, label, style in (("relative", "selected", "o-"), ("uniform", "at random", "s--")):
        axes.plot(ks, [max(float(row[column]), 1e-300) for row in ordered], style, label=label)
    axes.set(xscale="log", yscale="log", xlabel="k", ylabel="objective, of an empty coreset's")
    axes.legend()
    with replaced(path, "wb") as file:
        figure.savefig(file, format="png", dpi=120, bbox_inches="tight")


def _table(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"{'k':>10} {'examples':>10} {'objective':>10} {'at random':>10} {'seconds':>10}"
    for row in sorted(rows, key=lambda row: int(row["k"])):
        numbers = " ".join(f"{float(row[name]):>10.3g}" for name in ("relative", "uniform", "seconds"))
        yield f"{row['k']:>10} {row['examples']:>10} {numbers}"


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    with replaced(path, "w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _memory() -> float:
    """Return the most memory of this process so far in GB, or NaN where it cannot be read."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next((int(line.split()[1]) / 2**20 for line in lines if line.startswith("VmHWM")), float("nan"))
