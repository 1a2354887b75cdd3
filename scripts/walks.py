"""Count how calls walk between the files of the package: how often a reader who follows them has to change the page.

Usage:
    python scripts/walks.py [entmax] [training] [command] [attention] [study] [--show]

A walk is the sequence of files of ``lit_sparse`` whose functions are called. A hop is a call in another file than the call
before it; a return is a hop to a file that the walk has already been in. Each walk is made twice, and the second is counted:
everything is imported and compiled by then. ``--show`` also prints the files of each walk, with their calls and returns.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
import contextlib
import io
import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
import yaml
from timing import print_table

import lit_sparse
from lit_sparse.cli.app import LitSparseCLI
from lit_sparse.data import DigitsDataModule
from lit_sparse.estimators import Marginalize
from lit_sparse.mappings import Entmax, Sparsemax
from lit_sparse.models import SemiSupervisedVAE
from lit_sparse.nn import attention
from lit_sparse.studies.jobs.engine import Runner
from lit_sparse.studies.plan.load import load_study

ROOT = f"{Path(lit_sparse.__file__).parent}/"
#: Options of a short training in the study.
SHORT = {
    "trainer.max_epochs": 1,
    "trainer.limit_train_batches": 2,
    "trainer.limit_val_batches": 1,
    "trainer.log_every_n_steps": 1,
}

Walk = Callable[[], object]


class BuiltModel(Exception):  # noqa: N818
    """Ends a command once its model is built."""


class UpToModel(LitSparseCLI):
    """A command that ends once its model is built."""

    def instantiate_trainer(self, **_: Any) -> Any:
        """End the command."""
        raise BuiltModel


def files_of(walk: Walk) -> list[str]:
    """Return the file of each call in the second of two walks."""
    files: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            files.append(frame.f_code.co_filename.removeprefix(ROOT))

    with contextlib.redirect_stdout(io.StringIO()):
        walk()
        sys.setprofile(note)
        try:
            walk()
        finally:
            sys.setprofile(None)
    return files


def hops_in(files: list[str]) -> tuple[list[str], list[str]]:
    """Return the targets of the hops, and of the returns among them.

    Example:
        >>> hops_in(["a", "a", "b", "a", "c"])
        (['b', 'a', 'c'], ['a'])
    """
    hops = [after for before, after in itertools.pairwise(files) if after != before]
    seen = set(files[:1])
    return hops, [file for file in hops if file in seen or seen.add(file)]  # type: ignore[func-returns-value]


def entmax() -> dict[str, Walk]:
    """Return the walks of scores through a mapping and back."""
    mapping, x = Entmax(1.5), torch.randn(3, 8, requires_grad=True)
    loss = mapping(x).square().sum()
    return {
        "scores through `Entmax(1.5)`, forward": lambda: mapping(x),
        "backward": lambda: loss.backward(retain_graph=True),
    }


def training() -> dict[str, Walk]:
    """Return the walk of a batch through a training step."""
    data = DigitsDataModule()
    data.setup()
    batch = data.fetch("train", 0, torch.arange(12))
    model = SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64)
    model.trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    model.log = model.log_dict = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    return {"a batch through `SemiSupervisedVAE.training_step`": lambda: model.training_step(batch, 0)}


def command() -> dict[str, Walk]:
    """Return the walk from an option to the module that it names."""

    def build() -> None:
        with contextlib.suppress(BuiltModel):
            UpToModel(["fit", "-c", "ssvae/digits", "--model.mapping", "Sparsemax"], execute=False)

    return {"`--model.mapping Sparsemax` to the built module": build}


def queries() -> dict[str, Walk]:
    """Return the walks of a query through attention."""
    query, key, value = (torch.randn(1, 2, 600, 16) for _ in range(3))
    mapping = Sparsemax()
    return {
        "a query through `nn.attention`, dense": lambda: attention(query, key, value, mapping, method="dense"),
        "sparse": lambda: attention(query, key, value, mapping, method="sparse", need_weights=False),
    }


def study() -> dict[str, Walk]:
    """Return the walk from a cell of a study to its row; its commands run in processes of their own."""

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "toy.yaml"
            path.write_text(
                yaml.safe_dump(
                    {
                        "title": "Toy",
                        "config": "ssvae/digits",
                        "options": SHORT,
                        "cells": {"cell": {}},
                        "columns": {"accuracy": {"value": "test/accuracy"}},
                    }
                )
            )
            runner = Runner(load_study(path), output=Path(folder) / "runs", results=Path(folder) / "results")
            runner.run_cell(runner.of("cell", 0), 1)

    return {"a study cell to its row": run}


WALKS: dict[str, Callable[[], dict[str, Walk]]] = {
    "entmax": entmax,
    "training": training,
    "command": command,
    "attention": queries,
    "study": study,
}


def main(arguments: list[str] | None = None) -> None:
    """Print the table, and the files of each walk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*WALKS, []], default=[])
    parser.add_argument("--show", action="store_true", help="also print the files of each walk")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    found = {
        name: files_of(walk)
        for what, walks in WALKS.items()
        if what in (options.what or WALKS)
        for name, walk in walks().items()
    }
    rows = []
    for name, files in found.items():
        counts = (len(files), len(set(files)), *map(len, hops_in(files)))
        rows.append([name, *(f"{count:,}" for count in counts)])
    print_table("Calls within the package", ["walk", "calls", "files", "hops", "returns"], rows)
    for name, files in found.items() if options.show else ():
        returns = Counter(hops_in(files)[1])
        rows = [[file, f"{calls:,}", f"{returns[file]:,}"] for file, calls in Counter(files).most_common()]
        print_table(name, ["file", "calls", "returns"], rows)


if __name__ == "__main__":
    main()
