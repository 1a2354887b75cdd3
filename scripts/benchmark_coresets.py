"""Time coreset selectors: against their size, and on a million examples in blocks.

Usage:
    python scripts/benchmark_coresets.py [sizes] [million] [--data FOLDER] [--rounds 5]

``sizes`` selects, in turns, from the log-likelihood vectors (11,055 x 500, float64) of a logistic regression on LIBSVM's
phishing data. ``--data`` is the folder with ``phishing.libsvm.gz``; without it, as many rows are drawn from a model. It prints
the median seconds, and the ratio of an iteration at the largest k to one at the smallest, within a round. ``million`` selects
from 1,000,000 x 200 numbers in a file, mapped or read in blocks, and from as many that are computed in blocks in every pass.
Each runs in its own process. It prints seconds and the peak memory, including mapped pages of the file.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from lit_sparse.coresets import GIGA, AcceleratedIHT, BlockVectors, CoresetSelector, DenseVectors, FrankWolfe, NonnegativeOMP
from lit_sparse.studies.coreset_problems import make

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
    print("| vectors | selector | k | s | memory, GB | objective, of that of none |")
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


def _most_memory() -> float:
    """Return the most memory, in GB, that this process had; ``getrusage`` would count that of its parent."""
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
    parser.add_argument("--path", type=Path, default=None, help=argparse.SUPPRESS)
    own = parser.parse_args()
    if own.words[:1] == ["one"]:
        one(own.words[1], own.words[2], int(own.words[3]), own.path)
        return
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    if "sizes" in own.words or not own.words:
        sizes(own.rounds, own.data)
    if "million" in own.words or not own.words:
        with tempfile.TemporaryDirectory() as folder:
            million(Path(folder))


if __name__ == "__main__":
    main()
