"""Structures against enumeration: the best, the k best, accepted elements, and errors."""

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import SparseMAP
from lit_sparse.mappings import functional as F
from lit_sparse.structures import Assignment, BitVector, Budget, Sequence, Structure, Tree
from lit_sparse.structures.bit_vector import nearest_within


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def totals(structure: Structure, scores: Tensor, potentials: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Every structure, and its total for each row of scores."""
    every = structure.enumerate()
    gains = scores @ every.T
    if potentials is not None:
        links = structure.batch_potentials(potentials, scores.shape[-1]).expand(len(scores), -1, -1, -1)
        gains = gains + structure.potential_scores(every.expand(len(scores), *every.shape), links)
    return every, gains


@pytest.mark.parametrize("shape", [(3, 3), (3, 3, 3), (7, 3, 3, 3), (7, 1, 3, 3)])
def test_viterbi_with_links_equals_enumeration(shape: tuple[int, ...]) -> None:
    structure = Sequence(4, tags=3)
    scores = torch.randn(7, 12, generator=generator(1), dtype=torch.float64)
    links = torch.randn(shape, generator=generator(2), dtype=torch.float64)
    found = structure.maximize(scores, links)
    _, gains = totals(structure, scores, links)
    batched = structure.batch_potentials(links, 12)
    mine = (found * scores).sum(-1) + structure.potential_scores(found.unsqueeze(1), batched).squeeze(1)
    assert torch.allclose(mine, gains.amax(-1))


def test_links_are_from_to() -> None:
    only_01 = torch.tensor([[0.0, 5.0], [0.0, 0.0]])
    assert Sequence(tags=2).maximize(torch.zeros(1, 4), only_01).tolist() == [[1.0, 0.0, 0.0, 1.0]]


def test_masked_positions_are_left_out_and_neighbours_become_adjacent() -> None:
    structure = Sequence(tags=2)
    links = torch.randn(2, 2, generator=generator(3), dtype=torch.float64)
    scores = torch.randn(20, 6, generator=generator(4), dtype=torch.float64)
    masked = torch.cat([scores[:, :2], torch.full((20, 2), -torch.inf, dtype=torch.float64), scores[:, 2:]], -1)
    found, short = structure.maximize(masked, links), structure.maximize(scores, links)
    assert bool((found[:, 2:4] == 0).all())
    assert torch.equal(found[:, [0, 1, 4, 5, 6, 7]], short)
    wide = structure.batch_potentials(links, 8)
    assert torch.equal(
        structure.potential_scores(found.unsqueeze(1), wide), structure.potential_scores(short.unsqueeze(1), wide)
    )


def test_assignment_leaves_out_forbidden_rows_and_columns() -> None:
    scores = torch.randn(4, 5, generator=generator(5))
    scores[1], scores[:, 2] = -torch.inf, -torch.inf
    found = Assignment(4, 5).maximize(scores.reshape(1, -1)).reshape(4, 5)
    short = scores[[0, 2, 3]][:, [0, 1, 3, 4]]
    assert torch.equal(found[[0, 2, 3]][:, [0, 1, 3, 4]], Assignment(3, 4).maximize(short.reshape(1, -1)).reshape(3, 4))
    assert float(found.sum()) == 3


def test_assignment_says_when_there_is_none() -> None:
    blocked = torch.tensor([[0.0, -torch.inf, -torch.inf], [0.0, -torch.inf, -torch.inf], [0.0, 0.0, 0.0]])
    with pytest.raises(ConfigurationError, match="row 0 of the"):
        Assignment().maximize(blocked.reshape(1, -1))


def test_a_budget_beyond_all_bits() -> None:
    x = torch.tensor([[1.0, -1.0, 2.0]])
    assert Budget(None, 2**63 - 1).maximize(x).tolist() == [[1.0, 0.0, 1.0]]
    assert F.sparsemap(x, Budget(None, 2**63 - 1)).marginals.tolist() == [[1.0, 0.0, 1.0]]


def test_equal_but_for_rounding_the_first_are_taken() -> None:
    noise = 1e-13 * torch.randn(50, 6, generator=generator(12), dtype=torch.float64)
    for scale in (1.0, 1000.0):
        assert bool((Budget(6, 2).maximize(0.7 * scale + noise) == torch.tensor([1.0, 1, 0, 0, 0, 0])).all())
        assert bool((Assignment(2, 3).maximize(0.7 * scale + noise) == Assignment(2, 3).maximize(torch.zeros(1, 6))).all())


def test_number_of_trees() -> None:
    """Cayley's formula: n^(n - 1) rooted trees of n nodes, (n + 1)^(n - 1) forests."""
    for n in range(1, 6):
        assert len(Tree(n).enumerate()) == n ** (n - 1)
        assert len(Tree(n, single_root=False).enumerate()) == (n + 1) ** (n - 1)


@pytest.mark.parametrize("single_root", [True, False])
@pytest.mark.parametrize("nodes", [4, 5])
def test_trees_with_cycles_in_cycles(nodes: int, single_root: bool) -> None:
    """Scores of a few values, so that best heads form cycles, and cycles of cycles, and some heads are forbidden."""
    structure = Tree(nodes, single_root)
    every = structure.enumerate()
    scores = (1.5 * torch.randn(400, nodes * nodes, generator=generator(7), dtype=torch.float64)).round()
    scores[torch.rand(scores.shape, generator=generator(8)) < 0.2] = -torch.inf
    scores[:, 1] = 3.0  # node 0 hangs on 1 and 1 on 0, mostly
    scores[:, nodes] = 3.0
    gains = torch.where(every > 0, scores.unsqueeze(1), 0.0).sum(-1)
    some = (gains.amax(-1) > -torch.inf) & (scores.unflatten(-1, (nodes, nodes)) > -torch.inf).any(-1).all(-1)
    assert 50 < int(some.sum()) < 400
    found = structure.maximize(scores[some])
    assert bool(structure.fits(found, scores[some] > -torch.inf).all())
    torch.testing.assert_close(torch.where(found > 0, scores[some], 0.0).sum(-1), gains[some].amax(-1))


def test_trees_leave_out_forbidden_nodes() -> None:
    scores = torch.randn(4, 4, generator=generator(9))
    scores[1] = -torch.inf
    scores[0, 1] = 9.0  # the best head, were it there
    found = Tree(4).maximize(scores.reshape(1, -1)).reshape(4, 4)
    kept = [0, 2, 3]
    assert torch.equal(found[kept][:, kept].reshape(1, -1), Tree(3).maximize(scores[kept][:, kept].reshape(1, -1)))
    assert float(found.sum()) == 3


def test_a_large_tree() -> None:
    """A path through 200 nodes outweighs all else, as does its root, though every node would rather be one."""
    nodes = 200
    order = torch.randperm(nodes, generator=generator(10))
    scores = torch.rand(nodes, nodes, generator=generator(11), dtype=torch.float64)
    scores[order[1:], order[:-1]] += 1.0
    scores.diagonal().add_(5.0)
    scores[order[0], order[0]] += 1.0
    found = Tree().maximize(scores.reshape(1, -1)).reshape(nodes, nodes)
    assert bool((found[order[1:]].argmax(-1) == order[:-1]).all())
    assert int(found[order[0]].argmax()) == int(order[0])


def test_noise_is_a_tie() -> None:
    noise = 2e-10 * (2 * torch.rand(10, 6, generator=generator(6), dtype=torch.float64) - 1)
    assert bool((BitVector().maximize(noise) == 0).all())
    assert bool((Budget(6, 3).maximize(noise) == 0).all())
    assert bool((Sequence(tags=2).maximize(noise) == torch.tensor([1.0, 0.0] * 3)).all())
    assert bool((Assignment(2, 3).maximize(noise) == Assignment(2, 3).maximize(torch.zeros(1, 6))).all())
    assert bool((Tree().maximize(noise[:, :4]) == Tree().maximize(torch.zeros(1, 4))).all())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Budget(4, -1), "`budget` to be an integer of at least 0 but got -1"),
        (lambda: Budget(4, 5), "`budget` to be an integer of at most 4 but got 5"),
        (lambda: Budget(None, -1), "`budget` to be an integer of at least 0 but got -1"),
        (lambda: Budget(None, 10**30), "`budget` to be an integer of at most 9223372036854775807 but got 10{30}"),
        (lambda: Budget(4, 1.0), "budget"),  # type: ignore[arg-type]
        (lambda: BitVector(0), "`d`"),
        (lambda: Sequence(tags=0), "`tags`"),
        (lambda: Sequence(tags=2, select=2), "0 .. 1"),
        (lambda: Sequence(0), "`length`"),
        (lambda: Assignment(3, 2), "Transpose"),
        (lambda: BitVector(4).check(3), "length 4"),
        (lambda: Sequence(3, tags=2).check(5), "length=3"),
        (lambda: Sequence(tags=2).check(5), "tags=2"),
        (lambda: Assignment().check(6), "square"),
        (lambda: Assignment(4).check(6), "rows <= columns"),
        (lambda: Sequence(3, tags=2).batch_potentials(torch.zeros(3, 3), 6), r"\(2, 2\)"),
        (lambda: Sequence(3, tags=2).batch_potentials(torch.zeros(3, 2, 2), 6), r"\(2, 2, 2\)"),
        (lambda: BitVector(4).batch_potentials(torch.zeros(2, 2), 4), "no potentials"),
        (lambda: Assignment(2, 2).topk(torch.zeros(1, 4), 2), "no exact k-best"),
        (lambda: BitVector(5).maximize(torch.zeros(2, 6)), "length 5"),
        (lambda: Budget(5, 2).maximize(torch.zeros(2, 5), torch.zeros(2, 2)), "no potentials"),
        (lambda: Sequence(tags=2).maximize(torch.zeros(3, 4), torch.zeros(2, 1, 2, 2)), "3 rows"),
        (lambda: Assignment().maximize(torch.full((1, 4), torch.nan)), "NaN"),
        (lambda: Tree().maximize(torch.full((1, 4), torch.nan)), "NaN"),
        (lambda: Tree(0), "`nodes`"),
        (lambda: Tree(2, "no"), "`single_root`"),  # type: ignore[arg-type]
        (lambda: Tree().maximize(torch.zeros(4)), r"\(rows, entries\)"),
        (lambda: Assignment().maximize(torch.zeros(4)), r"\(rows, entries\)"),
        (lambda: Tree().check(5), "square number"),
        (lambda: Tree(3).check(4), r"3 \* 3"),
        (lambda: Tree().maximize(torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]])), "row 0 of the batch"),
        (lambda: Tree().maximize(torch.tensor([[0.0, -torch.inf, -torch.inf, 0.0]])), "row 0 of the batch"),
        (lambda: BitVector(30).enumerate(), "at most 20"),
        (lambda: BitVector().enumerate(), "does not fix it"),
    ],
)
def test_bad_arguments_are_explained(make: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()  # type: ignore[operator]


def test_one_position_has_no_links() -> None:
    assert Sequence(tags=2).maximize(torch.tensor([[0.0, 1.0]]), torch.zeros(0, 2, 2)).tolist() == [[0.0, 1.0]]


def test_fits_wants_every_position_and_row_that_is_there() -> None:
    nothing, everything = torch.zeros(4), torch.ones(4, dtype=torch.bool)
    for structure in (Sequence(tags=2), Assignment(2, 2), Tree(2, single_root=False)):
        assert bool(structure.validate(nothing))
        assert not bool(structure.fits(nothing, everything))
        assert bool(structure.fits(nothing, ~everything))
        assert bool(structure.fits(torch.tensor([1.0, 0, 0, 1]), everything))
        assert not bool(structure.fits(torch.tensor([1.0, 0, 0, 1]), torch.tensor([True, True, False, False])))


def test_a_subclass_that_maximizes_otherwise_loses_the_shortcuts() -> None:
    class OneExactly(Budget):
        def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
            return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores)

    class AtMostTwoOf(BitVector):
        def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
            return Budget(None, 2).maximize(scores)

    class TagsOrNone(Sequence):
        def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
            return BitVector().maximize(scores) if self.tags == 1 else super().maximize(scores, potentials)

        def fits(self, structures: Tensor, allowed: Tensor) -> Tensor:
            return self.validate(structures)

    z = torch.tensor([[0.3, 0.6]])
    assert torch.allclose(F.sparsemap(z, TagsOrNone(tags=1)).marginals, z)
    x = torch.tensor([[-2.0, -1.0, -1.0]])
    assert F.sparsemap(x, OneExactly(3, 1)).marginals.tolist() == [[0.0, 0.5, 0.5]]
    y = torch.tensor([[2.0, 2.0, 2.0]])
    assert torch.allclose(SparseMAP(AtMostTwoOf())(y), SparseMAP(Budget(None, 2))(y))
    assert not AtMostTwoOf().has_nested


def test_the_formula_of_a_budget_equals_the_search() -> None:
    x = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    for budget in (0, 1, 3, 9):
        point, marginals = nearest_within(x, budget), F.sparsemap(x, Budget(9, budget)).marginals
        torch.testing.assert_close(point, marginals, rtol=0, atol=1e-6)
        slopes = [torch.autograd.grad((y * torch.arange(9.0)).sum(), x)[0] for y in (point, marginals)]
        torch.testing.assert_close(*slopes, rtol=0, atol=1e-6)
    assert torch.autograd.gradcheck(lambda x: nearest_within(x, 2), x)
