"""Every public operation on tensors, with inputs, and every way to run one.

Parts of an interchangeable kind are found by their base class. The other names of the public modules are either in
:data:`OTHERS`, or in :data:`NONE`, which names what is not an operation of this package.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import multiprocessing
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Estimator, with_gradient_of
from lit_sparse.export import export_onnx
from lit_sparse.kernels import center_on_support, project_simplex
from lit_sparse.mappings import Entmax, FenchelYoungLoss, LPSparseMAP, Softmax, SparseMapping, Sparsemax
from lit_sparse.mappings import functional as F
from lit_sparse.metrics import group_counts, hoyer_sparseness, support_sizes, tied_groups
from lit_sparse.nn import LinearFenchelYoungLoss, MultiheadAttention, SharedCategorical, attention, sparse_decode, sparse_encode
from lit_sparse.random import example_keys, seeded_normal, seeded_uniform
from lit_sparse.risks import Risk, safe_logsumexp
from lit_sparse.structures import Budget, Structure
from lit_sparse.testing import concrete_subclasses
from lit_sparse.transport import KernelPotentials, MLPPotentials, log_plan_density, plan_penalty, squared_distances

__all__ = ["REFUSED", "WAYS", "Operation", "operations", "outcome", "unlisted"]

ROWS = 4


class Operation(NamedTuple):
    """A function of a part and of tensors.

    Attributes:
        name: name in the table.
        call: function of ``part`` and the inputs that returns tensors.
        shapes: shape of each input; an integer stands for labels (ROWS,) below it.
        part: the module or structure, if there is one.
        first: whether this is the first example of its class.
    """

    name: str
    call: Callable[..., Any]
    shapes: tuple[Any, ...]
    part: Any = None
    first: bool = True

    def inputs(self, seed: int) -> tuple[Tensor, ...]:
        """Return tensors, others for each seed."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(
            torch.randint(shape, (ROWS,), generator=generator)
            if isinstance(shape, int)
            else torch.randn(shape, generator=generator)
            for shape in self.shapes
        )

    def program(self) -> Program:
        """Return the operation as a module."""
        torch.manual_seed(0)
        return Program(self).eval()


class Program(nn.Module):
    """An operation as a module, which returns a list of tensors."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self.part, self.call = operation.part, operation.call

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        found = self.call(self.part, *inputs)
        found = [found] if isinstance(found, Tensor) else found
        return [x.to_dense() if x.is_sparse else x for x in found if isinstance(x, Tensor)]


def _of_mapping(part: SparseMapping, x: Tensor) -> Any:
    return (part(x), part.value(x)) if part.has_value else part(x)


def _losses(latent: Any) -> Tensor:
    losses: Tensor = latent.values.square().cumsum(-1).sin().sum(-1)
    return losses


def _of_estimator(part: Estimator, x: Tensor) -> Any:
    return part(x, _losses, context=x[:, :3]).loss


def _of_structure(part: Structure, x: Tensor) -> Any:
    return part.maximize(part.expand_scores(x))


def _of_risk(part: Risk, losses: Tensor) -> Any:
    return part(losses.square(), None, torch.arange(len(losses)) % 2)


def _settled(risk: Risk) -> Risk:
    with torch.no_grad():
        risk.train()(torch.rand(ROWS, generator=torch.Generator().manual_seed(0)), None, torch.arange(ROWS) % 2)
    return risk


def _size_of(structure: Structure) -> int:
    for d in (*range(6, 13), *range(5, 0, -1)):
        with contextlib.suppress(ValueError):
            structure.check(d)
            return d
    raise AssertionError(f"no size for {structure!r}")


def _bound(estimator: Estimator) -> Estimator:
    return estimator if estimator.latent == "bits" else estimator.bind(Sparsemax())


def _attention(method: str, **options: Any) -> Callable[..., Any]:
    return lambda _, q, k, v: attention(q, k, v, Entmax(1.5), method=method, need_weights=False, **options)[0]


SCORES = ((ROWS, 6),)
QKV = ((ROWS, 2, 5, 4), (ROWS, 2, 7, 4), (ROWS, 2, 7, 3))
POINTS = ((ROWS, 2), (ROWS, 2))
PLAN = (*[(ROWS,)] * 2, *POINTS)


def one(call: Callable[..., Any], shapes: tuple[Any, ...] = SCORES, part: Any = None) -> list[Operation]:
    """Return a single operation, whose name is the one of its public name."""
    return [Operation("", call, shapes, part)]


def _negative_entropy(y: Tensor) -> Tensor:
    return (y * y.log()).sum(-1)


#: Operations that no base class finds, by the public name that they belong to.
OTHERS: dict[str, list[Operation]] = {
    "mappings.FenchelYoungLoss": [
        Operation("", lambda part, x, y: part(x, y), (*SCORES, 6), FenchelYoungLoss(Sparsemax(), reduction="none")),
        Operation(
            "weights",
            lambda part, x, y: part(x, y),
            (*SCORES, 6),
            FenchelYoungLoss(Entmax(1.5), weight=torch.arange(1.0, 7), label_smoothing=0.1),
            first=False,
        ),
    ],
    "mappings.functional.budget_sparsemax": one(lambda _, x: F.budget_sparsemax(x, 1.5)),
    "mappings.functional.capped_softmax": one(lambda _, x: F.capped_softmax(x, 0.4)),
    "mappings.functional.entmax": one(lambda _, x: F.entmax(x, 1.3)),
    "mappings.functional.fusedmax": one(lambda _, x: F.fusedmax(x, 0.2)),
    "mappings.functional.hard_threshold": one(lambda _, x: F.hard_threshold(x, 2)),
    "mappings.functional.hoyer_projection": one(lambda _, x: F.hoyer_projection(x, 0.6)),
    "mappings.functional.lp_sparsemap": one(
        lambda part, x: F.lp_sparsemap(x, part).marginals, part=LPSparseMAP.examples()[0].graph
    ),
    "mappings.functional.norm_max": one(lambda _, x: F.norm_max(x, 2.5)),
    "mappings.functional.oscarmax": one(lambda _, x: F.oscarmax(x, 0.2)),
    "mappings.functional.regularized_argmax": one(lambda _, x: F.regularized_argmax(x, _negative_entropy)),
    "mappings.functional.soft_rank": one(lambda _, x: F.soft_rank(x, 0.5)),
    "mappings.functional.soft_sort": one(lambda _, x: F.soft_sort(x, 0.5)),
    "mappings.functional.softmax": one(lambda _, x: F.softmax(x, gamma=0.5)),
    "mappings.functional.sparsemap": one(lambda part, x: F.sparsemap(x, part).marginals, part=Budget(None, 2)),
    "mappings.functional.sparsemax": one(lambda _, x: F.sparsemax(x, gamma=0.5)),
    "mappings.functional.sq_pnorm_max": one(lambda _, x: F.sq_pnorm_max(x, 1.5)),
    "mappings.functional.batch_topk": one(lambda _, x: F.batch_topk(x, 2)),
    "mappings.functional.jump_relu": one(lambda _, x: F.jump_relu(x, torch.tensor(0.1))),
    "mappings.functional.topk_entmax": one(lambda _, x: F.topk_entmax(x, 3)),
    "mappings.functional.topk_sparsemax": one(lambda _, x: F.topk_sparsemax(x, 3)),
    "risks.safe_logsumexp": [
        *one(lambda _, x: safe_logsumexp(x, 0.1)),
        Operation("weights", lambda _, x, w: safe_logsumexp(x, 0.1, weights=w.abs() + 0.1), SCORES * 2, first=False),
    ],
    "nn.attention": [
        Operation("dense", _attention("dense"), QKV),
        Operation("sparse", _attention("sparse"), QKV),
        Operation("sparse, weights", lambda _, *qkv: attention(*qkv, Sparsemax(), method="sparse"), QKV, first=False),
    ],
    "nn.MultiheadAttention": [
        Operation(
            method,
            lambda part, x: part(x, x, x, need_weights=False)[0],
            ((ROWS, 5, 8),),
            MultiheadAttention(8, 2, batch_first=True, mapping=Entmax(1.5), method=method),  # type: ignore[arg-type]
            first=method == "sparse",
        )
        for method in ("dense", "sparse")
    ],
    "nn.LinearFenchelYoungLoss": [
        Operation("forward", lambda part, h, y: part(h, y), ((ROWS, 3), 9), LinearFenchelYoungLoss(Sparsemax(), 3, 9)),
        Operation(
            "probabilities", lambda part, h: part.probabilities(h), ((ROWS, 3),), LinearFenchelYoungLoss(Sparsemax(), 3, 9)
        ),
        Operation(
            "predict", lambda part, h: part.predict(h), ((ROWS, 3),), LinearFenchelYoungLoss(Entmax(1.5), 3, 9), first=False
        ),
        Operation("sample", lambda part, h: part.sample(h), ((ROWS, 3),), LinearFenchelYoungLoss(Softmax(), 3, 9), first=False),
    ],
    "nn.SharedCategorical": one(
        lambda part, h, y: part(h, y.unsqueeze(1).expand(-1, 2)), ((ROWS, 2, 3), 7), SharedCategorical(3, 7)
    ),
    "nn.sparse_encode": one(lambda _, x, w: sparse_encode(x, w), ((ROWS, 3), (5, 3))),
    "nn.sparse_decode": one(lambda _, h, w: sparse_decode(F.hard_threshold(h, 2), w), ((ROWS, 5), (5, 3))),
    "kernels.project_simplex": one(lambda _, x: project_simplex(x, 1.0, 0)),
    "kernels.center_on_support": one(lambda _, v, x: center_on_support(v, x.relu(), 1.0), SCORES * 2),
    "random.example_keys": one(lambda _, index: example_keys(3, index, 1), (1000,)),
    "random.seeded_normal": one(lambda _, index: seeded_normal(3, index, (2, 5)), (1000,)),
    "random.seeded_uniform": one(lambda _, index: seeded_uniform(3, index, (5,)), (1000,)),
    "transport.squared_distances": one(lambda _, x, y: squared_distances(x, y), POINTS),
    "transport.plan_penalty": one(lambda _, s: plan_penalty(s, 0.5, 0.1, "safe")),
    "transport.log_plan_density": one(lambda _, s: log_plan_density(s, 0.1, "safe")),
    "transport.MLPPotentials": one(lambda part, x: part.source_potential(x), POINTS[:1], MLPPotentials().build(2)),
    "transport.KernelPotentials": one(
        lambda part, x: part.source_potential(x), POINTS[:1], KernelPotentials(capacity=5).build(2)
    ),
    "metrics.hoyer_sparseness": one(lambda _, x: hoyer_sparseness(x)),
    "metrics.support_sizes": one(lambda _, x: support_sizes(x.relu())),
    "metrics.group_counts": one(lambda _, x: group_counts(x.relu())),
    "metrics.tied_groups": one(lambda _, x: tied_groups(x.relu())),
    "estimators.with_gradient_of": one(lambda _, x, y: with_gradient_of(x, y), SCORES * 2),
}
#: Public names that are no operations on tensors, in groups.
NONE = {
    # bases, and what operations return or take
    "mappings": {"SparseMapping", "SparseMAPOutput", "LPSparseMAPOutput"},
    "mappings.functional": set(),
    "structures": {"Structure", "Factor", "FactorGraph", "Or", "OrOut", "Xor"},
    "estimators": {
        "Estimator",
        "Expectation",
        "LatentBatch",
        "LatentDistribution",
        "MarginalLikelihood",
        "RunningMean",
        "Sampler",
        "marginal_likelihood",
    },
    "risks": {"Risk", "DualRisk", "BrokenLossError"},
    # networks of these operations and torch's, and what searches with them in Python
    "nn": {
        *("ClassPredictor", "ConvNet", "EncoderDecoder", "EntailmentNetwork", "EntailmentPredictor", "Hypothesis", "MLP"),
        *("InitialBases", "NoiseBases", "SampleBases", "SparseCodingBases", "Receiver", "RecurrentBody", "Sender", "State"),
        *("Seq2SeqPredictor", "SourceEncoder", "TransformerBody", "WordVectors", "beam_search", "length_mask"),
    },
    "kernels": {"RowKernel", "compile_rows", "over_rows", "plain_top", "write_invalid"},
    "random": {"seed_generator"},
    # measures, and numbers about plans, which are computed once
    "transport": {
        *("GaussianMixture", "Measure", "Potentials", "TransportObjective", "dual_value", "grid_measure"),
        *("semi_dual_value", "semi_discrete_potentials", "sinkhorn_potentials"),
    },
    # statistics of a stage, and of texts and messages, which are computed once
    "metrics": {
        *(
            "BitsPerDim",
            "Bleu",
            "ChrF",
            "CountHistogram",
            "DeadFraction",
            "DecoderCalls",
            "ExplainedVariance",
            "GroupMeans",
            "HoyerSparseness",
            "LogMeanExp",
        ),
        *("MeanOverExamples", "MessageCounts", "MessageStructure", "PairedBootstrap", "Rouge", "SupportSize", "TextMetric"),
        *("bag_of_symbols_disentanglement", "paired_bootstrap", "positional_disentanglement", "topographic_similarity"),
    },
}

#: Kinds of parts, by their base class, with what makes an operation of one.
KINDS: dict[type, Callable[[Any], tuple[Any, Callable[..., Any], tuple[Any, ...]]]] = {
    SparseMapping: lambda part: (part, _of_mapping, SCORES),
    Structure: lambda part: (part, _of_structure, ((ROWS, _size_of(part)),)),
    Estimator: lambda part: (_bound(part), _of_estimator, SCORES),
    Risk: lambda part: (_settled(part), _of_risk, ((ROWS,),)),
}


def operations() -> Iterator[Operation]:
    """Return all operations."""
    for base, described in KINDS.items():
        for cls in concrete_subclasses(base):
            for number, example in enumerate(cls.examples()):
                part, call, shapes = described(example)
                yield Operation(f"{cls.__name__}{f' {number + 1}' if number else ''}", call, shapes, part, number == 0)
    for name, cases in OTHERS.items():
        for case in cases:
            yield case._replace(name=name.rpartition(".")[2] + (f", {case.name}" if case.name else ""))


def unlisted() -> list[str]:
    """Return the public names that are neither an operation nor known to be none, and listed names that do not exist."""
    wrong = []
    for module, none in NONE.items():
        public = importlib.import_module(f"lit_sparse.{module}").__all__
        listed = {name.rpartition(".")[2] for name in OTHERS if name.rpartition(".")[0] == module} | none
        for name in public:
            value = getattr(importlib.import_module(f"lit_sparse.{module}"), name)
            found = inspect.isclass(value) and issubclass(value, tuple(KINDS)) and not inspect.isabstract(value)
            if not found and name not in listed:
                wrong.append(f"{module}.{name}")
        wrong += [f"{module}.{name}" for name in listed - {*public}]
    return wrong


def _under(context: Callable[[], Any]) -> Callable[..., Any]:
    def way(program: Program, given: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> list[Tensor]:
        with context():
            return program(*other)

    return way


def _compiled(backend: str, context: Callable[[], Any] = contextlib.nullcontext) -> Callable[..., Any]:
    def way(program: Program, given: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> list[Tensor]:
        torch._dynamo.reset()
        compiled = torch.compile(program, backend=backend)
        with context():
            compiled(*given)
            torch.manual_seed(0)
            return compiled(*other)

    return way


def _exported(program: Program, given: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> list[Tensor]:
    exported = torch.export.export(program, given).module()
    torch.manual_seed(0)
    return exported(*other)


def _traced(program: Program, given: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> list[Tensor]:
    traced = torch.jit.trace(program, given, check_trace=False)
    torch.manual_seed(0)
    return traced(*other)


def _onnx(program: Program, given: tuple[Tensor, ...], other: tuple[Tensor, ...], *, dynamo: bool) -> list[Tensor]:
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "program.onnx"
        if dynamo:
            export_onnx(program, given, path)
        else:
            torch.onnx.export(program, given, path, dynamo=False)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        inputs = {place.name: x.numpy() for place, x in zip(session.get_inputs(), other, strict=True)}
        return [torch.from_numpy(x) for x in session.run(None, inputs)]


def _vmapped(program: Program, given: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> list[Tensor]:
    both = [torch.stack([a, b]) for a, b in zip(given, other, strict=True)]
    return [x[1] for x in torch.vmap(program, randomness="different")(*both)]


def _send(connection: Any, program: Program, other: tuple[Tensor, ...]) -> None:
    torch.set_num_threads(1)  # torch's own operations wait for threads that a forked process does not have
    connection.send([x.numpy() for x in program(*other)])


def _forked(program: Program, given: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> list[Tensor]:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    with torch.no_grad():
        child = context.Process(target=_send, args=(there, program, other))
        child.start()
    there.close()
    found = here.recv() if here.poll(60) else []
    child.join(10)
    child.kill()  # one that waits for a lock of another thread would be waited for at the end
    return [torch.from_numpy(x) for x in found]


def _threaded(program: Program, given: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> list[Tensor]:
    found: list[list[Tensor]] = []
    threads = [threading.Thread(target=lambda: found.append(program(*other))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)
    return max(found, key=lambda results: sum(float(x.detach().double().abs().sum()) for x in results))


#: Ways to run a program: functions of it, of inputs to trace with, and of other inputs, that return the results of the latter.
WAYS: dict[str, Callable[..., list[Tensor]]] = {
    "no_grad": _under(torch.no_grad),
    "inference_mode": _under(torch.inference_mode),
    "autocast": _under(lambda: torch.autocast("cpu", torch.bfloat16)),
    "threads": _threaded,
    "fork": _forked,
    "vmap": _vmapped,
    "jit.trace": _traced,
    "export": _exported,
    "compile": _compiled("aot_eager"),  # all of torch's own tracing, and nothing after it
    "compile, inference_mode": _compiled("eager", torch.inference_mode),
    "ONNX": lambda *args: _onnx(*args, dynamo=True),
    "ONNX, dynamo=False": lambda *args: _onnx(*args, dynamo=False),
}


#: Solved on the values of the scores, by compiled code that no operator holds.
SOLVED = {
    *("FromSolver", "Knapsack", "ShortestPath", "SpanningTree", "TopK"),
    *("LPSparseMAP", "RegularizedArgmax", "Assignment", "Tree", "SparseMAPMarginalize", "TopKMarginalize", "KernelPotentials"),
    *("lp_sparsemap", "regularized_argmax", "sparsemap", "LinearFenchelYoungLoss, probabilities"),
}
#: What is refused in the ways that need no compiler, always by an error of this package; all else has its eager results.
REFUSED: dict[str, set[str]] = {
    **{way: set() for way in ("no_grad", "inference_mode", "autocast", "threads", "fork")},
    "jit.trace": {*SOLVED, "batch_topk"},
    "vmap": {
        *SOLVED,
        *("GumbelSoftmax", "LeaveOneOut", "Marginalize", "ScoreFunction", "SumAndSample"),
        *("attention, sparse", "MultiheadAttention, sparse", "sparse_encode", "sparse_decode"),
    },
}


def outcome(operation: Operation, way: str) -> bool:
    """Run an operation in a way; return whether it gives the eager results, and False for an error of this package.

    Raises:
        AssertionError: for other results.
        Exception: for other errors.
    """
    program, given, other = operation.program(), operation.inputs(1), operation.inputs(2)
    tolerance = 3e-2 if way == "autocast" else 1e-5
    torch.manual_seed(0)
    expected = [x.detach() for x in program(*other)]
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about traces and old exporters
            found = [x.detach() for x in WAYS[way](program, given, other)]
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ConfigurationError):
                return False
            cause = cause.__cause__ or cause.__context__
        raise
    wide = [x.to(wanted.dtype) for x, wanted in zip(found, expected, strict=True)]
    torch.testing.assert_close(wide, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    return True
