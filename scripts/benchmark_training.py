"""Time a training step of the semi-supervised VAE: the package under Lightning, and a plain loop written by hand.

Usage:
    python scripts/benchmark_training.py [--rounds 7] [--steps 100] [--threads 1]

Both do the same mathematics on images of MNIST's size, 64 labelled and 64 unlabelled in a batch, binarized anew, with fused
Adam. Under Lightning there is all that the command line brings: the data module, loggers, counts, seconds, a progress bar and a
checkpoint callback, once with one update per batch and once with ten. After each batch of Lightning's, the loop by hand does as
many steps. The table has medians over rounds, of the ratio of the sums of a round. Times are processor times.

The scores of a trained classifier are far apart; so are they here, by a small gamma: ``sparse`` decodes about one class an
image, as it does once training has settled.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
import itertools
import math
import os
import platform
import statistics
import warnings
from collections.abc import Callable

import torch
from timed_fit import WARM_UP, timed_fit
from timing import spread
from torch import Tensor, nn
from torch.nn import functional as nnf

from lit_sparse.callbacks import DecoderCallsPlot, NegativeELBOPlot
from lit_sparse.data import ImageDataModule
from lit_sparse.data.images.base import Images
from lit_sparse.data.splits import Split
from lit_sparse.estimators import Estimator, Marginalize, ScoreFunction
from lit_sparse.mappings import Softmax, SparseMapping, Sparsemax
from lit_sparse.mappings import functional as F
from lit_sparse.models import SemiSupervisedVAE

GAMMA = 1e-3
LABELLED, UNLABELLED = 5000, 45000
#: Updates in a batch of the second measurement under Lightning.
UPDATES = 10


class NoiseDataModule(ImageDataModule):
    """Images of noise, as many and as large as in MNIST."""

    def load(self) -> dict[Split, Images]:
        """See the base class."""
        generator = torch.Generator().manual_seed(0)
        splits: dict[Split, int] = {"train": LABELLED + UNLABELLED, "val": 256, "test": 256}
        return {
            split: Images(torch.rand(size, 784, generator=generator), torch.randint(10, (size,), generator=generator))
            for split, size in splits.items()
        }


METHODS: dict[str, tuple[SparseMapping, type[Estimator]]] = {
    "sparse": (Sparsemax(gamma=GAMMA), Marginalize),
    "dense": (Softmax(), Marginalize),
    "sfe": (Softmax(gamma=GAMMA), ScoreFunction),
}


def with_lightning(
    method: str, data: ImageDataModule, steps: int, by_hand: Callable[[], object]
) -> tuple[list[float], list[float], float]:
    """Return milliseconds of an update under Lightning and by hand, in turn, and the mean decoder calls."""
    mapping, estimator = METHODS[method]
    torch.manual_seed(0)
    model = SemiSupervisedVAE(
        mapping, estimator(), optimizer=lambda p: torch.optim.Adam(p, 1e-6, weight_decay=1e-5, fused=True)
    )
    count = data.updates_per_batch
    *seconds, trainer = timed_fit(
        model,
        data,
        max(2, steps // count),
        lambda: [by_hand() for _ in range(count)],
        lambda folder: [DecoderCallsPlot(folder), NegativeELBOPlot(folder)],
        warm_up=WARM_UP // count,
    )
    ours, plain = ([1e3 * each / count for each in batches] for batches in seconds)
    return ours, plain, float(trainer.callback_metrics["train/decoder_calls_mean"])


def layers(*sizes: int) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    found: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        found += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*found[:-1])


def step_by_hand(method: str, images: Images) -> Callable[[], None]:
    """Return a step of a loop that does the same."""
    torch.manual_seed(0)
    classifier, inference = layers(784, 256, 256, 256, 10), layers(794, 128, 128, 16)
    generator = layers(18, 128, 128, 784)
    parameters = [*classifier.parameters(), *inference.parameters(), *generator.parameters()]
    adam = torch.optim.Adam(parameters, 1e-6, weight_decay=1e-5, fused=True)
    mean = 0.0

    def loss_of(x: Tensor, z: Tensor) -> Tensor:
        mu, log_variance = inference(torch.cat([x, z], -1)).chunk(2, -1)
        h = mu + (0.5 * log_variance).exp() * torch.randn_like(mu)
        logits = generator(torch.cat([h, z], -1))
        nll = nnf.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)
        divergence = 0.5 * (mu.square() + log_variance.exp() - log_variance - 1).sum(-1)
        return nll + divergence + math.log(10)

    def unlabelled(x: Tensor, scores: Tensor, step: int) -> Tensor:
        nonlocal mean
        probs = (
            F.sparsemax(scores, gamma=GAMMA)
            if method == "sparse"
            else (scores / (1 if method == "dense" else GAMMA)).softmax(-1)
        )
        inside = torch.where(probs > 0, probs, 1.0)
        entropy = -(inside * inside.log()).sum(-1)
        if method == "sfe":
            z = torch.multinomial(probs.detach(), 1).squeeze(-1)
            loss = loss_of(x, nnf.one_hot(z, 10).float())
            chosen = inside.gather(-1, z.unsqueeze(-1)).squeeze(-1).log()
            reinforced = loss + (loss.detach() - mean) * (chosen - chosen.detach())
            mean += (float(loss.detach().mean()) - mean) / (step + 1)
            return (reinforced - entropy).mean()
        rows, z = (probs > 0).nonzero(as_tuple=True)
        loss = loss_of(x[rows], nnf.one_hot(z, 10).float())
        expected = torch.zeros(len(x)).index_add(0, rows, probs[rows, z] * loss)
        return (expected - entropy).mean()

    labelled, others = torch.randperm(LABELLED), LABELLED + torch.randperm(UNLABELLED)
    count = itertools.count()

    def step() -> None:
        number = next(count)
        place = number * 64
        known = labelled[torch.arange(place, place + 64) % LABELLED]
        index = torch.cat([known, others[torch.arange(place, place + 64) % UNLABELLED]])
        x = torch.bernoulli(images.pixels[index])
        y = images.labels[known]
        scores = classifier(x)
        if method == "sparse":
            probs = F.sparsemax(scores[:64].detach(), gamma=GAMMA)
            fenchel_young = (scores[:64] * (probs - nnf.one_hot(y, 10))).sum(-1).mean()
        else:
            fenchel_young = nnf.cross_entropy(scores[:64], y)
        supervised = loss_of(x[:64], nnf.one_hot(y, 10).float()).mean()
        total = supervised + fenchel_young + 9.0 * unlabelled(x[64:], scores[64:], number)
        adam.zero_grad()
        total.backward()
        adam.step()

    return step


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    options.steps = min(options.steps, UNLABELLED // 64 - WARM_UP - 1)  # of one epoch
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    data = NoiseDataModule(labelled=LABELLED)
    data.setup()
    images = data.load()["train"]
    several = NoiseDataModule(labelled=LABELLED, updates_per_batch=UPDATES)
    #: Method -> one number per round.
    plain, ours, overheads, several_overheads = ({name: [] for name in METHODS} for _ in range(4))
    calls: dict[str, float] = {}
    for _ in range(options.rounds):
        for name in METHODS:
            step = step_by_hand(name, images)
            trained, made, calls[name] = with_lightning(name, data, options.steps, step)
            ours[name].append(statistics.fmean(trained))
            plain[name].append(statistics.fmean(made))
            overheads[name].append(overhead(trained, made))
            several_overheads[name].append(overhead(*with_lightning(name, several, options.steps, step)[:2]))
    print(f"{platform.machine()}, torch {torch.__version__}, {options.threads} of {os.cpu_count()} threads")
    print("| method | decoder calls | by hand, ms a step | package, ms a step | overhead, % (least to most)", end="")
    print(f" | {UPDATES} updates per batch, % | over sfe |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in METHODS:
        ratio = statistics.median(a / b for a, b in zip(ours[name], ours["sfe"], strict=True))
        print(
            f"| {name} | {calls[name]:.2f} | {statistics.median(plain[name]):.2f} | {statistics.median(ours[name]):.2f}"
            f" | {spread(overheads[name], '.1f')} | {spread(several_overheads[name], '.1f')} | {ratio:.2f} |"
        )


def overhead(ours: list[float], plain: list[float]) -> float:
    """Return how much longer updates take than by hand, in percent; the loader makes some batches at once."""
    return 100 * (sum(ours) / sum(plain) - 1)


if __name__ == "__main__":
    main()
