"""Time an output layer of many classes with its loss, and measure its memory, against linear scores and cross-entropy.

Usage:
    python scripts/benchmark_output_layer.py [--classes 50000 256000] [--rows 2048] [--features 512] [--spreads 1 3]
        [--rounds 3] [--threads 2] [--device cpu]

A call computes the mean loss of all rows and its gradients in the hidden vectors, the weight and the bias. The methods take
turns in one process. Scores are normal with the given standard deviation. Labels are drawn from their softmax, as the next
words of a trained model would be. Memory is measured in a process for each method: the most that a call needs beyond the
tensors that exist before it and the gradient of the layer. Supports are printed as their mean and largest size.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from timing import medians, print_table
from torch import Tensor, nn
from torch.nn import functional as nnf

from lit_sparse.mappings import Entmax, Softmax, SparseMapping, Sparsemax
from lit_sparse.nn import LinearFenchelYoungLoss

BASELINE = "linear + cross_entropy"
MAPPINGS: dict[str, SparseMapping] = {"sparsemax": Sparsemax(), "entmax 1.5": Entmax(1.5), "softmax": Softmax()}
NAMES = (BASELINE, *MAPPINGS)


class Plain(nn.Linear):
    """Scores of all classes, and their cross-entropy."""

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        return nnf.cross_entropy(super().forward(hidden), target)


def inputs(rows: int, features: int, classes: int, spread: float, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden vectors, labels, and the weight of a layer whose scores have this standard deviation."""
    torch.manual_seed(0)
    hidden = torch.randn(rows, features, device=device)
    weight = torch.empty(classes, features, device=device).normal_(0.0, spread / features**0.5)
    draw = (torch.multinomial((part @ weight.t()).softmax(-1), 1).squeeze(1) for part in torch.split(hidden, 64))
    return hidden.requires_grad_(), torch.cat(list(draw)), weight


def call_of(name: str, hidden: Tensor, target: Tensor, weight: Tensor) -> Callable[[], None]:
    """Return a call that computes the loss and its gradients."""
    classes, features = weight.shape
    layer = Plain(1, 1) if name == BASELINE else LinearFenchelYoungLoss(MAPPINGS[name], 1, 1)
    layer.in_features, layer.out_features = features, classes
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(weight.new_zeros(classes))

    def call() -> None:
        hidden.grad = layer.weight.grad = layer.bias.grad = None
        layer(hidden, target).backward()
        hidden.grad = layer.weight.grad = layer.bias.grad = None
        if hidden.is_cuda:
            torch.cuda.synchronize(hidden.device)

    return call


def resident(field: str) -> int:
    """Return the memory in bytes that this process has (``VmRSS``), or has had at most (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def print_memory(name: str, rows: int, features: int, classes: int, spread: float, device: str) -> None:
    """Print the bytes that a call needs beyond the gradient of the layer."""
    call_of(name, *inputs(8, 4, 1 << 18, 1.0, device))()  # compile
    tensors = inputs(rows, features, classes, spread, device)
    call, layer = call_of(name, *tensors), 4 * (tensors[2].numel() + classes)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        print(torch.cuda.max_memory_allocated(device) - before - layer)
        return
    ctypes.CDLL(None).malloc_trim(0)  # freed memory goes back, so that the call cannot take it
    Path("/proc/self/clear_refs").write_text("5")  # the largest memory begins anew
    before = resident("VmRSS")
    call()
    print(resident("VmHWM") - before - layer)


def memory(name: str, options: argparse.Namespace, classes: int, spread: float) -> int:
    """Return the bytes that a call needs in a process of its own."""
    sizes = [f"--rows={options.rows}", f"--features={options.features}", f"--classes={classes}", f"--spreads={spread}"]
    where = [f"--threads={options.threads}", f"--device={options.device}"]
    command = [sys.executable, __file__, f"--memory-of={name}", *where, *sizes]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def support_of(name: str, hidden: Tensor, weight: Tensor) -> str:
    """Return the mean and the largest size of the supports."""
    if name not in MAPPINGS or not MAPPINGS[name].sparse:
        return f"{len(weight)}"
    layer = LinearFenchelYoungLoss(MAPPINGS[name], 1, 1, bias=False)
    layer.in_features, layer.out_features, layer.weight = weight.shape[1], weight.shape[0], nn.Parameter(weight)
    sizes = (layer.probabilities(hidden)[0] >= 0).sum(1)
    return f"{float(sizes.float().mean()):.1f}, {int(sizes.max())}"


def main(arguments: list[str] | None = None) -> None:
    """Print a table for each number of classes and spread of the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, nargs="+", default=[50_000, 256_000])
    parser.add_argument("--spreads", type=float, nargs="+", default=[1.0, 3.0], help="standard deviations of the scores")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="where to run, cuda for example")
    parser.add_argument("--memory-of", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.memory_of:
        print_memory(options.memory_of, options.rows, options.features, options.classes[0], options.spreads[0], options.device)
        return
    where = platform.machine() if options.device == "cpu" else torch.cuda.get_device_name(options.device)
    print(f"{where}, torch {torch.__version__}, {options.threads} of {os.cpu_count()} threads")
    for classes in options.classes:
        for spread in options.spreads:
            hidden, target, weight = inputs(options.rows, options.features, classes, spread, options.device)
            seconds = medians({name: call_of(name, hidden, target, weight) for name in NAMES}, options.rounds)
            supports = {name: support_of(name, hidden.detach(), weight) for name in NAMES}
            del hidden, target, weight
            needed = {name: memory(name, options, classes, spread) for name in NAMES}
            table = [
                [
                    *(name, f"{seconds[name]:.3f}", f"{seconds[name] / seconds[BASELINE]:.2f}"),
                    *(f"{needed[name] / 2**20:.0f}", f"{needed[name] / needed[BASELINE]:.1%}", supports[name]),
                ]
                for name in NAMES
            ]
            title = f"{options.rows} rows, {options.features} features, {classes} classes, scores of deviation {spread:g}"
            print_table(title, ["loss", "s", "ratio", "memory, MB", "ratio", "support, mean and largest"], table)


if __name__ == "__main__":
    main()
