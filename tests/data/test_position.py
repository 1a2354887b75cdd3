"""Each epoch of a fit has each training example once: the position is the trainer's, counted in examples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.callbacks import BasePredictionWriter, BatchSizeFinder, LearningRateFinder, ModelCheckpoint
from pytorch_lightning.tuner import Tuner
from torch.utils.data import DataLoader

from lit_sparse.coresets import Uniform
from lit_sparse.data import (
    CoresetDataModule,
    DigitsDataModule,
    ReferentialGameDataModule,
    SyntheticRegressionDataModule,
    TranslationDataModule,
)
from lit_sparse.data.base import ResumableDataModule
from lit_sparse.errors import CheckpointError
from lit_sparse.lightning.choice import pl
from lit_sparse.models import RobustClassifier
from tests.data.pairs import write_pairs

QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
pytestmark = pytest.mark.filterwarnings("ignore:.*(callbacks used to create|You defined a `validation_step`)")
#: Number of examples of the digits.
SIZE = 1257


class Seen(pl.Callback):
    """Keep the examples of each epoch, batch by batch."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[list[int]]] = {}

    def on_train_batch_end(self, trainer: pl.Trainer, model: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.epochs.setdefault(trainer.current_epoch, []).append(batch["index"].tolist())

    def examples(self, epoch: int = 0) -> list[int]:
        return [i for batch in self.epochs.get(epoch, []) for i in batch]


class Free(pl.LightningModule):
    """A model of a user, which needs no entry of a batch but the index."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.rate = 0.1

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        return self.weight.square()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None: ...

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.rate)


def digits(**options: Any) -> DigitsDataModule:
    return DigitsDataModule(**{"labelled": 1.0, "binarize": False, **options})


def classifier() -> RobustClassifier:
    return RobustClassifier(in_features=64, network=torch.nn.Linear(64, 10))


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    yield


class Milestone(LearningRateFinder):
    """Search at the start of the second epoch."""

    def on_fit_start(self, *args: Any) -> None: ...

    def on_train_epoch_start(self, trainer: pl.Trainer, model: Any) -> None:
        if trainer.current_epoch == 1:
            self.lr_find(trainer, model)


RATES: dict[str, Any] = {"num_training": 10, "update_attr": False}
SIZES: dict[str, Any] = {"max_trials": 2, "steps_per_trial": 2, "init_val": 16}
FINDERS: dict[str, Callable[[], pl.Callback]] = {
    "BatchSizeFinder": lambda: BatchSizeFinder(**SIZES),
    "LearningRateFinder": lambda: LearningRateFinder(num_training_steps=10, update_attr=False),
    "milestone": lambda: Milestone(num_training_steps=10, update_attr=False),
}
TUNED: dict[str, Callable[[Tuner, Any, Any], Any]] = {
    "lr_find": lambda tuner, model, data: tuner.lr_find(model, data, **RATES),
    "scale_batch_size": lambda tuner, model, data: tuner.scale_batch_size(model, datamodule=data, **SIZES),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.cases(quick=3, gate=9)
@pytest.mark.parametrize("make", [classifier, Free])
@pytest.mark.parametrize("how", ["none", *FINDERS, *TUNED])
def test_a_search_takes_no_examples_from_the_fit(how: str, make: Callable[[], Any]) -> None:
    seen, model, data = Seen(), make(), digits()
    trainer = pl.Trainer(**QUIET, max_epochs=2, callbacks=[seen, *([FINDERS[how]()] if how in FINDERS else [])])
    if how in TUNED:
        TUNED[how](Tuner(trainer), model, data)
    trainer.fit(model, data)
    assert [sorted(seen.examples(epoch)) for epoch in (0, 1)] == [list(range(SIZE))] * 2
    assert seen.examples(0) != seen.examples(1)
    if "atch" not in how:  # the batch size that was found gives other batches of the same order
        other = Seen()
        pl.Trainer(**QUIET, max_epochs=2, callbacks=[other]).fit(make(), digits())
        assert seen.epochs == other.epochs


class Reader(pl.Callback):
    """Read training batches by hand in every hook of a fit."""

    def _read(self, trainer: pl.Trainer, *args: Any) -> None:
        for loader in (trainer.datamodule.train_dataloader(), trainer.train_dataloader):
            assert len(next(iter(loader))["index"]) == 64
        whole = [i for batch in trainer.datamodule.train_dataloader() for i in batch["index"].tolist()]
        assert sorted(whole) == list(range(SIZE))

    on_train_start = on_train_epoch_start = on_train_epoch_end = on_validation_epoch_end = on_train_end = _read

    def on_train_batch_start(self, trainer: pl.Trainer, model: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 7:
            self._read(trainer)


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 2])
def test_reading_by_hand_within_a_fit_changes_nothing(workers: int) -> None:
    seen, plain = Seen(), Seen()
    data = digits(num_workers=workers)
    keep = ModelCheckpoint(dirpath="kept", every_n_train_steps=5, save_top_k=-1)
    pl.Trainer(**QUIET, max_epochs=2, callbacks=[seen, Reader(), keep], num_sanity_val_steps=0).fit(classifier(), data)
    pl.Trainer(**QUIET, max_epochs=2, enable_checkpointing=False, callbacks=[plain]).fit(classifier(), digits())
    assert seen.epochs == plain.epochs
    for path, done in (("kept/epoch=0-step=5.ckpt", 5), ("kept/epoch=1-step=30.ckpt", 10)):
        rest = Seen()
        options: dict[str, Any] = {"enable_checkpointing": False, "callbacks": [rest, Reader()], "max_epochs": 2}
        pl.Trainer(**QUIET, **options, num_sanity_val_steps=0).fit(classifier(), digits(num_workers=workers), ckpt_path=path)
        expected = {epoch: batches for epoch, batches in plain.epochs.items() if epoch or done == 5}
        first = min(expected)
        assert rest.epochs == {**expected, first: expected[first][done:]}


def stopped(model: Any, data: Any, steps: int = 5, **options: Any) -> tuple[Seen, str]:
    """Return what the first steps of a fit saw, and their checkpoint."""
    seen, keep = Seen(), ModelCheckpoint(dirpath=f"kept{steps}", every_n_train_steps=steps)
    pl.Trainer(**{**QUIET, "max_epochs": 2, "max_steps": steps, "callbacks": [seen, keep], **options}).fit(model, data)
    return seen, keep.best_model_path


def continued(model: Any, data: Any, path: str, **options: Any) -> Seen:
    seen = Seen()
    options = {**QUIET, "max_epochs": 2, "enable_checkpointing": False, "callbacks": [seen], **options}
    pl.Trainer(**options).fit(model, data, ckpt_path=path)
    return seen


def test_a_module_may_be_of_several_trainers() -> None:
    """A fit that ended early goes on after a fit of another trainer and a validation, with the same data module."""
    data = digits()
    first, path = stopped(classifier(), data)
    other = continued(classifier(), data, None)  # type: ignore[arg-type]
    pl.Trainer(**QUIET).validate(classifier(), data, ckpt_path=path, verbose=False)
    again = continued(classifier(), data, None)  # type: ignore[arg-type]
    rest = continued(classifier(), data, path)
    assert other.epochs == again.epochs
    assert first.epochs[0] + rest.epochs[0] == other.epochs[0]
    assert rest.epochs[1] == other.epochs[1]


@pytest.mark.cases(quick=2, gate=6)
@pytest.mark.parametrize(
    "options", [{}, {"accumulate_grad_batches": 3}, {"limit_train_batches": 15}, {"reload_dataloaders_every_n_epochs": 1}]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_rest_of_an_epoch_is_exact(options: dict[str, Any], workers: int) -> None:
    whole = continued(classifier(), digits(), None, **options)  # type: ignore[arg-type]
    first, path = stopped(classifier(), digits(num_workers=workers), 4, **options)
    rest = continued(classifier(), digits(num_workers=workers), path, **options)
    assert first.epochs[0] + rest.epochs[0] == whole.epochs[0]
    assert rest.epochs[1] == whole.epochs[1]


def translation(**options: Any) -> TranslationDataModule:
    for split, number in (("train", 300), ("val", 11), ("test", 13)):
        write_pairs(Path("pairs"), split, number)
    return TranslationDataModule("pairs", source="de", target="en", **options)


def coreset(**options: Any) -> CoresetDataModule:
    return CoresetDataModule(digits(**options), Uniform(), 400, lambda examples: torch.ones(len(examples), 1))


MODULES: dict[str, Callable[..., ResumableDataModule]] = {
    "digits": digits,
    "half labelled": lambda **options: digits(labelled=0.5, **options),
    "table": lambda **options: SyntheticRegressionDataModule(size=700, **options),
    "game": lambda **options: ReferentialGameDataModule(digits(), **options),
    "coreset": coreset,
    "text": translation,
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.cases(quick=4, gate=8)
@pytest.mark.parametrize("sizes", [(16, 16), (8, 16), (50, 50), (1000, 1000), (8, 50)])
@pytest.mark.parametrize("name", MODULES)
def test_an_epoch_may_go_on_in_batches_of_another_size(name: str, sizes: tuple[int, int]) -> None:
    """The last size is of a second continuation, in an epoch that already had two sizes."""
    make = MODULES[name]
    before, path = stopped(Free(), make(batch_size=16), 4)
    whole = continued(Free(), make(batch_size=16), None)  # type: ignore[arg-type]
    seen, steps = before.examples(), 4
    for size in sizes:
        keep = ModelCheckpoint(dirpath=f"{size} {steps}", every_n_train_steps=steps + 3)
        part = continued(
            Free(), make(batch_size=size), path, callbacks=[new := Seen(), keep], max_steps=steps + 3, enable_checkpointing=True
        )
        assert not part.epochs
        seen, path, steps = seen + new.examples(), keep.best_model_path or path, steps + 3
        if new.epochs.keys() != {0}:
            break
    else:
        last = continued(Free(), make(batch_size=sizes[-1]), path)
        seen += last.examples()
        assert sorted(last.examples(1)) == sorted(whole.examples(1))
    assert sorted(seen) == sorted(whole.examples())


@pytest.mark.cases(quick=2, gate=4)
@pytest.mark.parametrize("labelled", [0.5, 1.0])
@pytest.mark.parametrize("size", [32, 128, 2000])
def test_a_model_goes_on_with_another_batch_size(size: int, labelled: float) -> None:
    """The trainer counts as many batches as are left, and labelled images come first."""
    first, path = stopped(classifier(), digits(batch_size=64, labelled=labelled))
    with pytest.warns(UserWarning, match=rf"Epoch 0 began with a batch size of 64 on 1 processes.*with {size} on 1"):
        rest = continued(classifier(), data := digits(batch_size=size, labelled=labelled), path, num_sanity_val_steps=0)
    whole = [i for batch in data.train_batches(0, 0, 1) for i in batch.tolist()]
    assert sorted(first.examples() + rest.examples()) == sorted(whole)
    assert sorted(rest.examples(1)) == sorted(i for batch in data.train_batches(1, 0, 1) for i in batch.tolist())
    for batch in rest.epochs[0]:
        known = [bool(torch.isin(torch.tensor(i), data._labelled)) for i in batch]
        assert known == ([True] * len(batch) if labelled == 1 else [True] * (len(batch) // 2) + [False] * (len(batch) // 2))


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (3, 2)])
def test_an_epoch_may_go_on_with_other_processes(name: str, before: int, after: int) -> None:
    data = MODULES[name](batch_size=16)
    data.setup("fit")
    data.train_dataloader()  # gives a coreset its batch size
    done = [data.train_batches(1, rank, before)[:2] for rank in range(before)]
    examples = sum(map(len, done[0]))
    for size in (16, 5):
        data.batch_size = size
        rest = [data._rest_of_epoch(1, [[16, before, examples]], rank, after) for rank in range(after)]
        assert len({tuple(map(len, share)) for share in rest}) == 1
        seen = [i for share in (*done, *rest) for batch in share for i in batch.tolist()]
        data.batch_size = 16
        whole = [i for rank in range(before) for batch in data.train_batches(1, rank, before) for i in batch.tolist()]
        if after == 1:
            assert sorted(seen) == sorted(whole)
        else:
            assert len(set(whole) - set(seen)) <= after
            assert name == "half labelled" or len(set(seen)) == len(seen)


def test_overfit_batches_are_the_same_in_each_epoch() -> None:
    seen = Seen()
    trainer = pl.Trainer(max_epochs=3, overfit_batches=2, callbacks=[seen], enable_checkpointing=False, **QUIET)
    trainer.fit(Free(), datamodule=digits())
    assert seen.epochs[0] == seen.epochs[1] == seen.epochs[2]
    assert len(seen.epochs[0]) == 2


def test_several_updates_per_batch_may_become_one() -> None:
    first, path = stopped(classifier(), digits(updates_per_batch=4), 8)
    rest = continued(classifier(), digits(), path)
    whole = continued(classifier(), digits(), None)  # type: ignore[arg-type]
    assert first.examples() + rest.examples() == whole.examples()
    assert len(rest.epochs[0]) == 12


def test_other_data_are_refused() -> None:
    _, path = stopped(classifier(), digits())
    with pytest.raises(CheckpointError, match=r"position in an epoch of 200 examples at the end of a batch but got 320"):
        continued(classifier(), digits(epoch_size=200), path)


def test_a_loader_without_its_data_module_counts_too() -> None:
    """It cannot divide the rest anew, and says so."""
    data = digits()
    data.setup()
    first, path = stopped(classifier(), data.train_dataloader())
    again = digits()
    again.setup()
    rest = continued(classifier(), again.train_dataloader(), path)
    assert sorted(first.examples() + rest.examples()) == sorted(rest.examples(1)) == list(range(SIZE))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["none", *FINDERS])
def test_a_loader_of_torch_counts_too(how: str) -> None:
    if how == "BatchSizeFinder":
        pytest.skip("it has no batch size that a finder could set")
    examples = [{"pixels": torch.zeros(64), "label": 1, "index": i} for i in range(100)]
    seen = Seen()
    callbacks = [seen, *([FINDERS[how]()] if how in FINDERS else [])]
    pl.Trainer(**QUIET, max_epochs=2, callbacks=callbacks).fit(classifier(), DataLoader(examples, 8, shuffle=True))
    assert [sorted(seen.examples(epoch)) for epoch in (0, 1)] == [list(range(100))] * 2


@pytest.mark.parametrize("interval", ["batch", "epoch"])
def test_a_writer_of_predictions_gets_the_indices_of_its_examples(interval: str) -> None:
    class Writer(BasePredictionWriter):
        given: list[Any]
        own: list[Any]

        def write_on_batch_end(self, _: Any, __: Any, prediction: Any, indices: Any, *___: Any) -> None:
            self.given, self.own = (
                [*getattr(self, "given", []), indices],
                [*getattr(self, "own", []), prediction["index"].tolist()],
            )

        def write_on_epoch_end(self, _: Any, __: Any, predictions: Any, indices: Any) -> None:
            self.given, self.own = indices[0], [one["index"].tolist() for one in predictions]

    writer = Writer(interval)  # type: ignore[arg-type]
    model = RobustClassifier(in_features=64, network=torch.nn.Linear(64, 10))
    data = DigitsDataModule(labelled=1.0, binarize=False)
    pl.Trainer(**QUIET, enable_checkpointing=False, callbacks=[writer]).predict(model, data)
    assert len(writer.own) == 2
    assert [list(indices) for indices in writer.given] == writer.own
