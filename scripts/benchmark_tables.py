"""Time and memory of reading a large table, against the package ``datasets`` alone.

python scripts/benchmark_tables.py FOLDER --rows 10000000 --repeats 3

Writes ``rows.csv`` and ``rows.parquet`` of five columns of numbers into the folder, unless they are there. Each way reads a
file in a process of its own, then one epoch in a random order, in turn with the other: ``lit_sparse`` by TableDataModule, and
``datasets`` by its loader and PyTorch's DataLoader. Printed are medians over the repeats.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLUMNS = ["a", "b", "c", "d", "y"]
#: Rows of a batch, and of a piece that is written at once.
BATCH, PIECE = 4096, 250_000
#: Number of rows that ``datasets`` shuffles: its random access takes hours for all.
READ = 100_000


def write(folder: Path, rows: int) -> None:
    """Write the tables."""
    import numpy as np
    import pyarrow
    from pyarrow import csv, parquet

    if (folder / "rows.parquet").exists():
        return
    rng = np.random.default_rng(0)
    schema = pyarrow.schema([(name, pyarrow.float64()) for name in COLUMNS])
    with parquet.ParquetWriter(folder / "rows.parquet", schema) as packed, csv.CSVWriter(folder / "rows.csv", schema) as plain:
        for start in range(0, rows, PIECE):
            values = rng.random((min(PIECE, rows - start), len(COLUMNS))).round(6)
            piece = pyarrow.table(list(values.T), schema=schema)
            packed.write_table(piece)
            plain.write_table(piece)


def of_lit_sparse(path: Path) -> dict[str, float]:
    from lit_sparse.data import TableDataModule

    start = time.perf_counter()
    data = TableDataModule(str(path), features="a,b,c,d", target="y", val_size=1000, test_size=1000, batch_size=BATCH)
    data.setup("fit")
    read = time.perf_counter()
    rows = sum(len(batch["target"]) for batch in data.train_dataloader())
    return {"prepare": (rows + 2000) / (read - start), "epoch": rows / (time.perf_counter() - read)}


def of_datasets(path: Path) -> dict[str, float]:
    import datasets
    from torch.utils.data import DataLoader

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(dir=path.parent) as cache:
        start = time.perf_counter()
        table = datasets.load_dataset(path.suffix[1:], data_files=str(path), split="train", cache_dir=cache)
        read = time.perf_counter()
        part = table.shuffle(seed=0).select(range(min(READ, len(table)))).with_format("torch")
        begin = time.perf_counter()
        rows = sum(len(batch["y"]) for batch in DataLoader(part, batch_size=BATCH))
        return {"prepare": len(table) / (read - start), "epoch": rows / (time.perf_counter() - begin)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--way", choices=("lit_sparse", "datasets"), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.way:
        found: dict[str, Any] = (of_lit_sparse if options.way == "lit_sparse" else of_datasets)(options.file)
        print(json.dumps({**found, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    write(options.folder, options.rows)
    print("file, way, rows prepared per second, rows of an epoch per second, peak memory in GiB")
    for name in ("rows.csv", "rows.parquet"):
        lines: dict[str, list[dict[str, float]]] = {"lit_sparse": [], "datasets": []}
        for _ in range(options.repeats):
            for way, results in lines.items():
                command = [sys.executable, __file__, str(options.folder), "--way", way, "--file", str(options.folder / name)]
                run = subprocess.run(command, check=True, capture_output=True, text=True)
                results.append(json.loads(run.stdout.splitlines()[-1]))
        for way, results in lines.items():
            middle = [statistics.median(one[key] for one in results) for key in ("prepare", "epoch", "memory")]
            print(f"{name}, {way}, {middle[0]:,.0f}, {middle[1]:,.0f}, {middle[2]:.2f}", flush=True)


if __name__ == "__main__":
    main()
