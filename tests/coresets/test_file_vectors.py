"""Vectors in files: the same numbers as in memory, little memory, and files that are refused."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_sparse.coresets import AcceleratedIHT, BlockVectors, DenseVectors, FileVectors, select_by_group
from lit_sparse.coresets import file_vectors as module
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.kernels.row_sums import add_exactly, measured

ROOT = Path(__file__).parents[2]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def some(size: int = 300, width: int = 7, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_are_those_of_the_matrix(dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 1000)  # many blocks, of which pages overlap
    monkeypatch.setattr(module, "CONVERTED", 70)
    given = some().to(dtype)
    vectors = FileVectors.save(given, tmp_path / "new" / "vectors.npy", dtype=dtype)
    exact = given.double()
    assert vectors.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    indices, weights = torch.tensor([299, 0, 17, 17, 150]), torch.linspace(0.1, 2, 5).to(vectors.dtype)
    assert torch.equal(vectors.rows(indices), given[indices].to(vectors.dtype))
    assert torch.equal(vectors.rows(torch.arange(20, 80)), given[20:80].to(vectors.dtype))
    direction = torch.linspace(-1, 1, 7).to(vectors.dtype)
    for part, whole in ((vectors, exact), (vectors.part(100, 230).part(10, 120), exact[110:220])):
        torch.testing.assert_close(part.correlate(direction).double(), whole @ direction.double())
        torch.testing.assert_close(part.norms, whole.norm(dim=1))
        torch.testing.assert_close(part.total, whole.sum(0))
        places = torch.tensor([9, 0, 40])
        torch.testing.assert_close(part.rows(places).double(), whole[places])
    torch.testing.assert_close(vectors.correlate_some(indices, direction).double(), exact[indices] @ direction.double())
    torch.testing.assert_close(vectors.combine(indices, weights).double(), weights.double() @ exact[indices])
    everything = torch.arange(300)
    torch.testing.assert_close(vectors.combine(everything, torch.ones(300)).double(), exact.sum(0))
    nothing = everything[:0]
    assert vectors.rows(nothing).shape == (0, 7)
    assert vectors.correlate_some(nothing, direction).shape == (0,)
    assert vectors.combine(nothing, weights[:0]).tolist() == [0.0] * 7
    assert torch.equal(vectors.subset(indices).rows(torch.tensor([1])), vectors.rows(indices[1:2]))
    torch.testing.assert_close(vectors.divided(8.0).total, exact.sum(0) / 8)
    copied = pickle.loads(pickle.dumps(vectors.part(5, 9)))
    assert torch.equal(copied.rows(torch.arange(4)), vectors.rows(torch.arange(5, 9)))
    with pytest.raises(IndexError, match=r"0 \.\. 299"):
        vectors.rows(torch.tensor([3, 300]))


def test_files_of_numpy_and_files_made_of_blocks(tmp_path: Path) -> None:
    given = some()
    np.save(tmp_path / "own.npy", given.numpy())
    assert torch.equal(FileVectors(tmp_path / "own.npy").rows(torch.arange(300)), given)
    made = BlockVectors(lambda indices: given[indices], 300, block_size=32)
    FileVectors.save(made, tmp_path / "made.npy", dtype=torch.float64)
    assert (tmp_path / "made.npy").read_bytes() == (tmp_path / "own.npy").read_bytes()
    FileVectors.save(given, tmp_path / "half.npy", dtype=torch.bfloat16)
    bits = np.load(tmp_path / "half.npy").view(np.uint16).astype(np.uint32) << 16
    assert np.array_equal(bits.view(np.float32), given.bfloat16().float().numpy())
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["half.npy", "made.npy", "own.npy"]


def test_groups_are_selected_from_a_file(tmp_path: Path) -> None:
    given, groups = some(), torch.arange(300) % 3
    vectors = FileVectors.save(given, tmp_path / "vectors.npy", dtype=torch.float64)
    found, expected = (select_by_group(AcceleratedIHT(debias=True), each, 12, groups) for each in (vectors, given))
    assert torch.equal(found.indices, expected.indices)


def test_sums_are_rounded_once() -> None:
    """The division of rows among processes does not change the sum, in float64 and with numbers of all sizes."""
    generator = torch.Generator().manual_seed(0)
    given = some(1000, 5) * 10.0 ** torch.randint(-9, 9, (1000, 5), generator=generator)
    totals = []
    for edges in ([0, 1000], [0, 1, 1000], [0, 333, 334, 800, 1000]):
        norms = torch.empty(1000, dtype=torch.float64)
        parts = [measured(given[a:b], norms[a:b]) for a, b in itertools.pairwise(edges)]
        totals.append(add_exactly(torch.cat(parts))[0])
        torch.testing.assert_close(norms, given.norm(dim=1))
    exact = given.numpy().astype(object)
    expected = [float(sum(map(Fraction, column))) for column in exact.T]
    for total in totals:
        assert total.tolist() == expected
    assert given.sum(0).tolist() != expected  # plain sums depend on their order


def test_vectors_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    given = some()
    given[41, 2] = torch.nan
    np.save(tmp_path / "nan.npy", given.numpy())
    with pytest.raises(DataError, match="example 41"):
        AcceleratedIHT()(FileVectors(tmp_path / "nan.npy"), 3)
    with pytest.raises(DataError, match=r"finite in torch\.float16"):
        FileVectors.save(1e6 * some(), tmp_path / "large.npy", dtype=torch.float16)
    assert not (tmp_path / "large.npy").exists()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(5), "matrix"),
        (np.zeros((3, 4), int), "int64"),
        (np.asfortranarray(np.zeros((3, 4))), "by columns"),
        (np.zeros((2, 2), object), "object"),
    ],
)
def test_other_arrays_are_refused(array: np.ndarray, words: str, tmp_path: Path) -> None:
    np.save(tmp_path / "other.npy", array)
    with pytest.raises(DataError, match=words):
        FileVectors(tmp_path / "other.npy")


def test_broken_files_and_arguments_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npy"
    FileVectors.save(some(), path)
    whole = path.read_bytes()
    for content, words in (
        (whole[:-3], "truncated"),
        (whole[:60], "cannot be read"),
        (b"", "cannot be read"),
        (b"PK\3\4" * 50, "read"),
        (b"\x93NUMPY\1\0\x40\0" + 64 * b"(", "cannot be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=words):
            FileVectors(path)
    with pytest.raises(DataError, match="No such file"):
        FileVectors(tmp_path / "none.npy")
    path.write_bytes(whole)
    for first, last in ((0, 301), (5, 4)):
        with pytest.raises(ConfigurationError, match=r"0 \.\. 300"):
            FileVectors(path, first=first, last=last)
    with pytest.raises(ConfigurationError, match="`first`"):
        FileVectors(path, first=-1)
    with pytest.raises(ConfigurationError, match="`dtype`"):
        FileVectors.save(some(), path, dtype=torch.int8)
    np.save(path, np.zeros((0, 4), np.float32))
    with pytest.raises(DataError, match="at least one example"):
        AcceleratedIHT()(FileVectors(path), 1)


PROGRAM = """
import sys, torch
from pathlib import Path
from lit_sparse.coresets import AcceleratedIHT, FileVectors
def most():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line) / 1024
AcceleratedIHT(debias=True)(FileVectors(sys.argv[1], last=2000), 20)
before = most()
AcceleratedIHT(debias=True, max_iter=5)(FileVectors(sys.argv[1]), 500)
print(most() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the peak of memory is read from /proc")
def test_memory_is_that_of_a_block(tmp_path: Path) -> None:
    """300 MB of vectors, of which a block has 64 MB; pages of the file that are mapped count."""
    draws = some(8, 1000).float()
    made = BlockVectors(lambda indices: torch.sin(indices.unsqueeze(1) * 0.1 + torch.arange(8)) @ draws, 75_000)
    FileVectors.save(made, tmp_path / "vectors.npy")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "vectors.npy")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < 160


@pytest.mark.slow
def test_a_million_vectors_in_half_precision(tmp_path: Path) -> None:
    """A coreset of a file in bfloat16 equals the coreset of the same numbers in memory."""
    features, draws = some(1_000_000, 6).float(), some(6, 40).float() + 0.3
    made = BlockVectors(lambda indices: torch.nn.functional.logsigmoid(features[indices] @ draws), 1_000_000)
    stored = FileVectors.save(made, tmp_path / "vectors.npy", dtype=torch.bfloat16)
    dense = DenseVectors(stored.rows(torch.arange(1_000_000)))
    selector = AcceleratedIHT(debias=True, max_iter=20)
    found, expected = selector(stored, 200), selector(dense, 200)
    whole = float(stored.total.square().sum())
    assert found.objective <= 1e-6 * whole
    assert expected.objective <= 1e-6 * whole


@pytest.mark.parametrize(("first", "last"), [(0, 4), (3, 4), (2, 1), (-1, 2), (0, 2**40)])
def test_a_part_of_a_part_stays_in_it(first: int, last: int, tmp_path: Path) -> None:
    part = FileVectors.save(some(10), tmp_path / "x.npy").part(2, 5)
    with pytest.raises(ConfigurationError, match="first"):
        part.part(first, last)
    assert part.part(1, 3).shape == (2, 7)


def test_a_size_that_is_true_is_one(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (True, 2), }"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00" + header.ljust(117) + b"\n" + bytes(8))
    assert FileVectors(tmp_path / "a.npy").shape == (1, 2)


@pytest.mark.parametrize("shape", ["(0, 99999999999999999999)", "(99999999999999999999, 0)"])
def test_a_header_with_a_size_beyond_64_bits_is_refused(shape: str, tmp_path: Path) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00" + header.ljust(117) + b"\n")
    with pytest.raises(DataError, match=r"Expected a matrix"):
        FileVectors(tmp_path / "a.npy")
