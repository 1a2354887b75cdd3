"""Train the supervised online auto-encoder and what it is compared with, many seeds each, and put the results into one table.

Usage: python scripts/reproduce_soae.py {digits,mnist} [--schedule cut|long] [--variants soae_sigma mlp_random ...] [--seeds 0
1 2] [--sparseness 0.5 0.7 0.9] [--jobs 2] [--output runs/reproduce] [--results FOLDER] [--every_n_steps 2000] [--trim 4]
[--level 0.05] [--only_tables] [-- OPTIONS OF EVERY lit-sparse fit]

``mnist`` needs ``-- --data.init_args.folder FOLDER`` with the four idx files; ``digits`` nothing. ``--schedule taste`` trains
for two epochs, to see that all is well. Each run is one ``lit-sparse fit``, ``--jobs`` of them at a time. A killed run goes on
from its last step checkpoint when the same command is given again; finished ones are only read. The model of the last epoch is
tested, once. ``--sparseness`` also trains SOAE-sigma with other sparsenesses of the activity, and draws the test error against
them.

Files are ``<results>/soae_<experiment>_<schedule>`` with several endings. ``.md`` has the median error and its deviation. With
at least three seeds per variant it has the published statistics, without the ``--trim`` best and worst runs of each. ``.csv``
has every run, ``.png`` validation errors over training, and ``_ranks.png`` the diagram of critical differences.
"""

from __future__ import annotations

import passive_threads  # noqa: F401  # isort: skip

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import compare_runs
import soae_statistics
from jobs import Job, call, exit_with, parse_own, run_all
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs" / "soae"
SIGMA = "soae_sigma"


@dataclass(frozen=True)
class Variant:
    """One line of the table: how it is called, whether activity and connectivity are sparse, and what was published."""

    title: str
    activity: str
    connectivity: str


#: In the order of the publication, whose text tells their order by error rather than the errors themselves.
VARIANTS = {
    SIGMA: Variant("SOAE-sigma", "Hoyer", "yes"),
    "soae_l0": Variant("SOAE-L0", "L0", "yes"),
    "soae_sigma_conn": Variant("SOAE-sigma-conn", "Hoyer", "no"),
    "mlp_random": Variant("MLP-random", "no", "no"),
    "mlp_samples": Variant("MLP-samples", "no", "no"),
    "mlp_scfc": Variant("MLP-SCFC", "no", "at first"),
    "smlp_scfc": Variant("SMLP-SCFC", "no", "yes"),
    "mlp_obd": Variant("MLP-OBD", "no", "pruned"),
}
PUBLISHED = (
    "Published order (Thom & Palm 2013): SOAE-sigma best, about 0.8 %, then SOAE-sigma-conn and SMLP-SCFC, which do not differ."
    " Then SOAE-L0, MLP-OBD, MLP-random, MLP-samples and MLP-SCFC."
)


@dataclass(frozen=True)
class Experiment:
    """A data set.

    Args:
        config: of SOAE-sigma.
        schedules: name -> options of every run.
        options: variant -> options of its own, behind its overlay.
    """

    config: str
    schedules: dict[str, tuple[str, ...]]
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)


def rate(value: str) -> tuple[str, ...]:
    """Return the options that set the initial step size."""
    return ("--model.init_args.optimizer.init_args.lr", value)


LONG = ("--trainer.max_epochs", "240", "--model.init_args.lr_scheduler.init_args.gamma", "0.98")
TASTE = ("--trainer.max_epochs", "2", "--trainer.limit_train_batches", "20")
EXPERIMENTS = {
    "digits": Experiment(
        "digits.yaml",
        {"cut": (), "taste": TASTE},
        {
            "soae_l0": ("--model.init_args.mapping.init_args.k", "42", *rate("0.1")),
            "mlp_scfc": ("--model.init_args.initial_bases.init_args.connectivity", "0.5"),
            "smlp_scfc": (
                *("--model.init_args.initial_bases.init_args.connectivity", "0.5"),
                *("--trainer.callbacks.sparseness", "0.5"),
            ),
        },
    ),
    "mnist": Experiment("mnist.yaml", {"cut": (), "taste": TASTE, "long": LONG}),
}


@dataclass(frozen=True)
class Plan:
    """Options of the command line."""

    name: str
    schedule: str
    variants: list[str]
    seeds: list[int]
    sparseness: list[float]
    output: Path
    every: int
    extra: list[str]

    def job(self, variant: str, seed: int, sparseness: float | None = None) -> Job:
        """Return the training of a variant with a seed, or of SOAE-sigma with another sparseness."""
        experiment = EXPERIMENTS[self.name]
        overlay = CONFIGS / "variants" / f"{variant}.yaml"
        options = [*(("-c", str(overlay)) if overlay.is_file() else ()), *experiment.options.get(variant, ())]
        options += experiment.schedules[self.schedule]
        name = variant
        if sparseness is not None:
            name = f"{variant}_{sparseness:g}"
            options += ["--model.init_args.mapping.init_args.sparseness", f"{sparseness:g}"]
        options += ["--seed_everything", str(seed), "--data.init_args.seed", str(seed), *self.extra]
        folder = f"soae_{self.name}_{self.schedule}/{name}/seed{seed}"
        return Job(str(CONFIGS / experiment.config), folder, self.output, options, self.every)

    def jobs(self) -> dict[tuple[str, int, float | None], Job]:
        """Return all trainings."""
        found = {(variant, seed, None): self.job(variant, seed) for seed in self.seeds for variant in self.variants}
        more = {(SIGMA, seed, value): self.job(SIGMA, seed, value) for seed in self.seeds for value in self.sparseness}
        return {**found, **more}


def tested(job: Job) -> dict[str, float] | None:
    """Return what the test of a finished run logged."""
    found = sorted((job.folder / "test").glob("*/metrics.csv"), key=lambda path: int(path.parent.name))
    return compare_runs.read(found[-1])[-1] if found and (job.folder / "finished").is_file() else None


def train_and_test(job: Job, threads: int) -> None:
    """Train one model and test it, unless that is done."""
    job.train(threads)
    if tested(job) is None:
        command = [
            sys.executable,
            "-m",
            "lit_sparse",
            "test",
            "-c",
            str(job.folder / "config.yaml"),
            "--ckpt_path",
            str(job.last),
        ]
        with job.alone() as lock:
            call(command, job.log, threads, lock)


def error(job: Job) -> float | None:
    """Return the test error of a finished run, in percent."""
    found = tested(job)
    return None if found is None else 100 * (1 - found["test/accuracy"])


def table(plan: Plan, errors: Mapping[str, Sequence[float]], jobs: Mapping[tuple[str, int, float | None], Job]) -> list[str]:
    """Return the lines of the table."""
    columns = ("seeds", "test error, %, median", "least to most", "active units", "zeros in the bases, %")
    lines = [
        f"| variant | sparse activity | sparse connectivity | {' | '.join(columns)} |",
        f"| --- | --- | --- |{' ---: |' * len(columns)}",
    ]
    for name, sample in errors.items():
        variant = VARIANTS[name]
        runs = [jobs[name, seed, None] for seed in plan.seeds if error(jobs[name, seed, None]) is not None]
        active = statistics.median((tested(job) or {})["test/support_size_mean"] for job in runs)
        zeros = statistics.median(100 * share_of_zeros(job) for job in runs)
        spread = f"{statistics.median(sample):.2f} | {min(sample):.2f} to {max(sample):.2f}"
        lines.append(
            f"| {variant.title} | {variant.activity} | {variant.connectivity} | {len(sample)} | {spread} | {active:.1f} |"
            f" {zeros:.1f} |"
        )
    return lines


def share_of_zeros(job: Job) -> float:
    """Return the share of exact zeros in the bases of a run."""
    import torch

    weight = torch.load(job.last, map_location="cpu", weights_only=True)["state_dict"]["encoder.weight"]
    return float((weight == 0).double().mean())


def tests(
    errors: Mapping[str, Sequence[float]], trim: int, level: float
) -> tuple[list[str], soae_statistics.Comparison | None]:
    """Return what the statistics say, and the comparison for its diagram; None where there are too few runs."""
    samples = {VARIANTS[name].title: soae_statistics.trimmed(sample, trim) for name, sample in errors.items()}
    samples = {name: sample for name, sample in samples.items() if len(sample) >= soae_statistics.LEAST}
    if len(samples) < 2:
        return [], None
    found = soae_statistics.compare(samples, level)
    lines = ["", "| variant | runs | Shapiro & Wilk: W | p | mean rank |", "| --- | ---: | ---: | ---: | ---: |"]
    for name in sorted(samples, key=found.ranks.__getitem__):
        w, p = found.normality[name]
        shape = f"{w:.3f} | {p:.3g}" if math.isfinite(w) else "- | -"  # runs that are all alike have none
        lines.append(f"| {name} | {len(samples[name])} | {shape} | {found.ranks[name]:.1f} |")
    lines += [
        "",
        f"Levene: {found.levene[0]:.3g}, p = {found.levene[1]:.3g}. Kruskal & Wallis: {found.kruskal[0]:.3g},"
        f" p = {found.kruskal[1]:.3g}. Groups without a difference at the level {level:g}:"
        f" {'; '.join(', '.join(group) for group in found.groups)}.",
    ]
    apart = sum(len(group) for group in found.groups) == len(samples)  # no variant is in two groups
    groups = found.groups if apart else [(name,) for name in sorted(samples, key=found.ranks.__getitem__)]
    if not apart:
        lines += ["", "The groups overlap, so variants are compared one by one."]
    pooled = {" + ".join(group): [x for name in group for x in samples[name]] for group in groups}
    if len(pooled) > 1:
        lines += ["", "| P(A < B) | Gaussian | Mann & Whitney |", "| --- | ---: | ---: |"]
        for (a, one), (b, two) in combinations(pooled.items(), 2):
            gaussian, ranks = soae_statistics.gaussian_superiority(one, two), soae_statistics.superiority(one, two)
            lines.append(f"| {a} < {b} | {gaussian:.4f} | {ranks:.4f} |")
    return lines, found


def new_figure(width: float, height: float) -> tuple[Figure, object]:
    """Return a figure and its axis."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def draw_curves(jobs: Mapping[tuple[str, int, float | None], Job], variants: Sequence[str], path: Path) -> None:
    """Draw the error of validation over training, the median of all seeds."""
    figure, axis = new_figure(6.5, 4.0)
    for number, variant in enumerate(variants):
        by_epoch: dict[float, list[float]] = {}
        for (name, _, value), job in jobs.items():
            if name == variant and value is None and error(job) is not None:
                for line in compare_runs.read(job.folder / "metrics.csv"):
                    if "val/accuracy" in line:
                        by_epoch.setdefault(line["epoch"] + 1, []).append(100 * (1 - line["val/accuracy"]))
        if by_epoch:
            points = sorted((epoch, statistics.median(values)) for epoch, values in by_epoch.items())
            colour = compare_runs.COLORS[number % len(compare_runs.COLORS)]
            style = compare_runs.STYLES[number // len(compare_runs.COLORS)]
            axis.plot(*zip(*points, strict=True), color=colour, linestyle=style, label=VARIANTS[variant].title)  # type: ignore[attr-defined]
    axis.set_xlabel("epoch")  # type: ignore[attr-defined]
    axis.set_ylabel("error of validation, %")  # type: ignore[attr-defined]
    axis.set_yscale("log")  # type: ignore[attr-defined]
    axis.legend(fontsize=8)  # type: ignore[attr-defined]
    figure.savefig(path, dpi=120, bbox_inches="tight")


def draw_sparseness(errors: Mapping[float, Sequence[float]], path: Path) -> None:
    """Draw the test error against the sparseness of the activity: median, and the range of all seeds."""
    figure, axis = new_figure(5.0, 3.4)
    values = sorted(errors)
    axis.fill_between(values, [min(errors[v]) for v in values], [max(errors[v]) for v in values], alpha=0.25, label="all seeds")  # type: ignore[attr-defined]
    axis.plot(values, [statistics.median(errors[v]) for v in values], marker="o", label="median")  # type: ignore[attr-defined]
    axis.set_xlabel("sparseness of the activity")  # type: ignore[attr-defined]
    axis.set_ylabel("test error, %")  # type: ignore[attr-defined]
    axis.legend()  # type: ignore[attr-defined]
    figure.savefig(path, dpi=120, bbox_inches="tight")


def write(plan: Plan, folder: Path, trim: int, level: float) -> list[str]:
    """Write tables and pictures of what is finished, and return what is missing."""
    jobs = plan.jobs()
    found = {key: error(job) for key, job in jobs.items()}
    missing = [jobs[key].name for key, value in found.items() if value is None]
    errors = {
        variant: sample
        for variant in plan.variants
        if (
            sample := [
                value for (name, _, other), value in found.items() if name == variant and other is None and value is not None
            ]
        )
    }
    path = folder / f"soae_{plan.name}_{plan.schedule}"
    folder.mkdir(parents=True, exist_ok=True)
    lines = table(plan, errors, jobs) if errors else []
    more, comparison = tests(errors, trim, level)
    lines += [*more, "", PUBLISHED, *([f"Missing: {', '.join(missing)}."] if missing else [])]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["variant", "seed", "sparseness", "test error, %"])
        for (name, seed, value), score in found.items():
            if score is not None:
                writer.writerow([name, seed, "" if value is None else f"{value:g}", f"{score:.4f}"])
    draw_curves(jobs, list(errors), path.with_suffix(".png"))
    if comparison is not None:
        figure, axis = new_figure(7.0, 3.5)
        soae_statistics.critical_difference_diagram(axis, comparison, level)
        figure.savefig(path.with_name(f"{path.name}_ranks.png"), dpi=120, bbox_inches="tight")
    by_sparseness: dict[float, list[float]] = {}
    for (_, _, value), score in found.items():
        if value is not None and score is not None:
            by_sparseness.setdefault(value, []).append(score)
    if by_sparseness:
        draw_sparseness(by_sparseness, path.with_name(f"{path.name}_sparseness.png"))
    print(f"written to {path}.md, .csv and .png")
    return missing


def main(arguments: list[str] | None = None) -> int:
    """Train and test what is not done yet and write the tables; the exit status is 1 if something failed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--schedule", default="cut", choices=("cut", "taste", "long"), help="long: of mnist, 240 epochs")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--sparseness", nargs="+", type=float, default=[])
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--output", type=Path, default=Path("runs/reproduce"), help="folder of all runs")
    parser.add_argument("--results", type=Path, default=None, help="folder of the tables; by default that of all runs")
    parser.add_argument("--every_n_steps", type=int, default=2000, help="steps between checkpoints")
    parser.add_argument("--trim", type=int, default=4, help="best and worst runs of a variant that the statistics leave out")
    parser.add_argument("--level", type=float, default=0.05, help="of significance")
    parser.add_argument("--only_tables", action="store_true", help="train and test nothing; write what is finished")
    options, extra = parse_own(parser, sys.argv[1:] if arguments is None else arguments)
    if options.schedule not in EXPERIMENTS[options.experiment].schedules:
        parser.error(f"{options.experiment} has no schedule {options.schedule!r}")
    plan = Plan(
        name=options.experiment,
        schedule=options.schedule,
        variants=[name for name in VARIANTS if name in options.variants],
        seeds=list(dict.fromkeys(options.seeds)),
        sparseness=sorted(set(options.sparseness)),
        output=options.output,
        every=options.every_n_steps,
        extra=extra,
    )
    failed = []
    if not options.only_tables:
        failed = run_all([partial(train_and_test, job) for job in plan.jobs().values()], max(1, options.jobs))
    write(plan, options.results or options.output, options.trim, options.level)
    for message in failed:
        print(message, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    exit_with(main)
