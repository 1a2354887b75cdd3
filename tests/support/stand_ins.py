"""Small stand-ins for the data that users provide, and options that give them to configs."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lit_sparse.cli import main
from tests.conftest import CONFIGS
from tests.data.encoder import make_encoder
from tests.data.images.test_mnist import idx
from tests.data.pairs import WORDS, write_pairs

LABELS = ("entailment", "neutral", "contradiction")
#: Folders whose models attend, by the mapping of an overlay.
ATTEND = ("translation", "summarization", "entailment")


def content(path: Path) -> dict[str, Any]:
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # type: ignore[no-any-return]


def make_images(folder: Path) -> Path:
    """Fill a folder with tables and idx files of a few images of noise."""
    rng = np.random.default_rng(0)
    for prefix, size in (("train", 200), ("t10k", 50)):
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(rng.integers(0, 256, (size, 28, 28))))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(rng.integers(0, 10, size)))
    places = ["longitude,latitude,medianHouseValue", *(f"{x},{y},{100 + x * y}" for x in range(12) for y in range(12))]
    (folder / "places.csv").write_text("\n".join(places) + "\n")
    columns = "longitude,latitude,housingMedianAge,totalRooms,totalBedrooms,population,households,medianIncome,medianHouseValue"
    np.savetxt(folder / "houses.csv", rng.uniform(1, 9, (1300, 9)), delimiter=",", header=columns, comments="")
    np.savez(folder / "counts.npz", X=rng.normal(size=(150, 9)), y=rng.poisson(3, 150))
    inputs = np.c_[rng.normal(size=(150, 3)), np.ones(150)]
    np.savez(folder / "synth_lr.npz", X=inputs, y=np.where(inputs[:, 0] + rng.normal(size=150) > 0, 1, -1))
    rows = np.c_[rng.normal(size=(300, 7)), np.arange(300) % 2, np.arange(300) % 10]
    columns = "income,age,rooms,bedrooms,people,latitude,longitude,dear,group"
    np.savetxt(folder / "regions.csv", rows, delimiter=",", header=columns, comments="")
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1"]
    proxy = ["fit", "-c", str(CONFIGS / "coreset" / "mnist_proxy.yaml"), f"--output_dir={folder}", "--name=proxy", *quiet]
    assert main([*proxy, f"--data.init_args.folder={folder}", "--data.init_args.val_size=50"]) == 0
    (folder / "proxy" / "0" / "checkpoints" / "last.ckpt").rename(folder / "proxy.ckpt")
    return folder


def make_features(folder: Path) -> Path:
    """Write a file of a few short feature vectors."""
    path = folder / "features.npz"
    np.savez(path, features=np.random.default_rng(0).random((250, 6), dtype=np.float32), label=np.arange(250) % 100)
    return path


def make_texts(folder: Path) -> Path:
    """Fill a folder with a few sentence pairs, articles and entailments, and word vectors."""
    snli = ("snli_1.0_train", "snli_1.0_dev", "snli_1.0_test")
    for split in ("train", "val", "valid", "validation", "dev", "test", "test_2016_flickr", "duc2003", "duc2004", *snli):
        lines = write_pairs(folder / "pairs", split, 40)
        write_table(folder / f"{split}.jsonl", lines)
    vectors = [" ".join([word, *(f"{(i * j) % 7 / 7}" for j in range(1, 7))]) for i, word in enumerate(WORDS, 1)]
    if find_spec("transformers") is not None:
        make_encoder(folder / "encoder", WORDS)
    (folder / "vectors.txt").write_text("\n".join(vectors) + "\n", encoding="utf-8")
    return folder


def write_table(path: Path, lines: list[str]) -> None:
    rows = [
        {"article": line, "title": line[:9], "premise": line, "hypothesis": line[:9], "label": LABELS[number % 3]}
        for number, line in enumerate(lines)
    ]
    for row in rows:
        trees = {f"sentence{i}_binary_parse": f"( {row[role]} )" for i, role in enumerate(("premise", "hypothesis"), 1)}
        row |= {**trees, "gold_label": row["label"], "references": [row["title"], row["article"]]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def text_options(path: Path, texts: Path) -> list[str]:
    """Options that make a model of text small and name its data."""
    data, model = content(path)["data"]["init_args"], content(path)["model"]["init_args"]
    options = {f"data.init_args.{name}": value for name, value in {"batch_size": 8, "eval_batch_size": 8}.items()}
    if "path" in data:
        options["data.init_args.path"] = str(texts / "pairs" if path.parent.name == "translation" else texts)
    if path.stem == "catalogues":
        options |= {"data.init_args.source": "de", "data.init_args.target": "en"}
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
    if data["class_path"] == "TableDataModule":
        return [f"--data.init_args.path={images / 'regions.csv'}", "--data.init_args.batch_size=16"]
    if data["class_path"] == "ActivationDataModule":
        small = ["--model.init_args.in_features=8", "--model.init_args.width=16", "--data.init_args.layer=encoder.layer.0"]
        return [f"--data.init_args.model={texts / 'encoder'}", f"--data.init_args.path={texts}", *small]
    if "path" in data["init_args"]:
        sender = ["--model.init_args.sender.init_args.sizes=[6,64]"] if "sender" in content(path)["model"]["init_args"] else []
        return [f"--data.init_args.path={features}", "--model.init_args.in_features=6", *sender]
    if data["class_path"] == "MNISTDataModule":
        options = ["source=folder", f"folder={images}", "val_size=50", "batch_size=16", "eval_batch_size=16"]
        if data["init_args"]["labelled"]:
            options.append("labelled=0.2")
        if "label_noise" in data["init_args"]:
            options += ["train_size=40", "label_noise.init_args." + noise]
    if any(path.stem == "cut" for path in paths):
        options += ["train_size=40", "test_size=20"]
    if "epoch_size" in data["init_args"]:
        options.append("epoch_size=40")
    shorter = {
        "BitVectorVAE": ["--model.init_args.importance_samples=2"],
        "SupervisedOnlineAutoencoder": ["--model.init_args.width=10"],
    }
    return [f"--data.init_args.{option}" for option in options] + shorter.get(content(path)["model"]["class_path"], [])
