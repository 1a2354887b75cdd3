"""The loss of linear scores without their matrix equals the loss of the matrix, with its derivatives."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.utils._python_dispatch import TorchDispatchMode

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import (
    CappedSoftmax,
    Entmax,
    FenchelYoungLoss,
    Fusedmax,
    LearnableEntmax,
    Softmax,
    SparseMapping,
    Sparsemax,
    TopKSparsemax,
)
from lit_sparse.nn import LinearFenchelYoungLoss
from lit_sparse.nn.output_layer import losses as linear_losses
from lit_sparse.nn.output_layer import scores as linear_scores
from lit_sparse.nn.output_layer import support as linear_support
from lit_sparse.testing import concrete_subclasses

MAPPINGS = [
    Sparsemax(),
    Sparsemax(gamma=0.3),
    TopKSparsemax(3),
    Entmax(1.5),
    Entmax(1.25, gamma=0.5),
    Softmax(),
    Softmax(gamma=0.5),
]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use lists for small problems, in several parts of rows and classes, some of whose rows have too many candidates."""
    monkeypatch.setattr(linear_losses, "FEW", 0)
    for name, value in {"ROWS": 23, "LEAST": 12, "MOST_NEW": 9, "FLAT": 0.9}.items():
        monkeypatch.setattr(linear_support, name, value)
    for name, value in {"ROWS": 23, "RANGE": 64, "SCORES": 1, "ALL_SCORES": 1, "LEAST_ROWS": 7}.items():
        monkeypatch.setattr(linear_scores, name, value)
    torch.manual_seed(0)
    yield


def layer_of(mapping: SparseMapping, classes: int = 200, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    return LinearFenchelYoungLoss(mapping, 8, classes, **options).to(dtype)


def dense(layer: LinearFenchelYoungLoss, hidden: Tensor, target: Tensor) -> Tensor:
    loss: Tensor = layer.criterion(nnf.linear(hidden, layer.weight, layer.bias), target)
    return loss


def rows_of(number: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return hidden vectors whose scores have about this standard deviation, and every other row ten times as much."""
    spread = torch.tensor([1.0, 10.0], dtype=dtype).repeat(number)[:number, None]
    return (torch.randn(number, 8, dtype=dtype) * 1.7 * scale * spread).requires_grad_()


def check(layer: LinearFenchelYoungLoss, hidden: Tensor, target: Tensor, tolerance: float = 1e-10) -> None:
    ours, theirs = layer(hidden, target), dense(layer, hidden, target)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    wanted = [hidden, *(p for p in layer.parameters() if p.requires_grad)]
    slope = torch.randn_like(ours)
    grads = [torch.autograd.grad(loss, wanted, slope) for loss in (ours, theirs)]
    scale = max(1.0, float(hidden.detach().abs().max()))  # gradients of the weight are as large as the hidden vectors
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a / scale, b / scale, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
def test_loss_and_gradients_equal_those_of_all_scores(mapping: SparseMapping, reduction: Any) -> None:
    layer, target = layer_of(mapping, reduction=reduction), torch.randint(200, (50,))
    for scale in (1e-3, 0.3, 1.0, 300.0):
        check(layer, rows_of(50, scale), target)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
def test_float32(mapping: SparseMapping) -> None:
    layer, target = layer_of(mapping, dtype=torch.float32), torch.randint(200, (50,))
    for scale in (1e-3, 1.0, 30.0):
        check(layer, rows_of(50, scale, torch.float32), target, 1e-5)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_weights_smoothing_and_ignored_rows(mapping: SparseMapping, weighted: bool, smoothing: float) -> None:
    class_weight = torch.rand(200, dtype=torch.float64) if weighted else None
    options: dict[str, Any] = {"class_weight": class_weight, "label_smoothing": smoothing, "ignore_index": 3}
    target, hidden = torch.randint(5, (50,)), rows_of(50)
    check(layer_of(mapping, bias=False, **options), hidden, target)
    hidden = hidden.detach().clone()
    hidden[target == 3] = torch.nan
    layer = layer_of(mapping, **options)
    loss = layer(hidden, target)
    loss.backward()
    assert bool(layer.weight.grad.isfinite().all())
    if not (smoothing and isinstance(mapping, TopKSparsemax)):  # whose loss of such a target is infinite
        assert bool(loss.isfinite())


@pytest.mark.parametrize("mapping", [Sparsemax(), TopKSparsemax(3), Entmax(1.5)], ids=repr)
def test_long_ranges_whose_blocks_are_skipped(mapping: SparseMapping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_scores, "RANGE", 1024)
    monkeypatch.setattr(linear_support, "MOST_NEW", 300)
    check(layer_of(mapping, 5000), rows_of(40, 2.0), torch.randint(5000, (40,)))


@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
@pytest.mark.parametrize("classes", [1, 2, 3, 31, 33, 65])
def test_few_classes(mapping: SparseMapping, classes: int) -> None:
    for number in (1, 30):
        check(layer_of(mapping, classes), rows_of(number), torch.randint(classes, (number,)))


@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
def test_ties_and_equal_scores(mapping: SparseMapping) -> None:
    layer = layer_of(mapping)
    with torch.no_grad():
        layer.weight.copy_(torch.randint(-1, 2, layer.weight.shape))
        layer.bias.zero_()
    hidden = torch.randint(-2, 3, (40, 8)).double()
    hidden[:5] = 0
    check(layer, hidden.requires_grad_(), torch.randint(200, (40,)))


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**31),
    number=st.integers(1, 40),
    classes=st.integers(1, 300),
    scale=st.sampled_from([0.0, 1e-6, 0.1, 1.0, 5.0, 1e4]),
    mapping=st.sampled_from(MAPPINGS),
    rounded=st.booleans(),
)
def test_random_problems(seed: int, number: int, classes: int, scale: float, mapping: SparseMapping, rounded: bool) -> None:
    torch.manual_seed(seed)
    layer, hidden = layer_of(mapping, classes), rows_of(number, scale)
    if rounded:
        hidden = hidden.detach().round().requires_grad_()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_((2 * parameter).round())
    check(layer, hidden, torch.randint(classes, (number,)))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
def test_an_invalid_row_stays_one_row(mapping: SparseMapping, bad: float) -> None:
    layer, hidden, target = layer_of(mapping, reduction="none"), rows_of(50).detach(), torch.randint(200, (50,))
    whole = layer(hidden, target)
    broken = hidden.clone()
    broken[[4, 40], 2] = bad
    broken.requires_grad_()
    losses = layer(broken, target)
    rest = torch.ones(50, dtype=torch.bool)
    rest[[4, 40]] = False
    assert bool(losses[~rest].isnan().all())
    torch.testing.assert_close(losses[rest], whole[rest], rtol=1e-12, atol=1e-12)
    (grad,) = torch.autograd.grad(losses.sum(), broken)
    assert bool(grad[rest].isfinite().all())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
def test_a_class_without_a_score_breaks_all_rows(mapping: SparseMapping, bad: float) -> None:
    """In whichever range of classes it is: the classes before it are ordinary candidates."""
    hidden, target = rows_of(50), torch.randint(5, (50,))
    for place in (5, 70, 199):
        layer = layer_of(mapping, reduction="none")
        with torch.no_grad():
            layer.bias[place] = bad
        assert bool(dense(layer, hidden, target).isnan().all())
        assert bool(layer(hidden, target).isnan().all())
        assert bool(layer.probabilities(hidden)[1].isnan().any(1).all())


@pytest.mark.parametrize("mapping", [Sparsemax(), Entmax(1.5), Softmax()], ids=repr)
def test_rows_without_an_allowed_class(mapping: SparseMapping) -> None:
    layer = layer_of(mapping)
    with torch.no_grad():
        layer.bias.fill_(-torch.inf)
    classes, weights = layer.probabilities(rows_of(50))
    assert bool((classes == -1).all()) and bool((weights == 0).all())


@pytest.mark.parametrize("mapping", [Sparsemax(), Entmax(1.5), Softmax()], ids=repr)
def test_forbidden_classes(mapping: SparseMapping) -> None:
    layer = layer_of(mapping, reduction="none")
    with torch.no_grad():
        layer.bias[[0, 7, 100]] = -torch.inf
    hidden, target = rows_of(50), torch.randint(8, 100, (50,))
    torch.testing.assert_close(layer(hidden, target), dense(layer, hidden, target), rtol=1e-10, atol=1e-10)
    assert bool((layer(hidden, torch.full((50,), 7)) == torch.inf).all())


def test_a_learnt_alpha_has_its_gradient() -> None:
    mapping = LearnableEntmax(start=1.6).double()
    for layer in (layer_of(mapping), layer_of(mapping, label_smoothing=0.1)):
        check(layer, rows_of(50), torch.randint(200, (50,)))
    mapping.weight.data.fill_(-9.0)  # alpha 1.0001
    check(layer, rows_of(50), torch.randint(200, (50,)))


@pytest.mark.parametrize("mapping", [Entmax(1.5), TopKSparsemax(3), Softmax()], ids=repr)
def test_second_derivatives(mapping: SparseMapping) -> None:
    layer, hidden, target = layer_of(mapping, 20, reduction="none"), rows_of(4, 0.5), torch.randint(20, (4,))

    def loss(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear_losses.linear_losses(hidden, weight, bias, target, layer.criterion).losses

    inputs = [hidden.detach().requires_grad_(), *(x.detach().requires_grad_() for x in (layer.weight, layer.bias))]
    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs, atol=1e-10, rtol=1e-5, fast_mode=True)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # that torch reads itself after a graph break
def test_transforms_and_compiled_graphs() -> None:
    layer, hidden, target = layer_of(Sparsemax()), rows_of(50), torch.randint(200, (50,))
    expected = dense(layer, hidden, target)
    (slope,) = torch.autograd.grad(expected, hidden)
    torch.testing.assert_close(torch.func.grad(lambda h: layer(h, target))(hidden.detach()), slope)
    compiled = torch.compile(lambda h: 2 * layer(h.tanh(), target), backend="aot_eager")
    torch.testing.assert_close(compiled(hidden), 2 * dense(layer, hidden.tanh(), target))
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager")(hidden, target), expected)


class Largest(TorchDispatchMode):
    """The largest number of elements of any new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.most = max(self.most, tensor.numel())
        return out


@pytest.mark.parametrize("mapping", [Sparsemax(), Entmax(1.25, gamma=4.0), Softmax()], ids=repr)
def test_no_tensor_has_the_size_of_all_scores(mapping: SparseMapping, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden, target = layer_of(mapping, 2000), rows_of(400), torch.randint(2000, (400,))
    monkeypatch.setattr(linear_losses, "can_read_values", lambda: True)  # a mode records operations
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with Largest() as largest:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = layer(hidden, target)
        loss.backward()
    assert largest.most <= 400 * 2000 // 8
    assert sum(saved.values()) <= 400 * 2000 // 4


def test_meta_tensors_and_forward_mode() -> None:
    layer, hidden, target = layer_of(Sparsemax(), reduction="none"), rows_of(50).detach(), torch.randint(200, (50,))
    tangent = torch.randn_like(hidden)
    ours, theirs = (
        torch.func.jvp(lambda h, f=f: f(h, target), (hidden,), (tangent,)) for f in (layer, lambda h, t: dense(layer, h, t))
    )
    torch.testing.assert_close(ours, theirs)
    assert layer.to("meta")(hidden.to("meta"), target.to("meta")).shape == (50,)


def test_autocast_and_half_precision() -> None:
    layer, target = layer_of(Sparsemax(), dtype=torch.float32), torch.randint(200, (50,))
    hidden = rows_of(50, dtype=torch.float32)
    expected = layer(hidden, target)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(hidden, target), expected)
    half = layer_of(Sparsemax(), dtype=torch.bfloat16)
    loss = half(rows_of(50, dtype=torch.bfloat16), target)
    assert loss.dtype == torch.float32
    loss.backward()
    assert half.weight.grad.dtype == torch.bfloat16


def test_tied_weights_and_state_dict() -> None:
    embedding, layer = nn.Embedding(200, 8), LinearFenchelYoungLoss(Entmax(1.5), 8, 200)
    assert set(layer.state_dict()) == {"weight", "bias"}
    other = LinearFenchelYoungLoss(Sparsemax(), 8, 200)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, layer.weight)
    layer.weight = embedding.weight
    words = torch.randint(200, (50,))
    layer(embedding(words), words).backward()
    ours = embedding.weight.grad
    embedding.weight.grad = None
    dense(layer, embedding(words), words).backward()
    torch.testing.assert_close(ours, embedding.weight.grad)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
def test_probabilities_predictions_and_samples(mapping: SparseMapping, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = layer_of(mapping, 60), rows_of(50)
    scores = nnf.linear(hidden, layer.weight, layer.bias).detach()
    expected = mapping(scores)
    classes, weights = layer.probabilities(hidden)
    whole = torch.zeros(50, 61, dtype=torch.float64).scatter(1, torch.where(classes < 0, 60, classes), weights)[:, :60]
    torch.testing.assert_close(whole, expected, rtol=1e-10, atol=1e-10)
    assert bool(((classes >= 0) == (weights > 0)).all())
    assert torch.equal(layer.predict(hidden), scores.argmax(1))
    generator = torch.Generator().manual_seed(0)
    drawn = layer.sample(hidden, generator)
    assert bool((expected.gather(1, drawn.unsqueeze(1)) > 0).all())
    monkeypatch.setattr(linear_support, "ROWS", 2048)  # large parts, since many small ones take seconds
    for name, value in {"ROWS": 2048, "SCORES": 2**20, "ALL_SCORES": 2**20}.items():
        monkeypatch.setattr(linear_scores, name, value)
    drawn = layer.sample(hidden.repeat(400, 1), generator).view(400, 50)
    frequency = nnf.one_hot(drawn, 60).double().mean(0)
    assert float((frequency - expected).abs().max()) < 5 * 0.5 / 20  # five standard deviations


WORKING = (Sparsemax, TopKSparsemax, Softmax, Entmax, LearnableEntmax)


@pytest.mark.parametrize("kind", [k for k in concrete_subclasses(SparseMapping) if k not in WORKING])
def test_other_mappings_are_refused(kind: type[SparseMapping]) -> None:
    with pytest.raises(ConfigurationError, match=r"Expected (a mapping|Sparsemax, TopKSparsemax, Softmax, or Entmax)"):
        LinearFenchelYoungLoss(kind.examples()[0], 4, 5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LinearFenchelYoungLoss(Fusedmax(), 4, 5), "with one `alpha` in 1.25 .. 2 but got Fusedmax"),
        (lambda: LinearFenchelYoungLoss(Entmax(1.1), 4, 5), "in 1.25 .. 2 but got Entmax"),
        (lambda: LinearFenchelYoungLoss(Entmax(torch.full((4, 1), 1.5)), 4, 5), "one `alpha`"),
        (lambda: LinearFenchelYoungLoss(CappedSoftmax(0.5), 4, 5), "CappedSoftmax"),
        (lambda: LinearFenchelYoungLoss(Sparsemax(), 4, 0), "`classes`"),
        (lambda: LinearFenchelYoungLoss(Sparsemax(), 4, 5, label_smoothing=2), "label_smoothing"),
        (lambda: LinearFenchelYoungLoss(Sparsemax(), 4, 5, class_weight=torch.ones(4)), "`class_weight` with 5 weights"),
        (lambda: LinearFenchelYoungLoss(Sparsemax(), 4, 5)(torch.ones(2, 3), torch.ones(2).long()), r"\(N, 4\)"),
        (lambda: LinearFenchelYoungLoss(Sparsemax(), 4, 5)(torch.ones(2, 4), torch.ones(3).long()), r"shape \(2,\)"),
        (lambda: LinearFenchelYoungLoss(Sparsemax(), 4, 5)(torch.ones(2, 4), torch.full((2,), 5)), r"0 \.\. 4"),
        (lambda: LinearFenchelYoungLoss(Sparsemax(), 4, 5)(torch.ones(2, 4), torch.ones(2)), "integer type"),
        (lambda: LinearFenchelYoungLoss(Sparsemax(), 4, 5).predict(torch.ones(4)), r"\(N, 4\)"),
    ],
)
def test_bad_input(call: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call()


def test_no_rows() -> None:
    layer = LinearFenchelYoungLoss(Sparsemax(), 4, 5, reduction="sum")
    assert float(layer(torch.ones(0, 4), torch.ones(0).long()).detach()) == 0.0
    ignored = layer(torch.ones(3, 4), torch.full((3,), -100))
    ignored.backward()
    assert float(ignored.detach()) == 0.0
    assert layer.predict(torch.ones(0, 4)).shape == layer.sample(torch.ones(0, 4)).shape == (0,)


def test_one_and_two_threads_agree() -> None:
    layer, hidden = layer_of(Sparsemax(), 3000, torch.float32), rows_of(300, dtype=torch.float32)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(layer.probabilities(hidden))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0][0], results[1][0])


def test_the_reference_of_the_loss() -> None:
    """The loss of the docstring, from the mapping's value alone."""
    layer, hidden, target = layer_of(Sparsemax(), reduction="none"), rows_of(20), torch.randint(200, (20,))
    scores = nnf.linear(hidden, layer.weight, layer.bias)
    expected = Sparsemax().value(scores) + 0.5 - scores.gather(1, target.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(layer(hidden, target), expected)
    assert isinstance(layer.criterion, FenchelYoungLoss)


@pytest.mark.parametrize("mapping", [Sparsemax(), Entmax(1.5)], ids=repr)
def test_the_reference_of_other_devices_finds_the_same_support(mapping: SparseMapping, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists on the CPU are made by compiled kernels, and elsewhere by operations of torch."""
    layer, hidden = layer_of(mapping), rows_of(50).detach()
    arguments = (hidden, layer.weight.detach(), layer.bias.detach(), mapping, 1.5 if isinstance(mapping, Entmax) else 2.0)
    expected = linear_support.find_support(*arguments)

    class Elsewhere(Tensor):
        """A tensor that is not on the CPU, as far as the kernels see."""

        is_cpu = False

    kernel = linear_support.list_candidates_of
    monkeypatch.setattr(
        linear_support, "list_candidates_of", lambda scores, *rest: kernel(scores.as_subclass(Elsewhere), *rest)
    )
    found = linear_support.find_support(*arguments)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.as_subclass(Tensor), theirs.as_subclass(Tensor))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.2, "ignore_index": 3}, {"class_weight": torch.linspace(0, 2, 200), "bias": False}]
)
def test_each_gpu_gives_what_the_cpu_gives(mapping: SparseMapping, options: dict[str, Any]) -> None:
    layer, hidden, target = layer_of(mapping, **options), torch.randn(70, 8).double(), torch.randint(200, (70,))
    expected = layer(hidden.requires_grad_(), target)
    theirs = torch.autograd.grad(expected, [hidden, *layer.parameters()])
    for index in range(torch.cuda.device_count()):
        there, given = copy.deepcopy(layer).to(f"cuda:{index}"), hidden.detach().to(f"cuda:{index}").requires_grad_()
        loss = there(given, target.to(given.device))
        torch.testing.assert_close(loss.cpu(), expected)
        ours = torch.autograd.grad(loss, [given, *there.parameters()])
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.cpu(), other)
        assert torch.equal(there.probabilities(given)[0].cpu(), layer.probabilities(hidden)[0])


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mapping", [Sparsemax(), Entmax(1.5), Softmax()], ids=repr)
def test_all_methods_take_the_same_hidden_vectors(mapping: SparseMapping, dtype: torch.dtype, autocast: bool) -> None:
    layer = layer_of(mapping, 300, torch.float32)
    hidden = torch.randn(40, 8).to(dtype)
    hidden[3] = torch.nan
    finite = torch.arange(40) != 3
    wide = torch.promote_types(dtype, torch.float32)
    scores = nnf.linear(hidden.to(wide), layer.weight.to(wide), layer.bias.to(wide)).detach()
    target = torch.randint(300, (40,))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        predicted, (classes, weights) = layer.predict(hidden), layer.probabilities(hidden)
        sampled = layer.sample(hidden[finite])
        layer.criterion.reduction = "none"
        losses = layer(hidden, target)
    assert torch.equal(predicted[finite], scores.argmax(1)[finite])
    assert torch.equal(classes.gather(1, weights.argmax(1, keepdim=True)).squeeze(1)[finite], predicted[finite])
    assert weights.dtype == losses.dtype == wide
    assert torch.isfinite(losses[finite]).all()
    assert losses[3].isnan()
    assert (classes[finite] == sampled.unsqueeze(1)).any(1).all()
    for method in (layer.predict, layer.sample, lambda given: layer(given, torch.empty(0, dtype=torch.long))):
        assert method(hidden[:0]).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool], ids=str)
def test_hidden_vectors_of_other_types_are_refused(dtype: torch.dtype) -> None:
    layer, hidden = layer_of(Sparsemax()), torch.ones(3, 8, dtype=dtype)
    for method in (layer.predict, layer.sample, layer.probabilities, lambda given: layer(given, torch.arange(3))):
        with pytest.raises(ConfigurationError, match="floating hidden vectors"):
            method(hidden)


@pytest.mark.parametrize("weight", [[1.0, -1.0], [1.0, torch.nan], [torch.inf, 1.0]])
def test_class_weights_are_finite_and_not_negative(weight: list[float]) -> None:
    with pytest.raises(ConfigurationError, match="finite and nonnegative"):
        LinearFenchelYoungLoss(Sparsemax(), 4, 2, class_weight=torch.tensor(weight))
