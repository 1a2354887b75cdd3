"""Orders, shares and places of the loaders."""

from __future__ import annotations

import multiprocessing.reduction
import os
import signal
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from lit_sparse.coresets import Uniform
from lit_sparse.data import (
    ColoredDigitsDataModule,
    CoresetDataModule,
    DigitsDataModule,
    EpochLoader,
    ReferentialGameDataModule,
    SymmetricNoise,
    SyntheticRegressionDataModule,
    TableDataModule,
)
from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.images.base import UNLABELLED
from lit_sparse.data.splits import shuffled
from lit_sparse.errors import CheckpointError, ConfigurationError, LitSparseError, MissingExtraError
from lit_sparse.lightning.choice import pl
from lit_sparse.testing import concrete_subclasses


def loader(**options: Any) -> EpochLoader:
    plan = lambda epoch: shuffled(20, 0, epoch).split(4)  # noqa: E731
    return EpochLoader(plan, lambda epoch, indices: {"index": indices, "epoch": torch.full_like(indices, epoch)}, **options)


def seen(batches: Any) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_epoch_has_its_own_order(workers: int) -> None:
    some = loader(num_workers=workers)
    first, second = seen(some), seen(some)
    assert sorted([i for batch in first for i in batch]) == sorted([i for batch in second for i in batch]) == list(range(20))
    assert first != second
    assert seen(loader(num_workers=workers)) == first


@pytest.mark.parametrize("stop", [1, 3, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_restored_place_goes_on_exactly(stop: int, workers: int) -> None:
    whole = loader()
    expected = seen(whole) + seen(whole)
    some = loader(num_workers=workers)
    iterator = iter(some)
    for _ in range(stop):
        next(iterator)
    other = loader(num_workers=workers)
    other.load_state_dict(some.state_dict())
    rest = seen(other)
    rest += seen(other)
    assert rest[: 10 - stop] == expected[stop:10]
    assert len(other) == 5


def test_no_file_is_sent_to_workers_which_may_outlive_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(descriptor: int) -> Any:
        files.append(descriptor)
        return duplicated(descriptor)

    files: list[int] = []
    duplicated = multiprocessing.reduction.DupFd
    monkeypatch.setattr(multiprocessing.reduction, "DupFd", sent)
    assert len(list(EpochLoader(lambda _: torch.arange(20).split(4), lambda *_: {}, num_workers=1))) == 5
    assert not files


def test_a_killed_worker_is_named_where_its_batch_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nowhere else: torch would raise the error in the middle of a step, or while a checkpoint is written."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)
    monkeypatch.setattr("torch.utils.data._utils.signal_handling._SIGCHLD_handler_set", False)
    before, main = signal.signal(signal.SIGCHLD, signal.SIG_DFL), os.getpid()

    def fetch(_: int, indices: torch.Tensor) -> dict[str, Any]:
        if os.getpid() != main and int(indices[0]):
            os.kill(os.getpid(), signal.SIGKILL)
        return {"index": indices}

    with pytest.raises(LitSparseError, match=r"the system ended one[^`]*`num_workers`"):
        list(EpochLoader(lambda _: torch.arange(8).split(4), fetch, num_workers=1))
    assert signal.signal(signal.SIGCHLD, before) == signal.SIG_DFL


@pytest.mark.parametrize("error", [ConnectionResetError(104, "Connection reset by peer"), EOFError()])
def test_a_worker_that_is_killed_while_its_batch_is_received_is_named(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch may still count it as alive then."""
    monkeypatch.setattr("lit_sparse.data.loader._begun", lambda _: iter(Mock(side_effect=error), None))
    with pytest.raises(LitSparseError, match=r"the system ended one[^`]*`num_workers`"):
        list(EpochLoader(lambda _: torch.arange(8).split(4), lambda *_: {}, num_workers=1))


def test_a_connection_that_fails_in_a_worker_is_no_end_of_a_worker() -> None:
    def fetch(*_: Any) -> Any:
        raise ConnectionResetError("of a server")

    with pytest.raises(ConnectionResetError, match=r"^Caught ConnectionResetError in DataLoader worker"):
        list(EpochLoader(lambda _: torch.arange(8).split(4), fetch, num_workers=1))


def test_a_wrapper_of_fetch_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrapper made by functools has the attributes of what it wraps."""
    calls, fetch = [], DigitsDataModule.fetch

    @wraps(fetch)
    def counted(*args: Any) -> Any:
        calls.append(args)
        return fetch(*args)

    monkeypatch.setattr(DigitsDataModule, "fetch", counted)
    data = DigitsDataModule(batch_size=1000)
    data.setup("fit")
    assert len(list(data.train_dataloader())) == len(calls) == 2


def test_an_error_in_a_worker_has_its_own_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ConfigurationError("Expected a picture.")

    def lacks(*_: Any) -> Any:
        raise MissingExtraError("Feature vectors in HDF5 files", "h5")

    def full(*_: Any) -> None:
        raise RuntimeError("File too large (27)")

    batches = lambda _: torch.arange(20).split(4)  # noqa: E731
    with pytest.raises(ConfigurationError, match=r"^Expected a picture\.$"):
        list(EpochLoader(batches, fails, num_workers=1))
    with pytest.raises(MissingExtraError, match=r"^Feature vectors in HDF5 files need the extra 'h5'"):
        list(EpochLoader(batches, lacks, num_workers=1))
    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", full)
    with pytest.raises(
        LitSparseError, match=r"^Expected to put a batch into shared memory but got: File too large \(27\)\. Free"
    ):
        list(EpochLoader(batches, lambda *_: {"x": torch.zeros(4)}, num_workers=1))


def test_making_an_iterator_without_using_it_changes_nothing() -> None:
    some = loader()
    iter(some)
    iter(some)
    assert seen(some) == seen(loader())


@pytest.mark.parametrize(
    "state",
    [
        {"epoch": 0, "batch": 3, "parts": [[8]]},  # of another batch size
        {"epoch": 0, "batch": 3},
        {"epoch": 0, "batch": 3, "parts": [[12], [3]]},
        {"epoch": 0, "batch": 3, "parts": [[1, 12]]},
        {"epoch": 0, "batch": True, "parts": [[4]]},
        {"epoch": -1, "batch": 0, "parts": []},
        [],
    ],
)
def test_a_position_that_is_not_of_the_loader_is_refused(state: Any) -> None:
    some = loader()
    some.load_state_dict({"epoch": 0, "batch": 3, "parts": [[12]]})
    with pytest.raises(CheckpointError, match=r"^Expected a position"):
        some.load_state_dict(state)


def test_processes_share_training_and_split_scoring() -> None:
    data = DigitsDataModule(test_size=101, batch_size=10)
    data.setup()
    alone, pairs = data.train_batches(3, 0, 1), [data.train_batches(3, rank, 2) for rank in range(2)]
    assert len(pairs[0]) == len(pairs[1])
    unlabelled = [{int(i) for batch in part for i in batch if not bool(torch.isin(i, data._labelled))} for part in pairs]
    assert not unlabelled[0] & unlabelled[1]
    assert unlabelled[0] | unlabelled[1] <= {int(i) for batch in alone for i in batch}
    shares = [set(range(rank, 101, 2)) for rank in range(2)]
    assert len(shares[0]) + len(shares[1]) == 101


def test_batches_of_few_labels() -> None:
    data = DigitsDataModule(labelled=0.2, batch_size=16)
    data.setup()
    batches = list(data.train_dataloader())
    labelled = sum(int((batch["label"] != UNLABELLED).sum()) for batch in batches)
    unlabelled = sum(int((batch["label"] == UNLABELLED).sum()) for batch in batches)
    size = data.size("train")
    assert labelled == unlabelled == size - round(0.2 * size)
    assert all(set(batch["pixels"].unique().tolist()) <= {0.0, 1.0} for batch in batches)
    only = DigitsDataModule(labelled=0.2, labelled_only=True)
    only.setup()
    assert sum(len(batch["label"]) for batch in only.train_dataloader()) == round(0.2 * size)


def test_batches_without_labels() -> None:
    """Without labels, each image comes once per epoch, in batches of ``batch_size``, split over processes."""
    data = DigitsDataModule(labelled=0, batch_size=50)
    data.setup()
    size = data.size("train")
    batches = list(data.train_dataloader())
    assert [len(batch["index"]) for batch in batches] == [50] * (size // 50) + [size % 50]
    assert torch.equal(torch.cat([batch["index"] for batch in batches]).sort().values, torch.arange(size))
    assert all(bool((batch["label"] == UNLABELLED).all()) for batch in batches)
    shares = [torch.cat(list(data.train_batches(3, rank, 2))) for rank in range(2)]
    assert len(torch.cat(shares).unique()) == 2 * len(shares[0]) == size - size % 2
    assert not torch.equal(torch.cat(list(data.train_batches(0, 0, 1))), torch.cat(list(data.train_batches(1, 0, 1))))


def test_binarization_is_new_in_training_and_fixed_in_scoring() -> None:
    data = DigitsDataModule()
    data.setup()
    index = torch.arange(50)
    assert torch.equal(data.fetch("test", 0, index)["pixels"][7:9], data.fetch("test", 0, index[7:9])["pixels"])
    assert not torch.equal(data.fetch("train", 0, index)["pixels"], data.fetch("train", 1, index)["pixels"])
    drawn = torch.stack([data.fetch("train", epoch, index)["pixels"] for epoch in range(400)]).mean(0)
    grey = DigitsDataModule(binarize=False)
    grey.setup()
    assert float((drawn - grey.fetch("train", 0, index)["pixels"]).abs().max()) < 0.12


def test_state_dict_of_the_data_module() -> None:
    data = DigitsDataModule()
    data.setup()
    iterator = iter(data.train_dataloader())
    first = [next(iterator)["index"] for _ in range(3)]
    other = DigitsDataModule()
    other.setup()
    other.load_state_dict(data.state_dict())
    position = {"epoch": 0, "batch": 3, "parts": [[64, 1, sum(map(len, first))]]}
    assert data.state_dict() == other.state_dict() == {"train": position}
    assert torch.equal(next(iter(other.train_dataloader()))["index"], next(iterator)["index"])
    assert len(first) == 3


def test_a_loader_made_anew_goes_on() -> None:
    data = DigitsDataModule()
    data.setup()
    epochs = []
    for _ in range(2):
        epochs.append(torch.cat([batch["index"] for batch in data.train_dataloader()]))
    assert not torch.equal(epochs[0], epochs[1])
    again = DigitsDataModule()
    again.setup()
    loader = again.train_dataloader()
    for expected in epochs:
        assert torch.equal(torch.cat([batch["index"] for batch in loader]), expected)


QUIET: dict[str, Any] = {
    **{"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
}


class Recorder(pl.LightningModule):
    """Keep the examples of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[int]] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        self.seen.append(batch["index"].tolist())
        return self.weight.square()

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None: ...

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(data: DigitsDataModule, **options: Any) -> list[list[int]]:
    """Return the examples of each batch of a new trainer."""
    model = Recorder()
    pl.Trainer(accelerator="cpu", **QUIET, **options).fit(model, data)
    return model.seen


BEFORE: dict[str, Callable[[DigitsDataModule], object]] = {
    "a shorter epoch": lambda data: fit(data, max_epochs=1, limit_train_batches=3, log_every_n_steps=1),
    "a stop within an epoch": lambda data: fit(data, max_steps=3),
    "a batch by hand": lambda data: (data.setup(), next(iter(data.train_dataloader()))),
    "a position by hand": lambda data: data.load_state_dict({"train": {"epoch": 2, "batch": 3, "parts": [[64, 1, 192]]}}),
    "a validation": lambda data: pl.Trainer(accelerator="cpu", **QUIET).validate(Recorder(), data, verbose=False),
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_a_new_trainer_begins_at_the_first_epoch(before: Callable[[DigitsDataModule], object]) -> None:
    data = DigitsDataModule(labelled=1.0)
    before(data)
    seen = fit(data, max_epochs=2, limit_val_batches=0)
    assert seen == fit(DigitsDataModule(labelled=1.0), max_epochs=2, limit_val_batches=0)
    assert len(seen) == 2 * len(data.train_dataloader())


@pytest.mark.parametrize("start", [0, 1, 3])
def test_batches_are_fetched_together(start: int) -> None:
    """They equal those from single calls, also after a restored position."""
    calls: list[int] = []

    def fetch(epoch: int, indices: torch.Tensor) -> dict[str, Any]:
        calls.append(len(indices))
        return {"index": indices, "name": [f"{epoch}/{i}" for i in indices.tolist()], "updates": (1, 4)}

    plan = lambda epoch: shuffled(22, 0, epoch).split(4)  # noqa: E731
    alone = EpochLoader(plan, fetch)
    expected = [*alone, *alone]
    calls.clear()
    together = EpochLoader(plan, fetch, rows_per_fetch=11)
    together.load_state_dict({"epoch": 0, "batch": start, "parts": [[4 * start]] if start else []})
    iterator = iter(together)
    for number in range(start, 6):
        assert together.position() == (0, number)
        batch = next(iterator)
        assert batch["index"].tolist() == expected[number]["index"].tolist()
        assert batch["name"] == expected[number]["name"]
        assert batch["updates"] == (1, 4)
    assert next(iterator, None) is None
    assert calls == {0: [8, 8, 6], 1: [8, 10], 3: [10]}[start]
    assert [batch["name"] for batch in together] == [batch["name"] for batch in expected[6:]]


GAMES: tuple[Any, ...] = ("any", "other_classes", "same_class")


def table() -> str:
    path = Path(tempfile.mkdtemp(), "rows.csv")
    path.write_text("x,y\n" + "".join(f"{row},{row % 7}\n" for row in range(200)))
    return str(path)


INDEPENDENT: list[Callable[[], ResumableDataModule]] = [
    lambda: DigitsDataModule(shift_augmentation=True, label_noise=SymmetricNoise(0.3)),
    lambda: ColoredDigitsDataModule(),
    lambda: SyntheticRegressionDataModule(),
    lambda: TableDataModule(table(), features="x", streaming=True, shuffle_buffer=9),
    *(lambda kind=kind: ReferentialGameDataModule(DigitsDataModule(), distractors=kind, candidates=8) for kind in GAMES),
]


@pytest.mark.parametrize("make", INDEPENDENT)
def test_rows_that_are_said_to_be_independent_are(make: Callable[[], ResumableDataModule]) -> None:
    data = make()
    data.setup("fit")
    indices = shuffled(data.size("train"), 1)[:40]
    whole = data.fetch("train", 3, indices)
    parts = [data.fetch("train", 3, some) for some in indices.split(7)]
    assert data.independent_rows
    for name, value in whole.items():
        assert torch.equal(value, torch.cat([part[name] for part in parts])), name


def test_a_fetch_of_a_subclass_is_called_for_each_batch() -> None:
    class Counted(DigitsDataModule):
        calls = 0

        def fetch(self, split: Any, epoch: int, indices: torch.Tensor) -> dict[str, Any]:
            type(self).calls += 1
            return super().fetch(split, epoch, indices)

    class Declared(Counted):
        independent_rows = True

        def fetch(self, split: Any, epoch: int, indices: torch.Tensor) -> dict[str, Any]:
            return super().fetch(split, epoch, indices) | self.more

    for kind, together in ((Counted, False), (Declared, True)):
        kind.calls, kind.more = 0, {}
        data = CoresetDataModule(kind(batch_size=16), Uniform(), 200, lambda examples: torch.ones(len(examples), 1))
        data.setup("fit")
        assert sum(len(batch["index"]) for batch in data.train_dataloader()) == 200
        assert kind.calls == (1 if together else 13)
    for entry in (torch.tensor(1.0), torch.ones(10), [1.0], torch.ones(16).numpy(), 1.0):
        Declared.more = {"entry": entry}
        data = Declared(batch_size=16)
        data.setup("fit")
        with pytest.raises(
            ConfigurationError, match=r"'entry' of a batch to be a tensor or list with .* rows.*independent_rows"
        ):
            next(iter(data.train_dataloader()))


def test_batches_of_many_rows_are_fetched_alone() -> None:
    calls = []
    plan = lambda epoch: [torch.arange(n) for n in (1, 5, 6, 4, 4, 12, 1, 1)]  # noqa: E731
    some = EpochLoader(plan, lambda epoch, indices: calls.append(len(indices)) or {"index": indices}, rows_per_fetch=8)
    assert [len(batch["index"]) for batch in some] == [1, 5, 6, 4, 4, 12, 1, 1]
    assert calls == [6, 6, 8, 12, 2]


@pytest.mark.parametrize("width", [3, 16, 17])
def test_batches_are_aligned_as_new_tensors(width: int) -> None:
    """Products of a continued run are rounded alike, whichever batches are fetched with a batch."""
    table = torch.randn(40, width)
    plan = lambda epoch: torch.arange(40).split(5)  # noqa: E731
    some = EpochLoader(plan, lambda epoch, indices: {"pixels": table[indices]}, rows_per_fetch=40)
    assert {batch["pixels"].data_ptr() % 64 for batch in some} == {0}


def test_all_ways_to_fetch_independent_rows_are_tested() -> None:
    def defines_fetch(kind: type) -> type:
        return next(base for base in kind.__mro__ if "fetch" in vars(base))

    kinds = [kind for kind in concrete_subclasses(ResumableDataModule) if kind.independent_rows]
    assert {defines_fetch(kind) for kind in kinds} == {defines_fetch(type(make())) for make in INDEPENDENT}


@pytest.mark.parametrize(
    ("split", "indices", "message"),
    [
        ("train", torch.tensor([-1]), r"but got -1"),
        ("val", torch.tensor([3, 10]), r"0 \.\. 9 but got 3 \.\. 10"),
        ("train", torch.tensor([True]), "int64 but got .*bool"),
        ("train", torch.tensor([[0]]), "int64 but got"),
        ("train", [0], "int64 but got list"),
        ("valid", torch.tensor([0]), "`split` to be one of"),
    ],
)
def test_a_batch_is_fetched_by_the_indices_of_examples_alone(split: Any, indices: Any, message: str) -> None:
    data = DigitsDataModule(val_size=10)
    data.setup()
    with pytest.raises((IndexError, ConfigurationError), match=message):
        data.fetch(split, 0, indices)


def test_the_data_module_of_a_user_has_its_own_signatures_and_indices() -> None:
    class Mine(DigitsDataModule):
        def setup(self, stage: str | None = None, quiet: bool = False) -> None:
            super().setup(stage)

        def fetch(self, split: Any, epoch: int = 0, indices: Any = None, raw: bool = False) -> dict[str, Any]:
            return {"x": indices, "raw": raw}

    data = Mine()
    data.setup("fit", quiet=True)
    assert data.fetch("train", indices=torch.tensor([10**6], dtype=torch.int32), raw=True)["raw"]


@pytest.mark.parametrize("count", [-1, 999])
def test_numbers_of_workers_are_checked(count: int) -> None:
    with pytest.raises(ConfigurationError, match="`num_workers` to be an integer of at"):
        DigitsDataModule(num_workers=count)
