"""Shared checks of risks: functions that raise an AssertionError for a risk that fails."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from lit_sparse.errors import DataError
from lit_sparse.risks import DualRisk, Risk
from lit_sparse.testing.checks import Checks, check_copies, refuses

__all__ = ["RISK_CHECKS", "check_risk"]

#: Name -> check. Each takes a risk and raises an AssertionError.
RISK_CHECKS: Checks[Risk] = Checks(Risk)

SIZE = 12


def check_risk(risk: Risk) -> None:
    """Run every shared check on a risk, whose state is left unchanged.

    Raises:
        AssertionError: if a check fails; the message names it.

    Example:
        >>> from lit_sparse.risks import CVaR
        >>> check_risk(CVaR(0.3))
    """
    RISK_CHECKS.run(risk)


def _losses(seed: int = 0, size: int = SIZE) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(size, generator=generator, dtype=torch.float64)


def _value(risk: Risk, losses: Tensor, weights: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
    """Return the objective; the examples, whose numbers are ``rows``, belong to two groups in turn."""
    rows = torch.arange(len(losses)) if rows is None else rows
    found: Tensor = risk(losses, weights, rows % 2)
    return found


def _settled(risk: Risk, losses: Tensor | None = None) -> Risk:
    """Return a copy in double precision and in evaluation, after a call in training, which initializes a dual variable."""
    found = copy.deepcopy(risk).double().train()
    with torch.no_grad():
        _value(found, _losses() if losses is None else losses.double())
    return found.eval()


def _gradient(risk: Risk, losses: Tensor, weights: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
    leaf = losses.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(_value(risk, leaf, weights, rows), leaf)
    return slope


@RISK_CHECKS.add
def _scalar(risk: Risk) -> None:
    """One finite number, for one example or many, in training and evaluation, and the losses are not changed."""
    for size in (1, 2, SIZE, 500):
        losses = _losses(size, size)
        kept = losses.clone()
        for training in (True, False):
            found = _value(copy.deepcopy(risk).train(training), losses)
            assert found.shape == (), f"expected a scalar but got {tuple(found.shape)}"
            assert bool(found.isfinite()), f"{size} losses give {found}"
        assert torch.equal(kept, losses), "the losses were changed"


@RISK_CHECKS.add
def _monotone(risk: Risk) -> None:
    """No example counts negatively, also where losses are negative, and the order of examples does not matter."""
    settled, losses = _settled(risk), _losses()
    slope = _gradient(settled, losses)
    negative = losses - 1.5
    for given in (slope, _gradient(_settled(risk, negative), negative)):
        assert bool((given >= 0).all()), "a larger loss must not lower the objective, also among negative losses"
        assert float(given.sum()) > 0, "some example counts"
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(_value(settled, losses[order], rows=order), _value(settled, losses))
    torch.testing.assert_close(_gradient(settled, losses[order], rows=order), slope[order])


@RISK_CHECKS.add
def _convex(risk: Risk) -> None:
    """Convex in the losses, which keeps a convex problem one; `convex = False` leaves it out."""
    if not risk.convex:
        return
    settled = _settled(risk)
    for seed in range(8):
        a, b = _losses(seed), 3 * _losses(seed + 100)
        middle = float(_value(settled, 0.5 * (a + b)).detach())
        ends = 0.5 * float((_value(settled, a) + _value(settled, b)).detach())
        assert middle <= ends + 1e-9 * (1 + abs(ends)), f"{middle} exceeds {ends}"


@RISK_CHECKS.add
def _weights(risk: Risk) -> None:
    """Weights of one have no effect, examples of weight zero are ignored, and integer weights equal copies."""
    settled, losses = _settled(risk), _losses()
    torch.testing.assert_close(_value(settled, losses, torch.ones_like(losses)), _value(settled, losses))
    weights = torch.ones_like(losses)
    weights[3], weights[5] = 0.0, 2.0  # one on average
    broken = losses.clone()
    broken[3] = torch.nan
    rows = torch.tensor([0, 1, 2, 4, 5, 5, 6, 7, 8, 9, 10, 11])
    torch.testing.assert_close(_value(settled, broken, weights), _value(settled, losses[rows], rows=rows))
    slope = _gradient(settled, broken, weights)
    assert float(slope[3]) == 0, "an example of weight zero has a gradient"
    assert bool(slope.isfinite().all())


@RISK_CHECKS.add
def _derivatives(risk: Risk) -> None:
    """The gradients with respect to losses and dual variables are the value's gradients."""
    settled = _settled(risk)
    losses = _losses().requires_grad_()
    duals = settled.dual_parameters()
    assert torch.autograd.gradcheck(lambda values, *_: _value(settled, values), (losses, *duals), eps=1e-7, atol=1e-5)


@RISK_CHECKS.add
def _unbiased(risk: Risk) -> None:
    """For unbiased risks, the mean over batches of one example has the value and gradient of the complete batch."""
    if not risk.unbiased:
        return
    settled, losses = _settled(risk), _losses()
    single = torch.stack([_value(settled, losses[i : i + 1]) for i in range(SIZE)])
    torch.testing.assert_close(single.mean(), _value(settled, losses))
    slopes = torch.cat([_gradient(settled, losses[i : i + 1]) for i in range(SIZE)])
    torch.testing.assert_close(slopes / SIZE, _gradient(settled, losses))


@RISK_CHECKS.add
def _dual(risk: Risk) -> None:
    """A dual variable begins at the minimizer for the first batch, or at its initial value, and is part of the state."""
    if not isinstance(risk, DualRisk):
        assert risk.dual_parameters() == [], "only a DualRisk has dual parameters"
        return
    losses = _losses()
    solved = float(risk.solve(losses).detach())
    values = [float(risk.objective(losses, torch.tensor(a).double()).detach()) for a in (solved, solved - 0.01, solved + 0.01)]
    assert values[0] <= min(values) + 1e-10, f"{solved} is not the minimizer"
    begun = _settled(risk, losses)
    assert isinstance(begun, DualRisk)
    expected = solved if risk.initial_dual is None else risk.initial_dual
    torch.testing.assert_close(float(begun.dual.detach()), float(expected), rtol=1e-6, atol=1e-6)
    other = copy.deepcopy(risk).double()
    other.load_state_dict(begun.state_dict())
    torch.testing.assert_close(_value(other, 3 * losses), _value(begun, 3 * losses))


@RISK_CHECKS.add
def _groups(risk: Risk) -> None:
    """For a risk with groups, examples of unknown group are ignored."""
    if risk.group_key is None:
        return
    settled, losses = _settled(risk), _losses()
    groups = torch.arange(SIZE) % 2
    known = torch.arange(SIZE) < 8
    found = settled(losses, None, torch.where(known, groups, -100))
    torch.testing.assert_close(found, settled(losses[known], None, groups[known]))


@RISK_CHECKS.add
def _rows(risk: Risk) -> None:
    """The rows that it draws are different rows of the batch, and their losses make a finite objective."""
    drawn = copy.deepcopy(risk).train()
    for size in (1, SIZE, 500):
        rows = drawn.draw_rows(size)
        if rows is None:
            continue
        assert 0 < len(rows) <= size and len(set(rows.tolist()) & {*range(size)}) == len(rows), f"{rows} are not rows of {size}"
        assert bool(_value(drawn, _losses(size=size)[rows], rows=rows).isfinite())


@RISK_CHECKS.add
def _perturb(risk: Risk) -> None:
    """Inputs stay as they are at no cost, or are moved, each by its own loss alone, to where that is larger."""
    inputs = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)

    def losses_at(x: Tensor) -> Tensor:
        return x.sum(1) ** 2

    moved, cost = risk.perturb(losses_at, inputs)
    assert moved.shape == inputs.shape
    assert cost.shape == (4,), f"expected a cost of each input but got {tuple(cost.shape)}"
    assert bool((cost >= 0).all())
    assert not moved.requires_grad and not cost.requires_grad, "the adversary has no gradient"
    if risk.adversary is None:
        assert torch.equal(moved, inputs), "inputs were perturbed by a risk without an adversary"
        assert not bool(cost.any())
        return
    torch.testing.assert_close(cost, risk.adversary.transport_cost * (moved - inputs).square().sum(1))
    gain = losses_at(moved) - cost - losses_at(inputs)
    assert bool((gain >= -1e-9).all()), "the adversary loses by moving"
    alone, _ = risk.perturb(losses_at, inputs[1:2])
    torch.testing.assert_close(alone, moved[1:2])
    broken = inputs.clone()
    broken[2] = torch.nan
    others, _ = risk.perturb(losses_at, broken)
    torch.testing.assert_close(others[[0, 1, 3]], moved[[0, 1, 3]])


@RISK_CHECKS.add
def _types(risk: Risk) -> None:
    """Half precision is computed in float32; vmap and torch.compile agree with a loop."""
    settled = _settled(risk).eval()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        losses = _losses().to(dtype)
        found = _value(copy.deepcopy(settled).float(), losses)
        assert found.dtype == torch.float32, f"{dtype} losses give {found.dtype}"
        torch.testing.assert_close(found.double(), _value(settled, losses.double()), rtol=1e-5, atol=1e-5)
    rows = torch.stack([_losses(seed) for seed in range(3)])
    expected = torch.stack([_value(settled, row) for row in rows])
    groups = torch.arange(SIZE) % 2
    torch.testing.assert_close(torch.func.vmap(lambda row: settled(row, None, groups))(rows), expected)
    torch.compiler.reset()
    compiled = torch.compile(settled, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(rows[1], None, groups), expected[1])


@RISK_CHECKS.add
def _refuses(risk: Risk) -> None:
    """Invalid input is refused with its own message and does not change the state."""
    losses = _losses()
    refuses(lambda: risk(losses[:0]), "empty")
    refuses(lambda: risk(losses.reshape(3, 4)), "(B,)")
    refuses(lambda: risk(losses.long()), "floating")
    refuses(lambda: _value(risk, losses, torch.ones(3)), "one weight per example")
    refuses(lambda: _value(risk, losses, -torch.ones_like(losses)), "nonnegative")
    if risk.group_key is not None:
        refuses(lambda: risk(losses), "group of each example")
        refuses(lambda: risk(losses, None, torch.zeros(3, dtype=torch.int64)), "group of each example")
        refuses(lambda: risk(losses, None, losses), "group of each example")
    before = copy.deepcopy(risk.state_dict())
    broken = losses.clone()
    broken[7] = torch.nan
    refuses(lambda: _value(copy.deepcopy(risk).train(), broken), "example 7", DataError)
    for name, value in risk.state_dict().items():
        assert torch.equal(value.nan_to_num(-1.0), before[name].nan_to_num(-1.0)), f"{name} changed"


@RISK_CHECKS.add
def _module(risk: Risk) -> None:
    """It can be pickled, copied and printed."""
    check_copies(risk, lambda other: _value(copy.deepcopy(other).eval(), _losses()))
    assert type(risk).__name__ in repr(risk)
