"""Regression data: splits, whitening, the files it reads and those it refuses."""

from __future__ import annotations

import bz2
import gzip
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_sparse.data import RadialBases
from lit_sparse.data.regression.base import RegressionDataModule, Table
from lit_sparse.data.regression.synthetic import SyntheticRegressionDataModule
from lit_sparse.data.regression.tables import TableDataModule
from lit_sparse.errors import ConfigurationError, DataError
from tests.coresets import problems

SPLITS = ("train", "val", "test")


class Numbered(RegressionDataModule):
    """Rows whose target is their number, and whose features are drawn."""

    def __init__(self, rows: int, columns: int = 3, test_rows: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.rows, self.columns, self.test_rows = rows, columns, test_rows

    def load(self) -> dict[Any, Table]:
        generator = torch.Generator().manual_seed(7)
        mix = torch.randn(self.columns, self.columns, generator=generator)
        x = torch.randn(self.rows + self.test_rows, self.columns, generator=generator) @ mix + 5
        whole = Table(x, torch.arange(float(len(x))))
        first = {"train": whole[: self.rows]}
        return {**first, "test": whole[self.rows :]} if self.test_rows else first


def made(data: RegressionDataModule) -> RegressionDataModule:
    data.setup("fit")
    return data


def all_of(data: RegressionDataModule, split: Any) -> dict[str, torch.Tensor]:
    return data.fetch(split, 0, torch.arange(data.size(split)))


@given(
    rows=st.integers(5, 60),
    held=st.sampled_from([0.2, 0.25, 1, 2.0, 0.3]),
    test_rows=st.sampled_from([0, 4]),
    seed=st.integers(0, 5),
)
@settings(max_examples=50)
def test_splits_are_disjoint_and_complete(rows: int, held: float, test_rows: int, seed: int) -> None:
    data = made(Numbered(rows, test_rows=test_rows, val_size=held, test_size=held, seed=seed))
    found = {split: all_of(data, split)["target"].int().tolist() for split in SPLITS}
    assert sorted(row for rows_of in found.values() for row in rows_of) == list(range(rows + test_rows))
    size = round(held * rows) if held < 1 else int(held)
    assert len(found["val"]) == size
    assert len(found["test"]) == (test_rows or size)
    if test_rows:
        assert found["test"] == list(range(rows, rows + test_rows)), "those of the file, in its order"


def test_seeds_and_sizes_of_the_splits() -> None:
    first, again, other = (all_of(made(Numbered(50, seed=seed)), "train")["target"].tolist() for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert first != sorted(first)
    fewer = all_of(made(Numbered(50, train_size=7)), "train")["target"].tolist()
    assert fewer == first[:7], "train_size takes the first of the same order"
    for split in ("val", "test"):
        whole, part = (all_of(made(Numbered(50, train_size=size)), split) for size in (None, 7))
        assert torch.equal(whole["target"], part["target"])


def test_batches() -> None:
    data = made(Numbered(20))
    batch = data.fetch("train", 0, torch.tensor([3, 0, 3]))
    assert sorted(batch) == ["features", "index", "target"]
    assert batch["index"].tolist() == [3, 0, 3]
    assert (batch["features"].dtype, batch["target"].dtype, batch["features"].shape) == (torch.float32, torch.float32, (3, 4))
    assert torch.equal(batch["features"][0], all_of(data, "train")["features"][3])
    seen = torch.cat([batch["target"] for batch in data.train_dataloader()])
    assert sorted(seen.tolist()) == sorted(all_of(data, "train")["target"].tolist())


@pytest.mark.parametrize("whiten", [False, True])
def test_the_intercept_is_last(whiten: bool) -> None:
    for split in SPLITS:
        one, other = (all_of(made(Numbered(40, whiten=whiten, intercept=there)), split)["features"] for there in (True, False))
        assert bool((one[:, -1] == 1).all())
        assert torch.equal(one[:, :-1], other)


def test_whitening_is_that_of_the_training_rows() -> None:
    plain, white = made(Numbered(60, train_size=30)), made(Numbered(60, train_size=30, whiten=True))
    train = all_of(white, "train")["features"].double()
    torch.testing.assert_close(train[:, :-1].mean(0), torch.zeros(3).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.cov(train[:, :-1].T), torch.eye(3).double(), atol=1e-5, rtol=0)
    before = all_of(plain, "train")["features"].double()
    np.testing.assert_allclose(train.numpy(), problems.whiten(before.numpy()), atol=1e-4)
    fit = torch.linalg.lstsq(before, train).solution  # the same affine map for all splits
    for split in SPLITS:
        was, is_now = (all_of(data, split)["features"].double() for data in (plain, white))
        torch.testing.assert_close(was @ fit, is_now, atol=1e-4, rtol=0)


def write_npz(path: Path, X: Any, y: Any, **others: Any) -> str:
    np.savez(path / "some.npz", X=X, y=y, **others)
    return str(path / "some.npz")


def test_columns_without_variance_are_zero_once_whitened(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 2))
    X = np.column_stack([x, np.full(40, 3.0), x[:, 0] + x[:, 1]])
    data = made(TableDataModule(write_npz(tmp_path, X, np.zeros(40)), whiten=True))
    train = all_of(data, "train")["features"].double()
    covariance = torch.cov(train[:, :-1].T)
    values = torch.linalg.eigvalsh(covariance)
    torch.testing.assert_close(values, torch.tensor([0.0, 0.0, 1.0, 1.0]).double(), atol=1e-4, rtol=0)
    constant = made(TableDataModule(write_npz(tmp_path, np.ones((40, 2)), np.zeros(40)), whiten=True))
    assert bool((all_of(constant, "train")["features"] == torch.tensor([0.0, 0.0, 1.0])).all())


def test_whitening_of_numbers_far_from_zero_keeps_their_digits(tmp_path: Path) -> None:
    """For example times in seconds: values that are equal in single precision are whitened in double precision first."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(200)
    path = write_npz(tmp_path, (1.7e9 + 10 * x)[:, None], x)
    data = made(TableDataModule(path, whiten=True))
    batch = all_of(data, "train")
    correlation = torch.corrcoef(torch.stack([batch["features"][:, 0], batch["target"]]))[0, 1]
    assert float(correlation) > 0.9999


def test_radial_bases_are_made_of_the_training_rows(tmp_path: Path) -> None:
    bases = RadialBases((0.5, 1.0), per_scale=4)
    plain = made(Numbered(40, intercept=False, whiten=True))
    data = made(Numbered(40, intercept=True, whiten=True, bases=bases, seed=0))
    train = all_of(plain, "train")["features"].double()
    centres = bases.centres(train, torch.Generator().manual_seed(0))
    for split in SPLITS:
        expected = bases(all_of(plain, split)["features"].double(), centres)
        found = all_of(data, split)["features"].double()
        assert found.shape[1] == 10
        torch.testing.assert_close(found[:, :-1], expected, atol=1e-5, rtol=0)
    with pytest.raises(ConfigurationError, match="`per_scale` to be at most 32"):
        made(Numbered(40, bases=RadialBases()))


ROWS = np.array([[0.5, -1.0, 2e-3], [0.0, 3.25, 0.0], [7.0, 0.0, -4.0], [1.0, 1.0, 1.0], [2.0, 0.0, 0.5], [9.0, 8.0, 7.0]])
Y = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.5])


def as_npz(path: Path) -> TableDataModule:
    np.savez(path / "a.npz", inputs=ROWS.astype(np.float32), out=Y)
    return TableDataModule(str(path / "a.npz"), features="inputs", target="out", intercept=False, val_size=1, test_size=1)


def csv_text() -> str:
    lines = ["b,out,a,name,c"]
    lines += [f"{b},{y},{a},x{n},{c:.4e}" for n, ((a, b, c), y) in enumerate(zip(ROWS, Y, strict=True))]
    return "\n".join(lines) + "\n"


def as_csv(path: Path) -> TableDataModule:
    (path / "a.csv").write_text(csv_text())
    return TableDataModule(str(path / "a.csv"), features="a, b,c", target="out", intercept=False, val_size=1, test_size=1)


def as_gzip(path: Path) -> TableDataModule:
    (path / "a.csv.gz").write_bytes(gzip.compress(csv_text().encode()))
    return TableDataModule(str(path / "a.csv.gz"), features="a,b,c", target="out", intercept=False, val_size=1, test_size=1)


def libsvm_text() -> str:
    return "".join(
        f"{y} " + " ".join(f"{d + 1}:{value}" for d, value in enumerate(row) if value) + "\n"
        for row, y in zip(ROWS, Y, strict=True)
    )


def as_libsvm(path: Path) -> TableDataModule:
    (path / "a.libsvm").write_text(libsvm_text())
    return TableDataModule(str(path / "a.libsvm"), intercept=False, val_size=1, test_size=1)


def as_gzipped_libsvm(path: Path) -> TableDataModule:
    (path / "a.gz").write_bytes(gzip.compress(libsvm_text().encode()))
    return TableDataModule(str(path / "a.gz"), intercept=False, val_size=1, test_size=1)


def as_bzipped_libsvm(path: Path) -> TableDataModule:
    (path / "a.bz2").write_bytes(bz2.compress(libsvm_text().encode()))
    return TableDataModule(str(path / "a.bz2"), intercept=False, val_size=1, test_size=1)


FORMS = [as_npz, as_csv, as_gzip, as_libsvm, as_gzipped_libsvm, as_bzipped_libsvm]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_form_of_file_holds_the_same_rows(tmp_path: Path, form: Callable[[Path], TableDataModule]) -> None:
    data = made(form(tmp_path))
    parts = [all_of(data, split) for split in SPLITS]
    target = torch.cat([part["target"] for part in parts])
    features = torch.cat([part["features"] for part in parts])[target.argsort()]
    assert sorted(target.tolist()) == Y.tolist()
    np.testing.assert_allclose(features.numpy(), ROWS, rtol=1e-6)


def test_test_rows_of_the_file(tmp_path: Path) -> None:
    path = write_npz(tmp_path, ROWS, Y, Xt=ROWS[:2] + 1, yt=Y[:2] + 10)
    data = made(TableDataModule(path, intercept=False, val_size=1))
    assert (data.size("train"), data.size("val"), data.size("test")) == (5, 1, 2)
    assert all_of(data, "test")["target"].tolist() == [11.0, 12.0]
    np.testing.assert_allclose(all_of(data, "test")["features"].numpy(), ROWS[:2] + 1, rtol=1e-6)


def test_logarithms_and_last_columns(tmp_path: Path) -> None:
    X = np.column_stack([ROWS, np.ones(6)])
    data = made(TableDataModule(write_npz(tmp_path, X, Y), log_target=True, drop_last=True, val_size=1, test_size=1))
    parts = [all_of(data, split) for split in SPLITS]
    assert parts[0]["features"].shape[1] == 4
    found = sorted(torch.cat([part["target"] for part in parts]).tolist())
    assert found == pytest.approx(sorted(np.log(Y)), rel=1e-6)


def parquet(features: Any) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"X": features, "y": [1.0, 2.0]}), buffer)
    return buffer.getvalue()


BROKEN: list[tuple[str, bytes | dict[str, Any], dict[str, Any], str]] = [
    ("a.npz", {"X": ROWS, "z": Y}, {}, r"an array 'y' in '.*a\.npz' but got X, z"),
    ("a.npz", {"X": ROWS, "y": Y[:5]}, {}, r"\(6, 3\) and \(5,\)"),
    ("a.npz", {"X": ROWS[:, 0], "y": Y}, {}, r"\(6,\) and \(6,\)"),
    ("a.npz", {"X": ROWS[:, 0], "y": Y}, {"drop_last": True}, r"\(6,\) and \(6,\)"),
    ("a.npz", {"X": ROWS, "y": Y[:, None]}, {}, r"\(6, 1\)"),
    ("a.npz", {"X": ROWS, "y": np.array(list("abcdef"))}, {}, r"a\.npz"),
    ("a.npz", {"X": ROWS, "y": np.array([{}] * 6)}, {}, r"a\.npz"),
    ("a.npz", {"X": np.where(ROWS > 8, np.nan, ROWS), "y": Y}, {}, r"finite features .* in row 5 \(1 rows"),
    ("a.npz", {"X": ROWS, "y": np.where(Y > 4.5, np.inf, Y)}, {}, r"finite target .* in row 4 \(2 rows"),
    ("a.npz", {"X": ROWS, "y": Y - 1}, {"log_target": True}, "positive targets with `log_target`"),
    ("a.npz", {"X": ROWS, "y": np.where(Y > 4.5, np.nan, Y)}, {"log_target": True}, "target"),
    ("a.npz", {"X": ROWS, "y": Y, "Xt": ROWS[:, :2], "yt": Y}, {}, "2"),
    ("a.npz", {"X": ROWS, "y": Y, "Xt": ROWS}, {}, r"both Xt and yt .*a\.npz"),
    ("a.npz", {"X": ROWS, "y": Y, "yt": Y}, {}, r"both Xt and yt .*a\.npz"),
    ("a.npz", b"", {}, r"a\.npz"),
    ("a.npz", b"PK\x03\x04 and nothing more", {}, r"a\.npz"),
    ("a.npz", b"some text", {}, r"a\.npz"),
    ("a.csv", b"X,z\n1,2\n", {}, r"a\.csv' has no column 'y'"),
    ("a.csv", b"X,y\n1,2\n3,\n", {}, "no value in column 'y' in line 3"),
    ("a.csv", b"X,y\n1,2\nthree,4\n", {}, r"a\.csv.* three|three.*"),
    ("a.csv", b"X,y\n1,2\n2026_01,4\n", {}, r"a\.csv.*2026_01"),
    ("a.csv", b"X,y\n1,2,3\n", {}, "2 cells per line .* got 3 in line 2"),
    ("a.csv", b"X,y\nnan,2\n1,3\n", {}, "finite features .* in row 0"),
    ("a.csv", b"", {}, r"a\.csv"),
    ("a.csv", b"\xff\xfe\x00", {}, r"a\.csv"),
    ("a.csv.gz", b"X,y\n1,2\n", {}, r"a\.csv\.gz"),
    ("a.csv.gz", gzip.compress(csv_text().encode(), mtime=0)[:-20], {"features": "a", "target": "out"}, r"a\.csv\.gz"),
    ("a.libsvm", b"1 1:2\nx 1:3\n", {}, r"a\.libsvm"),
    ("a.libsvm", b"1 1:2\n2 nothing\n", {}, r"a\.libsvm"),
    ("a.libsvm", b"", {}, r"a\.libsvm"),
    ("a.libsvm", b"1 1:2\n1 1:1_0\n", {}, r"numbers in .*a\.libsvm' but got .*1_0.* in line 2"),
    ("a.libsvm", b"1 1:2\n1 1_0:1\n", {}, r"numbers in .*a\.libsvm' but got .*1_0.* in line 2"),
    ("a.parquet", parquet([1.0, np.inf]), {}, "finite features .* in row 1"),
    ("a.parquet", parquet(["1", "9" * 400]), {}, "integers of at most 308 digits in column 'X'"),
    ("a.parquet", parquet(pyarrow.array(["1", "inf"]).dictionary_encode()), {}, "finite features .* in row 1"),
    ("a.gz", gzip.compress(libsvm_text().encode() * 50, mtime=0)[:-20], {}, r"a\.gz"),
    ("a.gz", b"not compressed", {}, r"a\.gz"),
    ("a.bin", bytes(range(256)), {}, r"a\.bin"),
]


@pytest.mark.parametrize(
    ("name", "content", "options", "words"), BROKEN, ids=[f"{number}-{case[0]}" for number, case in enumerate(BROKEN)]
)
def test_broken_files(tmp_path: Path, name: str, content: Any, options: dict[str, Any], words: str) -> None:
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        np.savez(tmp_path / name, **content)
    with pytest.raises(DataError, match=words):
        TableDataModule(str(tmp_path / name), val_size=1, test_size=1, **options).setup("fit")


@pytest.mark.parametrize("features", ["X,X", "X,y"])
def test_a_column_is_one_feature_or_the_target(tmp_path: Path, features: str) -> None:
    (tmp_path / "a.csv").write_text("X,y\n1,2\n3,4\n")
    with pytest.raises(ConfigurationError, match=f"different columns, without the target .* in '{features}'"):
        TableDataModule(str(tmp_path / "a.csv"), features=features, val_size=1, test_size=1).setup("fit")


def test_cut_and_foreign_arrays(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", X=np.random.default_rng(0).standard_normal((50, 3)), y=np.arange(50.0))
    whole = (tmp_path / "a.npz").read_bytes()
    damaged = whole[:200] + b"\xff" * 40 + whole[240:]
    for content in (whole[:100], whole[:-30], damaged):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"a\.npz"):
            TableDataModule(str(tmp_path / "a.npz")).setup("fit")
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.ones((4, 2)))
    with pytest.raises(DataError, match=r"a\.npz"):
        TableDataModule(str(tmp_path / "a.npz")).setup("fit")
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(DataError, match="There is no plain file"):
            TableDataModule(str(path)).setup("fit")


@pytest.mark.parametrize("rows", [3, 5, 20])
@pytest.mark.parametrize("options", [{"val_size": 0.99}, {"test_size": 20}, {"val_size": 0.01}, {"train_size": 20}])
def test_splits_that_are_too_large_or_empty(rows: int, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"`{next(iter(options))}`"):
        Numbered(rows, **{"val_size": 1, "test_size": 1, **options}).setup("fit")


@pytest.mark.parametrize("family", ["normal", "logistic", "poisson"])
def test_synthetic_targets_have_the_mean_of_their_model(family: Any) -> None:
    theta = (1.5, -0.5, 0.25)
    data = made(SyntheticRegressionDataModule(family, size=40000, coefficients=theta, noise=0.25, val_size=1, test_size=1))
    batch = all_of(data, "train")
    features, target = batch["features"].double(), batch["target"].double()
    assert features.shape == (39998, 3)
    assert bool((features[:, -1] == 1).all())
    torch.testing.assert_close(torch.cov(features[:, :2].T), torch.eye(2).double(), atol=0.05, rtol=0)
    eta = features @ torch.tensor(theta).double()
    means = {"normal": eta, "logistic": eta.sigmoid(), "poisson": torch.logaddexp(eta, torch.zeros_like(eta))}
    spreads = {"normal": 0.25 + 0 * eta, "logistic": eta.sigmoid() * (-eta).sigmoid(), "poisson": means["poisson"]}
    errors = (target - means[family]) / spreads[family].sqrt()
    for feature in features.T:
        assert abs(float((errors * feature).mean())) < 0.03
    assert float(errors.square().mean()) == pytest.approx(1.0, abs=0.05)


def test_synthetic_rows_have_a_seed_and_checked_arguments() -> None:
    one, again, other = (all_of(made(SyntheticRegressionDataModule(size=50, seed=seed)), "train") for seed in (0, 0, 1))
    assert torch.equal(one["features"], again["features"])
    assert not torch.equal(one["features"], other["features"])
    for options, name in (
        ({"family": "gamma"}, "family"),
        ({"size": 2}, "size"),
        ({"coefficients": (1.0,)}, "coefficients"),
        ({"coefficients": (math.nan, 1.0)}, "coefficients"),
        ({"noise": -1.0}, "noise"),
        ({"noise": math.nan}, "noise"),
        ({"val_size": 0.0}, "val_size"),
    ):
        with pytest.raises(ConfigurationError, match=f"`{name}`"):
            SyntheticRegressionDataModule(**options)  # type: ignore[arg-type]


def test_real_data(shared: Path) -> None:
    folder = shared / "data" / "coreset_regression"
    if not (folder / "phishing.libsvm.gz").is_file():
        pytest.skip("no phishing data in the shared folder")
    data = made(TableDataModule(str(folder / "phishing.libsvm.gz"), whiten=True))
    assert sum(data.size(split) for split in SPLITS) == 11055  # type: ignore[arg-type]
    train = all_of(data, "train")["features"]
    assert train.shape[1] == 69
    values = torch.linalg.eigvalsh(torch.cov(train[:, :-1].T.double()))
    torch.testing.assert_close(values, (values > 0.5).double(), atol=1e-3, rtol=0)
    assert int((values > 0.5).sum()) > 30, "many columns are sums of others"


def test_targets_are_standardized_over_the_training_rows(tmp_path: Path) -> None:
    y = np.random.default_rng(0).normal(50, 9, 60)
    np.savez(tmp_path / "a.npz", X=y[:, None], y=y)
    data = TableDataModule(str(tmp_path / "a.npz"), standardize_target=True)
    data.setup()
    rows = {split: data.fetch(split, 0, torch.arange(data.size(split))) for split in ("train", "val", "test")}  # type: ignore[arg-type]
    target = rows["train"]["target"].double()
    assert abs(float(target.mean())) < 1e-6
    assert abs(float(target.std(correction=0)) - 1) < 1e-6
    for batch in rows.values():
        torch.testing.assert_close(batch["target"] * data.target_std + data.target_mean, batch["features"][:, 0])
    np.savez(tmp_path / "a.npz", X=y[:, None], y=np.full(60, 3.0))
    with pytest.raises(DataError, match="different training targets with `standardize_target` but got 3 for all 48"):
        TableDataModule(str(tmp_path / "a.npz"), standardize_target=True).setup()


@pytest.mark.parametrize("streaming", [False, True])
def test_targets_are_rounded_after_they_are_standardized(tmp_path: Path, streaming: bool) -> None:
    y = 10**9 + np.arange(60)
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *(f"{value},{value}" for value in y)]))
    options: dict[str, Any] = {"features": "x", "target": "y", "standardize": True, "standardize_target": True}
    data = made(TableDataModule(str(tmp_path / "a.csv"), streaming=streaming, **options))
    batch = all_of(data, "train")
    torch.testing.assert_close(batch["target"], batch["features"][:, 0])
