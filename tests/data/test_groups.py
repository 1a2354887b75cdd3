"""Data with groups: colored digits, and a column of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_sparse.coresets import Uniform
from lit_sparse.data import ColoredDigitsDataModule, CoresetDataModule, DigitsDataModule, ResumableDataModule, TableDataModule
from lit_sparse.errors import ConfigurationError, DataError


def whole(data: ResumableDataModule, split: Any) -> dict[str, Tensor]:
    data.setup()
    return data.fetch(split, 0, torch.arange(data.size(split)))


def test_the_color_tells_the_class_in_training_alone() -> None:
    data = ColoredDigitsDataModule(correlation=0.9, labelled=1.0, binarize=False)
    plain = DigitsDataModule(labelled=1.0, binarize=False)
    for split, share in (("train", 0.9), ("val", 0.5), ("test", 0.5)):
        batch, grey = whole(data, split), whole(plain, split)
        planes = batch["pixels"].unflatten(1, (2, 64))
        torch.testing.assert_close(planes.sum(1), grey["pixels"])
        color = planes.sum(2).argmax(1)
        assert not bool(planes[torch.arange(len(color)), 1 - color].any())
        assert torch.equal(batch["label"], (grey["label"] >= 5).long())
        assert torch.equal(batch["group"], 2 * batch["label"] + color)
        assert float((color == batch["label"]).double().mean()) == pytest.approx(share, abs=3 * 0.5 / len(color) ** 0.5)
    assert torch.equal(batch["group"], whole(ColoredDigitsDataModule(binarize=False), "test")["group"])
    with pytest.raises(ConfigurationError, match="correlation"):
        ColoredDigitsDataModule(correlation=1.5)


def test_groups_follow_their_images() -> None:
    """Into folds, shifts and coresets; unlabelled ones have none."""
    for fold in ((0, 3), (1, 3)):
        batch = whole(ColoredDigitsDataModule(labelled=1.0, binarize=False, fold=fold), "val")
        color = batch["pixels"].unflatten(1, (2, 64)).sum(2).argmax(1)
        assert torch.equal(batch["group"], 2 * batch["label"] + color)
    data = ColoredDigitsDataModule(labelled=0.3, binarize=False, shift_augmentation=True)
    batch = whole(data, "train")
    assert torch.equal(batch["group"] < 0, batch["label"] < 0) and bool((batch["group"] == -100).any())
    coreset = CoresetDataModule(
        ColoredDigitsDataModule(labelled=1.0, binarize=False),
        Uniform(),
        20,
        lambda found: found[torch.arange(len(found))]["pixels"],
    )
    coreset.setup("fit")
    assert set(coreset.fetch("train", 0, torch.arange(4))) == {"pixels", "label", "index", "group", "weight"}


def test_a_column_of_a_table(tmp_path: Path) -> None:
    rows = [f"{x},{2 * x},{'north' if x % 3 else 'far, south'}" for x in range(30)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y,region", *(row.replace("far, south", '"far, south"') for row in rows)]))
    options: dict[str, Any] = {"target": "y", "intercept": False, "standardize_target": True}
    data = TableDataModule(str(tmp_path / "a.csv"), features="x", group="region", **options)
    for split in ("train", "val", "test"):
        batch = whole(data, split)
        assert torch.equal(batch["group"], (batch["features"][:, 0].long() % 3 > 0).long())
    assert data.group_names == ["far, south", "north"]
    assert "group" not in whole(TableDataModule(str(tmp_path / "a.csv"), features="x", **options), "train")
    x = np.arange(20.0)
    np.savez(tmp_path / "a.npz", X=x[:, None], y=x, g=(x > 9) * 5, Xt=x[:, None], yt=x, gt=(x > 4) * 7)
    data = TableDataModule(str(tmp_path / "a.npz"), group="g", intercept=False)
    batch = whole(data, "test")
    assert torch.equal(batch["group"], 2 * (batch["features"][:, 0] > 4).long())
    assert data.group_names == ["0", "5", "7"]
    batch = whole(data, "train")
    assert torch.equal(batch["group"], (batch["features"][:, 0] > 9).long())


def test_columns_that_are_missing_or_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,g\n1,2,a\n2,3,\n3,4,b\n")
    (tmp_path / "a.libsvm").write_text("1 1:2\n2 1:3\n3 1:4\n")
    np.savez(tmp_path / "a.npz", X=np.ones((4, 1)), y=np.arange(4), g=np.arange(3))
    for name, group, words in (
        ("a.csv", "g", "no value in column 'g' in line 3"),
        ("a.csv", "h", "no column 'h'"),
        ("a.libsvm", "g", "have no names"),
        ("a.npz", "h", "array 'h'"),
        ("a.npz", "g", r"a group for each of 4 rows but got \(3,\)"),
    ):
        with pytest.raises(DataError, match=words):
            TableDataModule(str(tmp_path / name), features="X" if name == "a.npz" else "x", group=group).setup()
