"""Time the likelihood of the bit-vector VAE, and its training step, against plain torch operations.

Usage:
    python scripts/benchmark_categorical.py [--rounds 5] [--threads 1] [--rows 64 228 640]

The likelihood covers 784 pixels with 5 features and 256 grey levels each, with its derivatives. ``stored`` is
``torch.log_softmax`` and ``gather`` on the logits of all rows. ``in parts`` computes the value and its derivative for as many
rows as the caches hold, each operation on its own. ``compiled`` is the package. The training step is taken from
configs/bitvector_vae/fashion_mnist.yaml, on noise, without Lightning; a fresh model has about 9 rows an image, a trained one
about 3.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
import os
import platform
from collections.abc import Callable
from unittest import mock

import torch
from timing import medians, print_table
from torch import Tensor

from lit_sparse.estimators import TopKMarginalize
from lit_sparse.models import BitVectorVAE
from lit_sparse.nn import SharedCategorical
from lit_sparse.nn import categorical as shared_categorical
from lit_sparse.nn.categorical import Likelihood

PIXELS, FEATURES, LEVELS, BATCH, BITS = 784, 5, 256, 64, 32
#: Logits in memory at a time, as many as fit into the caches.
PART = 2**18


class Stored(SharedCategorical):
    """The same layer with the logits of all rows in memory."""

    def forward(self, features: Tensor, values: Tensor) -> Tensor:  # type: ignore[override]
        logits = torch.nn.functional.linear(features, self.weight, self.bias)
        return logits.log_softmax(-1).gather(-1, values.unsqueeze(-1)).squeeze(-1).sum(-1)


def in_parts(features: Tensor, weight: Tensor, bias: Tensor, values: Tensor, *, slopes: bool = True) -> Likelihood:
    """Return the log-likelihood and its derivatives by plain torch operations on parts."""
    assert slopes
    rows, h = len(features), features.detach()
    out = Likelihood(h.new_empty(rows), torch.empty_like(h), h.new_empty(rows, FEATURES + 1, LEVELS))
    with mock.patch.object(shared_categorical, "OTHER_LOGITS", PART):
        shared_categorical._likelihood_reference(h, weight.detach(), bias.detach(), values, out)
    return out


def likelihoods(rows: int) -> dict[str, Callable[[], object]]:
    """Return the value and the derivatives of some rows by each method."""
    torch.manual_seed(0)
    layer = SharedCategorical(FEATURES, LEVELS)
    stored = Stored(FEATURES, LEVELS)
    stored.load_state_dict(layer.state_dict())
    features, values = torch.randn(rows, PIXELS, FEATURES), torch.randint(LEVELS, (rows, PIXELS))

    def gradients(module: SharedCategorical) -> object:
        h = features.requires_grad_()
        return torch.autograd.grad(module(h, values).sum(), (h, module.weight, module.bias))

    return {
        "stored": lambda: gradients(stored),
        "in parts": lambda: in_parts(features, layer.weight, layer.bias, values),
        "compiled": lambda: gradients(layer),
    }


def steps(k: int) -> dict[str, Callable[[], object]]:
    """Return a training step on k decoded rows per image in parts, and the package's own."""
    batch = {"pixels": torch.rand(BATCH, PIXELS), "index": torch.arange(BATCH)}

    def step_of(likelihood: Callable[..., Likelihood]) -> Callable[[], object]:
        torch.manual_seed(0)
        model = BitVectorVAE(TopKMarginalize(k), bits=BITS)
        model.encoder[-1].weight.data.mul_(0.01)  # nearly equal scores: all k vectors are decoded
        adam = torch.optim.Adam(model.parameters(), 0.0)

        def step() -> None:
            adam.zero_grad()
            with mock.patch.object(shared_categorical, "log_likelihood", likelihood):
                model.run_step(batch, 0, "train")["loss"].backward()
            adam.step()

        return step

    return {"in parts": step_of(in_parts), "compiled": step_of(shared_categorical.log_likelihood)}


def rows_of(name: str, contestants: dict[str, Callable[[], object]], rounds: int) -> list[str]:
    """Return a row of a table: milliseconds, and how many times as fast the package is as each other method."""
    *others, ours = medians(contestants, rounds).values()
    return [name, *[f"{1e3 * value:.1f}" for value in (*others, ours)], *[f"{value / ours:.2f}" for value in others]]


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 228, 640])
    parser.add_argument("--calls", type=int, nargs="+", default=[3, 10], help="decoded rows per image in the training steps")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(f"{platform.machine()}, torch {torch.__version__}, {options.threads} of {os.cpu_count()} threads")
    table = [rows_of(str(rows), likelihoods(rows), options.rounds) for rows in options.rows]
    columns = ["rows", "stored, ms", "in parts, ms", "compiled, ms", "stored / compiled", "in parts / compiled"]
    print_table("Likelihood and derivatives", columns, table)
    table = [rows_of(str(k), steps(k), options.rounds) for k in options.calls]
    print_table("Training step", ["rows per image", "in parts, ms", "compiled, ms", "in parts / compiled"], table)


if __name__ == "__main__":
    main()
