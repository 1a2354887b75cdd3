"""Train small Transformer language models of bytes that differ in their attention, and draw their losses.

Usage:
    python scripts/train_language_model.py train TEXT... [--lengths 1024 2048] [--steps 400] [--rows results/language_model.csv]
    python scripts/train_language_model.py draw [--rows results/language_model.csv] [--figure results/language_model.png]

TEXT are files of text, also compressed ones (.gz). The last 5 % are for validation. The models take turns, step by step, on the
same batches, from the same initial values. Softmax is ``torch.nn.MultiheadAttention``, which calls torch's fused
``scaled_dot_product_attention``. The others are ``lit_sparse.nn.MultiheadAttention``. Seconds are the time of the processor, of
one thread, for training steps alone. Losses are in bits per byte. ``draw`` makes the figure and a table from the rows.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import math
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from lit_sparse.mappings import Entmax, Sparsemax
from lit_sparse.nn import MultiheadAttention

MAPPINGS = {"sparsemax": Sparsemax(), "entmax 1.5": Entmax(1.5)}
NAMES = ("softmax, SDPA", *MAPPINGS)
COLUMNS = ("length", "attention", "step", "seconds", "training", "validation")
WARM_UP = 50


class Block(nn.Module):
    """A layer of a Transformer, with the norms first."""

    def __init__(self, name: str, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.attention: nn.MultiheadAttention = (
            MultiheadAttention(width, heads, batch_first=True, mapping=MAPPINGS[name])
            if name in MAPPINGS
            else nn.MultiheadAttention(width, heads, batch_first=True)
        )

    def forward(self, x: Tensor, later: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, attn_mask=later, is_causal=True, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


class LanguageModel(nn.Module):
    """Scores of the next byte, at each position."""

    def __init__(self, name: str, length: int, options: argparse.Namespace) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(256, options.width), nn.Embedding(length, options.width)
        self.blocks = nn.ModuleList([Block(name, options.width, options.heads) for _ in range(options.layers)])
        self.output = nn.Sequential(nn.LayerNorm(options.width), nn.Linear(options.width, 256))

    def forward(self, text: Tensor) -> Tensor:
        """Return the loss in nats per byte of text (B, L + 1)."""
        given, target = text[:, :-1], text[:, 1:]
        x = self.embedding(given) + self.position.weight
        later = torch.ones(given.shape[1], given.shape[1], dtype=torch.bool).triu(1)
        for block in self.blocks:
            x = block(x, later)
        return nn.functional.cross_entropy(self.output(x).flatten(0, 1), target.flatten())


def read(paths: list[str]) -> Tensor:
    """Return the bytes of files."""
    parts = [Path(path).read_bytes() for path in paths]
    parts = [gzip.decompress(part) if path.endswith(".gz") else part for path, part in zip(paths, parts, strict=True)]
    return torch.frombuffer(bytearray(b"\n".join(parts)), dtype=torch.uint8).long()


def windows(text: Tensor, starts: Tensor, length: int) -> Tensor:
    return text[starts.unsqueeze(1) + torch.arange(length + 1)]


def train(options: argparse.Namespace) -> None:
    """Train all models, and write a row per evaluation."""
    text = read(options.text)
    held = max(len(text) // 20, max(options.lengths) + 2)
    torch.set_num_threads(1)
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    with options.rows.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for length in options.lengths:
            generator = torch.Generator().manual_seed(0)
            batch = max(1, options.tokens // length)
            validation = windows(text, len(text) - held + torch.linspace(0, held - length - 2, 4 * batch).long(), length)
            models, optimizers = {}, {}
            for name in NAMES:
                torch.manual_seed(0)
                models[name] = LanguageModel(name, length, options)
                optimizers[name] = torch.optim.AdamW(models[name].parameters(), options.rate, betas=(0.9, 0.95))
            seconds, losses = dict.fromkeys(NAMES, 0.0), {name: [] for name in NAMES}
            for step in range(options.steps + 1):
                if step % options.every == 0:
                    for name, model in models.items():
                        with torch.no_grad():
                            loss = sum(float(model(part)) for part in validation.split(batch)) / 4
                        mean = sum(losses[name]) / max(1, len(losses[name])) or math.nan
                        values = [f"{seconds[name]:.2f}", f"{mean / math.log(2):.4f}", f"{loss / math.log(2):.4f}"]
                        writer.writerow([length, name, step, *values])
                        losses[name].clear()
                    file.flush()
                inputs = windows(text, torch.randint(len(text) - held - length - 1, (batch,), generator=generator), length)
                for name, model in models.items():
                    began = time.process_time()
                    loss = model(inputs)
                    optimizers[name].zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    for group in optimizers[name].param_groups:
                        group["lr"] = options.rate * min(1.0, (step + 1) / WARM_UP)
                    optimizers[name].step()
                    seconds[name] += time.process_time() - began
                    losses[name].append(float(loss.detach()))


def at(curve: list[tuple[float, float, float]], column: int, value: float) -> float:
    """Return the validation loss where a column has a value, between the nearest rows."""
    for before, after in itertools.pairwise(curve):
        if before[column] <= value <= after[column]:
            share = (value - before[column]) / (after[column] - before[column] or 1.0)
            return before[2] + share * (after[2] - before[2])
    return curve[-1][2]


def draw(options: argparse.Namespace) -> None:
    """Draw validation losses over steps and over seconds, and print a table."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves: dict[int, dict[str, list[tuple[float, float, float]]]] = {}
    with options.rows.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            curve = curves.setdefault(int(row["length"]), {}).setdefault(row["attention"], [])
            curve.append((int(row["step"]), float(row["seconds"]), float(row["validation"])))
    figure = Figure(figsize=(8, 3 * len(curves)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(curves), 2, squeeze=False, sharey="row")
    print("| length | attention | tokens per second, to softmax | bits per byte after equal steps | after equal time |")
    print("| ---: | --- | ---: | ---: | ---: |")
    for line, (length, ours) in enumerate(curves.items()):
        tokens = max(1, options.tokens // length) * length
        steps, least = min(c[-1][0] for c in ours.values()), min(c[-1][1] for c in ours.values())
        speed = {name: c[-1][0] * tokens / c[-1][1] for name, c in ours.items()}
        for name, curve in ours.items():
            speeds = f"{speed[name]:.0f}, {speed[name] / speed[next(iter(ours))]:.2f}"
            print(f"| {length} | {name} | {speeds} | {at(curve, 0, steps):.3f} | {at(curve, 1, least):.3f} |")
            for column in (0, 1):
                axes[line, column].plot([x[column] for x in curve[1:]], [x[2] for x in curve[1:]], label=name)
        for column, label in enumerate(("training steps", "seconds of one thread")):
            axes[line, column].set(xlabel=label, title=f"{length} bytes of context")
        axes[line, 0].set_ylabel("validation, bits per byte")
    axes[0, 0].legend(frameon=False)
    options.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.figure, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    """Train or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["train", "draw"])
    parser.add_argument("text", nargs="*")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048])
    sizes = {"steps": 400, "every": 20, "tokens": 2048, "width": 128, "heads": 2, "layers": 3}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--rows", type=Path, default=Path("results/language_model.csv"))
    parser.add_argument("--figure", type=Path, default=Path("results/language_model.png"))
    options = parser.parse_args(arguments)
    if options.part == "train" and not options.text:
        sys.exit("Expected files of text but got none. Name them after `train`.")
    {"train": train, "draw": draw}[options.part](options)


if __name__ == "__main__":
    main()
