"""Train the published models of text with every attention, test each once, and tabulate the results next to the published ones.

Usage:
    python scripts/reproduce_attention.py {translation,summarization,entailment} [--schedule small]
        [--mappings softmax fusedmax ...] [--seeds 0 1 2] [--jobs 2] [--output runs/reproduce] [--results FOLDER]
        [--every_n_steps 500] [--only_tables] [--published to_english/benchmark] [--tests duc2003 duc2004 test]
        [-- OPTIONS OF EVERY lit-sparse fit]

The options after ``--`` name the data, and other changes of the config::
    python scripts/reproduce_attention.py translation --jobs 2 -- --data.init_args.path multi30k
    python scripts/reproduce_attention.py summarization -- --data.init_args.path gigaword
    python scripts/reproduce_attention.py entailment -- --data.init_args.path snli --data.init_args.vectors glove.6B.50d.txt

Each run is one ``lit-sparse fit``, ``--jobs`` of them at a time, which share the cores. The seed is that of the weights and of
the order of the data. A killed run goes on from its last step checkpoint when the same command is given again, and finished
ones are only read. Then the checkpoint of the best accuracy in validation is tested: the test set is used once, a finished
test is only read from the run's folder ``test``. Predictions of translations are kept in the run's folder ``predict``, for
the comparison with the best mapping.

Finished runs of the given mappings and seeds are written to ``<results>/<experiment>_<schedule>.md``, ``.csv`` and
``.png``, with a note of what is missing; ``--only_tables`` writes that alone, at any time. All published figures are in
``published_attention.json`` next to this script.
"""

from __future__ import annotations

import passive_threads  # noqa: F401  # isort: skip

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import attention_tables
import yaml
from attention_tables import OWN, Page, Results, Run
from jobs import Job, JobFailedError, call, exit_with, parse_own, run_all

from lit_sparse.runs import CHECKPOINTS, numbered

ROOT = Path(__file__).resolve().parents[1]

MAPPINGS = {
    "softmax": "Softmax",
    "sparsemax": "Sparsemax",
    "fusedmax": "Fusedmax",
    "oscarmax": "Oscarmax",
    "sq_pnorm_max": "SqPNormMax",
}
#: Test sets of summarization with several references an article -> the column that they are in.
REFERENCES = {"duc2003": "references", "duc2004": "references"}


@dataclass(frozen=True)
class Experiment:
    """One table.

    Args:
        configs: schedule -> config.
        curves: key -> label of what the picture shows.
        tests: names of the test sets, unless it is the one of the config.
        predicts: whether predictions for the test set are kept.
    """

    configs: dict[str, str]
    curves: dict[str, str]
    tests: tuple[str, ...] = ()
    predicts: bool = False


TOKENS = {"val/accuracy": "accuracy of a token, validation"}
EXPERIMENTS = {
    "translation": Experiment(
        {"small": "translation/multi30k_de_en.yaml", "published": "translation/wmt_style.yaml"},
        {**TOKENS, "val/bleu": "BLEU of validation"},
        predicts=True,
    ),
    "summarization": Experiment(
        {"small": "summarization/gigaword_small.yaml", "published": "summarization/gigaword.yaml"},
        TOKENS,
        tests=("duc2003", "duc2004", "test"),
    ),
    "entailment": Experiment(
        {"small": "entailment/snli_small.yaml", "published": "entailment/snli.yaml"},
        {"val/accuracy": "accuracy of validation"},
    ),
}


@dataclass(frozen=True)
class Plan:
    """Options of the command line.

    Args:
        name: name of the experiment.
        schedule: name of the schedule, which sets lengths and sizes.
        mappings: rows of the table.
        seeds: seeds of the runs of each mapping.
        jobs: number of trainings at a time.
        output: folder of all runs.
        every: steps between checkpoints.
        tests: test set -> options of ``lit-sparse`` that choose it, key -> value.
        published: which published BLEU is shown.
        extra: options of every training.
    """

    name: str
    schedule: str
    mappings: list[str]
    seeds: list[int]
    jobs: int
    output: Path
    every: int
    tests: dict[str, dict[str, str]]
    published: str
    extra: list[str]

    @property
    def experiment(self) -> Experiment:
        """The experiment."""
        return EXPERIMENTS[self.name]

    def job(self, mapping: str, seed: int) -> Job:
        """Return the training with one mapping and seed."""
        options = ["--model.init_args.mapping", MAPPINGS[mapping]]
        options += ["--seed_everything", str(seed), "--data.init_args.seed", str(seed), *self.extra]
        config = ROOT / "configs" / self.experiment.configs[self.schedule]
        return Job(str(config), f"{self.name}_{self.schedule}/{mapping}/seed{seed}", self.output, options, self.every)


def done(run: Path, command: str, file: str, options: dict[str, str]) -> Path | None:
    """Return the newest folder in which a command came to its end with the best checkpoint of a run; None without one.

    Args:
        run: its folder.
        command: ``test`` or ``predict``.
        file: which the command writes at its end.
        options: options of the data that differ from those of the run.
    """
    wanted = yaml.safe_load((run / "config.yaml").read_text())["data"]["init_args"] | options
    best = run / CHECKPOINTS / "best.ckpt"
    since = best.stat().st_mtime if best.is_file() else 0.0  # what is older was made while the run was trained
    for folder in reversed(numbered(run / command)):
        made, its_config = folder / file, folder / "config.yaml"
        if made.is_file() and its_config.is_file() and made.stat().st_mtime >= since:
            config = yaml.safe_load(its_config.read_text())
            same = all(config["data"]["init_args"].get(key) == value for key, value in wanted.items())
            if same and Path(str(config.get("ckpt_path"))).name == best.name:
                return folder
    return None


def once(job: Job, command: str, file: str, options: dict[str, str], threads: int, lock: Sequence[int]) -> None:
    """Test a run, or let it predict, unless that is done.

    Raises:
        JobFailedError: if it fails.
    """
    if done(job.folder, command, file, options) is not None:
        return
    best = job.folder / CHECKPOINTS / "best.ckpt"
    arguments = [sys.executable, "-m", "lit_sparse", command, "-c", str(job.folder / "config.yaml"), "--ckpt_path", str(best)]
    arguments += [word for key, value in options.items() for word in (f"--data.init_args.{key}", value)]
    call(arguments, job.log, threads, lock)
    if done(job.folder, command, file, options) is None:
        raise JobFailedError(f"{' '.join(arguments)}\nleft no {file}; see {job.log}")
    print(f"{job.name}: {command} done{''.join(f', {key} {value}' for key, value in options.items())}", flush=True)


def train_and_test(plan: Plan, mapping: str, seed: int, threads: int) -> None:
    """Train and test one mapping with one seed, unless that is done.

    Raises:
        JobFailedError: if one of the commands fails.
    """
    job = plan.job(mapping, seed)
    job.train(threads)
    with job.alone() as lock:
        for options in plan.tests.values():
            once(job, "test", "metrics.csv", options, threads, lock)
        if plan.experiment.predicts:
            once(job, "predict", "predictions.txt", {}, threads, lock)


def finished(plan: Plan) -> tuple[Results, list[str]]:
    """Return the runs that are trained and tested, and what is missing of those that were asked for."""
    results: Results = {}
    missing = []
    for mapping in plan.mappings:
        for seed in plan.seeds:
            job = plan.job(mapping, seed)
            if not (job.folder / "finished").is_file():
                missing.append(f"{job.name} is not trained to its end")
                continue
            found = {name: done(job.folder, "test", "metrics.csv", options) for name, options in plan.tests.items()}
            tests = {name: folder for name, folder in found.items() if folder is not None}
            missing += [f"{job.name} is not tested{f' on {name}' * (name != OWN)}" for name in found if name not in tests]
            predicted = done(job.folder, "predict", "predictions.txt", {}) if plan.experiment.predicts else None
            if plan.experiment.predicts and predicted is None:
                missing.append(f"{job.name} has no predictions")
            if tests:
                run = Run(job.folder, tests, predicted / "predictions.txt" if predicted else None)
                results.setdefault(mapping, []).append(run)
    return results, missing


def page_of(plan: Plan, results: Results, missing: list[str]) -> Page:
    """Return the tables and notes."""
    if plan.name == "translation":
        page = attention_tables.translation(results, plan.published)
    elif plan.name == "summarization":
        page = attention_tables.summarization(results, list(plan.tests))
    else:
        page = attention_tables.entailment(results)
    page.notes += ["Figures of several seeds are medians."] * (len(plan.seeds) > 1)
    page.notes += attention_tables.unlike(results)
    page.notes += [f"Missing: {'; '.join(missing)}."] if missing else []
    return page


def chosen_tests(names: list[str]) -> dict[str, dict[str, str]]:
    """Return test set -> options that choose it, from names as ``--tests`` takes them."""
    found = {}
    for name in names:
        split, given, column = name.partition("=")
        column = column if given else REFERENCES.get(split, "")
        found[split] = {"test": split} | ({"references": column} if column else {})
    return found


def parse(arguments: list[str]) -> tuple[Plan, Path, bool]:
    """Return what was asked for, where results go, and whether nothing is to be trained."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--schedule", choices=("small", "published"), default="small", help="for a CPU, or as published")
    parser.add_argument(
        "--mappings", nargs="+", choices=MAPPINGS, default=list(MAPPINGS), help="rows of the table; by default all"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--output", type=Path, default=Path("runs/reproduce"), help="folder of all runs")
    parser.add_argument("--results", type=Path, default=None, help="folder of the tables; by default that of all runs")
    parser.add_argument("--every_n_steps", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--only_tables", action="store_true", help="train and test nothing; write what is finished")
    parser.add_argument(
        "--published",
        default=None,
        metavar="KEY",
        help="of translation: the test sets of Table 4 whose BLEU is shown, as to_english, to_english/benchmark or"
        " to_english/benchmark/fr; by default all",
    )
    parser.add_argument(
        "--tests",
        nargs="+",
        default=None,
        metavar="NAME[=COLUMN]",
        help="of summarization: splits that each run is tested on, by default duc2003, duc2004 and test. COLUMN"
        " holds lists of references, as in duc2004=references, the default for duc2003 and duc2004. Without a column, as in"
        " duc2004=, the target of the config is the only reference",
    )
    options, extra = parse_own(parser, arguments)
    experiment = EXPERIMENTS[options.experiment]
    if options.tests is not None and not experiment.tests:
        parser.error(f"--tests is for summarization; {options.experiment} has one test set: -- --data.init_args.test NAME")
    if options.published is not None and options.experiment != "translation":
        parser.error("--published chooses test sets of translation; the figures of the others are all shown")
    if options.published is not None and not attention_tables.published_bleu(options.published):
        allowed = ", ".join(attention_tables.published_bleu())
        parser.error(f"--published is {options.published!r} but should be one of {allowed}, or what some of them begin with")
    if not (ROOT / "configs" / experiment.configs[options.schedule]).is_file():
        parser.error(f"there is no config {experiment.configs[options.schedule]} in {ROOT / 'configs'}")
    tests = chosen_tests(options.tests or list(experiment.tests)) or {OWN: {}}
    plan = Plan(
        name=options.experiment,
        schedule=options.schedule,
        mappings=[name for name in MAPPINGS if name in options.mappings],
        seeds=list(dict.fromkeys(options.seeds)),
        jobs=max(1, options.jobs),
        output=options.output,
        every=options.every_n_steps,
        tests=tests,
        published=options.published or "",
        extra=extra,
    )
    return plan, options.results or options.output, options.only_tables


def main(arguments: list[str] | None = None) -> int:
    """Train and test what is not done yet and write the tables; the exit status is 1 if something failed."""
    plan, folder, only_tables = parse(sys.argv[1:] if arguments is None else arguments)
    failed = []
    if not only_tables:
        failed = run_all(
            [partial(train_and_test, plan, mapping, seed) for seed in plan.seeds for mapping in plan.mappings], plan.jobs
        )
    results, missing = finished(plan)
    if results:
        path = folder / f"{plan.name}_{plan.schedule}"
        page = page_of(plan, results, missing)
        print("\n".join(attention_tables.write(page, path)))
        attention_tables.draw(results, path.with_suffix(".png"), plan.experiment.curves)
        print(f"written to {path}.md, .csv and .png")
        failed += page.problems
    elif only_tables:
        failed.append(f"nothing is finished in {plan.output}: {'; '.join(missing)}")
    for message in failed:
        print(message, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    exit_with(main)
