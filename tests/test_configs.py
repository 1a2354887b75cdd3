"""Every config runs, alone or behind its base, and is short enough to read."""

from __future__ import annotations

import difflib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonargparse import ArgumentParser, Namespace

from lit_sparse.cli import main
from lit_sparse.cli.app import LitSparseCLI
from lit_sparse.studies.plan.study import written

from .conftest import CONFIGS, metrics_of
from .support.stand_ins import ATTEND, content, stand_in
from .support.studies import STUDIES, packaged

#: Runs are shorter here than the schedulers of their configs.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not reach its end")


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
#: Overlays that change a schedule or a part whose runs have tests of their own.
RUN_ELSEWHERE = re.compile("^mapping|^trainer|variants|cut")
RUNS = [(path,) for path in BASES]
RUNS += [(commanded(path), path) for path in SERVED if not RUN_ELSEWHERE.search(label(path))]
#: Configs that run in the quick tests. The gate adds a base of each folder and settings of the trainer.
QUICK = {"ssvae/digits.yaml", "signaling_game/digits.yaml"}
#: Bases that the gate trains in the smoke run of a study.
SMOKED = re.compile("multi30k_de_en|ssvae/mnist|soae/digits|imagenet|mnist_lastlayer|fashion_mnist")


def marks(paths: tuple[Path, ...]) -> list[pytest.MarkDecorator]:
    """Return the lane of a config's run."""
    if label(paths[-1]) in QUICK:
        return []
    in_gate = paths[-1] in DIFFERENT and not SMOKED.search(label(paths[-1]))
    return [pytest.mark.gate if in_gate else pytest.mark.slow]


@pytest.mark.gate
def test_the_bases_of_smoke_runs_are_those_of_first_cells() -> None:
    firsts = [next(name for name, cell in packaged(path).cells.items() if not cell.hidden) for path in STUDIES]
    smoked = {packaged(path).change_of(first, "smoke").config for path, first in zip(STUDIES, firsts, strict=True)}
    named = {path for path in DIFFERENT if SMOKED.search(label(path))}
    assert len(named) == 6
    assert named <= {Path(config).resolve() for config in smoked if config}


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
    [pytest.param(paths, id=label(paths[-1]), marks=marks(paths)) for paths in RUNS],
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


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore:`ModelCheckpoint.monitor")  # nothing is validated
def test_the_published_auto_encoder_ends_by_its_loss(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It trains on all images, and its result is the last checkpoint."""
    monkeypatch.chdir(tmp_path)
    path = CONFIGS / "soae" / "mnist_online.yaml"
    options = ["-c", str(path), f"--data.init_args.folder={images}", "--data.init_args.epoch_size=40"]
    options += ["--model.init_args.width=10", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
    stop = ["--trainer.callbacks.threshold=10", "--trainer.callbacks.patience=2", "--trainer.log_every_n_steps=1"]
    assert main(["fit", *options, *stop, "--name=one"]) == 0
    run = tmp_path / "runs" / "one" / "0"
    found = metrics_of(run)
    assert len(found["train/loss"]) == 3
    assert not any(name.startswith("val/") for name in found)
    assert [file.name for file in (run / "checkpoints").iterdir()] == ["last.ckpt"]
    assert main(["test", "-c", str(run / "config.yaml"), "--ckpt_path", "last"]) == 0


@pytest.fixture(scope="session")
def parser() -> ArgumentParser:
    """The parser of ``fit``, which is described once."""

    class Described(LitSparseCLI):
        def parse_arguments(self, parser: Any, args: Any) -> None:
            raise GeneratorExit(parser)

    with pytest.raises(GeneratorExit) as caught:
        Described(["fit"])
    return caught.value.args[0]  # type: ignore[no-any-return]


def named(parser: ArgumentParser, *words: str) -> Any:
    """Return the checked options of a ``fit``, without the defaults of those not named, which take most of the time."""
    return parser.parse_args(["fit", *words], defaults=False)["fit"]


def agree(found: Any, asked: Any) -> bool:
    """Return whether a resolved value agrees with a config, which may name a part alone and leave arguments out."""
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


@pytest.mark.cases(quick=10, gate=99)
@pytest.mark.parametrize("overlay", SERVED, ids=label)
def test_overlays_change_what_they_name(overlay: Path, parser: ArgumentParser) -> None:
    """Over each base that it serves; what else a model has may change with the class of one of its parts."""
    changed = content(overlay)
    for path in SERVED[overlay]:
        base = content(path)
        needed = (
            ["--data.init_args.label_noise.init_args.path=labels.npy"] if "label_noise" in base["data"]["init_args"] else []
        )
        asked = named(parser, "-c", str(path), *needed, "-c", str(overlay))
        base["data"]["init_args"] |= {"label_noise": asked["data"]["init_args"]["label_noise"]} if needed else {}
        assert agree(asked, changed), path
        for part in ("trainer", "data"):
            assert agree(asked[part], merged(base[part], changed.get(part, {}))), path
        assert agree(asked["model"]["class_path"], base["model"]["class_path"]), path


@pytest.mark.cases(gate=2)
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_options_of_studies_are_known(path: Path, parser: ArgumentParser) -> None:
    """The first point of each cell is parsed, with each schedule."""
    study = packaged(path)
    for schedule in study.schedules:
        at = study.scheduled(schedule)
        for name in {written(name): name for name in reversed(at.cells) if at.cells[name].function is None}.values():
            change = at.cells[name]
            options = {key: value if isinstance(value, str) else json.dumps(value) for key, value in change.options.items()}
            words = [f"-c={file}" for file in (change.config, *change.overlays)]
            words += [f"--{key}={value}" for key, value in options.items()]
            assert named(parser, *words), (schedule, name)


@pytest.mark.parametrize(
    ("name", "schedule", "count"),
    [("coresets_large", "", 10), ("logsumexp_mnist", "full", 10), ("logsumexp_regression", "", 20), ("soae", "mnist", 11)],
)
def test_studies_repeat_what_the_publications_repeat(name: str, schedule: str, count: int) -> None:
    """The auto-encoder with fewer seeds than published."""
    study = packaged(CONFIGS / "studies" / f"{name}.yaml")
    seeds = {cell: study.change_of(cell, schedule).seeds for cell in study.cells if cell not in {"sparse_vi", "optimum"}}
    assert all(each == list(range(count)) for each in seeds.values())


PUBLISHED: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text())
RESULTS = PUBLISHED.pop("results")


def option(resolved: Any, name: str) -> Any:
    """Return an option's value, or a class without its arguments."""
    for key in name.split("."):
        inside = resolved.get("init_args", {}) if isinstance(resolved, dict) and key not in resolved else resolved
        resolved = inside.get(key) if isinstance(inside, dict) else None
    return resolved.get("class_path", resolved) if isinstance(resolved, dict) else resolved


def claims(path: Path) -> bool:
    """Return whether the comments before the settings say that they are the published ones."""
    comments = itertools.takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
    header = " ".join(line.removeprefix("#").strip() for line in comments)
    return bool(re.search("(as|those|that) published|the published (semi|setting|approximation)", header, re.I))


def test_every_config_that_claims_it_is_compared_with_published_values() -> None:
    claimed = {label(path) for path in ALL if claims(path)}
    assert claimed - set(PUBLISHED) == set()
    assert len(claimed) > 20
    assert {part for name in PUBLISHED for part in name.split(" + ")} <= {label(path) for path in ALL}


@pytest.mark.gate
@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_are_the_published_ones(name: str, parser: ArgumentParser) -> None:
    paths = [CONFIGS / part for part in name.split(" + ")]
    paths = paths if is_base(paths[0]) else [commanded(paths[0]), *paths]
    needed = ["--data.init_args.label_noise.init_args.path=labels.npy"] if name == "robust/mnist.yaml" else []
    resolved = parser.parse_args(["fit", *(f"-c={each}" for each in paths), *needed])["fit"].as_dict()
    found = {key: option(resolved, key) for key in PUBLISHED[name]}
    assert all(key.split(".")[0] in resolved for key in found)
    assert {key: value for key, value in found.items() if not agree(value, PUBLISHED[name][key])} == {}
