"""Tables of attention: the published figures, what is trained and tested, and how results are reported next to them."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from lit_sparse.metrics import Bleu
from tests.data.pairs import WORDS, write_pairs

from .test_scripts import SCRIPTS, assert_picture, load

MAPPINGS = ["softmax", "sparsemax", "fusedmax", "oscarmax", "sq_pnorm_max"]
FOUR = MAPPINGS[:-1]  # those of the classifier
CONFIGS = {
    "translation": "translation/multi30k_de_en.yaml",
    "summarization": "summarization/gigaword_small.yaml",
    "entailment": "entailment/snli_small.yaml",
}


@pytest.fixture(scope="module")
def script() -> Any:
    return load("reproduce_attention")


@pytest.fixture(scope="module")
def tables() -> Any:
    return json.loads((SCRIPTS / "published_attention.json").read_text())["tables"]


# The published figures


@pytest.mark.parametrize(
    ("number", "columns", "parts", "mappings"),
    [
        ("1", 1, ["snli"], FOUR),
        ("2", 3, ["duc2004", "gigaword"], MAPPINGS),
        ("3", 2, ["snli"], FOUR),
        ("4", 11, ["from_english", "to_english"], MAPPINGS),
        ("5", 1, ["to_english"], MAPPINGS),
        ("6", 8, ["duc2003", "duc2004", "gigaword"], MAPPINGS),
        ("7", 6, ["duc2003", "duc2004", "gigaword"], MAPPINGS),
    ],
)
def test_a_published_table_is_whole(number: str, columns: int, parts: list[str], mappings: list[str], tables: Any) -> None:
    table = tables[number]
    assert len(set(table["columns"])) == len(table["columns"]) == columns
    assert list(table["parts"]) == list(table["best"]) == parts
    for part in parts:
        assert list(table["parts"][part]) == mappings
        assert {len(row) for row in table["parts"][part].values()} == {len(table["best"][part])} == {columns}
    holes = [(part, name) for part in parts for name, row in table["parts"][part].items() for cell in row if cell is None]
    expected = [("from_english", "sq_pnorm_max")] * 2 + [("to_english", "sq_pnorm_max")] * 2 if number == "4" else []
    assert holes == expected, "German and Latvian were too long for the projected gradient"


@pytest.mark.parametrize(
    ("number", "part", "column", "mapping", "value"),
    [
        (1, "snli", "accuracy", "fusedmax", 82.41),
        (1, "snli", "accuracy", "softmax", 81.66),
        (2, "duc2004", "L", "oscarmax", 25.14),
        (2, "gigaword", "2", "sparsemax", 17.78),
        (3, "snli", "time", "sparsemax", 1 * 3600 + 24 * 60 + 21),
        (3, "snli", "error", "sparsemax", 54),
        (4, "from_english", "benchmark/fr", "sq_pnorm_max", 37.16),
        (4, "from_english", "wmt17/tr", "fusedmax", 11.32),
        (4, "to_english", "wmt16/ro", "fusedmax", 18.29),
        (4, "to_english", "benchmark_plus/it", "oscarmax", 25.65),
        (4, "to_english", "wmt17/fi", "sq_pnorm_max", 15.20),
        (5, "to_english", "time", "oscarmax", 3 * 3600 + 25 * 60),
        (6, "duc2003", "truncated/W", "softmax", 16.95),
        (6, "gigaword", "whole/1", "oscarmax", 35.26),
        (6, "duc2004", "whole/2", "sq_pnorm_max", 9.30),
        (7, "duc2003", "truncated/recall", "sparsemax", 20.58),
        (7, "gigaword", "whole/precision", "fusedmax", 37.68),
    ],
)
def test_a_published_figure_is_that_of_the_paper(
    number: int, part: str, column: str, mapping: str, value: float, script: Any
) -> None:
    assert script.attention_tables.published(number)[part][column][mapping] == value


def test_what_the_paper_prints_bold_is_the_best_of_its_column(tables: Any) -> None:
    for number, table in tables.items():
        for part, rows in table["parts"].items():
            for place, marked in enumerate(table["best"][part]):
                column = {mapping: row[place] for mapping, row in rows.items() if row[place] is not None}
                best = [mapping for mapping, value in column.items() if value == max(column.values())]
                assert marked == ([] if number in "35" else best), f"table {number}, {part}, {table['columns'][place]}"


def test_what_the_paper_says_twice_is_the_same(script: Any) -> None:
    published = script.attention_tables.published
    for part, columns in published(2).items():
        for kind, figures in columns.items():
            assert figures == published(6)[part][f"truncated/{kind}"]
    for part, columns in published(7).items():
        for where in ("truncated", "whole"):
            assert columns[f"{where}/f1"] == published(6)[part][f"{where}/L"]


def test_published_translations_are_within_a_point_of_the_best(script: Any) -> None:
    """As its section 4.2 says; and a key chooses among them."""
    bleu = script.attention_tables.published_bleu
    assert len(bleu()) == 22
    assert all(max(figures.values()) - min(figures.values()) < 1 for figures in bleu().values())
    assert len(bleu("to_english")) == 11
    assert [name.rsplit("/", 1)[-1] for name in bleu("to_english/benchmark")] == ["fr", "it", "nl", "sv"], "not benchmark_plus"
    assert bleu("to_english/benchmark/fr") == {
        "to_english/benchmark/fr": dict(zip(MAPPINGS, (36.79, 36.91, 36.64, 36.90, 36.84), strict=True))
    }
    assert bleu("to_english/bench") == {}


# Tables from what runs leave


def write_lines(path: Path, lines: Sequence[dict[str, float]]) -> None:
    """Write a metrics.csv."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for line in lines for key in line)))
        writer.writeheader()
        writer.writerows(lines)


def write_config(path: Path, experiment: str, data: dict[str, Any]) -> None:
    config = yaml.safe_load((SCRIPTS.parent / "configs" / CONFIGS[experiment]).read_text())
    config["data"]["init_args"] |= data
    config["ckpt_path"] = None if (path.parent / "finished").is_file() else "elsewhere/checkpoints/best.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config))


def write_run(folder: Path, experiment: str, accuracies: Sequence[float], **data: Any) -> Path:
    """Write what a finished training of so many epochs leaves."""
    logged = []
    for epoch, accuracy in enumerate(accuracies):
        logged += [{"epoch": epoch, "step": 9, "val/accuracy": accuracy, "val/bleu": 20.0 + epoch}]
        logged += [{"epoch": epoch, "step": 9, "train/seconds": 10.0 * (epoch + 1)}]
    write_lines(folder / "metrics.csv", logged)
    (folder / "finished").touch()
    write_config(folder / "config.yaml", experiment, data)
    return folder


def write_test(run: Path, experiment: str, number: int = 0, data: dict[str, Any] | None = None, **scores: float) -> Path:
    """Write what a test leaves."""
    folder = run / "test" / str(number)
    known = {"support_size_mean": 4.25, "support_size_median": 4.0, "zeros": 0.625, "groups_mean": 3.5}
    line = {f"test/{name.removeprefix('_')}": value for name, value in {**known, **scores}.items()}
    write_lines(folder / "metrics.csv", [{"epoch": 0, "step": 0, **line}])
    write_config(folder / "config.yaml", experiment, data or {})
    (folder / "signatures.txt").write_text("".join(f"{name}: nrefs:{number + 1}\n" for name in ("bleu", "rouge")))
    return folder


def cells(path: Path, title: str = "") -> list[dict[str, str]]:
    """Return the rows of a table of a markdown file, that with a title."""
    lines = path.read_text().splitlines()
    lines = lines[lines.index(f"### {title}") :] if title else lines
    rows = [line.strip("| ").split(" | ") for line in lines[: lines.index("", 2)] if line.startswith("|")]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def from_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def notes(path: Path) -> list[str]:
    return [line[2:] for line in path.read_text().splitlines() if line.startswith("- ")]


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[str, list[str]]:
    """A folder of a test set, and its references."""
    write_pairs(tmp_path / "pairs", "test_2016_flickr", 30)
    return str(tmp_path / "pairs"), (tmp_path / "pairs" / "test_2016_flickr.en").read_text().splitlines()


def write_translation(folder: Path, path: str, lines: Sequence[str], references: Sequence[str], shift: float = 0.0) -> float:
    """Write a run that translated a test set so; return its BLEU, which its test reports with a shift."""
    metric = Bleu()
    metric.update(lines, [[reference] for reference in references])
    score = float(metric.compute()["bleu"])
    run = write_run(folder, "translation", (0.5, 0.7, 0.7, 0.6), path=path)
    write_test(run, "translation", data={"path": path}, bleu=score + shift, chrf=50.0)
    write_config(run / "predict" / "0" / "config.yaml", "translation", {"path": path})
    (run / "predict" / "0" / "predictions.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return score


def worse(lines: Sequence[str], every: int) -> list[str]:
    """Return texts of which each so many-th has lost its last words."""
    return [" ".join(line.split()[:-2]) if number % every == 0 else line for number, line in enumerate(lines)]


def test_translations_are_compared_with_the_best_mapping(
    script: Any, tmp_path: Path, pairs: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, references = pairs
    good, medium, bad = (worse(references, every) for every in (10, 5, 2))
    folder = tmp_path / "translation_small"
    softmax = [
        write_translation(folder / "softmax" / f"seed{seed}" / "0", path, lines, references)
        for seed, lines in enumerate((bad, good, medium))
    ]
    sparsemax = [
        write_translation(folder / "sparsemax" / f"seed{seed}" / "0", path, lines, references)
        for seed, lines in enumerate((bad, medium, bad))
    ]
    arguments = ["translation", "--only_tables", "--seeds", "0", "1", "2", "--mappings", "sparsemax", "softmax"]
    arguments += ["--output", str(tmp_path), "--published", "to_english/benchmark/fr"]
    assert script.main(arguments) == 0
    assert "| softmax | 3 |" in capsys.readouterr().out
    first, second = cells(tmp_path / "translation_small.md")
    assert first == {
        "attention": "softmax",
        "seeds": "3",
        "BLEU": f"{sorted(softmax)[1]:.2f}",
        "to the best [95 %]": "best",
        "p": "-",
        "chrF": "50.00",
        "support, mean": "4.25",
        "support, median": "4",
        "zeros, %": "62.5",
        "groups, mean": "3.50",
        "epochs (best)": "4 (2)",
        "published BLEU": "36.79",
        "published, less the best": "-0.12",
    }
    difference, low, high = (float(part.strip("[],")) for part in second["to the best [95 %]"].split())
    assert difference == pytest.approx(sorted(sparsemax)[1] - sorted(softmax)[1], abs=0.005)
    assert low < difference < high <= 0, "no input was translated better"
    assert float(second["p"]) < 0.05
    lines = notes(tmp_path / "translation_small.md")
    assert "`bleu: nrefs:1`" in lines
    assert "Figures of several seeds are medians." in lines
    assert not any("Missing" in note or "differs" in note for note in lines)
    assert from_csv(tmp_path / "translation_small.csv") == [first, second]
    assert_picture(tmp_path / "translation_small.png")
    assert script.main([*arguments[:-2], "--results", str(tmp_path / "other")]) == 0
    assert cells(tmp_path / "other" / "translation_small.md")[1]["published BLEU"] == "11.07 .. 40.25"


def test_predictions_that_are_not_those_of_the_test_are_refused(
    script: Any, tmp_path: Path, pairs: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, references = pairs
    folder = tmp_path / "translation_small"
    write_translation(folder / "softmax" / "seed0" / "0", path, worse(references, 10), references)
    write_translation(folder / "sparsemax" / "seed0" / "0", path, worse(references, 5), references, shift=0.04)
    arguments = ["translation", "--only_tables", "--output", str(tmp_path), "--mappings", "softmax", "sparsemax"]
    assert script.main(arguments) == 0, "what another batch may round"
    assert cells(tmp_path / "translation_small.md")[1]["p"] != "-"
    run = folder / "sparsemax" / "seed0" / "0"
    for lines, words in ((references, "has a bleu of 100.00, but the test"), (references[1:], "has 29 lines for 30 inputs")):
        (run / "predict" / "0" / "predictions.txt").write_text("".join(f"{line}\n" for line in lines))
        assert script.main(arguments) == 1
        assert words in capsys.readouterr().err
        assert cells(tmp_path / "translation_small.md")[1]["p"] == "-"
    shutil.rmtree(run / "predict")
    assert script.main(arguments) == 0
    assert "Missing: translation_small/sparsemax/seed0 has no predictions." in notes(tmp_path / "translation_small.md")
    shutil.rmtree(tmp_path / "pairs")
    assert script.main(arguments) == 1
    assert "The references cannot be read" in capsys.readouterr().err


def test_entailment_tells_median_and_range(script: Any, tmp_path: Path) -> None:
    for mapping, accuracies in (("softmax", (0.81, 0.805, 0.83)), ("sq_pnorm_max", (0.82,))):
        for seed, accuracy in enumerate(accuracies):
            run = tmp_path / "entailment_small" / mapping / f"seed{seed}" / "0"
            write_test(write_run(run, "entailment", (0.6, 0.8)), "entailment", accuracy=accuracy)
    (tmp_path / "entailment_small" / "fusedmax" / "seed0" / "0").mkdir(parents=True)
    arguments = ["entailment", "--only_tables", "--output", str(tmp_path), "--seeds", "0", "1", "2"]
    assert script.main([*arguments, "--mappings", "softmax", "fusedmax", "sq_pnorm_max"]) == 0
    softmax, pnorm = cells(tmp_path / "entailment_small.md")
    assert softmax["accuracy, %"] == "81.00 (80.50 .. 83.00)"
    assert softmax["published accuracy, %"] == "81.66"
    assert (pnorm["attention"], pnorm["seeds"], pnorm["accuracy, %"]) == ("sq-pnorm-max", "1", "82.00")
    assert pnorm["published accuracy, %"] == "-"
    (missing,) = [note for note in notes(tmp_path / "entailment_small.md") if note.startswith("Missing")]
    assert missing.count("fusedmax") == 3
    assert missing.count("sq_pnorm_max") == 2
    assert "softmax/" not in missing
    assert_picture(tmp_path / "entailment_small.png")


def rouge(base: float) -> dict[str, float]:
    """Return scores that tell their keys apart."""
    kinds = ["1", "2", "L", "W", "W155"]
    names = [
        f"{name}{kind}{part}" for name in ("rouge75_", "rouge") for kind in kinds for part in ("", "_precision", "_recall")
    ]
    return {name: base + number / 100 for number, name in enumerate(names)}


def test_summaries_are_told_for_each_test_set(script: Any, tmp_path: Path) -> None:
    for mapping in ("softmax", "fusedmax"):
        run = write_run(tmp_path / "summarization_small" / mapping / "seed0" / "0", "summarization", (0.4, 0.5))
        several = {"references": "references"}
        write_test(run, "summarization", 0, {"test": "duc2004", **several}, **rouge(20.0))
        write_test(run, "summarization", 1, {"test": "test"}, **rouge(30.0))
        write_test(run, "summarization", 2, {"test": "duc2003"}, **rouge(90.0))  # of the wrong column
        write_test(run, "summarization", 3, {"test": "headlines"}, **rouge(40.0))
    arguments = ["summarization", "--only_tables", "--output", str(tmp_path), "--mappings", "softmax", "fusedmax"]
    assert script.main([*arguments, "--tests", "duc2003", "duc2004", "test", "headlines"]) == 0
    page = tmp_path / "summarization_small.md"
    fusedmax = cells(page, "F1 of ROUGE on duc2004 (Table 6, DUC 2004)")[1]
    assert list(fusedmax.items()) == [
        ("attention", "fusedmax"),
        ("seeds", "1"),
        ("ROUGE-1, 75 bytes", "20.00 (28.42)"),
        ("ROUGE-2, 75 bytes", "20.03 (9.96)"),
        ("ROUGE-L, 75 bytes", "20.06 (25.55)"),
        ("ROUGE-W, 75 bytes", "20.12 (17.78)"),
        ("ROUGE-1, whole", "20.15 (28.43)"),
        ("ROUGE-2, whole", "20.18 (9.96)"),
        ("ROUGE-L, whole", "20.21 (25.55)"),
        ("ROUGE-W, whole", "20.27 (17.79)"),
    ]
    softmax = cells(page, "ROUGE-L on test (Table 7, Gigaword)")[0]
    assert list(softmax.values())[2:] == [
        *("30.07 (36.43)", "30.08 (31.67)", "30.06 (32.92)"),
        *("30.22 (36.61)", "30.23 (31.54)", "30.21 (32.77)"),
    ]
    assert cells(page, "F1 of ROUGE on headlines")[0]["ROUGE-1, 75 bytes"] == "40.00 (-)"
    looked = cells(page, "Attention")
    assert [row["test set"] for row in looked] == ["duc2004"] * 2 + ["test"] * 2 + ["headlines"] * 2
    lines = notes(page)
    assert "`rouge: nrefs:1` on duc2004" in lines
    assert "`rouge: nrefs:2` on test" in lines
    (missing,) = [note for note in lines if note.startswith("Missing")]
    assert missing.count("is not tested on duc2003") == 2
    rows = from_csv(tmp_path / "summarization_small.csv")
    assert len(rows) == 6
    assert (rows[1]["ROUGE-W, 75 bytes"], rows[1]["ROUGE-W, 75 bytes, published"]) == ("20.12", "17.78")


def test_runs_that_should_not_be_compared_are_named(script: Any, tmp_path: Path) -> None:
    for mapping, width in (("softmax", 256), ("sparsemax", 8)):
        run = write_run(tmp_path / "translation_small" / mapping / "seed0" / "0", "translation", (0.5,), seed=width)
        config = yaml.safe_load((run / "config.yaml").read_text())
        config["model"]["init_args"]["mapping"] = mapping.capitalize()
        config["model"]["init_args"]["body"]["init_args"]["width"] = width
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        write_test(run, "translation", data={"seed": width}, bleu=20.0)
    assert script.main(["translation", "--only_tables", "--output", str(tmp_path)]) == 0
    (unlike,) = [note for note in notes(tmp_path / "translation_small.md") if "differs" in note]
    assert unlike.startswith("sparsemax")
    assert unlike.endswith("differs from the first run in model.init_args.body.init_args.width.")


def test_published_bleu_of_moses_tokens_is_compared_where_there_is_one(script: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "softmax" / "0", "translation", (0.5,))
    config = yaml.safe_load((SCRIPTS.parent / "configs" / "translation" / "wmt_style.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    folder = write_test(run, "translation", bleu=20.0, bleu_moses=22.0, chrf=40.0)
    page = script.attention_tables.translation({"softmax": [script.Run(run, {"own": folder})]})
    (row,) = page.rows
    assert (row["BLEU"], row["BLEU (bleu_moses)"]) == ("20.00", "22.00")
    assert row["published BLEU"] == "11.02 .. 40.06"


# Training and test


@pytest.fixture
def commands(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that a script gives, each of which leaves what the real one does."""
    given: list[list[str]] = []

    def call(arguments: Sequence[str], log: Path, threads: int, inherited: Sequence[int] = ()) -> None:
        command, options = arguments[3], dict(zip(arguments[4::2], arguments[5::2], strict=True))
        given.append(list(arguments[3:]))
        data = {key.rsplit(".", 1)[-1]: value for key, value in options.items() if key.startswith("--data.init_args.")}
        if command == "fit":
            folder = Path(options["--output_dir"]) / options["--name"] / "0"
            write_run(folder, options["--name"].split("_")[0], (0.5, 0.6), **{"test": "test", **data})
            (folder / "finished").unlink()
            (folder / "checkpoints").mkdir()
            for name in ("best", "last"):
                (folder / "checkpoints" / f"{name}.ckpt").touch()
            return
        run = Path(options["--ckpt_path"]).parents[1]
        began = {"test": "test", **yaml.safe_load((run / "config.yaml").read_text())["data"]["init_args"]}
        number = len(list(run.glob(f"{command}/*")))
        name = run.parts[-4].split("_")[0]
        folder = write_test(run, name, number, began | data, accuracy=0.75, bleu=0.0, **rouge(20.0))
        if command == "predict":
            (folder / "predictions.txt").write_text("")
            shutil.move(folder, run / "predict" / "0")

    monkeypatch.setattr(script, "call", call)
    monkeypatch.setitem(script.Job.train.__globals__, "call", call)
    return given


def test_each_test_set_is_used_once(script: Any, tmp_path: Path, commands: list[list[str]]) -> None:
    arguments = ["summarization", "--mappings", "oscarmax", "--seeds", "3", "--output", str(tmp_path), "--every_n_steps", "7"]
    for _ in range(2):
        assert script.main([*arguments, "--", "--data.init_args.path", "gigaword"]) == 0
    run = tmp_path / "summarization_small" / "oscarmax" / "seed3" / "0"
    fit, *tests = commands
    assert fit[:3] == ["fit", "-c", str(SCRIPTS.parent / "configs" / "summarization" / "gigaword_small.yaml")]
    options = dict(zip(fit[3::2], fit[4::2], strict=True))
    assert options["--model.init_args.mapping"] == "Oscarmax"
    assert options["--seed_everything"] == options["--data.init_args.seed"] == "3"
    assert options["--data.init_args.path"] == "gigaword"
    assert options["--checkpoint_every_n_steps"] == "7"
    start = ["test", "-c", str(run / "config.yaml"), "--ckpt_path", str(run / "checkpoints" / "best.ckpt")]
    several = ["--data.init_args.references", "references"]
    assert tests == [
        [*start, "--data.init_args.test", "duc2003", *several],
        [*start, "--data.init_args.test", "duc2004", *several],
        [*start, "--data.init_args.test", "test"],
    ]
    assert script.main([*arguments, "--tests", "other=titles", "test", "--", "--data.init_args.path", "gigaword"]) == 0
    (more,) = commands[4:]
    assert more == [*start, "--data.init_args.test", "other", "--data.init_args.references", "titles"]


def test_only_a_test_of_the_best_checkpoint_and_these_data_counts(
    script: Any, tmp_path: Path, commands: list[list[str]]
) -> None:
    arguments = ["entailment", "--mappings", "softmax", "--output", str(tmp_path)]
    assert script.main(arguments) == 0
    run = tmp_path / "entailment_small" / "softmax" / "seed0" / "0"
    test = run / "test" / "0"

    def changed(change: Callable[[dict[str, Any]], Any]) -> None:
        config = yaml.safe_load((test / "config.yaml").read_text())
        change(config)
        (test / "config.yaml").write_text(yaml.safe_dump(config))

    for spoil in (
        lambda: changed(lambda config: config.update(ckpt_path="checkpoints/last.ckpt")),
        lambda: changed(lambda config: config["data"]["init_args"].update(test="test_hard")),
        lambda: (test / "metrics.csv").unlink(),  # killed before its end
        lambda: os.utime(test / "metrics.csv", (0, 0)),  # of a checkpoint that was the best one before
    ):
        shutil.rmtree(run / "test")
        assert script.main(arguments) == 0
        given = len(commands)
        spoil()
        assert script.main(arguments) == 0
        assert [command[0] for command in commands[given:]] == ["test"]
        assert script.main(arguments) == 0
        assert len(commands) == given + 1


def test_a_command_that_leaves_nothing_is_an_error(
    script: Any, tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "call", lambda *_: None)
    assert script.main(["translation", "--mappings", "softmax", "--output", str(tmp_path)]) == 1
    assert "left no metrics.csv; see" in capsys.readouterr().err
    assert not (tmp_path / "translation_small.md").exists()


def test_nothing_finished_is_told(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["translation", "--only_tables", "--mappings", "softmax", "--output", str(tmp_path)]) == 1
    assert "nothing is finished" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["parsing"], "invalid choice: 'parsing'"),
        (["translation", "--mappings", "hardmax"], "invalid choice: 'hardmax'"),
        (["translation", "--tests", "test"], "--tests is for summarization"),
        (["entailment", "--published", "to_english"], "--published chooses test sets of translation"),
        (["translation", "--published", "to_english/bench"], "should be one of from_english/benchmark/fr, "),
        (["translation", "--data.init_args.path", "multi30k"], "stand at the end, behind --"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], words: str, script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(arguments)
    assert words in capsys.readouterr().err


def test_a_missing_config_is_told(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "ROOT", tmp_path)
    with pytest.raises(SystemExit):
        script.main(["entailment", "--schedule", "published"])
    assert "there is no config entailment/snli.yaml in" in capsys.readouterr().err


def test_mappings_are_those_of_the_package_and_of_the_paper(script: Any) -> None:
    from lit_sparse import mappings

    assert list(script.MAPPINGS) == MAPPINGS
    assert all(hasattr(mappings, name) for name in script.MAPPINGS.values())
    for experiment in script.EXPERIMENTS.values():
        assert list(experiment.configs) == ["small", "published"]
        assert all((script.ROOT / "configs" / config).is_file() for config in experiment.configs.values())


# The real command

TINY = (
    *("--trainer.max_epochs=4", "--trainer.accelerator=cpu", "--data.init_args.batch_size=8"),
    *("--model.init_args.body.init_args.width=32", "--model.init_args.optimizer.init_args.lr=0.01"),
    *("--data.init_args.source_vocabulary.kind=words", "--data.init_args.target_vocabulary.kind=words"),
)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(900)
def test_a_small_table_of_translation_is_made(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained, tested and predicted by the installed command; a second call reads."""
    for split, number in (("train", 200), ("val", 15), ("test_2016_flickr", 25)):
        write_pairs(tmp_path / "pairs", split, number)
    arguments = ["translation", "--mappings", "softmax", "fusedmax", "--output", str(tmp_path), "--jobs", "2", "--"]
    arguments += ["--data.init_args.path", str(tmp_path / "pairs"), *TINY]
    assert script.main(arguments) == 0, capsys.readouterr().err
    rows = cells(tmp_path / "translation_small.md")
    assert [row["attention"] for row in rows] == ["softmax", "fusedmax"]
    assert [row["epochs (best)"][0] for row in rows] == ["4", "4"]
    assert min(float(row["BLEU"]) for row in rows) > 0, "it has learnt some words, so that predictions can be distinguished"
    assert sorted(row["to the best [95 %]"] == "best" for row in rows) == [False, True], "and predictions are those of the test"
    assert rows[0]["zeros, %"] == "0.0"
    assert rows[1]["groups, mean"] != rows[0]["groups, mean"]
    assert any("tok:13a" in note for note in notes(tmp_path / "translation_small.md"))
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "translation_small").rglob("*") if path.suffix != ".lock"}
    assert script.main(arguments) == 0
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "translation_small").rglob("*") if path.suffix != ".lock"}
    assert after == files
    assert cells(tmp_path / "translation_small.md") == rows


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(900)
def test_small_tables_of_the_other_experiments_are_made(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Summaries with one and several references; pairs of sentences with word vectors."""
    for split, number in (("train", 80), ("valid", 10), ("dev", 10), ("test", 12), ("duc2004", 9)):
        lines = write_pairs(tmp_path / "pairs", split, number)
        label = ("entailment", "neutral", "contradiction")
        rows = [
            {"article": line, "title": line[:9], "premise": line, "hypothesis": line[:9], "label": label[place % 3]}
            for place, line in enumerate(lines)
        ]
        if split == "duc2004":
            rows = [{"article": row["article"], "references": [row["title"], row["article"]]} for row in rows]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    vectors = [" ".join([word, *("0.5" for _ in range(6))]) for word in WORDS]
    (tmp_path / "vectors.txt").write_text("\n".join(vectors) + "\n", encoding="utf-8")
    common = ["--mappings", "sparsemax", "--output", str(tmp_path)]
    data = ["--", "--data.init_args.path", str(tmp_path), "--trainer.max_epochs=1", "--trainer.accelerator=cpu"]
    width = "--model.init_args.body.init_args.width=8"
    assert script.main(["summarization", *common, "--tests", "duc2004", "test", *data, width]) == 0, capsys.readouterr().err
    (row,) = cells(tmp_path / "summarization_small.md", "F1 of ROUGE on duc2004 (Table 6, DUC 2004)")
    assert row["ROUGE-1, whole"].endswith(" (27.77)")
    lines = notes(tmp_path / "summarization_small.md")
    assert any("nrefs:2" in note and note.endswith("on duc2004") for note in lines)
    assert any("nrefs:1" in note and note.endswith("on test") for note in lines)
    words = [f"--data.init_args.vectors={tmp_path / 'vectors.txt'}", "--data.init_args.vector_size=6"]
    words += ["--model.init_args.vector_size=6"]
    assert script.main(["entailment", *common, *data, *words]) == 0, capsys.readouterr().err
    (row,) = cells(tmp_path / "entailment_small.md")
    assert 0 <= float(row["accuracy, %"]) <= 100
    assert row["published accuracy, %"] == "82.39"
