"""Parts are built again from their descriptions, and from nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from lit_sparse.descriptions import build, describe
from lit_sparse.errors import CheckpointError
from lit_sparse.mappings import Fusedmax, LearnableEntmax, SparseMAP, TopKSparsemax
from lit_sparse.structures import Budget


@pytest.mark.parametrize(
    "part", [TopKSparsemax(3, gamma=0.5), LearnableEntmax((4, 1, 1), 1.2), Fusedmax(0.7), SparseMAP(Budget(6, 2), max_iter=30)]
)
def test_a_part_is_built_again(part: Any) -> None:
    again = build("here", describe(part))
    assert type(again) is type(part)
    assert describe(again) == describe(part)
    assert repr(again) == repr(part)


@pytest.mark.parametrize(
    ("description", "text"),
    [
        ({"class_path": "os.system", "init_args": {}}, "names 'os.system' at `class_path`"),
        ({"class_path": "builtins.eval"}, "names 'builtins.eval'"),
        ({"class_path": "lit_sparse.mappings.TopKSparsemax", "init_args": {"k": 0}}, "in here but: Expected argument `k`"),
        ({"class_path": "lit_sparse.mappings.TopKSparsemax", "init_args": {"size": 1}}, "arguments of .*TopKSparsemax"),
        ({"class_path": "lit_sparse.mappings.TopKSparsemax", "init_args": [3]}, "`init_args` of .* to be a dict"),
        (
            {"class_path": "lit_sparse.mappings.SparseMAP", "init_args": {"structure": {"class_path": "os.getcwd"}}},
            r"names 'os.getcwd' at `structure.class_path`",
        ),
    ],
)
def test_other_descriptions_are_refused(description: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        build("here", description)
