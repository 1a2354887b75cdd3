"""California housing: scikit-learn's features of every form of the table, standardization, and rows that are all used."""

from __future__ import annotations

import gzip
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch

from lit_sparse.data import CaliforniaHousingDataModule, RegressionDataModule, SyntheticRegressionDataModule, TableDataModule
from lit_sparse.data.regression.california_housing import PREPARED, RAW, SNAKE_CASE
from lit_sparse.errors import ConfigurationError, DataError

SPLITS = ("train", "val", "test")
ROWS = 30
MEANS = (3.87067, 28.63949, 5.42900, 1.09668, 1425.47674, 3.07066, 35.63186, -119.56970)


def raw_rows() -> np.ndarray:
    """Artificial block groups, (N, 9) in the order of ``RAW``."""
    rng = np.random.default_rng(0)
    households = rng.integers(1, 900, ROWS)
    totals = households * rng.integers(2, 9, (3, ROWS)) + 1
    places = 32 + 9 * rng.random(ROWS).round(2), -124 + 9 * rng.random(ROWS).round(2)
    return np.stack(
        [
            (10 * rng.random(ROWS)).round(4),
            rng.integers(1, 52, ROWS),
            *totals,
            households,
            *places,
            rng.integers(10**5, 5 * 10**5, ROWS),
        ],
        axis=1,
    )


def expected_rows() -> np.ndarray:
    """Return what scikit-learn makes of them, one by one, with the target last."""
    return np.array(
        [
            [income, age, rooms / homes, bedrooms / homes, people, people / homes, north, east, value / 1e5]
            for income, age, rooms, bedrooms, people, homes, north, east, value in raw_rows().tolist()
        ]
    )


def csv_text(names: tuple[str, ...], rows: np.ndarray) -> str:
    """Write the columns in another order, and an additional column of text."""
    order = list(range(9))[::-1]
    lines = [",".join([*(names[column] for column in order), "ocean_proximity"])]
    lines += [",".join([*(repr(float(row[column])) for column in order), "NEAR BAY"]) for row in rows]
    return "\n".join(lines) + "\n"


def made(data: RegressionDataModule) -> Any:
    data.setup("fit")
    return data


def all_of(data: RegressionDataModule, split: Any) -> dict[str, torch.Tensor]:
    return data.fetch(split, 0, torch.arange(data.size(split)))


def as_csv(path: Path) -> dict[str, Any]:
    (path / "a.csv").write_text(csv_text(RAW, raw_rows()))
    return {"path": str(path / "a.csv")}


def as_gzip(path: Path) -> dict[str, Any]:
    (path / "a.csv.gz").write_bytes(gzip.compress(csv_text(RAW, raw_rows()).encode()))
    return {"path": str(path / "a.csv.gz")}


def as_snake_case(path: Path) -> dict[str, Any]:
    (path / "a.csv").write_text("\n" + csv_text(SNAKE_CASE, raw_rows()))
    return {"path": str(path / "a.csv")}


def as_prepared(path: Path) -> dict[str, Any]:
    (path / "a.csv").write_text(csv_text(PREPARED, expected_rows()))
    return {"path": str(path / "a.csv")}


def as_cache(path: Path) -> dict[str, Any]:
    """Write what scikit-learn keeps of the archive: the target first."""
    keep_for_sklearn(raw_rows(), path)
    return {"source": "sklearn", "path": str(path)}


def keep_for_sklearn(rows: np.ndarray, folder: Path) -> None:
    joblib.dump(
        np.concatenate([rows[:, -1:], rows[:, :-1]], 1), folder / f"cal_housing_py{sys.version_info[0]}.pkz", compress=6
    )


@pytest.mark.parametrize("form", [as_csv, as_gzip, as_snake_case, as_prepared, as_cache], ids=lambda form: form.__name__)
def test_every_form_of_the_table_gives_the_same_rows(tmp_path: Path, form: Callable[[Path], dict[str, Any]]) -> None:
    data = made(CaliforniaHousingDataModule(**form(tmp_path), use_all=True, standardize=False, intercept=False))
    rows = all_of(data, "train")
    found = torch.cat([rows["features"], rows["target"].unsqueeze(1)], 1)
    np.testing.assert_allclose(found.numpy(), expected_rows(), rtol=1e-6)


@pytest.mark.parametrize("names", [RAW, SNAKE_CASE, PREPARED], ids=["raw", "snake_case", "prepared"])
def test_the_hub_puts_its_splits_together(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    import datasets

    rows = expected_rows() if names == PREPARED else raw_rows()
    asked = []

    def hub(name: str) -> datasets.DatasetDict:
        asked.append(name)
        parts = {"train": rows[:20], "validation": rows[20:25], "test": rows[25:]}
        return datasets.DatasetDict(
            {split: datasets.Dataset.from_dict(dict(zip(names, part.T, strict=True))) for split, part in parts.items()}
        )

    monkeypatch.setattr(datasets, "load_dataset", hub)
    data = made(CaliforniaHousingDataModule("hub", use_all=True, standardize=False, intercept=False))
    np.testing.assert_allclose(all_of(data, "test")["features"].numpy(), expected_rows()[:, :-1], rtol=1e-6)
    assert asked == ["gvlassis/california_housing"]


def test_a_hub_that_cannot_be_reached_or_has_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def offline(name: str) -> None:
        raise ConnectionError(f"{name} is out of reach")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError, match=r"'me/houses' cannot be fetched \(ConnectionError: me/houses.*source=csv"):
        made(CaliforniaHousingDataModule("hub", hub_name="me/houses"))
    other = datasets.Dataset.from_dict({"MedInc": [1.0], "HousAge": [2.0]})
    monkeypatch.setattr(datasets, "load_dataset", lambda name: datasets.DatasetDict({"train": other}))
    with pytest.raises(DataError, match=r"has no column 'HouseAge'.*MedInc, HousAge\. Did you mean 'HousAge'"):
        made(CaliforniaHousingDataModule("hub"))


def test_scikit_learns_copy_that_is_missing_or_cut(tmp_path: Path) -> None:
    words = r"cannot be read.*fetch\(data_home='.*'\)\".*source=csv"
    with pytest.raises(DataError, match=words):
        made(CaliforniaHousingDataModule("sklearn", path=str(tmp_path)))
    keep_for_sklearn(raw_rows(), tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:40])
    with pytest.raises(DataError, match=words):
        made(CaliforniaHousingDataModule("sklearn", path=str(tmp_path)))


def test_scikit_learn_downloads_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*, data_home: str) -> None:
        if any(Path(data_home).iterdir()):
            raise AssertionError("it would unpickle")
        keep_for_sklearn(raw_rows(), Path(data_home))

    monkeypatch.setattr("sklearn.datasets.fetch_california_housing", fetch)
    data = CaliforniaHousingDataModule("sklearn", path=str(tmp_path), val_size=5, test_size=5)
    for _ in range(2):
        data.prepare_data()
    assert made(data).size("train") == ROWS - 10
    CaliforniaHousingDataModule(path=str(tmp_path / "a.csv")).prepare_data()  # has no source
    monkeypatch.setattr("sklearn.datasets.fetch_california_housing", lambda **_: 1 / 0)
    with pytest.raises(DataError, match=r"cannot be read \(division by zero\)\. Download it once.*source=csv"):
        CaliforniaHousingDataModule("sklearn", path=str(tmp_path / "other")).prepare_data()


def test_scikit_learn_downloads_and_unpickles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(**_: Any) -> None:
        raise AssertionError("it could download, and it unpickles")

    monkeypatch.setattr("sklearn.datasets.fetch_california_housing", fetch)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"No such file.*fetch\(\)\".*source=csv"):
        made(CaliforniaHousingDataModule("sklearn"))
    keep_for_sklearn(raw_rows(), tmp_path)
    made(CaliforniaHousingDataModule("sklearn"))


def changed(change: Callable[[list[list[str]]], None], names: tuple[str, ...] = RAW) -> str:
    lines = [line.split(",") for line in csv_text(names, raw_rows()).splitlines()]
    change(lines)
    return "\n".join(",".join(cells) for cells in lines) + "\n"


def place(lines: list[list[str]], row: int, column: str, value: str) -> None:
    lines[row][lines[0].index(column)] = value


BROKEN: dict[str, tuple[str, str]] = {
    "a missing value": (
        changed(lambda lines: place(lines, 7, "total_bedrooms", ""), SNAKE_CASE),
        "no value in column 'total_bedrooms' in line 8",
    ),
    "a word": (changed(lambda lines: place(lines, 7, "totalRooms", "NA")), "column 'totalRooms' of .* but got 'NA' in row 7"),
    "a date": (changed(lambda lines: place(lines, 7, "totalRooms", "20_26")), "column 'totalRooms' of .* '20_26' in row 7"),
    "not finite": (changed(lambda lines: place(lines, 3, "latitude", "nan")), "column 'latitude' of .* but got 'nan' in row 3"),
    "no households": (changed(lambda lines: place(lines, 4, "households", "0")), "number of households .* but got 0 in row 4"),
    "another column": (
        changed(lambda lines: place(lines, 0, "latitude", "lattitude")),
        "no column 'latitude'.*Did you mean 'lattitude'",
    ),
    "another table": ("a,b\n1,2\n", "no column 'medianIncome'"),
    "no rows": (",".join(RAW) + "\n", "holds no rows"),
    "empty": ("", "holds no rows"),
    "other ends of lines": ("a,b\r1,2\r", "is not a table in line 1"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_tables(tmp_path: Path, case: str) -> None:
    content, words = BROKEN[case]
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(DataError, match=words):
        made(CaliforniaHousingDataModule(path=str(tmp_path / "a.csv")))


def test_files_that_are_no_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file .*none\.csv"):
        made(CaliforniaHousingDataModule(path=str(tmp_path / "none.csv")))
    with pytest.raises(DataError, match=r"Expected a \.csv file, gzipped or not, but got .*cal_housing\.data"):
        made(CaliforniaHousingDataModule(path=str(tmp_path / "cal_housing.data")))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: CaliforniaHousingDataModule(), "`path`.*source=sklearn.*source=hub"),
        (lambda: CaliforniaHousingDataModule("statlib"), "`source`"),  # type: ignore[arg-type]
        (lambda: CaliforniaHousingDataModule("hub", use_all=True, train_size=5), "no `train_size` with `use_all`"),
        (lambda: TableDataModule("a.csv", whiten=True, standardize=True), "either `whiten` or `standardize`"),
        (lambda: SyntheticRegressionDataModule(whiten=True, standardize=True), "either `whiten` or `standardize`"),
    ],
    ids=["no path", "source", "whole", "table", "synthetic"],
)
def test_bad_arguments(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call()


@pytest.mark.parametrize("train_size", [None, 12])
def test_standardization_is_that_of_the_training_rows(tmp_path: Path, train_size: int | None) -> None:
    from sklearn.preprocessing import StandardScaler

    options = {**as_csv(tmp_path), "train_size": train_size, "val_size": 6, "test_size": 6}
    plain, data = (made(CaliforniaHousingDataModule(**options, standardize=standardize)) for standardize in (False, True))
    scaler = StandardScaler().fit(all_of(plain, "train")["features"][:, :-1].double())
    for split in SPLITS:
        before, after = (all_of(some, split)["features"] for some in (plain, data))
        np.testing.assert_allclose(after[:, :-1].numpy(), scaler.transform(before[:, :-1].double()), atol=1e-4)
        assert bool((after[:, -1] == 1).all())
    train = all_of(data, "train")["features"][:, :-1].double()
    torch.testing.assert_close(train.mean(0), torch.zeros(8).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.square().mean(0), torch.ones(8).double(), atol=1e-5, rtol=0)


def test_constant_features_become_zero(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal(40)
    np.savez(tmp_path / "a.npz", X=np.stack([x, np.full(40, 0.1), 1.7e9 + x], 1), y=x)
    data = made(TableDataModule(str(tmp_path / "a.npz"), standardize=True))
    train = all_of(data, "train")["features"]
    assert bool((train[:, 1] == 0).all())
    torch.testing.assert_close(train[:, 2], train[:, 0], atol=1e-5, rtol=0)
    drawn = made(SyntheticRegressionDataModule(size=50, standardize=True))
    torch.testing.assert_close(all_of(drawn, "train")["features"][:, :2].square().mean(0), torch.ones(2))


def test_whole_uses_all_rows_everywhere_in_their_order(tmp_path: Path) -> None:
    data = made(CaliforniaHousingDataModule(**as_csv(tmp_path), use_all=True))
    for split in SPLITS:
        batch = all_of(data, split)
        np.testing.assert_allclose(batch["target"].numpy(), expected_rows()[:, -1], rtol=1e-6)
        assert torch.equal(batch["features"], all_of(data, "train")["features"])
    seen = torch.cat([batch["index"] for batch in data.train_dataloader()])
    assert seen.sort().values.tolist() == list(range(ROWS))
    parts = made(CaliforniaHousingDataModule(**as_csv(tmp_path)))
    assert [parts.size(split) for split in SPLITS] == [24, 3, 3]


@pytest.fixture(scope="module")
def real(shared: Path) -> Path:
    path = shared / "data" / "california_housing" / "cal_housing.csv.gz"
    if not path.is_file():
        pytest.skip("no California housing data in the shared folder")
    return path


def test_the_real_table_is_scikit_learns(real: Path, tmp_path: Path) -> None:
    data = made(CaliforniaHousingDataModule(path=str(real), use_all=True, standardize=False, intercept=False))
    rows = all_of(data, "train")
    assert rows["features"].shape == (20_640, 8)
    assert rows["features"].double().mean(0).tolist() == pytest.approx(MEANS, abs=6e-6)
    assert float(rows["target"].double().mean()) == pytest.approx(2.06856, abs=6e-6)
    with gzip.open(real, "rt") as file:
        names = file.readline().strip().split(",")
        table = np.loadtxt(file, delimiter=",")
    keep_for_sklearn(table[:, [names.index(name) for name in RAW]], tmp_path)
    other = made(CaliforniaHousingDataModule("sklearn", path=str(tmp_path), use_all=True, standardize=False, intercept=False))
    for name in ("features", "target"):
        torch.testing.assert_close(all_of(other, "train")[name], rows[name], rtol=1e-6, atol=0)


def test_the_published_experiment(real: Path) -> None:
    """Log mean exp of squared errors (lam = 1) at the least-squares solution, and its minimum by damped Newton steps."""
    data = made(CaliforniaHousingDataModule(path=str(real), use_all=True))
    rows = all_of(data, "train")
    x, y = rows["features"].double(), rows["target"].double()
    assert x.shape == (20_640, 9)

    def risk(theta: torch.Tensor) -> torch.Tensor:
        return (y - x @ theta).square().logsumexp(0) - math.log(len(y))

    theta = torch.linalg.lstsq(x, y).solution
    assert float(risk(theta)) == pytest.approx(44.02, abs=0.005)
    for _ in range(100):
        errors = y - x @ theta
        weights = errors.square().softmax(0)
        slope = -2 * x.T @ (weights * errors)
        curvature = x.T @ ((weights * (2 + 4 * errors.square())).unsqueeze(1) * x) - torch.outer(slope, slope)
        step = torch.linalg.solve(curvature, slope)
        size = 1.0
        while size > 1e-9 and risk(theta - size * step) > risk(theta) - 1e-4 * size * (slope @ step):
            size /= 2
        theta = theta - size * step
        if float(slope @ step) < 1e-12:
            break
    assert float(slope.norm()) < 1e-5
    assert float(risk(theta)) == pytest.approx(1.99684, abs=1e-5)
