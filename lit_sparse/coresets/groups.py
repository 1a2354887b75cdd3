"""Selection within groups of examples, such as classes, in proportion to their sizes."""

from __future__ import annotations

import hashlib
import reprlib
from dataclasses import replace

import torch
from torch import Tensor

from lit_sparse.checks import INTEGERS, check_tensor
from lit_sparse.coresets.coreset import Coreset
from lit_sparse.coresets.selector import CoresetSelector, Uniform, squared_distance
from lit_sparse.coresets.state import ANEW, Kept, SelectionState
from lit_sparse.coresets.vectors import Vectors, as_vectors, part_of
from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.ground.arguments import checked

__all__ = ["select_by_group"]


@checked
def select_by_group(
    selector: CoresetSelector,
    vectors: Vectors | Tensor,
    k: int,
    groups: Tensor,
    generator: torch.Generator | None = None,
    state: SelectionState | None = None,
) -> Coreset:
    """Return the union of one coreset per group of examples, such as a class, with sizes in proportion to the groups' sizes.

    Args:
        selector: selector that is applied to each group.
        vectors: (N, S), one per example.
        k: largest number of examples in all, at least one per group.
        groups: (N,) int64, the group of each example.
        generator: CPU generator for random choices; torch's own by default.
        state: file with the finished groups. A killed selection continues from it, and from a second file with the ending
            ``.group``, which has the state of the selection within a group.

    Returns:
        A coreset whose objective is the sum over the groups; its trace is empty. In a group whose vectors are all zero, or
        add up to zero, examples are drawn at random.

    Raises:
        CheckpointError: if a file of the state is damaged.
        ConfigurationError: if there are more groups than k, there is not one label for each vector, or the state
            belongs to another selection.

    Example:
        >>> from lit_sparse.coresets import Uniform
        >>> select_by_group(
        ...     Uniform(),
        ...     torch.randn(10, 3),
        ...     5,
        ...     torch.tensor([0, 0, 1, 1, 1, 1, 1, 1, 1, 1]),
        ... ).weights
        tensor([2., 2., 2., 2., 2.])
    """
    found = as_vectors(vectors)
    what = f"an integer tensor with a group per example, {found.shape[0]} of them,"
    check_tensor(groups, what, shape=found.shape[:1], dtypes=(*INTEGERS, torch.bool), advice=" Convert it.")
    names, sizes = torch.unique(groups, return_counts=True)
    if not len(names) <= k <= len(groups):
        raise ConfigurationError(
            f"Expected argument `k` in {len(names)} .. {len(groups)}, at least one example per group, but got {k}."
        )
    shares = _shares(sizes, k).tolist()
    empty = torch.empty(0, dtype=found.dtype, device=found.device)
    here = Kept(indices=empty.long(), weights=empty, objective=0.0)
    whole = part_state = None
    done = 0
    if state is not None:
        whole, part_state = SelectionState(state.path, every=1), SelectionState(f"{state.path}.group", every=state.every)
        digest = hashlib.sha256(groups.cpu().numpy().tobytes()).hexdigest()
        problem = {**selector.problem(k), "division into groups": digest}
        whole.open(found, problem, torch.default_generator if generator is None else generator)
        done = whole.begin(here, len(names)) or 0
        if done:
            places = torch.searchsorted(names.cpu(), groups.cpu()[here.indices.cpu()])
            counts = torch.bincount(places, minlength=len(names)).tolist()
            if not all(0 < count <= share for count, share in zip(counts[:done], shares, strict=False)) or any(counts[done:]):
                raise CheckpointError(
                    f"Expected {str(state.path)!r} to have examples of {done} groups, in proportion to their sizes, but got"
                    f" {reprlib.repr(counts)}. {ANEW}"
                )
            known = 0.0
            for name in names[:done]:
                members = (groups == name).nonzero().squeeze(-1).to(found.device)
                own = torch.isin(here.indices, members)
                places = torch.searchsorted(members, here.indices[own])
                known += squared_distance(part_of(found, members), places, here.weights[own])
            if not abs(known - here.objective) <= 1e-3 * known + 1e-5 * float(found.total.double().square().sum()):
                raise CheckpointError(
                    f"Expected the objective of the groups in {str(state.path)!r} to be {known:g}, as computed from its"
                    f" weights, but got {here.objective:g}. {ANEW}"
                )
        if whole.is_new:
            if found.is_first:
                part_state.path.unlink(missing_ok=True)  # of another selection
            whole.keep(0, here)  # the state of the generator
    for number in range(done, len(names)):
        members = (groups == names[number]).nonzero().squeeze(-1).to(found.device)
        part, share = part_of(found, members), shares[number]
        chosen = selector.within(members)(part, share, generator, part_state) if float(part.norms.max()) > 0 else None
        if chosen is None or not len(chosen):  # the vectors do not distinguish the examples
            alike = torch.ones(len(members), 1, dtype=found.dtype, device=found.device)
            drawn = Uniform()(alike, share, generator)
            chosen = replace(drawn, objective=squared_distance(part, drawn.indices, drawn.weights))
        here.indices = torch.cat([here.indices, members[chosen.indices]])
        here.weights = torch.cat([here.weights, chosen.weights])
        here.objective += chosen.objective
        if whole is not None:
            whole.keep(number + 1, here)
    if whole is not None:
        whole.close()
    order = here.indices.argsort()
    return Coreset(here.indices[order], here.weights[order], here.objective, size=found.shape[0])


def _shares(sizes: Tensor, k: int) -> Tensor:
    """Return how many of k each group gets, at least one: in proportion, with the largest-remainder method."""
    large, left, total = torch.ones_like(sizes, dtype=torch.bool), k, int(sizes.sum())
    while bool((small := large & (left * sizes < total)).any()):  # groups whose minimum of one exceeds their share
        large &= ~small
        left, total = k - int((~large).sum()), int(sizes[large].sum())
    shares = torch.where(large, left * sizes // total, 1)
    remainders = torch.where(large, left * sizes % total, -1)
    shares[remainders.argsort(descending=True, stable=True)[: k - int(shares.sum())]] += 1
    return shares
