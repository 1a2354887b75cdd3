"""What a run is continued with fits it or is refused: every entry of a checkpoint is changed in turn."""

from __future__ import annotations

import copy
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from lit_sparse.callbacks import CountLogger, DecoderCallsPlot, NegativeELBOPlot, SecondsLogger, SparseConnectivity
from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import LitSparseError
from lit_sparse.models import StepwiseLR

from .conftest import ROOT
from .test_kill_matrix import flat, same

sys.path.insert(0, str(ROOT / "tests" / "support"))
import features

Place = tuple[Any, ...]
#: Entries that are no states of a training, or that no run reads.
OTHERS = {
    "state_dict",
    "hyper_parameters",
    "hparams_name",
    "pytorch-lightning_version",
    "_class_path",
    "datamodule_hyper_parameters",
}
#: Dicts and lists whose entries may be missing: a run may have a callback more, and a parameter no gradient yet.
OPTIONAL = (
    ("callbacks",),
    ("optimizer_states", 0, "state"),
    ("progress", "metrics"),
    ("states", "flags"),
    ("states", "masks"),
    ("states", "savers"),
    ("states", "processes", 0, "gradients"),
    ("states", "processes", 0, "statistics"),
    ("states", "processes", 0, "torchmetrics"),
    ("states", "processes", 0, "logged"),
)
EXPONENTIAL = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)
CYCLIC = partial(torch.optim.lr_scheduler.CyclicLR, base_lr=1e-3, max_lr=0.1, step_size_up=2)  # it changes its stored state
CALLBACKS = pl.callbacks


class Stop(pl.Callback):
    """Write a checkpoint after a number of steps, and stop there."""

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step >= self.step and not self.path.exists():
            trainer.save_checkpoint(self.path)


def averaging() -> list[pl.Callback]:
    return [CALLBACKS.StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=2)]


def stopping() -> list[pl.Callback]:
    early = CALLBACKS.EarlyStopping("val/loss", patience=2, min_delta=0.05)
    return [
        early,
        CALLBACKS.Timer("00:10:00:00"),
        CountLogger(16),
        SecondsLogger(),
        SparseConnectivity("network.3", 0.5),
        DecoderCallsPlot(),
        NegativeELBOPlot(),
    ]


def pruning() -> list[pl.Callback]:
    return [CALLBACKS.ModelPruning("l1_unstructured", amount=0.2)]


def finetuning() -> list[pl.Callback]:
    return [CALLBACKS.BackboneFinetuning(unfreeze_backbone_at_epoch=1)]


def weight_averaging() -> list[pl.Callback]:
    return [CALLBACKS.EMAWeightAveraging(decay=0.9, update_every_n_steps=2)]


def plateau(optimizer: Any) -> Any:
    return pl.cli.ReduceLROnPlateau(optimizer, monitor="val/loss", patience=0, threshold=0.5, factor=0.3)


def warm_up(optimizer: Any) -> Any:
    return StepwiseLR(optimizer, EXPONENTIAL, warmup_steps=3)


ADAM: Any = partial(torch.optim.Adam, lr=0.05)
SGD: Any = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
#: Callbacks, optimizer, scheduler, options of the trainer, and step of the checkpoint.
RUNS: dict[str, tuple[Callable[[], list[pl.Callback]], Any, Any, dict[str, Any], int]] = {
    "stopping": (stopping, ADAM, EXPONENTIAL, {}, 6),
    "plateau": (stopping, SGD, plateau, {"accumulate_grad_batches": 3}, 4),
    "averaging": (averaging, SGD, EXPONENTIAL, {}, 10),
    "pruning": (pruning, SGD, warm_up, {}, 6),
    "finetuning": (finetuning, features.Trained, None, {}, 6),
    "weight averaging": (weight_averaging, ADAM, None, {}, 6),
    "cyclic": (list, SGD, CYCLIC, {}, 6),
}


def run(name: str, folder: Path, *, resumed: dict[str, Any] | None = None, writes: Path | None = None) -> dict[str, Any]:
    """Train, from a checkpoint if there is one, and return all values of the checkpoint at the end but those in seconds."""
    callbacks, optimizer, scheduler, options, step = RUNS[name]
    pl.seed_everything(3, verbose=False)
    model = features.Classifier(network=features.NormNet(), in_features=64, optimizer=optimizer, lr_scheduler=scheduler)
    data = DigitsDataModule(labelled=1.0, binarize=False, epoch_size=40, batch_size=10, val_size=41, test_size=41)
    saver = CALLBACKS.ModelCheckpoint(folder / "kept", monitor="val/loss", save_top_k=2, enable_version_counter=False)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        callbacks=[*callbacks(), saver, *([] if writes is None else [Stop(writes, step)])],
        **{"max_epochs": 4, "accelerator": "cpu", "num_sanity_val_steps": 0, **quiet, **options},
    )
    strategy: Any = trainer.strategy
    strategy.load_checkpoint = lambda *_, **__: copy.deepcopy(resumed)  # without a file, which takes most of the time
    trainer.fit(model, data, ckpt_path=None if resumed is None else "changed.ckpt")
    state = trainer._checkpoint_connector.dump_checkpoint()
    other = ("SecondsLogger", "train/seconds", "time_elapsed", "_last_checkpoint_saved")
    return {place: value for place, value in flat(state) if not any(part in place for part in other)}


def places(found: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the places of all values in nested dicts and lists."""
    if place:
        yield place
    if isinstance(found, dict | list | tuple):
        for key, value in found.items() if isinstance(found, dict) else list(enumerate(found))[:3]:
            if place or key not in OTHERS:
                yield from places(value, (*place, key))


def at(found: Any, place: Place) -> Any:
    for key in place:
        found = found[key]
    return found


def changes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield other values in place of a value, with their names."""
    yield "type", 3 if isinstance(value, str) else "text"
    yield "empty list", []
    yield "empty dict", {}
    if value is not None:
        yield "None", None
    yield "tensor", torch.full((2, 3, 1), 1.5)
    if isinstance(value, dict):
        yield "extra key", {**value, "extra": 1}
    if isinstance(value, list):
        yield "extra entry", [*value, None]
    if not isinstance(value, dict | list | tuple | str | Tensor) or value is None:
        yield from (("NaN", float("nan")), ("negative", -7), ("huge", 10**30))
    if type(value) is bool:
        yield "number", 2


def changed(checkpoint: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    """Return a checkpoint with another value at a place, or without it if the value is ``...``."""
    path: list[Any] = [copy.copy(checkpoint)]
    for key in place[:-1]:
        inner = path[-1][key]
        inner = list(inner) if isinstance(inner, tuple) else copy.copy(inner)
        path[-1][key] = inner
        path.append(inner)
    if value is ...:
        del path[-1][place[-1]]
    else:
        path[-1][place[-1]] = value
    return path[0]  # type: ignore[no-any-return]


def variants(checkpoint: dict[str, Any]) -> Iterator[tuple[Place, str, Any]]:
    for place in places(checkpoint):
        value = at(checkpoint, place)
        for name, other in changes(value):
            if not (type(other) is type(value) and same_state(other, value)):
                yield place, name, other
        if place[:-1] not in OPTIONAL and not isinstance(at(checkpoint, place[:-1]), tuple):
            yield place, "missing", ...


def same_state(ours: Any, theirs: Any) -> bool:
    found, expected = dict(flat(ours)), dict(flat(theirs))
    return found.keys() == expected.keys() and all(same(found[place], value) for place, value in expected.items())


def outcome(name: str, folder: Path, checkpoint: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return how a run goes on from a checkpoint: refused, equal, or what is wrong."""
    try:
        found = run(name, folder, resumed=checkpoint)
    except LitSparseError as error:
        return "refused" if str(error).startswith("Expected ") else f"refused: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    if found.keys() != expected.keys():
        return f"other entries: {sorted(found.keys() ^ expected.keys())[:3]}"
    differ = [place for place in expected if not same(found[place], expected[place])]
    return f"other values: {differ[:3]}" if differ else "equal"


def fuzz(name: str, folder: Path, number: int | None) -> Counter[str]:
    """Change a checkpoint at all places, or at a number of them, and check that each change is refused or has no effect."""
    path = folder / "written.ckpt"
    whole = run(name, folder, writes=path)
    checkpoint = torch.load(path, weights_only=True)
    expected = run(name, folder, resumed=checkpoint)
    assert outcome(name, folder, checkpoint, expected) == "equal"
    assert {place for place in whole if not same(expected.get(place), whole[place])} <= {".len"}
    every = list(variants(checkpoint))
    chosen = every if number is None else random.Random(1).sample(every, number)
    counts: Counter[str] = Counter()
    wrong = []
    for place, change, value in chosen:
        found = outcome(name, folder, changed(checkpoint, place, value), expected)
        counts[found.partition(":")[0]] += 1
        if found not in ("refused", "equal") and not found.startswith("refused: "):
            wrong.append((place, change, found))
    print(name, len(every), dict(counts))
    assert not wrong, "\n".join(map(str, wrong[:60]))
    return counts


@pytest.mark.filterwarnings("ignore")  # options that the checkpoint does not decide are told
@pytest.mark.timeout(5000)
@pytest.mark.parametrize("number", [8, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(RUNS))
def test_a_changed_state_is_refused_or_without_effect(name: str, number: int | None, tmp_path: Path) -> None:
    counts = fuzz(name, tmp_path, number)
    assert counts["refused"] > 3 * counts["equal"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the folder and the content of a checkpoint of a run with momentum and a scheduler."""
    folder = tmp_path_factory.mktemp("kept")
    run("averaging", folder, writes=folder / "written.ckpt")
    return folder, torch.load(folder / "written.ckpt", weights_only=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("victim", ["thesis.txt", "folder", "folder.ckpt", "link/other.ckpt", "link.ckpt", "../other.ckpt"])
@pytest.mark.parametrize("entry", ["best", "last", "moved"])
def test_no_file_that_a_state_names_is_removed(
    entry: str, victim: str, kept: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, checkpoint = tmp_path / "kept", copy.deepcopy(kept[1])
    for name in ("kept/folder", "kept/folder.ckpt", "out"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("kept/thesis.txt", "kept/folder/a", "kept/folder.ckpt/a", "out/other.ckpt", "other.ckpt"):
        (tmp_path / name).write_text("mine")
    (folder / "link").symlink_to(tmp_path / "out")
    (folder / "link.ckpt").symlink_to(tmp_path / "out" / "other.ckpt")
    path, score = str(folder / victim), torch.tensor(1e9)
    (state,) = (state for key, state in checkpoint["callbacks"].items() if key.startswith("ModelCheckpoint"))
    files = {"best_model_path": path, "kth_best_model_path": path, "last_model_path": ""}
    state |= {"dirpath": str(folder), "best_k_models": {path: score}, "best_model_score": score, "kth_value": score, **files}
    if entry == "last":
        state |= dict.fromkeys(files, "") | {"best_k_models": {}, "last_model_path": path}
    elif entry == "moved":
        state["dirpath"] = str(tmp_path)
    with pytest.raises(LitSparseError, match=r"which may be another file"):
        run("averaging", tmp_path, resumed=checkpoint)
    assert (tmp_path / "other.ckpt").is_file()
