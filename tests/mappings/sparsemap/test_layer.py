"""SparseMAP as a layer: its value and loss, potentials given and learnt, what attention shows of it, and what it refuses."""

import warnings

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import SparseMAP
from lit_sparse.mappings import functional as F
from lit_sparse.mappings.base import warn_off_simplex
from lit_sparse.nn import attention
from lit_sparse.structures import Assignment, BitVector, Budget, Sequence, Structure, Tree

from .structures import WITH_LINKS, draw, links_for


def test_a_layer_warns_once() -> None:
    """Of a solver that stopped early, whatever attention has warned of before."""
    layer, x = SparseMAP(Budget(20, 9), max_iter=2), draw(5, 20, seed=16)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_off_simplex(layer)
        for _ in range(3):
            layer(x)
    assert [warning.category for warning in caught] == [UserWarning, RuntimeWarning]


def test_value_with_potentials_in_half_precision() -> None:
    layer, x = SparseMAP(Sequence(), potentials=draw(2, 2, seed=31)), draw(3, 400, seed=32, scale=3.0)
    low = x.bfloat16()
    torch.testing.assert_close(layer.value(low), layer.value(low.double()).bfloat16(), rtol=0, atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        within = layer.value(x.float())
    torch.testing.assert_close(within, layer.value(x.float()), rtol=0, atol=0)


def test_potentials_as_lists_and_their_checks() -> None:
    links = [[0.5, 0.0], [0.0, 0.25]]
    x = draw(3, 8, seed=33).float()
    torch.testing.assert_close(
        SparseMAP(Sequence(), potentials=links)(x), SparseMAP(Sequence(), potentials=torch.tensor(links))(x)
    )
    torch.testing.assert_close(
        F.sparsemap(x, Sequence(), potentials=links).marginals, SparseMAP(Sequence(), potentials=links)(x)
    )
    for structure, potentials in ((Sequence(), torch.zeros(3, 3)), (Budget(3, 2), torch.zeros(2, 2)), (Sequence(), [["a"]])):
        with pytest.raises(ConfigurationError, match="potentials"):
            SparseMAP(structure, potentials=potentials)


@pytest.mark.parametrize("structure", [BitVector(), Sequence(), Assignment()], ids=repr)
def test_nothing_to_map(structure: Structure) -> None:
    out = F.sparsemap(torch.zeros(3, 0), structure)
    assert out.marginals.shape == (3, 0)
    assert out.probs.tolist() == [[1.0]] * 3
    assert F.sparsemap(torch.zeros(0, 4), structure).marginals.shape == (0, 4)


@pytest.mark.parametrize("structure", [BitVector(), Budget(None, 2), Sequence(), Assignment(), Tree()], ids=repr)
@pytest.mark.parametrize("shape", [(0, 4), (3, 0)], ids=str)
def test_an_empty_batch_keeps_the_graph(structure: Structure, shape: tuple[int, int]) -> None:
    """So that each process of several has a gradient, even with an empty batch."""
    if isinstance(structure, Tree) and shape[-1] == 0:
        return  # a tree has a node at least
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    marginals, probs, _ = F.sparsemap(x, structure)
    for result in (marginals, probs, SparseMAP(structure)(x)):
        (gradient,) = torch.autograd.grad(result.sum(), x, retain_graph=True)
        assert gradient.shape == shape


@pytest.mark.parametrize("structure", [Assignment(), Tree()], ids=repr)
@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0), (2, 0, 3), (2, 3, 0)], ids=str)
def test_attention_over_nothing(structure: Structure, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, requires_grad=True)
    found = SparseMAP(structure).map_block(x)
    assert found.shape == shape
    assert found.requires_grad
    whole = torch.zeros(2, 3, 3, device="meta")
    assert SparseMAP(structure).map_block(whole).shape == whole.shape


def test_a_penalty_on_gradients_in_potentials_and_scores() -> None:
    """The second derivatives are zero, and finite differences find none."""
    x = draw(3, 6, seed=40)
    layer = SparseMAP(Sequence(), potentials=draw(2, 2, seed=41), learn_potentials=True)
    weights = draw(3, 6, seed=42)
    for inputs in (list(layer.parameters()), [*layer.parameters(), x.requires_grad_()]):
        gradients = torch.autograd.grad((layer(x) * weights).sum(), inputs, create_graph=True)
        penalty = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        assert bool(penalty > 0)
        for second, given in zip(torch.autograd.grad(penalty, inputs), inputs, strict=True):
            assert torch.equal(second, torch.zeros_like(given))
    (gradient,) = torch.autograd.grad(layer(x[:0].detach()).sum(), list(layer.parameters()))
    assert torch.equal(gradient, torch.zeros(2, 2, dtype=gradient.dtype))


def test_bits_at_the_ends_let_gradients_pass() -> None:
    x = torch.tensor([-1.0, 0.0, 0.3, 1.0, 2.0], requires_grad=True)
    y = SparseMAP(BitVector())(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert gradient.tolist() == [0, 1, 1, 1, 0]
    assert torch.equal(torch.autograd.grad(gradient.square().sum(), x)[0], torch.zeros(5))


def test_learnt_potentials() -> None:
    layer = SparseMAP(Sequence(tags=2), learn_potentials=True)
    assert list(layer.state_dict()) == ["potentials"]
    y = layer(torch.randn(3, 8))
    y.square().sum().backward()
    assert layer.potentials is not None and layer.potentials.grad is not None
    assert float(layer.potentials.grad.abs().max()) > 0
    fixed = SparseMAP(Sequence(tags=2), potentials=torch.ones(2, 2))
    assert not fixed.state_dict() and not list(fixed.parameters())


def test_value_with_potentials() -> None:
    structure, x = Sequence(4, tags=2), draw(5, 8, seed=17).requires_grad_()
    layer = SparseMAP(structure, potentials=draw(2, 2, seed=18), learn_potentials=True, gamma=0.6).double()
    links = layer.potentials
    assert links is not None
    out = F.sparsemap(x, structure, potentials=links, gamma=0.6)
    gain = (structure.potential_scores(out.structures, structure.batch_potentials(links, 8)) * out.probs).sum(-1)
    expected = (out.marginals * x).sum(-1) + gain - 0.3 * out.marginals.square().sum(-1)
    torch.testing.assert_close(layer.value(x), expected)

    def value(x: Tensor, links: Tensor) -> Tensor:
        return torch.func.functional_call(_Value(layer), {"layer.potentials": links}, (x,))

    assert gradcheck(value, (x, links), atol=1e-5)
    assert gradgradcheck(value, (x, links), atol=1e-5)


class _Value(torch.nn.Module):
    def __init__(self, layer: SparseMAP) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.value(x)


@pytest.mark.cases(quick=4)
@pytest.mark.parametrize(("structure", "links_too"), WITH_LINKS)
def test_loss_of_structures(structure: Structure, links_too: bool) -> None:
    links = links_for(structure) if links_too else None
    layer = SparseMAP(structure, potentials=links, learn_potentials=links_too, gamma=0.8).double()
    x = draw(6, int(structure.size or 0), seed=34).requires_grad_()
    every = structure.enumerate()
    target = every[torch.arange(6) % len(every)]
    loss = layer.loss(x, target)
    assert bool((loss >= -1e-12).all())
    (gradient,) = torch.autograd.grad(loss.sum(), x, retain_graph=True)
    torch.testing.assert_close(gradient, layer(x).detach() - target)
    assert gradcheck(lambda x: layer.loss(x, target), x, atol=1e-5)
    if links_too:
        (slope,) = torch.autograd.grad(loss.sum(), layer.potentials)
        out = F.sparsemap(x, structure, potentials=layer.potentials, gamma=0.8)
        shared = structure.batch_potentials(layer.potentials, x.shape[-1]).detach().requires_grad_()
        mean = (structure.potential_scores(out.structures, shared) * out.probs).sum()
        gold = structure.potential_scores(target.unsqueeze(1), shared).sum()
        torch.testing.assert_close(slope, torch.autograd.grad(mean - gold, shared)[0].reshape(slope.shape))
    sure = 100 * (2 * target - 1)
    if not links_too and not isinstance(structure, Budget):
        torch.testing.assert_close(layer.loss(sure, target), torch.zeros(6, dtype=x.dtype), rtol=0, atol=1e-10)
    if bool(target[1].any()):
        assert float(layer.loss(x[1], target[1], target[1] == 0).detach()) == torch.inf
    for bad in (target[:, :-1], target + 0.5, torch.full_like(target, 1.0) if structure != BitVector(5) else target + 1):
        with pytest.raises(ConfigurationError, match="target"):
            layer.loss(x, bad)


def test_selected_tag_is_attention() -> None:
    """It equals the full problem in which other tags have score zero."""
    x = draw(6, 5, seed=19)
    links = draw(3, 3, seed=20)
    full = torch.zeros(6, 5, 3, dtype=x.dtype)
    full[:, :, 1] = x
    shown = F.sparsemap(x, Sequence(tags=3, select=1), potentials=links)
    whole = F.sparsemap(full.reshape(6, 15), Sequence(tags=3), potentials=links)
    torch.testing.assert_close(shown.marginals, whole.marginals[:, 1::3])
    torch.testing.assert_close(shown.entries, whole.structures)
    again = F.sparsemap(x, Sequence(tags=3, select=1), potentials=links, start=shown)
    torch.testing.assert_close(again.marginals, shown.marginals)


def test_a_gradient_behind_the_mask_is_not_looked_at() -> None:
    x = draw(4, 6, seed=21).requires_grad_()
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[:, 4:] = False
    out = F.sparsemap(x, Sequence(tags=2), mask=mask)
    (got,) = torch.autograd.grad(out.marginals, x, torch.full((4, 6), torch.nan, dtype=x.dtype).masked_fill(mask, 1.0))
    assert bool(got.isfinite().all())


class _NoTags(Sequence):
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        return torch.zeros_like(scores)


class _Wrong(Structure):
    def __init__(self, result: object) -> None:
        self.result = result

    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        return self.result(scores)  # type: ignore[operator, no-any-return]

    def validate(self, structures: Tensor) -> Tensor:
        return structures.sum(-1) <= 2


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda s: s[:, :2], "one structure per row"),
        (lambda s: s.tolist(), "one structure per row"),
        (lambda s: torch.full_like(s, 0.5), "zeros and ones"),
        (lambda s: torch.full_like(s, torch.nan), "zeros and ones"),
        (lambda s: torch.ones_like(s), "forbidden"),
        (lambda s: torch.tensor([1.0, 1.0, 1.0, 0.0]).expand_as(s), "validate"),
    ],
)
def test_an_oracle_that_returns_no_structure_is_told_so(result: object, words: str) -> None:
    x = torch.zeros(2, 4)
    x[:, 3] = -torch.inf
    with pytest.raises(ConfigurationError, match=words):
        F.sparsemap(x, _Wrong(result))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: SparseMAP(BitVector), r"Did you mean BitVector\("),  # type: ignore[arg-type]
        (lambda: SparseMAP(32), "BitVector"),  # type: ignore[arg-type]
        (lambda: F.sparsemap(torch.zeros(3), BitVector(4)), "length 4"),
        (lambda: F.sparsemap(torch.zeros(3), BitVector(), potentials=torch.zeros(2, 2)), "no potentials"),
        (lambda: F.sparsemap(torch.zeros(2, 4), Sequence(), potentials=torch.zeros(3, 1, 2, 2)), "2 rows"),
        (lambda: F.sparsemap(torch.zeros(2, 4), BitVector(), start=torch.full((2, 4), 0.5)), "start"),
        (lambda: F.sparsemap(torch.zeros(2, 4), BitVector(), start=torch.zeros(3, 4)), "start"),
        (lambda: F.sparsemap(torch.zeros(2, 4), Budget(4, 1), start=torch.ones(2, 4)), "start"),
        (lambda: F.sparsemap(torch.zeros(2, 4), Sequence(), start=torch.zeros(2, 4)), "start"),
        (lambda: F.sparsemap(torch.zeros(2, 4), _NoTags(tags=2)), "validate"),
        (lambda: F.sparsemap(torch.zeros(2, 4), BitVector(), start="best"), "start"),  # type: ignore[arg-type]
        (lambda: F.sparsemap(torch.zeros(2, 4), BitVector(), max_iter=0), "max_iter"),
        (lambda: F.sparsemap(torch.zeros(2, 4), BitVector(), tol=0.0), "tol"),
        (lambda: F.sparsemap(torch.zeros(2, 4), Sequence(), potentials=torch.zeros(2, 2).int()), "floating"),
        (lambda: F.sparsemap(torch.zeros(2, 4), Sequence(), potentials=torch.full((2, 2), -torch.inf)), "-1e4"),
        (lambda: F.sparsemap(torch.zeros(2, 4), _Wrong(lambda s: 0j * s)), "real numbers"),
        (lambda: attention(torch.zeros(5, 8), torch.zeros(7, 8), torch.zeros(7, 8), SparseMAP(Tree())), "5 queries and 7 keys"),
        (lambda: SparseMAP(BitVector(), learn_potentials=True), "no potentials to learn"),
        (lambda: F.sparsemap(torch.zeros(2, 4, dtype=torch.int64), BitVector()), "floating"),
    ],
)
def test_bad_arguments_are_explained(call: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call()  # type: ignore[operator]
