"""Print size and time of each mapping as an ONNX model, as a ratio to torch on the same scores.

Usage:
    python scripts/benchmark_onnx.py [--rounds 9] [--threads 1] [--only Sparsemax Entmax] [--shape 64x50] [--opset 20]

The models have a dynamic batch and length. Nodes inside loops are counted too. In each round onnxruntime and torch take
turns, and the times are medians. The table also holds the largest difference between the results.
"""

from __future__ import annotations

from timing import medians  # isort: skip

import argparse
import platform
import tempfile
from pathlib import Path
from typing import NamedTuple

import onnxruntime
import torch
from torch.export import Dim

from lit_sparse.export import OPSET, export_onnx
from lit_sparse.mappings import SparseMapping
from lit_sparse.testing import concrete_subclasses

ANY = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}


class Row(NamedTuple):
    """One line of the table: sizes, seconds and the largest difference."""

    nodes: int
    kilobytes: float
    in_onnxruntime: float
    in_torch: float
    difference: float


def exported_mappings(only: list[str] | None) -> list[SparseMapping]:
    """Return the first example of each mapping with an exact form in ONNX."""
    kinds = [kind for kind in concrete_subclasses(SparseMapping) if not kind.iterative]
    return [kind.examples()[0].eval() for kind in kinds if not only or kind.__name__ in only]


def measure(mapping: SparseMapping, shape: tuple[int, int], rounds: int, threads: int, opset: int) -> Row:
    """Export a mapping and compare it with torch."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mapping.onnx"
        program = export_onnx(mapping, (x,), path, dynamic_shapes=(ANY,), opset=opset, input_names=["scores"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        size = path.stat().st_size / 1024
    inputs = {"scores": x.numpy()}
    with torch.no_grad():
        seconds = medians({"onnxruntime": lambda: session.run(None, inputs), "torch": lambda: mapping(x)}, rounds)
        difference = (torch.from_numpy(session.run(None, inputs)[0]) - mapping(x)).abs().max()
    nodes = sum(1 for _ in program.model.graph.all_nodes())
    return Row(nodes, size, seconds["onnxruntime"], seconds["torch"], float(difference))


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", help="names of classes")
    parser.add_argument("--shape", default="64x50", help="rows x entries")
    parser.add_argument("--opset", type=int, default=OPSET)
    options = parser.parse_args(arguments)
    rows, entries = (int(number) for number in options.shape.split("x"))
    torch.set_num_threads(options.threads)
    print(
        f"opset {options.opset}, torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, {platform.machine()},"
        f" {options.threads} threads, scores {options.shape}\n"
    )
    print("| mapping | nodes | KB | onnxruntime, us | over torch | largest difference |\n| :-- | --: | --: | --: | --: | --: |")
    for mapping in exported_mappings(options.only):
        row = measure(mapping, (rows, entries), options.rounds, options.threads, options.opset)
        print(
            f"| {mapping!r} | {row.nodes} | {row.kilobytes:.0f} | {1e6 * row.in_onnxruntime:.0f}"
            f" | {row.in_onnxruntime / row.in_torch:.1f} | {row.difference:.0e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
