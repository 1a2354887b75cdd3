"""Few modules depend on the internals of other packages; the conditions on torch's internals follow what is active."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

import lit_sparse
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import can_read_values, forward_mode_active, must_decompose, no_autograd


@pytest.mark.parametrize(
    ("internals", "modules"),
    [
        (r"torch\._(?!dynamo\.reset|utils\._rebuild)[a-zA-Z]", {"ground/torch_internals.py"}),
        (r"(numba\.(core|np|misc)|llvmlite)\b", {"kernels/cpu/machine.py", "kernels/cpu/cache.py"}),
        (r"\bctypes\.", {"kernels/cpu/openmp.py"}),
    ],
)
def test_who_depends_on_internals(internals: str, modules: set[str]) -> None:
    package = Path(lit_sparse.__file__).parent
    users = [path for path in package.rglob("*.py") if re.search(internals, path.read_text())]
    assert {path.relative_to(package).as_posix() for path in users} == modules


def test_values_can_be_read_where_nothing_is_active() -> None:
    assert can_read_values()
    with FakeTensorMode():
        assert not can_read_values()
    inside: list[bool] = []
    torch.vmap(lambda x: inside.append(can_read_values()) or x)(torch.ones(2))  # type: ignore[func-returns-value]
    assert inside == [False]
    assert can_read_values()


def test_autograd_may_be_off() -> None:
    assert not no_autograd()
    with torch.no_grad():
        assert no_autograd()
        with forward_ad.dual_level():
            assert forward_mode_active()
            assert not no_autograd()
    assert not forward_mode_active()


@pytest.mark.parametrize(
    ("transforms", "expected"),
    [
        ((torch.func.jacrev,), False),
        ((torch.func.jacfwd,), False),
        ((torch.func.jacfwd, torch.func.jacrev), False),
        ((torch.func.jacfwd, torch.func.jacfwd), True),
    ],
)
def test_nested_forward_mode_must_be_decomposed(transforms: tuple[object, ...], expected: bool) -> None:
    seen: set[bool] = set()

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.add(must_decompose())
        return x.square()

    for transform in transforms:
        function = transform(function)  # type: ignore[operator]
    function(torch.ones(()))
    assert seen == {expected}


def test_third_derivatives_by_nested_forward_mode_are_refused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        must_decompose()
        return x**3

    third = torch.func.jacfwd(torch.func.jacfwd(torch.func.jacrev(function)))
    with pytest.raises(ConfigurationError, match="use forward mode once"):
        third(torch.ones(()))
