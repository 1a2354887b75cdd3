"""Training examples that are streamed from their files: the same rows in their order, exactly continued, few in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet

from lit_sparse.data import EntailmentDataModule, RadialBases, TableDataModule, TranslationDataModule
from lit_sparse.data.readers import arrow_files, splits, tables, text_tables
from lit_sparse.data.stream import Stream, stream_order
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.lightning.choice import pl
from tests.data.test_position import Free, continued, quiet, stopped  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore:.*(callbacks used to create|You defined a `validation_step`)")
SIZE = 300
PAIRS = [{"de": f"satz {n}", "en": f"sentence number {n}"} for n in range(SIZE)]


def as_parallel(folder: Path) -> None:
    for side in ("de", "en"):
        (folder / f"train.{side}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS))


def as_json(folder: Path) -> None:
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in PAIRS))


def as_csv(folder: Path) -> None:
    (folder / "train.csv").write_text("de,en\n" + "".join(f"{pair['de']},{pair['en']}\n" for pair in PAIRS))


def as_parquet(folder: Path) -> None:
    parquet.write_table(pyarrow.Table.from_pylist(PAIRS), folder / "train.parquet", row_group_size=50)


def as_arrow(folder: Path) -> None:
    import datasets

    datasets.Dataset.from_list(PAIRS).save_to_disk(str(folder / "train"))


FORMS: dict[str, Callable[[Path], None]] = {
    "parallel": as_parallel,
    "json": as_json,
    "csv": as_csv,
    "parquet": as_parquet,
    "arrow": as_arrow,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(splits, "ROWS", 16)
    monkeypatch.setattr(text_tables, "AT_ONCE", 8)
    monkeypatch.setattr(arrow_files, "BATCH", 16)
    monkeypatch.setattr(text_tables, "BLOCK", 256)
    folder = tmp_path / "pairs"
    folder.mkdir()
    for split in ("val", "test"):
        for side in ("de", "en"):
            (folder / f"{split}.{side}").write_text("ein satz\nein anderer satz\n")
    return folder


def pairs(folder: Path, **options: Any) -> TranslationDataModule:
    options = {"streaming": True, "batch_size": 16, **options}
    return TranslationDataModule(str(folder), source="de", target="en", **options)


def order_of(data: Any, epochs: int = 1) -> list[int]:
    data.setup("fit")
    loader = data.train_dataloader()
    return [i for _ in range(epochs) for batch in loader for i in batch["index"].tolist()]


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_rows_in_their_order(folder: Path, form: str) -> None:
    FORMS[form](folder)
    data, whole = pairs(folder), pairs(folder, streaming=False)
    assert order_of(data, 2) == [*range(SIZE)] * 2
    whole.setup("fit")
    assert data.vocabularies == whole.vocabularies
    for batch in data.train_dataloader():
        expected = whole.fetch("train", 0, batch["index"])
        assert batch.keys() == expected.keys()
        assert all(torch.equal(batch[name], expected[name]) for name in batch)


@pytest.mark.parametrize("buffer", [0, 50])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_continued_epoch_is_exact(folder: Path, workers: int, buffer: int) -> None:
    as_csv(folder)
    options = {"shuffle_buffer": buffer, "num_workers": workers}
    whole = continued(Free(), pairs(folder, shuffle_buffer=buffer), None)  # type: ignore[arg-type]
    first, path = stopped(Free(), pairs(folder, **options), 7)
    rest = continued(Free(), pairs(folder, **options), path)
    assert first.epochs[0] + rest.epochs[0] == whole.epochs[0]
    assert rest.epochs[1] == whole.epochs[1]
    assert (whole.epochs[0] == whole.epochs[1]) == (buffer == 0)
    assert sorted(whole.examples()) == [*range(SIZE)]


def test_processes_share_the_rows(folder: Path) -> None:
    as_json(folder)
    data = pairs(folder, shuffle_buffer=20)
    shares = [torch.cat([*data.train_batches(1, rank, 2)]).tolist() for rank in range(2)]
    assert len(shares[0]) == len(shares[1]) == SIZE // 2
    assert sorted(shares[0] + shares[1]) == [*range(SIZE)]


def test_few_rows_are_in_memory(folder: Path) -> None:
    as_parquet(folder)
    opened = []

    def chunks() -> Any:
        opened.append(1)
        return tables.chunks_of([folder / "train.parquet"], {"x": "de"})

    stream = Stream(chunks, size=SIZE, buffer=30)
    order = stream_order(SIZE, 30, 0, 0)
    for indices in order.split(7):
        assert stream.rows(indices)["x"] == [PAIRS[i]["de"] for i in indices.tolist()]
        assert sum(len(chunk["x"]) for _, chunk in stream._kept) <= 30 + 3 * 16
    assert len(opened) == 1
    assert stream.rows(torch.tensor([3]))["x"] == ["satz 3"]
    assert len(opened) == 2
    with pytest.raises(DataError, match="Expected 1,000 or more rows in the stream but got 300"):
        stream.rows(torch.tensor([999]))


def test_the_first_rows_are_not_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_csv(folder)
    with (folder / "train.csv").open("a") as file:
        file.write("one cell\n")  # an error, if it were reached
    assert sorted(order_of(pairs(folder, train_size=40))) == [*range(40)]
    with pytest.raises(DataError, match=r"2 cells per line in .* but got 1 in line 302"):
        order_of(pairs(folder))


def test_long_examples_are_truncated(folder: Path) -> None:
    as_csv(folder)
    data = pairs(folder, max_length=2)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch["target_length"].tolist() == [4] * 16  # with <bos> and <eos>


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("de,en\na,b\nc,\n", "no value in column 'en' in line 3"),
        ("de\na\n", "no column 'en'"),
        ("de,en\n", "holds no rows"),
    ],
)
def test_errors_are_the_same(folder: Path, content: str, words: str) -> None:
    (folder / "train.csv").write_text(content)
    for streaming in (True, False):
        with pytest.raises(DataError, match=words):
            order_of(pairs(folder, streaming=streaming))


def test_parallel_files_of_other_lengths(folder: Path) -> None:
    as_parallel(folder)
    (folder / "train.de").write_text("a\n")
    with pytest.raises(DataError, match=r"equal length .* got train\.de 1, train\.en 300"):
        order_of(pairs(folder))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TranslationDataModule("x", shuffle_buffer=5), "`shuffle_buffer` only with `streaming`"),
        (lambda: TranslationDataModule("x", streaming=True, fold=(0, 2)), "`streaming` with `fold`"),
        (lambda: EntailmentDataModule("x", streaming=True), "`streaming` with EntailmentDataModule"),
    ],
)
def test_options_that_exclude_each_other(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call()


def test_data_sets_of_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load_dataset(name: str, config: Any, *, split: str, cache_dir: Any, streaming: bool = False) -> Any:
        made = datasets.Dataset.from_list(PAIRS if split == "train" else PAIRS[:9])
        return made.to_iterable_dataset() if streaming else made

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = TranslationDataModule("me/pairs", source="de", target="en", streaming=True)
    data.prepare_data()
    assert order_of(data) == [*range(SIZE)]


def test_a_fit_of_a_model(folder: Path) -> None:
    from lit_sparse.mappings import Sparsemax
    from lit_sparse.models import Seq2Seq
    from lit_sparse.nn import RecurrentBody

    as_json(folder)
    trainer = pl.Trainer(max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    trainer.fit(Seq2Seq(Sparsemax(), RecurrentBody(8, layers=1)), pairs(folder))
    assert trainer.global_step == 2


def rows_of(tmp_path: Path, **options: Any) -> TableDataModule:
    if not (path := tmp_path / "t.csv").exists():
        draw = torch.Generator().manual_seed(0)
        values = torch.randn(SIZE, 3, generator=draw).double().tolist()
        path.write_text("a,b,c,y\n" + "".join(f"{a},{b},7,{c}\n" for a, b, c in values))
    options = {"standardize": True, "standardize_target": True, "batch_size": 16, **options}
    return TableDataModule(str(path), features="a,b,c", target="y", **options)


@pytest.mark.parametrize("train_size", [None, 50])
def test_numbers_are_those_of_the_table_in_memory(folder: Path, train_size: int | None) -> None:
    data, whole = (rows_of(folder, streaming=streaming, train_size=train_size) for streaming in (True, False))
    for some in (data, whole):
        some.setup("fit")
    for split in ("val", "test"):
        for before, after in zip(whole._in_order(split), data._in_order(split), strict=True):
            assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    assert data.size("train") == whole.size("train") == (train_size or 240)
    assert order_of(data) == [*range(data.size("train"))]
    streamed = data.fetch("train", 0, torch.arange(data.size("train")))
    order = (
        streamed["target"].sort().indices,
        (mine := whole.fetch("train", 0, torch.arange(whole.size("train"))))["target"].sort(),
    )
    assert torch.allclose(streamed["target"][order[0]], order[1].values, atol=1e-6)
    assert torch.allclose(streamed["features"][order[0]], mine["features"][order[1].indices], atol=1e-6)
    assert not streamed["features"][:, 2].any()


@pytest.mark.parametrize("buffer", [0, 30])
def test_a_continued_epoch_of_numbers_is_exact(folder: Path, buffer: int) -> None:
    make = lambda: rows_of(folder, streaming=True, shuffle_buffer=buffer)  # noqa: E731
    whole = continued(Free(), make(), None)  # type: ignore[arg-type]
    first, path = stopped(Free(), make(), 7)
    rest = continued(Free(), make(), path)
    assert first.epochs[0] + rest.epochs[0] == whole.epochs[0]
    assert rest.epochs[1] == whole.epochs[1]


def test_tables_that_cannot_be_streamed(folder: Path) -> None:
    for name, value in {"fold": (0, 2), "group": "a", "whiten": True, "use_all": True, "bases": RadialBases()}.items():
        with pytest.raises(ConfigurationError, match=f"`streaming` with `{name}`"):
            rows_of(folder, standardize=False, streaming=True, **{name: value})
    (folder / "a.libsvm").write_text("1 1:2\n")
    with pytest.raises(DataError, match=r"Expected a table .* with `streaming`"):
        TableDataModule(str(folder / "a.libsvm"), streaming=True).setup()
    (folder / "w.csv").write_text("x,y\n1,2\nword,3\n" + "1,2\n" * 20)
    with pytest.raises(DataError, match="cannot be read as numbers: could not convert string to float: 'word'"):
        TableDataModule(str(folder / "w.csv"), features="x", target="y", streaming=True).setup()
