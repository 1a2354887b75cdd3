"""Every config runs, and is short enough to read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lit_sparse.cli import build_cli, main

from .conftest import CONFIGS
from .data.images.test_mnist import idx
from .data.pairs import WORDS, write_pairs
from .data.text.test_catalogues import catalogue

#: Runs are shorter here than the schedulers of their configs.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not reach its end")


def content(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())  # type: ignore[no-any-return]


def label(path: Path) -> str:
    return str(path.relative_to(CONFIGS))


ALL = sorted(CONFIGS.rglob("*.yaml"))
EXPERIMENTS = [path for path in ALL if "class_path" in content(path).get("data", {})]
#: Configs that differ from another in the estimator or an argument alone: they take long and find little.
LIKE_ANOTHER = re.compile("_128$|sfe|nvil|sum_and_sample|gumbel_st|leave_one_out|^mnist_gumbel$|^gumbel$")
LABELS = ("entailment", "neutral", "contradiction")
#: Folders whose models attend, by the mapping of an overlay.
ATTEND = ("translation", "summarization", "entailment")
#: What an overlay meets: one experiment of each folder for each set of settings of the trainer.
DIFFERENT = list({(path.parent, *sorted(content(path)["trainer"])): path for path in reversed(EXPERIMENTS)}.values())
#: An overlay among experiments is for those beside it, one in the folder ``trainer`` for all.
OVERLAID = [
    (path, overlay)
    for overlay in ALL
    if overlay not in EXPERIMENTS
    for path in DIFFERENT
    if overlay.parent.name == "trainer"
    or overlay.parent == path.parent
    or (overlay.parent.name == "mapping" and path.parent.name in ATTEND)
]


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of idx files with a few images of noise."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for prefix, size in (("train", 200), ("t10k", 50)):
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(rng.integers(0, 256, (size, 28, 28))))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(rng.integers(0, 10, size)))
    places = ["longitude,latitude,medianHouseValue", *(f"{x},{y},{100 + x * y}" for x in range(12) for y in range(12))]
    (folder / "places.csv").write_text("\n".join(places) + "\n")
    columns = "longitude,latitude,housingMedianAge,totalRooms,totalBedrooms,population,households,medianIncome,medianHouseValue"
    np.savetxt(folder / "houses.csv", rng.uniform(1, 9, (40, 9)), delimiter=",", header=columns, comments="")
    np.savez(folder / "counts.npz", X=rng.normal(size=(150, 9)), y=rng.poisson(3, 150))
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1"]
    proxy = ["fit", "-c", str(CONFIGS / "coreset" / "mnist_proxy.yaml"), f"--output_dir={folder}", "--name=proxy", *quiet]
    assert main([*proxy, f"--data.init_args.folder={folder}", "--data.init_args.val_size=50"]) == 0
    (folder / "proxy" / "0" / "checkpoints" / "last.ckpt").rename(folder / "proxy.ckpt")
    return folder


@pytest.fixture(scope="session")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a few short feature vectors."""
    path = tmp_path_factory.mktemp("features") / "features.npz"
    np.savez(path, features=np.random.default_rng(0).random((250, 6), dtype=np.float32), label=np.arange(250) % 5)
    return path


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a few sentence pairs, articles and entailments, and word vectors."""
    folder = tmp_path_factory.mktemp("texts")
    for split in ("train", "val", "valid", "validation", "dev", "test", "test_2016_flickr"):
        lines = write_pairs(folder / "pairs", split, 40)
        write_table(folder / f"{split}.jsonl", lines)
    vectors = [" ".join([word, *(f"{(i * j) % 7 / 7}" for j in range(1, 7))]) for i, word in enumerate(WORDS, 1)]
    (folder / "vectors.txt").write_text("\n".join(vectors) + "\n", encoding="utf-8")
    messages = {f"{word} {other}": f"{other} le {word}" for word in WORDS for other in WORDS[:3]}
    catalogue(folder, messages)
    return folder


def write_table(path: Path, lines: list[str]) -> None:
    rows = [
        {"article": line, "title": line[:9], "premise": line, "hypothesis": line[:9], "label": LABELS[number % 3]}
        for number, line in enumerate(lines)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def text_options(path: Path, texts: Path) -> list[str]:
    """What makes a model of text small, and gives it something to read."""
    data, model = content(path)["data"]["init_args"], content(path)["model"]["init_args"]
    options = {f"data.init_args.{name}": value for name, value in {"batch_size": 8, "eval_batch_size": 8}.items()}
    if "path" in data:
        options["data.init_args.path"] = str(texts / "pairs" if path.parent.name == "translation" else texts)
    if "distributions" in data:
        options |= {"data.init_args.distributions": "[]", "data.init_args.folders": f"[{texts}]"}
    if data.get("config"):  # of the hub
        options |= {"data.init_args.config": "null", "data.init_args.source": "de", "data.init_args.target": "en"}
    if "vectors" in data:
        options |= {"data.init_args.vectors": str(texts / "vectors.txt"), "data.init_args.vector_size": "6"}
        options["model.init_args.vector_size"] = "6"
    if "width" in model.get("body", {}).get("init_args", {}):
        options["model.init_args.body.init_args.width"] = "8"
    return [f"--{name}={value}" for name, value in options.items()]


def coreset_options(data: dict[str, Any], images: Path) -> list[str]:
    """What gives a config that trains on a coreset data of its own, and makes both small."""
    base, options = data["base"], {}
    if base["class_path"] == "MNISTDataModule":
        options = {"base.init_args.folder": images, "base.init_args.val_size": 50, "k": 20}
        options["vectors.init_args.checkpoint"] = images / "proxy.ckpt"
    elif base["class_path"] == "TableDataModule" and base["init_args"].get("bases"):
        options = {"base.init_args.path": images / "places.csv", "base.init_args.train_size": 100, "k": 20}
    elif base["class_path"] == "TableDataModule":
        options = {"base.init_args.path": images / "counts.npz", "k": 20}
    return [f"--data.init_args.{name}={value}" for name, value in options.items()]


def stand_in(path: Path, images: Path, features: Path, texts: Path) -> list[str]:
    """What stands in for the data that a config leaves to its user, and shortens what a class does at length."""
    data, options = content(path)["data"], []
    if path.parent.name in ATTEND:
        return text_options(path, texts)
    if data["class_path"] == "CoresetDataModule":
        return coreset_options(data["init_args"], images)
    if data["class_path"] == "CaliforniaHousingDataModule":
        return [f"--data.init_args.path={images / 'houses.csv'}", "--data.init_args.batch_size=16"]
    if "path" in data["init_args"]:
        sender = ["--model.init_args.sender.init_args.sizes=[6,64]"] if "sender" in content(path)["model"]["init_args"] else []
        return [f"--data.init_args.path={features}", "--model.init_args.in_features=6", *sender]
    if data["class_path"] == "MNISTDataModule":
        options = ["source=folder", f"folder={images}", "val_size=50", "batch_size=16", "eval_batch_size=16"]
        if data["init_args"]["labelled"]:
            options.append("labelled=0.2")
        if "label_noise" in data["init_args"]:
            options += [f"label_noise.init_args.cache={images}", "train_size=40"]
    if "epoch_size" in data["init_args"]:
        options.append("epoch_size=40")
    shorter = {
        "BitVectorVAE": ["--model.init_args.importance_samples=2"],
        "SupervisedOnlineAutoencoder": ["--model.init_args.width=10"],
    }
    return [f"--data.init_args.{option}" for option in options] + shorter.get(content(path)["model"]["class_path"], [])


@pytest.mark.parametrize("path", ALL, ids=label)
def test_a_config_is_short_and_explains_itself(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 30
    assert lines[0].startswith("# ")


@pytest.mark.filterwarnings("ignore:TemperatureAnnealing")  # the run is too short for it
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] if LIKE_ANOTHER.search(path.stem) else []) for path in EXPERIMENTS],
    ids=label,
)
def test_a_config_runs(
    path: Path, images: Path, features: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    limits = [f"--trainer.limit_{stage}_batches=2" for stage in ("train", "val", "test")]
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1", *limits]
    if "moses" in path.read_text():
        pytest.importorskip("sacremoses", reason="the tokens of Moses need the extra 'text'")
    options = ["-c", str(path), *stand_in(path, images, features, texts), *quiet]
    assert main(["fit", *options, "--trainer.max_epochs=2", "--trainer.check_val_every_n_epoch=1"]) == 0
    assert main(["test", *options, "--ckpt_path", "best"]) == 0


def leaves(tree: dict[str, Any], *above: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the value of every setting but the model's, whose parts may be given by their names alone."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, *above, name)
        elif name != "class_path" and above[:1] != ("model",):
            yield (*above, name), value


@pytest.mark.parametrize(("path", "overlay"), OVERLAID, ids=lambda path: label(path))
def test_overlays_change_what_they_name(path: Path, overlay: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lit_sparse.cli.app.LitSparseCLI.instantiate_trainer", lambda self: None)  # there may be no GPU
    needed = {"folder", "path"} & set(content(path)["data"]["init_args"])
    somewhere = [f"--data.init_args.{name}=somewhere" for name in needed]
    asked = build_cli(["fit", "-c", str(path), "-c", str(overlay), *somewhere]).config["fit"]
    expected = dict(leaves(content(path))) | dict(leaves(content(overlay)))
    expected |= {("data", "init_args", name): "somewhere" for name in needed}
    for keys, value in expected.items():
        found = asked
        for key in keys:
            found = found[key]
        if keys == ("trainer", "callbacks"):  # objects, with every argument spelled out
            found = [one["class_path"].rsplit(".", 1)[-1] for one in found]
            value = [one["class_path"] for one in value]
        found = list(found) if isinstance(found, tuple) else found  # YAML has no tuples
        if isinstance(value, str) and not isinstance(found, str) and "class_path" in (found or ()):  # a part by its name alone
            found = found["class_path"].rsplit(".", 1)[-1]
        assert found == value or str(found) == str(value), keys
    assert asked["model"]["class_path"].endswith(f".{content(path)['model']['class_path']}")
