"""What a run is continued with fits it or is refused: every entry of a checkpoint is changed in turn."""

from __future__ import annotations

import copy
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from lit_sparse.callbacks import CountLogger, DecoderCallsPlot, NegativeELBOPlot, SecondsLogger, SparseConnectivity
from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import CheckpointError, LitSparseError
from lit_sparse.ground.state_checks import check_state
from lit_sparse.models import StepwiseLR
from lit_sparse.models.restored_optimizers import check_optimizers
from lit_sparse.runs.checkpoint_files import read_checkpoint

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
ONE_CYCLE = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=20, cycle_momentum=False)
RESTARTS = partial(torch.optim.lr_scheduler.CosineAnnealingWarmRestarts, T_0=1, T_mult=2)
CALLBACKS = pl.callbacks


class Stop(pl.Callback):
    """Write a checkpoint after a number of steps, or at the end of the first epoch if the number is 0."""

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step >= self.step > 0 and not self.path.exists():
            trainer.save_checkpoint(self.path)

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if not self.step and not self.path.exists():
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
    "one cycle": (list, partial(torch.optim.Adafactor, lr=0.05), ONE_CYCLE, {}, 6),
    "restarts": (list, partial(torch.optim.ASGD, lr=0.1), RESTARTS, {}, 6),
    "lbfgs": (list, partial(torch.optim.LBFGS, lr=0.1, max_iter=3, history_size=2), None, {}, 6),
    "between": (list, SGD, None, {}, 0),
}


def run(
    name: str,
    folder: Path,
    *,
    resumed: dict[str, Any] | None = None,
    writes: Path | None = None,
    filename: str | None = None,
    others: tuple[pl.Callback, ...] = (),
) -> dict[str, Any]:
    """Train, from a checkpoint if there is one, and return all values of the checkpoint at the end but those in seconds."""
    callbacks, optimizer, scheduler, options, step = RUNS[name]
    pl.seed_everything(3, verbose=False)
    model = features.Classifier(network=features.NormNet(), in_features=64, optimizer=optimizer, lr_scheduler=scheduler)
    data = DigitsDataModule(labelled=1.0, binarize=False, epoch_size=40, batch_size=10, val_size=41, test_size=41)
    saver = CALLBACKS.ModelCheckpoint(folder / "kept", filename, monitor="val/loss", save_top_k=2, enable_version_counter=False)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        callbacks=[*callbacks(), saver, *others, *([] if writes is None else [Stop(writes, step)])],
        **{"max_epochs": 4, "accelerator": "cpu", "num_sanity_val_steps": 0, **quiet, **options},
    )
    strategy: Any = trainer.strategy
    strategy.load_checkpoint = lambda *_, **__: copy.deepcopy(resumed)  # without a file, which takes most of the time
    trainer.fit(model, data, ckpt_path=None if resumed is None else "changed.ckpt")
    state = trainer._checkpoint_connector.dump_checkpoint()
    other = ("SecondsLogger", "train/seconds", "time_elapsed", "generators")  # any state of a generator is one of a run
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
            # Callbacks begin like new ones without a state, and with the state from before training.
            as_new = (place == ("callbacks",) and name == "empty dict") or (place[-1] == "projected" and name == "None")
            if not as_new and not (type(other) is type(value) and same_state(other, value)):
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
    return f"different values: {differ[:3]}" if differ else "equal"


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("entry", ["best_model_path", "last_model_path", "best_k_models"])
def test_no_file_of_another_saver_is_named(entry: str, moved: bool, kept: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "kept", copy.deepcopy(kept[1])
    path = str(folder / "other.ckpt")
    (state,) = (state for key, state in checkpoint["callbacks"].items() if key.startswith("ModelCheckpoint"))
    files = {"best_model_path": "", "kth_best_model_path": "", "last_model_path": "", "best_k_models": {}}
    state |= files | {
        "dirpath": str(tmp_path if moved else folder),
        entry: {path: torch.tensor(1.0)} if "_k_" in entry else path,
    }
    if moved and entry != "best_model_path":  # then nothing else is restored
        run("averaging", tmp_path, resumed=checkpoint)
    else:
        with pytest.raises(CheckpointError, match=f"{entry}` in .* to be a file that is named like"):
            run("averaging", tmp_path, resumed=checkpoint)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("filename", "other"),
    [("new-{epoch}", "other"), ("other-{epoch:02d}", "other-{step}"), ("other", "other"), ("{epoch:02d}", "{epoch}")],
)
def test_a_name_pattern_may_change_to_one_that_no_other_saver_has(filename: str, other: str, tmp_path: Path) -> None:
    def saver() -> pl.Callback:
        return CALLBACKS.ModelCheckpoint(tmp_path / "kept", other, monitor="val/accuracy")

    run("cyclic", tmp_path, writes=tmp_path / "written.ckpt", others=(saver(),))
    checkpoint = torch.load(tmp_path / "written.ckpt", weights_only=True)
    if filename in ("other", "{epoch:02d}"):
        with pytest.raises(LitSparseError, match=r"Expected the `filename` of ModelCheckpoint to be used by no other"):
            run("cyclic", tmp_path, resumed=checkpoint, filename=filename, others=(saver(),))
    else:
        run("cyclic", tmp_path, resumed=checkpoint, filename=filename, others=(saver(),))
        assert list((tmp_path / "kept").glob(filename[:4] + "*"))


@pytest.mark.filterwarnings("ignore")
def test_an_option_that_the_config_replaces_is_told_in_a_few_words(checkpoints: Any, tmp_path: Path) -> None:
    checkpoint = copy.deepcopy(checkpoints("cyclic"))
    checkpoint["optimizer_states"][0]["param_groups"][0]["dampening"] = torch.zeros(3, 5)
    with pytest.warns(UserWarning, match=r"dampening` is a tensor of shape \(3, 5\) and type float32 in"):
        run("cyclic", tmp_path, resumed=checkpoint)


def expanded(value: Tensor) -> Tensor:
    return torch.zeros(()).expand(value.shape)


#: Run, place (a callback by the first part of its key), and another value, or a function of the present one.
SCHEDULER, ENTRY = ("lr_schedulers", 0), ("optimizer_states", 0, "state", 0)
BATCHES = ("loops", "fit_loop", "epoch_loop.batch_progress")
RANKING, LOGGED = (("states", "processes", 0, *keys) for keys in (("torchmetrics", "ranking"), ("logged",)))
WRONG: dict[str, tuple[str, Place, Any]] = {
    "seconds that no calendar has": ("stopping", ("callbacks", "Timer", "time_elapsed", "train"), 8.7e13),
    "more waiting than validations": ("stopping", ("callbacks", "EarlyStopping", "wait_count"), 1000),
    "a stop after the run": ("stopping", ("callbacks", "EarlyStopping", "stopped_epoch"), 1000),
    "a score that none exceeds": ("stopping", ("callbacks", "EarlyStopping", "best_score"), torch.tensor(-torch.inf)),
    "steps after the last one": ("one cycle", (*SCHEDULER, "last_epoch"), 21),
    "more steps than batches": ("stopping", (*SCHEDULER, "last_epoch"), 10**6),
    "more calls than batches": ("stopping", (*SCHEDULER, "_step_count"), 10**6),
    "half a step": ("stopping", (*ENTRY, "step"), torch.tensor(0.5)),
    "an empty cycle": ("restarts", (*SCHEDULER, "T_i"), 0),
    "a cycle of another length": ("restarts", (*SCHEDULER, "T_i"), 3),
    "a place after the cycle": ("restarts", (*SCHEDULER, "T_cur"), 3),
    "a best value that none exceeds": ("plateau", (*SCHEDULER, "best"), -float("inf")),
    "a long cooldown": ("plateau", (*SCHEDULER, "cooldown_counter"), 5),
    "a cooldown before the start": ("plateau", (*SCHEDULER, "cooldown_counter"), -1),
    "more bad epochs than patience": ("plateau", (*SCHEDULER, "num_bad_epochs"), 5),
    "an expanded state": ("stopping", (*ENTRY, "exp_avg"), expanded),
    "a sparse state": ("stopping", (*ENTRY, "exp_avg"), Tensor.to_sparse),
    "a sparse scalar": ("stopping", ("progress", "metrics", "val/loss"), Tensor.to_sparse),
    "a state with a gradient": ("stopping", (*ENTRY, "exp_avg"), lambda value: value.clone().requires_grad_()),
    "a parameter as a state": ("stopping", (*ENTRY, "exp_avg"), torch.nn.Parameter),
    "two states in one memory": ("stopping", ENTRY, lambda entry: {**entry, "exp_avg": entry["exp_avg_sq"]}),
    "a reason that acts on a terminal": ("stopping", ("callbacks", "EarlyStopping", "stopping_reason_message"), "\x1b[2J"),
    "fewer examples than none": ("stopping", ("train_means", "loss", "count"), torch.tensor(-1)),
    "a mean of half examples": ("stopping", ("train_means", "loss", "count"), torch.tensor(0.5)),
    "a state of another shape": ("one cycle", (*ENTRY, "row_var"), lambda value: value.new_zeros(7, 5)),
    "no state of a kind": ("restarts", ENTRY, lambda entry: {name: entry[name] for name in entry if name != "ax"}),
    "a direction of another length": ("lbfgs", (*ENTRY, "d"), lambda value: value[1:].clone()),
    "no direction": ("lbfgs", ENTRY, lambda entry: {name: entry[name] for name in entry if name != "d"}),
    "too much history": ("lbfgs", ENTRY, lambda entry: {**entry, "ro": [torch.ones(())] * 5}),
    "a step backwards": ("lbfgs", (*ENTRY, "t"), -0.1),
    "no position in the data": ("cyclic", ("loops", "fit_loop", "state_dict"), {}),
    "fewer targets than predictions": ("cyclic", (*RANKING, "target"), lambda value: value[1:]),
    "a logged value of a metric": ("cyclic", (*LOGGED, 1, "meta", "metric_attribute"), "ranking"),
    "a logged value of no metric": ("cyclic", (*LOGGED, 1, "meta", "metric_attribute"), "backbone"),
    "nothing to train": (
        "cyclic",
        ("states", "flags"),
        lambda _: {f"network.{name}": False for name, _ in features.NormNet().named_parameters()},
    ),
    "an end between epochs": ("between", (*BATCHES, "is_last_batch"), True),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Return a function that gives the checkpoint of one of the runs."""

    @cache
    def checkpoint(name: str) -> dict[str, Any]:
        path = tmp_path_factory.mktemp("written") / "written.ckpt"
        run(name, path.parent, writes=path)
        return torch.load(path, weights_only=True)  # type: ignore[no-any-return]

    return checkpoint


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", WRONG)
def test_a_state_that_no_run_has_is_refused(case: str, checkpoints: Any, tmp_path: Path) -> None:
    name, place, value = WRONG[case]
    checkpoint = checkpoints(name)
    if place[0] == "callbacks":
        place = (place[0], next(key for key in checkpoint["callbacks"] if key.startswith(place[1])), *place[2:])
    value = value(at(checkpoint, place)) if callable(value) else value
    with pytest.raises(CheckpointError, match="Expected"):
        run(name, tmp_path, resumed=changed(checkpoint, place, value))


def test_integers_in_a_state_count_something() -> None:
    with pytest.raises(CheckpointError, match="`counts` in x to be a tensor of integers >= 0"):
        check_state("x", "counts", torch.tensor([3, -1]), torch.zeros(2, dtype=torch.int64))


@pytest.mark.filterwarnings("ignore")
def test_a_missing_entry_of_an_optimizer_is_told(checkpoints: Any, tmp_path: Path) -> None:
    checkpoint = copy.deepcopy(checkpoints("stopping"))
    del checkpoint["optimizer_states"][0]["state"][1]
    with pytest.warns(UserWarning, match="`optimizer_states.0.state` has no entry 1"):
        run("stopping", tmp_path, resumed=checkpoint)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [torch.complex64, torch.int64, torch.bool])
def test_weights_of_another_kind_are_refused(kind: torch.dtype, checkpoints: Any, tmp_path: Path) -> None:
    weights = {name: value.to(kind) for name, value in checkpoints("cyclic")["state_dict"].items()}
    with pytest.raises(CheckpointError, match=r"values of type torch.float32 in `state_dict.network.0.weight`"):
        run("cyclic", tmp_path, resumed={**checkpoints("cyclic"), "state_dict": weights})


@pytest.mark.filterwarnings("ignore")
def test_weights_with_attributes_are_written_as_plain_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that FSDP gathers from shards."""
    state_dict = features.Classifier.state_dict

    def noted(self: Any, *args: Any, **options: Any) -> Any:
        state = state_dict(self, *args, **options)
        for value in state.values():
            value._has_been_cloned = True
        return state

    monkeypatch.setattr(features.Classifier, "state_dict", noted)
    run("cyclic", tmp_path, writes=tmp_path / "written.ckpt")
    assert read_checkpoint(tmp_path / "written.ckpt")["global_step"] == 6


@pytest.mark.filterwarnings("ignore")
def test_an_epoch_goes_on_after_a_batch_that_is_not_the_last(checkpoints: Any, tmp_path: Path) -> None:
    checkpoint = checkpoints("cyclic")
    assert not at(checkpoint, (*BATCHES, "is_last_batch"))
    wrong = changed(checkpoint, (*BATCHES, "is_last_batch"), True)
    assert outcome("cyclic", tmp_path, wrong, run("cyclic", tmp_path, resumed=checkpoint)) == "equal"


OPTIMIZERS = sorted({kind for kind in vars(torch.optim).values() if isinstance(kind, type)} - {torch.optim.Optimizer}, key=str)


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_state_of_each_optimizer_of_torch_fits(kind: Any, steps: int) -> None:
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(5, 2))]

    def optimizer() -> Any:
        return kind(weights, lr=0.01)

    trained = optimizer()
    for _ in range(steps):

        def loss() -> Tensor:
            trained.zero_grad()
            value = sum((weight**2).sum() for weight in weights)
            value.backward()
            for weight in weights if kind is torch.optim.SparseAdam else ():
                weight.grad = weight.grad.to_sparse()
            return value.detach()

        loss()
        trained.step(loss)
    trainer: Any = SimpleNamespace(
        strategy=pl.strategies.SingleDeviceStrategy("cpu"), optimizers=[optimizer()], callbacks=[], ckpt_path="kept.ckpt"
    )
    checkpoint = {"optimizer_states": [trained.state_dict()], "lr_schedulers": [], "global_step": steps}
    check_optimizers("kept.ckpt", trainer, checkpoint)
    for key, entry in trained.state_dict()["state"].items():
        for name, value in entry.items():
            if isinstance(value, Tensor) and value.dim():
                checkpoint["optimizer_states"] = [changed(trained.state_dict(), ("state", key, name), value.new_zeros(9, 9, 9))]
                with pytest.raises(CheckpointError, match=f"`optimizer_states.0.state.{key}.{name}`"):
                    check_optimizers("kept.ckpt", trainer, checkpoint)
