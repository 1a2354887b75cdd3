"""Time attention: a training step with each mapping, Lightning against a loop by hand, beam search, and the sparse method.

Usage:
    python scripts/benchmark_attention.py [mappings] [loop] [search] [sparse] [--steps 200] [--rounds 5] [--threads 2]
        [--width 256] [--layers 1] [--vocabulary 6000] [--device cpu]
        [--dtype float32] [--lengths 512 2048 8192] [--heads 4] [--deviations 0.3 1 3] [--dense 4096]

``mappings``: one model per mapping, all with the same weights, take steps in turn on the same batches of sentences of 8 to 20
tokens, in one process. It prints medians, and medians of the ratios to softmax for each batch. ``loop``: rounds of the model
under Lightning, as on the command line, alternate with the same model written by hand. That model has a packed LSTM encoder, a
decoder step by step with input feeding, Adam, and clipped gradients. ``search``: beam search of 1,000 sentences. ``sparse``:
the operation of attention by each method, as ratios to torch's ``scaled_dot_product_attention`` with softmax, and to the dense
method. It prints medians of the ratios with the least and the largest, the mean support, and the peak of memory. With one
thread, seconds are processor time, which does not count other programs.
"""

from __future__ import annotations

from timing import clock  # isort: skip

import argparse
import contextlib
import ctypes
import functools
import io
import logging
import os
import platform
import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint, RichProgressBar
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lit_sparse.callbacks import CountLogger, SecondsLogger
from lit_sparse.data import TranslationDataModule
from lit_sparse.data.splits import Split
from lit_sparse.mappings import Entmax, Fusedmax, Oscarmax, Softmax, SparseMapping, Sparsemax, SqPNormMax
from lit_sparse.models import Seq2Seq
from lit_sparse.nn import RecurrentBody, attention
from lit_sparse.nn.attend.function import Method
from lit_sparse.text import BOS, EOS, PAD, UNK, Vocabulary

MAPPINGS: dict[str, type[SparseMapping]] = {
    "softmax": Softmax,
    "sparsemax": Sparsemax,
    "fusedmax": Fusedmax,
    "oscarmax": Oscarmax,
    "sq_pnorm_max": SqPNormMax,
}
BATCH, WARM_UP = 64, 10


class RandomPairs(TranslationDataModule):
    """Sentences of random words; the targets are as long as the sources."""

    def __init__(self, size: int, vocabulary: int) -> None:
        words = Vocabulary.from_tokens([PAD, BOS, EOS, UNK, *(f"w{number}" for number in range(vocabulary - 4))])
        super().__init__(source_vocabulary=words, target_vocabulary=words)  # type: ignore[arg-type]
        self.number, self.words = size, vocabulary

    def read(self, split: Split) -> dict[str, list[Any]]:
        generator = torch.Generator().manual_seed(0 if split == "train" else 1)
        lengths = torch.randint(8, 21, (self.number if split == "train" else 64,), generator=generator).tolist()
        sentences = {
            role: [torch.randint(self.words - 4, (length,), generator=generator).tolist() for length in lengths]
            for role in ("source", "target")
        }
        return {role: [" ".join(f"w{word}" for word in one) for one in some] for role, some in sentences.items()}


def model_of(mapping: SparseMapping, options: argparse.Namespace) -> Seq2Seq:
    torch.manual_seed(0)
    body = RecurrentBody(options.width, options.layers, 0.3)
    return Seq2Seq(
        mapping, body, loss_normalization="token", optimizer=functools.partial(torch.optim.Adam, lr=1e-3, fused=True)
    )


def wait(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return clock()


def mappings(options: argparse.Namespace) -> None:
    """Print the time of a step with each mapping."""
    data = RandomPairs(BATCH * (options.steps + WARM_UP), options.vocabulary)
    batches = list(data.train_dataloader())[: options.steps + WARM_UP]
    models = {name: model_of(kind(), options).build(data.vocabularies).to(options.device) for name, kind in MAPPINGS.items()}
    optimizers = {name: torch.optim.Adam(model.parameters(), 1e-3, fused=True) for name, model in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    names = list(models)
    for number, batch in enumerate(batches):
        batch = {key: value.to(options.device) for key, value in batch.items()}
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = wait(options.device)
            loss = models[name].run_step(batch, number, "train")["loss"]
            optimizers[name].zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(models[name].parameters(), 5.0)
            optimizers[name].step()
            if number >= WARM_UP:
                seconds[name].append(wait(options.device) - began)
    print("| attention | ms a step, median | to softmax, of medians | to softmax, median of ratios |")
    print("| --- | ---: | ---: | ---: |")
    base = statistics.median(seconds["softmax"])
    for name, some in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(some, seconds["softmax"], strict=True))
        print(f"| {name} | {statistics.median(some) * 1e3:.1f} | {statistics.median(some) / base:.3f} | {ratio:.3f} |")


class Stopwatch(pl.Callback):
    """Seconds and tokens of the steps after the first few."""

    tokens = 0

    def __init__(self, device: str) -> None:
        self.device = device

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == WARM_UP:
            self.began = wait(self.device)
        if batch_idx >= WARM_UP:
            self.now = wait(self.device)
            self.last = int((batch["target_length"] - 1).sum())
            self.tokens += self.last


def with_lightning(data: RandomPairs, options: argparse.Namespace) -> float:
    """Return target tokens a second."""
    watch = Stopwatch(options.device)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = pl.Trainer(
            max_epochs=1,
            limit_train_batches=WARM_UP + options.steps + 1,
            limit_val_batches=0,
            accelerator="gpu" if options.device.startswith("cuda") else "cpu",
            devices=1,
            gradient_clip_val=5.0,
            logger=[CSVLogger(folder, name="csv"), TensorBoardLogger(folder, name="board")],
            callbacks=[watch, CountLogger(4096), SecondsLogger(), RichProgressBar(refresh_rate=10), ModelCheckpoint(folder)],
            enable_model_summary=False,
        )
        trainer.fit(model_of(Softmax(), options), data)
    return (watch.tokens - watch.last) / (watch.now - watch.began)


class ByHand(nn.Module):
    """The same network, as one would write it for softmax alone."""

    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width, layers, dropout=0.3 if layers > 1 else 0.0, batch_first=True)
        self.cells = nn.ModuleList(nn.LSTMCell(2 * width if layer == 0 else width, width) for layer in range(layers))
        self.score, self.merge = nn.Linear(width, width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.output, self.drop = nn.Linear(width, vocabulary), nn.Dropout(0.3)

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.source(source), lengths.cpu(), batch_first=True, enforce_sorted=False)
        found, (h, c) = self.encoder(packed)
        memory, _ = pad_packed_sequence(found, batch_first=True, total_length=source.shape[1])
        padding = torch.arange(source.shape[1], device=source.device) >= lengths.unsqueeze(-1)
        keys = self.score(memory)
        embedded, fed = self.target(target[:, :-1]), torch.zeros_like(h[0])
        state, outputs = [(h[i], c[i]) for i in range(len(self.cells))], []
        for t in range(embedded.shape[1]):
            x = torch.cat([embedded[:, t], fed], -1)
            for i, cell in enumerate(self.cells):
                state[i] = cell(self.drop(x) if i else x, state[i])
                x = state[i][0]
            scores = torch.bmm(keys, x.unsqueeze(-1)).squeeze(-1).masked_fill(padding, -torch.inf)
            context = torch.bmm(scores.softmax(-1).unsqueeze(1), memory).squeeze(1)
            fed = self.drop(torch.tanh(self.merge(torch.cat([context, x], -1))))
            outputs.append(fed)
        scores = self.output(torch.stack(outputs, 1))
        return nnf.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)


def by_hand(data: RandomPairs, options: argparse.Namespace) -> float:
    """Return target tokens a second."""
    torch.manual_seed(0)
    model = ByHand(options.width, options.layers, options.vocabulary).to(options.device)
    adam = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    tokens, began = 0, 0.0
    for number, batch in enumerate(data.train_dataloader()):
        if number == WARM_UP + options.steps:
            break
        if number == WARM_UP:
            began = wait(options.device)
        if number >= WARM_UP:
            tokens += int((batch["target_length"] - 1).sum())
        source, lengths, target = (batch[key].to(options.device) for key in ("source", "source_length", "target"))
        loss = model(source, lengths, target)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        adam.step()
    return tokens / (wait(options.device) - began)


def loop(options: argparse.Namespace) -> None:
    """Print tokens a second under Lightning and by hand."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    ours, plain = [], []
    for number in range(options.rounds):
        pair = [(ours, with_lightning), (plain, by_hand)]
        for found, measure in pair if number % 2 else pair[::-1]:
            found.append(measure(RandomPairs(BATCH * (options.steps + WARM_UP + 1), options.vocabulary), options))
    ratios = sorted(a / b for a, b in zip(ours, plain, strict=True))
    print("| by hand, target tokens a second | package under Lightning | ratio, median (least to most) |")
    print("| ---: | ---: | ---: |")
    print(
        f"| {statistics.median(plain):.0f} | {statistics.median(ours):.0f}"
        f" | {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) |"
    )


def search(options: argparse.Namespace) -> None:
    """Print how long 1,000 sentences take, untrained: every output has its full length."""
    data = RandomPairs(1000, options.vocabulary)
    model = model_of(Softmax(), options).build(data.vocabularies).to(options.device).eval()
    lines = data.read("train")["source"]
    print("| beam | seconds for 1,000 sentences | tokens written |")
    print("| ---: | ---: | ---: |")
    for beam in (1, 5):
        model.beam_size, model.max_output = beam, 20
        began = wait(options.device)
        tokens = sum(len(line.split()) for line in model.generate(lines))
        print(f"| {beam} | {wait(options.device) - began:.1f} | {tokens} |")


def contestants(
    length: int, deviation: float, is_causal: bool, methods: Sequence[Method], options: argparse.Namespace
) -> tuple[dict[str, Callable[[], Tensor]], list[Tensor], dict[str, float]]:
    """Return functions that attend by softmax and by each method, their inputs, and the mean support of each mapping."""
    torch.manual_seed(0)
    given = [torch.randn(1, options.heads, length, 64) for _ in range(3)]
    given[0] *= deviation
    inputs = [x.to(options.device, getattr(torch, options.dtype)).requires_grad_() for x in given]
    ours: dict[str, Callable[[], Tensor]] = {
        "SDPA, softmax": lambda: nnf.scaled_dot_product_attention(*inputs, is_causal=is_causal)
    }
    support = {}
    for name, mapping in {"sparsemax": Sparsemax(), "entmax 1.5": Entmax(1.5)}.items():
        for method in methods:
            call = functools.partial(attention, *inputs, mapping, is_causal=is_causal, need_weights=False, method=method)
            ours[f"{name}, {method}"] = lambda call=call: call()[0]
        with torch.no_grad():
            weights = attention(*inputs, mapping, is_causal=is_causal, method="sparse")[1]
        support[name] = weights._nnz() / (options.heads * length)
    return ours, inputs, support


def peak_memory(call: Callable[[], object], device: str) -> float:
    """Return by how many MiB a call raises the memory of a GPU, or of this process on Linux."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        allocated = torch.cuda.memory_allocated(device)
        call()
        return (torch.cuda.max_memory_allocated(device) - allocated) / 2**20
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
    except OSError:
        return float("nan")

    def status(name: str) -> int:
        return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])

    before = status("VmRSS")
    call()
    return (status("VmHWM") - before) / 1024


def spread(ours: list[float], others: list[float] | None) -> str:
    """Return the median of the ratios of two lists of times, with the least and the largest."""
    if others is None:
        return "-"
    ratios = sorted(a / b for a, b in zip(ours, others, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def sparse(options: argparse.Namespace) -> None:
    """Print the time of attention as ratios to torch's with softmax and to the dense method, and its memory."""
    columns = ["L", "deviation", "causal", "threads", "attention", "support", "forward", "training"]
    columns += ["forward, to dense", "training, to dense", "peak MiB"]
    print(f"| {' | '.join(columns)} |\n| {' | '.join(['---:'] * len(columns))} |")
    cases = [(n, d, c) for n in options.lengths for d in options.deviations for c in (False, True)]
    for length, deviation, is_causal in cases:
        methods: tuple[Method, ...] = ("auto", "sparse", "dense") if length <= options.dense else ("auto", "sparse")
        functions, inputs, support = contestants(length, deviation, is_causal, methods, options)
        slope = torch.randn_like(inputs[0])

        def train(name: str) -> None:
            torch.autograd.grad(functions[name](), inputs, slope)  # noqa: B023

        def infer(name: str) -> None:
            with torch.no_grad():
                functions[name]()  # noqa: B023

        for threads in sorted({1, options.threads}):
            torch.set_num_threads(threads)
            seconds: dict[tuple[str, Any], list[float]] = {(name, kind): [] for name in functions for kind in (infer, train)}
            for name in functions:
                train(name)
            memory = {name: peak_memory(functools.partial(train, name), options.device) for name in functions}
            for number in range(options.rounds):
                turns = list(seconds)
                for turn in turns[number % len(turns) :] + turns[: number % len(turns)]:
                    began = wait(options.device)
                    turn[1](turn[0])
                    seconds[turn].append(wait(options.device) - began)
            for name in functions:
                mapping = name.split(",")[0]
                row = [length, deviation, is_causal, threads, name, f"{support[mapping]:.1f}" if mapping in support else "-"]
                for peer in ("SDPA, softmax", f"{mapping}, dense"):
                    row += [spread(seconds[name, kind], seconds.get((peer, kind))) for kind in (infer, train)]
                print(f"| {' | '.join(map(str, row))} | {memory[name]:.0f} |", flush=True)


PARTS = {"mappings": mappings, "loop": loop, "search": search, "sparse": sparse}


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], help="all of them by default")
    for name, value in {"steps": 200, "rounds": 5, "threads": 2, "width": 256, "layers": 1, "vocabulary": 6000}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--deviations", type=float, nargs="+", default=[0.3, 1.0, 3.0])
    parser.add_argument("--dense", type=int, default=4096, help="largest length of the dense method")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="of the sparse method")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    where = torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else platform.machine()
    print(f"{where}, torch {torch.__version__}, {options.threads} of {os.cpu_count()} threads")
    for part in options.parts or PARTS:
        print()
        PARTS[part](options)


if __name__ == "__main__":
    main()
