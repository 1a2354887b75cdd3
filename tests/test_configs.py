"""Every config runs, alone or behind its base, and is short enough to read."""

from __future__ import annotations

import difflib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from jsonargparse import ArgumentParser, Namespace

from lit_sparse.cli import main
from lit_sparse.cli.app import LitSparseCLI

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


def commanded(path: Path) -> Path:
    """Return the base in the command of an overlay."""
    return CONFIGS / re.findall(r"-c configs/(\S+) -c", path.read_text())[0]


def is_base(path: Path) -> bool:
    """Return whether a config trains by itself; others are overlays."""
    return "class_path" in content(path).get("data", {})


ALL = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "studies")
BASES = [path for path in ALL if is_base(path)]
LABELS = ("entailment", "neutral", "contradiction")
#: Folders whose models attend, by the mapping of an overlay.
ATTEND = ("translation", "summarization", "entailment")
#: Bases for overlays of the trainer: one of each folder for each set of settings of the trainer.
DIFFERENT = list({(path.parent, *sorted(content(path)["trainer"])): path for path in reversed(BASES)}.values())


def bases_of(overlay: Path) -> list[Path]:
    """Return the bases that an overlay serves.

    An overlay in the folder of a task serves the base whose name is a prefix of its own, or else all bases of the folder. An
    overlay in a subfolder serves all bases of the folder above. Overlays in ``mapping`` and ``trainer`` serve several tasks.
    """
    if overlay.parent.name == "trainer":
        return DIFFERENT
    if overlay.parent.name == "mapping":
        return [path for path in DIFFERENT if path.parent.name in (*ATTEND, "ssvae", "signaling_game")]
    beside = [path for path in BASES if path.parent == overlay.parent]
    if not beside:
        return [path for path in BASES if path.parent == overlay.parent.parent]
    return [path for path in beside if overlay.stem.startswith(f"{path.stem}_")] or beside


#: Overlay -> bases.
SERVED = {overlay: bases_of(overlay) for overlay in ALL if overlay not in BASES}
#: Overlays that differ from another in an argument alone: they take long and find little.
LIKE_ANOTHER = re.compile("_128|sfe|nvil|sum_and_sample|gumbel_st|leave_one_out|(ssvae|game)/estimator/gumbel")
#: Overlays that change a schedule or a part whose runs have tests of their own.
RUN_ELSEWHERE = re.compile("^mapping|^trainer|variants|cut")
RUNS = [(path,) for path in BASES]
RUNS += [(commanded(path), path) for path in SERVED if not RUN_ELSEWHERE.search(label(path))]


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
    np.savez(path, features=np.random.default_rng(0).random((250, 6), dtype=np.float32), label=np.arange(250) % 100)
    return path


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a few sentence pairs, articles and entailments, and word vectors."""
    folder = tmp_path_factory.mktemp("texts")
    snli = ("snli_1.0_train", "snli_1.0_dev", "snli_1.0_test")
    for split in ("train", "val", "valid", "validation", "dev", "test", "test_2016_flickr", *snli):
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
    for row in rows:
        trees = {f"sentence{i}_binary_parse": f"( {row[role]} )" for i, role in enumerate(("premise", "hypothesis"), 1)}
        row |= {**trees, "gold_label": row["label"]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def text_options(path: Path, texts: Path) -> list[str]:
    """Options that make a model of text small and name its data."""
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
    """Options that give a config of coresets its own data, and make both small."""
    base, options = data["base"], {}
    if base["class_path"] == "MNISTDataModule":
        options = {"base.init_args.folder": images, "base.init_args.val_size": 50, "k": 20}
        options["vectors.init_args.checkpoint"] = images / "proxy.ckpt"
    elif base["class_path"] == "TableDataModule" and base["init_args"].get("bases"):
        options = {"base.init_args.path": images / "places.csv", "base.init_args.train_size": 100, "k": 20}
    elif base["class_path"] == "TableDataModule":
        options = {"base.init_args.path": images / "counts.npz", "k": 20}
    return [f"--data.init_args.{name}={value}" for name, value in options.items()]


def stand_in(paths: tuple[Path, ...], images: Path, features: Path, texts: Path) -> list[str]:
    """Options that replace the data that users provide, and shorten long computations."""
    path = paths[0]
    noise = f"cache={images}" if paths[-1].stem == "mnist_own_noise" else f"path={images / 'train-labels-idx1-ubyte'}"
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
            options += ["train_size=40", "label_noise.init_args." + noise]
    if "epoch_size" in data["init_args"]:
        options.append("epoch_size=40")
    shorter = {
        "BitVectorVAE": ["--model.init_args.importance_samples=2"],
        "SupervisedOnlineAutoencoder": ["--model.init_args.width=10"],
    }
    return [f"--data.init_args.{option}" for option in options] + shorter.get(content(path)["model"]["class_path"], [])


def settings(path: Path) -> list[str]:
    """Return the lines of a config without its comments."""
    lines = [line.split("  #")[0].rstrip() for line in path.read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def nearly_equal(folder: Path) -> list[tuple[str, str]]:
    """Return the pairs of configs of a folder that have more than 80 % of their lines in common."""
    return [
        (one.name, other.name)
        for one, other in itertools.combinations(sorted(folder.glob("*.yaml")), 2)
        if difflib.SequenceMatcher(None, settings(one), settings(other), autojunk=False).ratio() > 0.8
    ]


@pytest.mark.parametrize("path", ALL, ids=label)
def test_a_config_is_short_and_explains_itself(path: Path) -> None:
    first, *comments = itertools.takewhile(lambda line: line.startswith("# "), path.read_text().splitlines())
    named = f"configs/{label(path)}"
    if path in SERVED:
        assert first.startswith("# Overlay: ")
        assert len(settings(path)) <= 8
        assert commanded(path) in (BASES if path.parent.name == "trainer" else SERVED[path])
        named = f"configs/{label(commanded(path))} -c {named}"
    assert len(path.read_text().splitlines()) <= 30
    assert any(line.startswith("# lit-sparse fit -c ") and f"-c {named}" in line for line in comments)


def test_no_two_configs_of_a_folder_are_nearly_equal(tmp_path: Path) -> None:
    assert {path.parent.name: pairs for path in ALL if (pairs := nearly_equal(path.parent))} == {}
    for number, rate in enumerate(("3.0e-3", "1.0e-3")):
        text = (CONFIGS / "signaling_game" / "digits.yaml").read_text()
        (tmp_path / f"{number}.yaml").write_text(text.replace("lr: 3.0e-3", f"lr: {rate}"))
    assert nearly_equal(tmp_path) == [("0.yaml", "1.yaml")]


@pytest.mark.filterwarnings("ignore:TemperatureAnnealing")  # the run is too short for it
@pytest.mark.parametrize(
    "paths",
    [pytest.param(paths, marks=[pytest.mark.slow] if LIKE_ANOTHER.search(label(paths[-1])) else []) for paths in RUNS],
    ids=lambda paths: label(paths[-1]),
)
def test_a_config_runs(
    paths: tuple[Path, ...], images: Path, features: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    limits = [f"--trainer.limit_{stage}_batches=2" for stage in ("train", "val", "test")]
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1", *limits]
    if "moses" in paths[0].read_text():
        pytest.importorskip("sacremoses", reason="the tokens of Moses need the extra 'text'")
    options = [*(f"-c={path}" for path in paths), *stand_in(paths, images, features, texts), *quiet]
    assert main(["fit", *options, "--trainer.max_epochs=2", "--trainer.check_val_every_n_epoch=1"]) == 0
    assert main(["test", *options, "--ckpt_path", "best"]) == 0


@pytest.fixture(scope="session")
def parser() -> ArgumentParser:
    """The parser of ``fit``, which is described once."""

    class Described(LitSparseCLI):
        def parse_arguments(self, parser: Any, args: Any) -> None:
            raise GeneratorExit(parser)

    with pytest.raises(GeneratorExit) as caught:
        Described(["fit"])
    return caught.value.args[0]  # type: ignore[no-any-return]


def agree(found: Any, asked: Any) -> bool:
    """Return whether a resolved value is that of a config, which may name a part alone and leave arguments out."""
    if isinstance(asked, dict):
        return all(agree(found.get(name, {}), value) for name, value in asked.items())
    if isinstance(asked, list):
        return len(found) == len(asked) and all(itertools.starmap(agree, zip(found, asked, strict=True)))
    if isinstance(asked, str) and isinstance(found, (dict, Namespace)):
        found = found["class_path"]
    return found == asked or str(found) == str(asked) or (isinstance(asked, str) and str(found).endswith(f".{asked}"))


def merged(base: Any, overlay: Any) -> Any:
    """Return a mapping with the values of another written over its own; another class keeps none of them."""
    if not isinstance(base, dict) or not isinstance(overlay, dict) or "class_path" in overlay:
        return overlay
    return base | {name: merged(base.get(name), value) for name, value in overlay.items()}


@pytest.mark.parametrize("overlay", SERVED, ids=label)
def test_overlays_change_what_they_name(overlay: Path, parser: ArgumentParser) -> None:
    """Over each base that it serves; what else a model has may change with the class of one of its parts."""
    changed = content(overlay)
    for path in SERVED[overlay]:
        base = content(path)
        needed = (
            ["--data.init_args.label_noise.init_args.path=labels.npy"] if "label_noise" in base["data"]["init_args"] else []
        )
        asked = parser.parse_args(["fit", "-c", str(path), *needed, "-c", str(overlay)])["fit"]
        base["data"]["init_args"] |= {"label_noise": asked["data"]["init_args"]["label_noise"]} if needed else {}
        assert agree(asked, changed), path
        for part in ("trainer", "data"):
            assert agree(asked[part], merged(base[part], changed.get(part, {}))), path
        assert agree(asked["model"]["class_path"], base["model"]["class_path"]), path


PUBLISHED: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text())


def option(resolved: Any, name: str) -> Any:
    """Return an option's value, or a class without its arguments."""
    for key in name.split("."):
        inside = resolved.get("init_args", {}) if isinstance(resolved, dict) and key not in resolved else resolved
        resolved = inside.get(key) if isinstance(inside, dict) else None
    return resolved.get("class_path", resolved) if isinstance(resolved, dict) else resolved


def claims(path: Path) -> bool:
    """Return whether the comments before the settings say that they are the published ones."""
    comments = itertools.takewhile(lambda line: line.startswith("# "), path.read_text().splitlines())
    return bool(re.search("as published|those published|that published|the published semi", " ".join(comments)))


def test_every_config_that_claims_it_is_compared_with_published_values() -> None:
    claimed = {label(path) for path in ALL if claims(path)}
    assert claimed - set(PUBLISHED) == set()
    assert len(claimed) > 20
    assert {part for name in PUBLISHED for part in name.split(" + ")} <= {label(path) for path in ALL}


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_are_the_published_ones(name: str, parser: ArgumentParser) -> None:
    paths = [CONFIGS / part for part in name.split(" + ")]
    paths = paths if is_base(paths[0]) else [commanded(paths[0]), *paths]
    needed = ["--data.init_args.label_noise.init_args.path=labels.npy"] if name == "robust/mnist.yaml" else []
    resolved = parser.parse_args(["fit", *(f"-c={each}" for each in paths), *needed])["fit"].as_dict()
    found = {key: option(resolved, key) for key in PUBLISHED[name]}
    assert all(key.split(".")[0] in resolved for key in found)
    assert {key: value for key, value in found.items() if not agree(value, PUBLISHED[name][key])} == {}
