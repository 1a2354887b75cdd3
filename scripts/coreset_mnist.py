"""Train a network on 5 % of MNIST, a coreset and images at random; used by reproduce_coresets.py."""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import compare_runs
from jobs import Job, JobFailedError, call, run_all
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "coreset"
UNIFORM = ("--data.init_args.selector", "Uniform", "--data.init_args.stratify", "null")
RATE = "--model.init_args.optimizer.init_args.lr"
#: Name -> options behind those of the config. The best rate for images at random is larger than that of the coreset.
ARMS: dict[str, tuple[str, ...]] = {
    "coreset, step size 0.2": (),
    "uniform, step size 0.2": UNIFORM,
    "uniform, step size 0.3": (*UNIFORM, RATE, "0.3"),
}


def train_all(own: argparse.Namespace, options: Sequence[str]) -> int:
    """Train a proxy for each seed, then all networks, test them once, and write table, runs and curves."""
    folder_of = [word.replace("--data.init_args.folder", "--data.init_args.base.init_args.folder") for word in options]
    proxies = {
        seed: Job(str(CONFIGS / "mnist_proxy.yaml"), f"coreset/proxy_{seed}", own.output, (*options, *_seeds(seed, "data")))
        for seed in own.seeds
    }
    jobs = {
        (arm, seed): Job(
            str(CONFIGS / "mnist_lastlayer.yaml"),
            f"coreset/{arm.replace(', step size ', '_').replace('.', '')}_{seed}",
            own.output,
            (
                *folder_of,
                *_seeds(seed, "data"),
                *("--data.init_args.vectors.init_args.checkpoint", str(proxies[seed].last)),
                *extra,
            ),
        )
        for arm, extra in ARMS.items()
        for seed in own.seeds
    }
    failed = [] if own.only_tables else run_all([proxy.train for proxy in proxies.values()], own.jobs)
    if not failed and not own.only_tables:
        failed = run_all([_tested(job) for job in jobs.values()], own.jobs)
    for message in failed:
        print(message, file=sys.stderr)
    done = {key: job for key, job in jobs.items() if compare_runs.tested(job.folder)}
    if not done:
        return 1
    _write(done, own.results / "coresets_mnist")
    return 1 if failed else 0


def _seeds(seed: int, data: str) -> tuple[str, ...]:
    return ("--seed_everything", str(seed), f"--{data}.init_args.seed", str(seed))


def _tested(job: Job):
    def task(threads: int) -> None:
        job.train(threads)
        if not compare_runs.tested(job.folder):
            config = str(job.folder / "config.yaml")
            with job.alone() as lock:
                call(
                    [sys.executable, "-m", "lit_sparse", "test", "-c", config, "--ckpt_path", str(job.last)],
                    job.log,
                    threads,
                    lock,
                )
        if not compare_runs.tested(job.folder):
            raise JobFailedError(f"{job.folder} was not tested; see {job.log}")

    return task


def _write(jobs: dict[tuple[str, int], Job], stem: Path) -> None:
    accuracy = {key: 100 * compare_runs.tested(job.folder)["test/accuracy"] for key, job in jobs.items()}
    with stem.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("arm", "seed", "test_accuracy"))
        writer.writerows((arm, seed, f"{value:.2f}") for (arm, seed), value in accuracy.items())
    lines = ["# 5 % of MNIST", "", "| trained on | test accuracy, %, mean | seeds |", "| --- | ---: | --- |"]
    for arm in dict.fromkeys(arm for arm, _ in accuracy):
        found = [value for (name, _), value in accuracy.items() if name == arm]
        lines.append(f"| {arm} | {statistics.mean(found):.2f} | {', '.join(f'{value:.2f}' for value in found)} |")
    stem.with_suffix(".md").write_text("\n".join(lines) + "\n")
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for number, arm in enumerate(dict.fromkeys(arm for arm, _ in jobs)):
        by_epoch: dict[float, list[float]] = {}
        for (name, _), job in jobs.items():
            if name == arm:
                for line in compare_runs.read(job.folder / "metrics.csv"):
                    if "val/accuracy" in line:
                        by_epoch.setdefault(line["epoch"] + 1, []).append(100 * line["val/accuracy"])
        epochs = sorted(by_epoch)
        colour = compare_runs.COLORS[number]
        axis.plot(epochs, [statistics.median(by_epoch[epoch]) for epoch in epochs], label=arm, color=colour)
        axis.fill_between(
            epochs,
            [min(by_epoch[epoch]) for epoch in epochs],
            [max(by_epoch[epoch]) for epoch in epochs],
            alpha=0.2,
            color=colour,
        )
    axis.set(xlabel="epoch", ylabel="accuracy in validation, %", ylim=(80, None))
    axis.legend()
    figure.savefig(stem.with_suffix(".png"), dpi=110)
    print(f"wrote {stem}.md, .csv and .png")
