"""Time coreset selectors: against their size, on a million examples in blocks, and on ten million in a file.

Usage:
    python scripts/benchmark_coresets.py [sizes] [million] [ten_million] [--data FOLDER] [--rounds 5] [--folder FOLDER]

``sizes`` selects, in turns, from the log-likelihood vectors (11,055 x 500, float64) of a logistic regression on LIBSVM's
phishing data. ``--data`` is the folder with ``phishing.libsvm.gz``; without it, as many rows are drawn from a model. It prints
the median seconds, and the ratio of an iteration at the largest k to one at the smallest, within a round. ``million`` selects
from 1,000,000 x 200 values in a file, mapped or read in blocks, and from as many that are computed in blocks in every pass.
Each runs in its own process. It prints seconds and the peak memory, including mapped pages of the file. ``ten_million`` selects
1,000 of 100,000, 1,000,000 and 10,000,000 x 200 values in files of float32, and of bfloat16 for the last size, by 100
iterations of A-IHT II, on the threads that OMP_NUM_THREADS gives. Reading is the time of the same number of passes through the
file that only copy its bytes. Two processes then select from the last file in float32, with half of the threads each, and the
coresets are compared. ``--folder`` is where the files are made, and needs 8 GB. ``--largest`` ends at a smaller size.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from lit_sparse.coresets import (
    GIGA,
    AcceleratedIHT,
    BlockVectors,
    Coreset,
    CoresetSelector,
    DenseVectors,
    FileVectors,
    FrankWolfe,
    NonnegativeOMP,
    ShardedVectors,
)
from lit_sparse.studies.problems.coresets import make

SIZE, DRAWS = 1_000_000, 200
SELECTORS: dict[str, CoresetSelector] = {
    "A-IHT": AcceleratedIHT(polish=False),
    "A-IHT II": AcceleratedIHT(debias=True, polish=False),
    "A-IHT II polished": AcceleratedIHT(debias=True),
    "NN-OMP": NonnegativeOMP(),
    "GIGA": GIGA(),
    "Frank-Wolfe": FrankWolfe(),
}
SIZES = (100, 500, 1000)


def sizes(rounds: int, data: Path) -> None:
    name = "large_phishing" if (data / "phishing.libsvm.gz").is_file() else "large_synthetic"
    vectors = make(name, 0, str(data)).vectors
    print(f"\n{name}: {vectors.shape[0]:,} x {vectors.shape[1]} {str(vectors.dtype).removeprefix('torch.')}, {rounds} rounds\n")
    seconds: dict[tuple[str, int], list[float]] = {}
    iterations: dict[tuple[str, int], int] = {}
    for selector in SELECTORS.values():
        selector(vectors, 20)  # the kernels are compiled, or loaded
    for _ in range(rounds):
        for title, selector in SELECTORS.items():
            for k in SIZES:
                began = time.perf_counter()
                coreset = selector(vectors, k)
                seconds.setdefault((title, k), []).append(time.perf_counter() - began)
                iterations[title, k] = max(1, len(coreset.trace))
    print("| selector | " + " | ".join(f"k = {k}, s" for k in SIZES) + " | iteration, last to first k |")
    print("| --- |" + " ---: |" * (len(SIZES) + 1))
    for title in SELECTORS:
        cells = [f"{statistics.median(seconds[title, k]):.2f}" for k in SIZES]
        first, last = ([one / iterations[title, k] for one in seconds[title, k]] for k in (SIZES[0], SIZES[-1]))
        ratio = statistics.median(b / a for a, b in zip(first, last, strict=True))
        print(f"| {title} | {' | '.join(cells)} | {ratio:.2f} |")


def million(folder: Path) -> None:
    """Run each case in a process of its own, whose memory is then its own too."""
    path = folder / "vectors.npy"
    features, draws = _features(), _draws()
    file = np.lib.format.open_memmap(path, "w+", np.float32, (SIZE, DRAWS))
    for start in range(0, SIZE, 50_000):
        file[start : start + 50_000] = _made(features[start : start + 50_000], draws).numpy()
    file.flush()
    print(f"\n{SIZE:,} x {DRAWS} float32\n")
    print("| vectors | selector | k | s | memory, GB | objective, relative to none |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for source in ("a file, mapped", "a file, read in blocks", "made anew in blocks"):
        for title, k in (("A-IHT II, 100 iterations", 1000), ("NN-OMP", 50)):
            subprocess.run([sys.executable, __file__, "one", source, title, str(k), "--path", str(path)], check=True)


def one(source: str, title: str, k: int, path: Path) -> None:
    mapped = np.load(path, mmap_mode="r")
    if source == "a file, mapped":
        vectors: DenseVectors | BlockVectors = DenseVectors(torch.from_numpy(np.load(path, mmap_mode="c")))
    elif source == "a file, read in blocks":
        vectors = BlockVectors(lambda indices: torch.from_numpy(mapped[indices.numpy()]), SIZE, block_size=16_384)
    else:
        features, draws = _features(), _draws()
        vectors = BlockVectors(lambda indices: _made(features[indices], draws), SIZE, block_size=16_384)
    selector = {"A-IHT II, 100 iterations": AcceleratedIHT(debias=True, max_iter=100), "NN-OMP": NonnegativeOMP()}[title]
    began = time.perf_counter()
    coreset = selector(vectors, k)
    seconds = time.perf_counter() - began
    memory = _most_memory()
    whole = float(vectors.total.square().sum())
    print(f"| {source} | {title} | {k} | {seconds:.1f} | {memory:.2f} | {coreset.objective / whole:.2g} |", flush=True)


ITERATIONS, TEN_SIZES = 100, (10**5, 10**6, 10**7)


def ten_million(folder: Path, largest: int) -> None:
    """Run each case in a process of its own, after its file is written in blocks."""
    print(f"\nA-IHT II, k = 1,000, at most {ITERATIONS} iterations, S = {DRAWS}\n")
    print("| N | on disk | processes | passes | reading, s | selecting, s | pass, s | memory, GB | objective |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    cases = [(size, torch.float32) for size in TEN_SIZES if size <= largest]
    for size, dtype in [*cases, (cases[-1][0], torch.bfloat16)]:
        path = folder / f"vectors_{size}_{str(dtype).removeprefix('torch.')}.npy"
        _write(path, size, dtype)
        command = [sys.executable, __file__, "--path", str(path), "part"]
        subprocess.run([*command, "0", "1"], check=True)
        if (size, dtype) == cases[-1]:
            threads = {**os.environ, "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // 2))}
            both = [subprocess.Popen([*command, str(rank), "2"], env=threads) for rank in range(2)]
            if sum(process.wait() for process in both):
                raise SystemExit("a process failed")
            one, two = (Coreset.load(path.with_suffix(f".{number}.npz")) for number in (1, 2))
            same = torch.equal(one.indices, two.indices) and torch.equal(one.weights, two.weights)
            print(f"\nTwo processes give {'the same coreset, to the last bit' if same else 'ANOTHER coreset'}.\n", flush=True)
        path.unlink()


def _write(path: Path, size: int, dtype: torch.dtype) -> None:
    """Write the vectors block by block."""
    features, draws = torch.randn(size, 10, generator=torch.Generator().manual_seed(0)), _draws()
    FileVectors.save(BlockVectors(lambda indices: _made(features[indices], draws), size), path, dtype=dtype)


class Counted(FileVectors):
    """Vectors in a file that count the passes through them."""

    passes = 0

    def correlate(self, direction: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super().correlate(direction)

    def measure(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.passes += 1
        return super().measure()


def part(rank: int, world: int, path: Path) -> None:
    """Select as one of several processes."""
    if world > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{path}.meet", rank=rank, world_size=world)
    size = FileVectors(path).shape[0]
    own = Counted(path, first=size * rank // world, last=size * (rank + 1) // world)
    vectors = ShardedVectors(own) if world > 1 else own
    selector = AcceleratedIHT(debias=True, max_iter=ITERATIONS)
    selector(FileVectors(path, last=2000), 20)  # the kernels are compiled, or loaded
    began = time.perf_counter()
    coreset = selector(vectors, 1000)
    seconds = time.perf_counter() - began
    memory, done = _most_memory(), own.passes
    began = time.perf_counter()
    buffer = bytearray(2**24)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    reading = done * (time.perf_counter() - began)
    share = coreset.objective / float(vectors.total.square().sum())
    if rank == 0:
        coreset.save(path.with_suffix(f".{world}.npz"))
        kind = path.stem.rsplit("_", 1)[1]
        print(
            f"| {size:,} | {kind} | {world} | {done} | {reading:.2f} | {seconds:.1f} | {seconds / done:.3g} | {memory:.2f}"
            f" | {share:.2g} |",
            flush=True,
        )
    if world > 1:
        torch.distributed.destroy_process_group()


def _most_memory() -> float:
    """Return the most memory, in GB, that this process had; ``getrusage`` would count its parent's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def _features() -> torch.Tensor:
    return torch.randn(SIZE, 10, generator=torch.Generator().manual_seed(0))


def _draws() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return 0.5 + 0.1 * torch.randn(10, DRAWS, generator=generator)


def _made(features: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The centred log-likelihoods of a logistic regression whose targets are the signs of the first feature."""
    eta = features @ draws * features[:, :1].sign()
    likelihoods = torch.nn.functional.logsigmoid(eta)
    return (likelihoods - likelihoods.mean(1, keepdim=True)) / DRAWS**0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", default=[])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--largest", type=int, default=10**7)
    parser.add_argument("--path", type=Path, default=None, help=argparse.SUPPRESS)
    own = parser.parse_args()
    if own.words[:1] == ["one"]:
        one(own.words[1], own.words[2], int(own.words[3]), own.path)
        return
    if own.words[:1] == ["part"]:
        part(int(own.words[1]), int(own.words[2]), own.path)
        return
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    if "sizes" in own.words or not own.words:
        sizes(own.rounds, own.data)
    if "million" in own.words or not own.words:
        with tempfile.TemporaryDirectory() as folder:
            million(Path(folder))
    if "ten_million" in own.words:
        with tempfile.TemporaryDirectory(dir=own.folder) as folder:
            ten_million(Path(folder), own.largest)


if __name__ == "__main__":
    main()
