"""Coresets: what they hold, and files that hold none."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_sparse.coresets import Coreset
from lit_sparse.errors import DataError

SOME = Coreset(torch.tensor([1, 4, 6]), torch.tensor([0.5, 2.0, 3.25]), 0.125, torch.tensor([3.0, 0.125]).double(), 9)


def same(one: Coreset, other: Coreset) -> None:
    for name in ("indices", "weights", "trace"):
        found, expected = getattr(one, name), getattr(other, name)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    assert (one.objective, one.size) == (other.objective, other.size)


def arrays(**others: Any) -> dict[str, Any]:
    names = ("indices", "weights", "objective", "trace", "size")
    return {**{name: np.asarray(getattr(SOME, name)) for name in names}, **others}


@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=30)
def test_files_give_back_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: torch.dtype
) -> None:
    size = data.draw(st.integers(1, 40))
    indices = sorted(data.draw(st.sets(st.integers(0, size - 1))))
    number = st.floats(0, 1e30, allow_subnormal=False)
    weights = data.draw(st.lists(number, min_size=len(indices), max_size=len(indices)))
    trace = torch.tensor(data.draw(st.lists(number, max_size=5)), dtype=torch.float64)
    index = torch.tensor(indices, dtype=torch.int64)
    coreset = Coreset(index, torch.tensor(weights, dtype=dtype), data.draw(number), trace, size)
    path = tmp_path_factory.mktemp("saved") / "new folder" / "some.npz"
    coreset.save(path)
    same(Coreset.load(path), coreset)
    same(Coreset.load(str(path)), coreset)
    coreset.save(str(path))
    assert [file.name for file in path.parent.iterdir()] == ["some.npz"]
    dense = coreset.dense()
    assert dense.shape == (size,)
    assert dense[index].tolist() == coreset.weights.tolist()
    assert float(dense.double().sum()) == pytest.approx(float(coreset.weights.double().sum()))


def test_a_name_without_an_ending_is_kept(tmp_path: Path) -> None:
    SOME.save(tmp_path / "coreset")
    same(Coreset.load(tmp_path / "coreset"), SOME)
    with np.load(tmp_path / "coreset", allow_pickle=False) as file:
        assert file["weights"].tolist() == [0.5, 2.0, 3.25]


def test_what_it_says_of_itself() -> None:
    assert (len(SOME), str(SOME)) == (3, "3 of 9 examples, of total weight 5.75")
    same(SOME.to("cpu"), SOME)
    assert len(Coreset(torch.zeros(0, dtype=torch.int64), torch.zeros(0), 1.0, size=4).dense()) == 4


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"weights": np.array([1.0, -1e-9, 1.0])}, "finite, nonnegative"),
    ({"weights": np.array([1.0, math.nan, 1.0])}, "finite, nonnegative"),
    ({"weights": np.array([1.0, math.inf, 1.0])}, "finite, nonnegative"),
    ({"weights": np.ones(2)}, "as many weights"),
    ({"weights": np.ones((3, 1))}, "as many weights"),
    ({"indices": np.array([4, 1, 6])}, "ascending indices"),
    ({"indices": np.array([1, 1, 6])}, r"ascending indices in 0 \.\. 8 without repetition"),
    ({"indices": np.array([-1, 4, 6])}, "ascending indices"),
    ({"indices": np.array([1, 4, 9])}, r"in 0 \.\. 8"),
    ({"indices": np.array([1, 4, 6], dtype=np.int32)}, "int64 and as many weights"),
    ({"indices": np.array([1.0, 4.0, 6.0])}, "int64"),
    ({"indices": np.array([[1, 4, 6]])}, "int64"),
    ({"objective": -1.0}, "at least 0 but got -1.0"),
    ({"size": 6}, r"in 0 \.\. 5"),
    ({"size": 0}, "ascending indices"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG)
def test_parts_that_do_not_fit_together(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    parts = {name: torch.as_tensor(value) if isinstance(value, np.ndarray) else value for name, value in fields.items()}
    whole = {"indices": SOME.indices, "weights": SOME.weights, "objective": 0.0, "size": 9, **parts}
    with pytest.raises(DataError, match=words):
        Coreset(**whole)
    np.savez(tmp_path / "some.npz", **arrays(**fields))
    with pytest.raises(DataError, match=rf"The coreset '.*some\.npz' is not valid\. .*{words}"):
        Coreset.load(tmp_path / "some.npz")


@pytest.mark.parametrize(
    "fields",
    [
        {"objective": np.ones(3)},
        {"objective": np.array("low")},
        {"size": np.array([9, 9])},
        {"size": math.nan},
        {"weights": np.array(["a", "b", "c"])},
        {"weights": np.array([1, 2, 3], dtype=">f8")},
        {"weights": np.array([1j, 2, 3])},
        {"trace": np.array(["a"])},
        {"trace": np.array([{"a": 1}])},
    ],
    ids=str,
)
def test_arrays_of_other_things(tmp_path: Path, fields: dict[str, Any]) -> None:
    np.savez(tmp_path / "some.npz", **arrays(**fields))
    with pytest.raises(DataError, match=r"some\.npz"):
        Coreset.load(tmp_path / "some.npz")


@pytest.mark.parametrize("missing", ["indices", "weights", "objective", "trace", "size"])
def test_arrays_that_are_missing(tmp_path: Path, missing: str) -> None:
    np.savez(tmp_path / "some.npz", **{name: value for name, value in arrays().items() if name != missing})
    with pytest.raises(DataError, match=rf"some\.npz' cannot be read as a coreset: .*{missing}"):
        Coreset.load(tmp_path / "some.npz")


def test_cut_and_damaged_files(tmp_path: Path) -> None:
    """Wherever it is cut, and whichever byte of the numbers is another one."""
    path = tmp_path / "some.npz"
    SOME.save(path)
    whole = path.read_bytes()
    for length in [*range(0, len(whole) - 1, 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"some\.npz"):
            Coreset.load(path)
    place = whole.index(SOME.weights.numpy().tobytes())
    path.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
    with pytest.raises(DataError, match=r"some\.npz"):
        Coreset.load(path)


def foreign() -> dict[str, bytes]:
    array, archive, model = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(array, np.ones(3))
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("readme.txt", "nothing")
    torch.save({"weights": torch.ones(3)}, model)
    return {
        "nothing": b"",
        "text": b"indices,weights\n1,2\n",
        "array": array.getvalue(),
        "brackets": b"\x93NUMPY\1\0\x40\0" + 64 * b"(",
        "zip": archive.getvalue(),
        "torch": model.getvalue(),
        "binary": bytes(range(256)),
    }


@pytest.mark.parametrize("kind", foreign())
def test_foreign_files(tmp_path: Path, kind: str) -> None:
    (tmp_path / "some.npz").write_bytes(foreign()[kind])
    with pytest.raises(DataError, match=r"some\.npz' cannot be read as a coreset") as refused:
        Coreset.load(tmp_path / "some.npz")
    assert "allow_pickle" not in str(refused.value)


def test_compressed_files_are_read_and_damaged_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    np.savez_compressed(path, **arrays())
    same(Coreset.load(path), SOME)
    content = bytearray(path.read_bytes())
    for place in range(40, len(content) - 200, 11):
        broken = content.copy()
        broken[place : place + 4] = b"\xff\x00\xff\xff"
        path.write_bytes(broken)
        try:
            found = Coreset.load(path)
        except DataError:
            continue
        same(found, SOME)  # what was hit means nothing, such as the time of the file


def test_a_small_file_of_many_zeros_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "some.npz", **arrays(trace=np.zeros(2**25 + 1)))
    with pytest.raises(DataError, match=r"not valid\. Expected arrays that fit into [0-9,]+ packed bytes but got 268,43"):
        Coreset.load(tmp_path / "some.npz")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"The coreset '.*none\.npz' does not exist\."):
        Coreset.load(tmp_path / "none.npz")
    with pytest.raises(DataError, match="cannot be read as a coreset"):
        Coreset.load(tmp_path)


def test_a_killed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some.npz"
    SOME.save(path)
    write = np.savez

    def killed(file: Any, **content: Any) -> None:
        write(file, **content)
        file.truncate(100)
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", killed)
    other = Coreset(torch.tensor([0]), torch.tensor([1.0]), 0.0, size=2)
    for target in (path, tmp_path / "new.npz"):
        with pytest.raises(KeyboardInterrupt):
            other.save(target)
    same(Coreset.load(path), SOME)
    assert not (tmp_path / "new.npz").exists()
    monkeypatch.undo()
    other.save(path)
    same(Coreset.load(path), other)


GOOD: dict[str, Any] = {"indices": np.arange(2), "weights": np.ones(2), "objective": 0.5, "trace": np.zeros(1), "size": 5}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("size", 5.7, "the size to be a whole number.* but got 5.7"),
        ("size", True, "the size to be a whole number.* but got True"),
        ("weights", np.array([True, True]), "weights that are real numbers but got torch.bool"),
        ("objective", math.nan, "the objective to be a finite number.* but got nan"),
        ("objective", math.inf, "the objective to be a finite number.* but got inf"),
        ("trace", np.array([True]), "objectives that are real numbers but got torch.bool"),
    ],
)
def test_values_of_another_kind_are_not_converted(field: str, value: Any, words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", **GOOD)
    assert len(Coreset.load(tmp_path / "good.npz")) == 2
    np.savez(tmp_path / "a.npz", **{**GOOD, field: value})
    with pytest.raises(DataError, match=words):
        Coreset.load(tmp_path / "a.npz")
