"""Fenchel-Young losses against torch's cross-entropy and the published sparsemax loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import FenchelYoungLoss, Softmax, Sparsemax, TopKSparsemax


@pytest.mark.parametrize("shape", [(7, 5), (3, 5, 4), (2, 5, 3, 2)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [-1, 1])
def test_softmax_with_labels_is_cross_entropy(shape: tuple[int, ...], reduction: str, weighted: bool, dim: int) -> None:
    torch.manual_seed(0)
    scores = torch.randn(shape, dtype=torch.float64)
    target = torch.randint(5, (shape[0], *shape[2:]))
    target.view(-1)[1] = -100
    weight = torch.rand(5, dtype=torch.float64) if weighted else None
    ours = FenchelYoungLoss(Softmax(dim=dim), weight=weight, reduction=reduction)(scores, target)
    torch.testing.assert_close(ours, nn.CrossEntropyLoss(weight=weight, reduction=reduction)(scores, target))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_soft_targets_are_cross_entropy_less_the_entropy(smoothing: float, weighted: bool, hard: bool) -> None:
    torch.manual_seed(0)
    scores = torch.randn(6, 5, dtype=torch.float64)
    weight = torch.rand(5, dtype=torch.float64) if weighted else torch.ones(5, dtype=torch.float64)
    labels = torch.randint(5, (6,))
    target = labels if hard else torch.softmax(torch.randn(6, 5, dtype=torch.float64), -1)
    q = nn.functional.one_hot(labels, 5).double() if hard else target
    q = weight * ((1 - smoothing) * q + smoothing / 5)
    entropy = q.sum(-1) * torch.special.entr(q / q.sum(-1, keepdim=True)).sum(-1)
    total = weight[labels].sum() if hard else 6
    expected = nn.CrossEntropyLoss(weight=weight, label_smoothing=smoothing)(scores, target) - entropy.sum() / total
    ours = FenchelYoungLoss(Softmax(), weight=weight if weighted else None, label_smoothing=smoothing)(scores, target)
    torch.testing.assert_close(ours, expected)


def test_sparsemax_loss_as_published() -> None:
    torch.manual_seed(0)
    x = torch.randn(20, 6, dtype=torch.float64)
    k = torch.randint(6, (20,))
    y = Sparsemax()(x)
    tau = torch.where(y > 0, x - y, 0).sum(-1) / (y > 0).sum(-1)
    # Martins & Astudillo (2016), eq. (16)
    terms = torch.where(y > 0, x.square() - tau.square().unsqueeze(-1), 0).sum(-1)
    expected = -x[torch.arange(20), k] + 0.5 * terms + 0.5
    torch.testing.assert_close(FenchelYoungLoss(Sparsemax(), reduction="none")(x, k), expected)


def test_large_shifts_cost_no_digits() -> None:
    x = torch.tensor([[0.5, 0.25, -1.0]])
    for mapping in (Softmax(), Sparsemax()):
        loss = FenchelYoungLoss(mapping)
        torch.testing.assert_close(loss(x + 8192, torch.tensor([1])), loss(x, torch.tensor([1])), rtol=1e-6, atol=0)


def test_temperature_scales_cross_entropy() -> None:
    x, k = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    expected = 0.5 * nn.functional.cross_entropy(x / 0.5, k)
    torch.testing.assert_close(FenchelYoungLoss(Softmax(gamma=0.5))(x, k), expected)


def test_forbidden_classes() -> None:
    x = torch.tensor([[1.0, -torch.inf, 0.0], [1.0, 2.0, -torch.inf]], requires_grad=True)
    loss = FenchelYoungLoss(Sparsemax(), reduction="none")(x, torch.tensor([0, 2]))
    assert float(loss[0].detach()) == 0.0
    assert float(loss[1].detach()) == float("inf")
    (grad,) = torch.autograd.grad(loss[0], x)
    assert bool(grad.isfinite().all())


def test_ignored_rows_may_hold_anything() -> None:
    x = torch.tensor([[1.0, 0.0], [torch.nan, 3.0]], requires_grad=True)
    loss = FenchelYoungLoss(Sparsemax())(x, torch.tensor([0, -100]))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


def test_too_wide_a_target_for_topk_is_infinite() -> None:
    x = torch.tensor([[1.0, 0.5, 0.0]])
    q = torch.tensor([[0.4, 0.3, 0.3]])
    assert float(FenchelYoungLoss(TopKSparsemax(2))(x, q)) == float("inf")
    assert float(FenchelYoungLoss(TopKSparsemax(3))(x, q)) < 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: FenchelYoungLoss(Softmax(), reduction="avg"), "'mean', 'sum' or 'none'"),
        (lambda: FenchelYoungLoss(Softmax(), label_smoothing=2), "label_smoothing"),
        (lambda: FenchelYoungLoss(Softmax())(torch.zeros(2, 3), torch.tensor([0, 3])), r"0 \.\. 2"),
        (lambda: FenchelYoungLoss(Softmax())(torch.zeros(2, 3), torch.tensor([0])), r"shape \(2,\)"),
        (lambda: FenchelYoungLoss(Softmax())(torch.zeros(2, 3), torch.zeros(2, 2)), r"shape \(2, 3\)"),
    ],
)
def test_bad_input(call: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call()  # type: ignore[operator]


def test_losses_compile_and_map() -> None:
    loss = FenchelYoungLoss(Sparsemax())
    scores, labels = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    each = torch.func.vmap(torch.func.grad(lambda x, k: loss(x[None], k[None])))(scores, labels)
    torch.testing.assert_close(each, Sparsemax()(scores) - nn.functional.one_hot(labels, 3))
    torch.testing.assert_close(torch.compile(loss, fullgraph=True, backend="aot_eager")(scores, labels), loss(scores, labels))
    torch.testing.assert_close(loss(scores, labels.to(torch.uint8)), loss(scores, labels))
