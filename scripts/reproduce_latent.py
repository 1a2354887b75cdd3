"""Train the published latent-variable models with every estimator, and tabulate the results next to the published ones.

Usage:
    python scripts/reproduce_latent.py ssvae [--schedule quarter] [--methods sparse dense ...] [--seeds 0 1] [--jobs 2]
        [--output runs/reproduce] [--results FOLDER] [--every_n_steps 2000] [-- OPTIONS OF EVERY lit-sparse COMMAND]

An experiment is ``ssvae`` (options: ``--data.init_args.folder PATH`` of MNIST's idx files), ``bitvector`` (Fashion-MNIST:
``--data.init_args.source``, ``--data.init_args.folder``) or ``game`` (``--data.init_args.path`` of feature vectors and
``--model.init_args.in_features``). Each run is one ``lit-sparse fit``, ``--jobs`` of them at a time, which share the cores; a
warm start is trained once for all methods with the same mapping. A killed run goes on from its last step checkpoint when the
same command is given again, and finished ones are only read. At the end the results of all methods and seeds that are
finished are written to ``<results>/<experiment>_<schedule>.md`` and ``.csv``, the curves to ``.png``.

The accuracy of ssvae and its negative ELBO are those of the test images after the last epoch, for all estimators with the class
summed out over its support. The evaluation of a sampler, with the most probable class, would give lower values.
"""

from __future__ import annotations

import passive_threads  # noqa: F401  # isort: skip

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import compare_runs
from jobs import Job, call, exit_with, parse_own, run_all

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Method:
    """One line of a table: how it is trained, and what was published of it."""

    title: str
    #: Overlay of the base, in the folder ``estimator``; None for the base alone.
    overlay: str | None
    published: str
    calls: str
    warm: str = "Softmax"
    #: Schedule -> options of this method alone.
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One table."""

    base: str
    methods: dict[str, Method]
    #: Schedule -> options of every run, and those of warm starts.
    schedules: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
    #: Column -> key among a run's results, factor and number of decimals.
    columns: dict[str, tuple[str, float, int]]
    published: str
    curve: tuple[str, str]
    warm_start: str | None = None
    exact: bool = True

    @property
    def path(self) -> Path:
        """The base."""
        return ROOT / "configs" / self.base

    def overlay(self, name: str) -> Path | None:
        """Return the overlay of a method."""
        overlay = self.methods[name].overlay
        return None if overlay is None else self.path.parent / "estimator" / f"{overlay}.yaml"


def epochs(number: int, validate: int = 1) -> tuple[str, ...]:
    """Return the options that train for so many epochs."""
    return ("--trainer.max_epochs", str(number), "--trainer.check_val_every_n_epoch", str(validate))


COST = {
    "decoder calls, last epoch": ("calls", 1.0, 2),
    "decoder rows of training, millions": ("rows", 1e-6, 2),
}
SSVAE = Experiment(
    base="ssvae/mnist.yaml",
    methods={
        "sparse": Method("sparse marginalization (sparsemax)", None, "96.87", "1.01", warm="Sparsemax"),
        "dense": Method("dense marginalization (softmax)", "dense", "96.93", "10"),
        "sfe": Method("SFE", "sfe", "94.75", "1"),
        "sfe_plus": Method("SFE+", "sfe_plus", "96.53", "2"),
        "nvil": Method("NVIL", "nvil", "96.01", "1"),
        "sum_and_sample": Method("Sum&Sample", "sum_and_sample", "96.73", "2"),
        "leave_one_out": Method("LeaveOneOut, k = 2", "leave_one_out", "-", "-"),
        "gumbel": Method("Gumbel-softmax", "gumbel", "95.46", "1"),
        "gumbel_st": Method("straight-through Gumbel-softmax", "gumbel_st", "86.35", "1"),
    },
    schedules={
        "full": (epochs(200, 5), epochs(100, 5)),
        "quarter": (epochs(50, 2), epochs(25, 5)),
        "taste": ((*epochs(2), "--trainer.limit_train_batches", "20"), (*epochs(2), "--trainer.limit_train_batches", "20")),
    },
    columns={"test accuracy, %": ("accuracy", 100.0, 2), "test negative ELBO": ("nelbo", 1.0, 2), **COST},
    published="published accuracy (calls)",
    curve=("val/nelbo", "negative ELBO of validation, nats"),
    warm_start="mnist_warm_start",
)


def rate(value: str) -> dict[str, tuple[str, ...]]:
    """Return the options of the cut game that set its learning rate.

    On other features than those published senders may stop listening at the published rates. These were chosen by the success
    in validation after 20 epochs on features of Caltech-101, among 5e-4, 1e-3, 2e-3 and 5e-3; SFE+ and Sum&Sample, which were
    at chance with each, have that of SFE.
    """
    return {"cut": ("--model.init_args.optimizer.init_args.lr", value)}


GAME = Experiment(
    base="signaling_game/imagenet.yaml",
    methods={
        "sparse": Method("sparse marginalization (sparsemax)", None, "93.35", "3.13", options=rate("1.0e-3")),
        "dense": Method("dense marginalization (softmax)", "dense", "93.37", "256", options=rate("1.0e-3")),
        "sfe": Method("SFE", "sfe", "33.05", "1", options=rate("5.0e-4")),
        "sfe_plus": Method("SFE+", "sfe_plus", "44.32", "2", options=rate("5.0e-4")),
        "nvil": Method("NVIL", "nvil", "37.04", "1", options=rate("5.0e-4")),
        "leave_one_out": Method("LeaveOneOut, k = 2", "leave_one_out", "-", "-", options=rate("5.0e-4")),
        "sum_and_sample": Method("Sum&Sample", "sum_and_sample", "-", "-", options=rate("5.0e-4")),
        "gumbel": Method("Gumbel-softmax", "gumbel", "23.51", "1", options=rate("2.0e-3")),
        "gumbel_st": Method("straight-through Gumbel-softmax", "gumbel_st", "27.42", "1", options=rate("1.0e-3")),
    },
    schedules={
        "full": (("--trainer.max_steps", "50000", "--trainer.max_epochs", "-1"), ()),
        "cut": (("--trainer.max_epochs", "100", "--trainer.check_val_every_n_epoch", "5"), ()),
        "taste": (("--trainer.max_epochs", "2"), ()),
    },
    columns={"test success, %": ("success", 100.0, 2), "entropy of the message": ("entropy", 1.0, 2), **COST},
    published="published success (calls)",
    curve=("val/success", "success in validation"),
)
CUT_BITS = ("-c", "configs/bitvector_vae/cut.yaml")
BITS = Experiment(
    base="bitvector_vae/fashion_mnist.yaml",
    methods={
        "topk": Method("top-k sparsemax, k = 10", None, "3.62", "8 -> 2"),
        "sparsemap": Method("SparseMAP", "sparsemap", "3.72", "3 -> 1"),
        "budget": Method("SparseMAP, budget", "sparsemap_budget", "3.64", "-"),
        "sfe": Method("SFE", "sfe", "3.74", "1"),
        "sfe_plus": Method("SFE+", "sfe_plus", "3.61", "2"),
        "nvil": Method("NVIL", "nvil", "3.65", "1"),
        "gumbel": Method("Gumbel-softmax", "gumbel", "3.57", "1"),
        "gumbel_st": Method("straight-through Gumbel-softmax", "gumbel_st", "3.53", "1"),
    },
    schedules={
        "full": ((), ()),
        "cut": (CUT_BITS, ()),
        "taste": ((*CUT_BITS, "--trainer.max_epochs", "1", "--trainer.limit_train_batches", "4"), ()),
    },
    columns={"bits/dim": ("bits_per_dim", 1.0, 3), "test negative ELBO": ("nelbo", 1.0, 0), **COST},
    published="published bits/dim (median calls)",
    curve=("val/nelbo", "negative ELBO of validation, nats"),
    exact=False,
)
EXPERIMENTS = {"ssvae": SSVAE, "game": GAME, "bitvector": BITS}


@dataclass(frozen=True)
class Plan:
    """Options of the command line."""

    name: str
    schedule: str
    methods: list[str]
    seeds: list[int]
    jobs: int
    output: Path
    every: int
    extra: list[str]

    @property
    def experiment(self) -> Experiment:
        """The experiment."""
        return EXPERIMENTS[self.name]

    def job(self, overlay: Path | None, part: str, seed: int, options: Sequence[str]) -> Job:
        """Return the training of a method, or of a warm start."""
        seeds = ("--seed_everything", str(seed), "--data.init_args.seed", str(seed))
        behind = () if overlay is None else ("-c", str(overlay))
        found = [str(ROOT / option) if option.startswith("configs/") else option for option in options]
        name = f"{self.name}/{self.schedule}/{part}/seed_{seed}"
        return Job(str(self.experiment.path), name, self.output, [*behind, *found, *seeds, *self.extra], self.every)

    def warm_start(self, mapping: str, seed: int) -> Job:
        """Return the training of a warm start."""
        overlay = self.experiment.path.with_name(f"{self.experiment.warm_start}.yaml")
        options = [*self.experiment.schedules[self.schedule][1], "--model.init_args.mapping", mapping]
        return self.job(overlay, f"warm_start_{mapping}", seed, options)

    def training(self, name: str, seed: int) -> Job:
        """Return the training of a method."""
        method = self.experiment.methods[name]
        options = [*self.experiment.schedules[self.schedule][0], *method.options.get(self.schedule, ())]
        if self.experiment.warm_start is not None:
            options += ["--model.init_args.initial_weights", str(self.warm_start(method.warm, seed).last)]
        return self.job(self.experiment.overlay(name), name, seed, options)


def train_and_score(plan: Plan, name: str, seed: int, threads: int) -> None:
    """Train and test one method with one seed, unless that is done."""
    job = plan.training(name, seed)
    job.train(threads)
    result = job.folder / "result.json"
    with job.alone() as lock:
        if result.is_file():
            return
        exact = ["--exact"] if plan.experiment.exact else []
        call([sys.executable, __file__, "--score", str(job.folder), *exact], job.log, threads, lock)
        print(f"{job.name}: scored", flush=True)


def train_all(plan: Plan) -> list[str]:
    """Train everything, warm starts first; return what failed."""
    failed: list[str] = []
    if plan.experiment.warm_start is not None:
        mappings = dict.fromkeys(plan.experiment.methods[name].warm for name in plan.methods)
        warm = [plan.warm_start(mapping, seed) for seed in plan.seeds for mapping in mappings]
        failed += run_all([partial(Job.train, job) for job in warm], plan.jobs)
    if not failed:
        tasks = [partial(train_and_score, plan, name, seed) for seed in plan.seeds for name in plan.methods]
        failed += run_all(tasks, plan.jobs)
    return failed


def score(folder: Path, exact: bool) -> None:
    """Test the last checkpoint of a run and write what the tables need."""
    import torch

    from lit_sparse.cli import build_cli
    from lit_sparse.estimators import Marginalize

    checkpoint = folder / "checkpoints" / "last.ckpt"
    cli = build_cli(["test", "-c", str(folder / "config.yaml"), "--ckpt_path", str(checkpoint), "--trainer.logger=false"])
    cli.model.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"])
    if exact:
        cli.model.estimator = Marginalize().bind(cli.model.mapping)
    (tested,) = cli.trainer.test(cli.model, cli.datamodule, verbose=False)
    lines = compare_runs.epochs_of(folder)
    result = {name.removeprefix("test/"): value for name, value in tested.items()}
    result |= {
        "calls": lines[-1]["train/decoder_calls_mean"],
        "median_calls": lines[-1]["train/decoder_calls_median"],
        "rows": sum(line["train/decoder_calls_total"] for line in lines),
    }
    (folder / "result.json").write_text(json.dumps(result) + "\n")


def results_of(plan: Plan) -> dict[str, list[dict[str, float]]]:
    """Return the results of the finished runs of each method, in the order of the table."""
    found: dict[str, list[dict[str, float]]] = {}
    for name in plan.experiment.methods:
        files = sorted((plan.output / plan.name / plan.schedule / name).glob("seed_*/0/result.json"))
        if files:
            found[name] = [json.loads(path.read_text()) for path in files]
    return found


def cell(values: list[float], decimals: int) -> str:
    """Return the mean, with the standard deviation of several seeds."""
    text = f"{statistics.fmean(values):.{decimals}f}"
    return text if len(values) < 2 else f"{text} ± {statistics.stdev(values):.{decimals}f}"


def table(plan: Plan, results: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    """Return the cells of the table, its head first."""
    experiment = plan.experiment
    rows = [["method", "seeds", *experiment.columns, experiment.published]]
    for name, runs in results.items():
        method = experiment.methods[name]
        cells = [cell([run[key] * factor for run in runs], decimals) for key, factor, decimals in experiment.columns.values()]
        rows.append([method.title, str(len(runs)), *cells, f"{method.published} ({method.calls})"])
    return rows


def write(plan: Plan, results: dict[str, list[dict[str, float]]], folder: Path) -> list[str]:
    """Write the table as markdown and CSV, and the curves; return the table's lines."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = table(plan, results)
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "| --- |" + " ---: |" * (len(rows[0]) - 1))
    path = folder / f"{plan.name}_{plan.schedule}"
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")
    with path.with_suffix(".csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    first = {name: sorted((plan.output / plan.name / plan.schedule / name).glob("seed_*/0/result.json"))[0] for name in results}
    curves = {plan.experiment.methods[name].title: compare_runs.epochs_of(run.parent) for name, run in first.items()}
    compare_runs.draw(curves, path.with_suffix(".png"), *plan.experiment.curve)
    return lines


def parse(arguments: list[str]) -> tuple[Plan, Path]:
    """Return what was asked for, and where results go."""
    known = "\n".join(
        f"{name}: schedules {', '.join(experiment.schedules)}; methods {', '.join(experiment.methods)}"
        for name, experiment in EXPERIMENTS.items()
    )
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=known, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--schedule", default=None, help="how long to train; by default the first of the experiment's")
    parser.add_argument("--methods", nargs="+", default=None, help="lines of the table; by default all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--output", type=Path, default=Path("runs/reproduce"), help="folder of all runs")
    parser.add_argument("--results", type=Path, default=None, help="folder of the tables; by default that of all runs")
    parser.add_argument("--every_n_steps", type=int, default=2000, help="steps between checkpoints")
    options, extra = parse_own(parser, arguments)
    experiment = EXPERIMENTS[options.experiment]
    schedule = options.schedule or next(iter(experiment.schedules))
    methods = options.methods or list(experiment.methods)
    for what, asked, allowed in (("schedule", [schedule], experiment.schedules), ("methods", methods, experiment.methods)):
        unknown = [name for name in asked if name not in allowed]
        if unknown:
            parser.error(f"--{what} of {options.experiment} are {', '.join(allowed)} but got {', '.join(unknown)}")
    plan = Plan(
        options.experiment, schedule, methods, options.seeds, max(1, options.jobs), options.output, options.every_n_steps, extra
    )
    return plan, options.results or options.output


def main(arguments: list[str] | None = None) -> int:
    """Train what is not trained yet and write the tables; the exit status is 1 if a run failed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["--score"]:
        score(Path(arguments[1]), "--exact" in arguments)
        return 0
    plan, folder = parse(arguments)
    failed = train_all(plan)
    results = results_of(plan)
    if results:
        print("\n".join(write(plan, results, folder)))
        print(f"written to {folder / f'{plan.name}_{plan.schedule}'}.md, .csv and .png")
    for message in failed:
        print(message, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    exit_with(main)
