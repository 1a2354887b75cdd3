"""Noisy labels from files."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_sparse.data import (
    LabelsFromFile,
)
from lit_sparse.errors import DataError

from .test_mnist import idx

NOISY = np.array([3, 1, 0, 2, 3, 3, 0])


def as_npy(path: Path) -> LabelsFromFile:
    np.save(path / "a.npy", NOISY.astype(np.uint8))
    return LabelsFromFile(str(path / "a.npy"))


def as_npz(path: Path) -> LabelsFromFile:
    np.savez(path / "a.npz", labels=NOISY[::-1], noisy=NOISY)
    return LabelsFromFile(str(path / "a.npz"), key="noisy")


def as_idx(path: Path) -> LabelsFromFile:
    (path / "a-idx1-ubyte").write_bytes(idx(NOISY))
    return LabelsFromFile(str(path / "a-idx1-ubyte"))


def as_gzipped_idx(path: Path) -> LabelsFromFile:
    (path / "a-idx1-ubyte.gz").write_bytes(gzip.compress(idx(NOISY)))
    return LabelsFromFile(str(path / "a-idx1-ubyte.gz"))


def as_text(path: Path) -> LabelsFromFile:
    (path / "a.txt").write_text("".join(f"{label}\r\n" for label in NOISY) + "\n")
    return LabelsFromFile(str(path / "a.txt"))


def as_gzipped_csv(path: Path) -> LabelsFromFile:
    (path / "a.csv.gz").write_bytes(gzip.compress("\n".join(map(str, NOISY)).encode()))
    return LabelsFromFile(str(path / "a.csv.gz"))


FORMS = [as_npy, as_npz, as_idx, as_gzipped_idx, as_text, as_gzipped_csv]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_labels_from_every_form_of_file(tmp_path: Path, form: Callable[[Path], LabelsFromFile]) -> None:
    noise = form(tmp_path)
    found = noise(torch.zeros(7, 2), torch.zeros(7, dtype=torch.int64), 4)
    assert found.tolist() == NOISY.tolist()
    assert found.dtype == torch.int64
    with pytest.raises(DataError, match=r"Expected 8 labels in .*but got an array \(7,\)"):
        noise(torch.zeros(8, 2), torch.zeros(8, dtype=torch.int64), 4)
    with pytest.raises(DataError, match=r"labels in 0 \.\. 2 in .* got 3 at position 1 \(3 of 7 are outside\)"):
        noise(torch.zeros(7, 2), torch.zeros(7, dtype=torch.int64), 3)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.npy", b"", "cannot be read as an array"),
        ("a.npy", b"\x93NUMPY\x01\x00 and so on", "cannot be read as an array"),
        ("a.npz", b"PK\x03\x04 and nothing more", "cannot be read as an array"),
        ("a.txt", b"1\nlabel\n", "one label per line.*got 'label' in line 2"),
        ("a.txt", b"1\n\n2\n", "got '' in line 2"),
        ("a.csv", b"-1\n", "got '-1' in line 1"),
        ("a.csv", b"1" * 30, "got '1111.* in line 1"),
        ("a.txt", b"", r"but got an array \(0,\)"),
        ("a.gz", b"no gzip", "is not an idx file"),
        ("a", gzip.compress(idx(NOISY), mtime=0)[:-9], "is not a complete gzip file"),
        ("a", idx(NOISY.reshape(7, 1)), "is not an idx file of 1 dimensions"),
    ],
    ids=["npy-empty", "npy", "npz", "word", "gap", "negative", "digits", "empty", "gz", "cut", "dimensions"],
)
def test_files_without_labels(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        LabelsFromFile(str(tmp_path / name))(torch.zeros(7, 2), torch.zeros(7, dtype=torch.int64), 4)


def test_arrays_that_are_no_labels(tmp_path: Path) -> None:
    labels = torch.zeros(7, dtype=torch.int64)
    np.save(tmp_path / "a.npy", NOISY.astype(np.float64))
    with pytest.raises(DataError, match=r"Expected integers as labels .* but got float64"):
        LabelsFromFile(str(tmp_path / "a.npy"))(torch.zeros(7, 2), labels, 4)
    np.save(tmp_path / "a.npy", NOISY - 1)
    with pytest.raises(DataError, match="got -1 at position 3"):
        LabelsFromFile(str(tmp_path / "a.npy"))(torch.zeros(7, 2), labels, 4)
    np.savez(tmp_path / "a.npz", label=NOISY)
    with pytest.raises(DataError, match=r"an array 'labels' in .* but got label\. Did you mean 'label'"):
        LabelsFromFile(str(tmp_path / "a.npz"))(torch.zeros(7, 2), labels, 4)
    with pytest.raises(DataError, match="no file of labels"):
        LabelsFromFile(str(tmp_path / "none.npy"))(torch.zeros(7, 2), labels, 4)
