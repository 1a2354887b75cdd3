"""Objects keep the arguments that they were built with."""

from __future__ import annotations

import copy
import importlib
import inspect
import math
import pickle
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import pytest
import torch

from lit_sparse.callbacks import ClassSamplesPlot, TemperatureAnnealing
from lit_sparse.coresets import (
    GIGA,
    BlockVectors,
    Coreset,
    Examples,
    FunctionVectors,
    GaussianPosterior,
    LastLayerGradients,
    LogLikelihoodVectors,
    NormalLikelihood,
    Selection,
)
from lit_sparse.data import (
    DigitsDataModule,
    EpochLoader,
    ImageDataModule,
    Images,
    Points,
    RadialBases,
    Ragged,
    RegressionDataModule,
    VocabularyOptions,
)
from lit_sparse.data.regression.base import Table
from lit_sparse.errors import ConfigurationError, DataError, LitSparseError
from lit_sparse.estimators import LatentBatch, Marginalize, marginal_likelihood, with_gradient_of
from lit_sparse.export import export_onnx
from lit_sparse.ground.arguments import KeepsArguments, constructor_parameters
from lit_sparse.hf import SparseAttentionPooling, fenchel_young_loss_func, risk_loss_func
from lit_sparse.mappings import HoyerProjection, Sparsemax
from lit_sparse.mappings import functional as F
from lit_sparse.metrics import HoyerSparseness, hoyer_sparseness
from lit_sparse.models import BayesianRegression, SignalingGame
from lit_sparse.nn import MultiheadAttention, attention, length_mask, sparse_decode, sparse_encode
from lit_sparse.random import seeded_normal
from lit_sparse.risks import CVaR, safe_logsumexp
from lit_sparse.structures import BitVector, Sequence, Tree
from lit_sparse.text import Vocabulary
from lit_sparse.transport import log_plan_density, plan_penalty

SUBPACKAGES = ["callbacks", "coresets", "data", "estimators", "hf", "mappings", "metrics", "models", "nn", "risks", "transport"]


class Base(KeepsArguments):
    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed


class Child(Base):
    def __init__(self, a: int, b: str = "b", **options: Any) -> None:
        super().__init__(**options)
        self.kept = dict(self._arguments)
        a = -1  # noqa: F841  (the value that was given counts, not what the constructor makes of it)


class Grandchild(Child):
    def __init__(self) -> None:
        super().__init__(5, seed=2)


def test_defaults_and_options_stand_by_their_names() -> None:
    assert Child(1).kept == {"a": 1, "b": "b", "seed": 0}
    assert Child(1, "c", seed=4).kept == {"a": 1, "b": "c", "seed": 4}


def test_the_outermost_constructor_counts() -> None:
    assert Grandchild().kept == {}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_copies_have_the_arguments_of_the_original(copied: Any) -> None:
    made = copied(Child(1, seed=3))
    assert made._arguments == {"a": 1, "b": "b", "seed": 3}


def test_wrong_arguments_are_refused_by_the_constructor() -> None:
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument: 'a'"):
        Child()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'wrong'"):
        Base(wrong=1)  # type: ignore[call-arg]


class Image(KeepsArguments):
    def __init__(self, size: int, *, batch_size: int = 4, seed: int = 1) -> None: ...


class Shifted(Image):
    def __init__(self, shift: int = 0, *, seed: int = 2, **options: Any) -> None:
        super().__init__(seed=seed, **options)


def test_defaults_of_passed_options_are_arguments_too() -> None:
    assert Shifted(size=3)._arguments == {"shift": 0, "seed": 2, "batch_size": 4, "size": 3}
    assert list(constructor_parameters(Shifted)) == ["shift", "seed", "size", "batch_size"]


def test_a_constructor_that_takes_anything_keeps_its_options() -> None:
    class Anything:
        def __init__(self, **options: Any) -> None: ...

    assert "kwargs" in constructor_parameters(Anything)


def public_constructors() -> list[type]:
    """Return the public classes that can be built; dataclasses check their own fields."""
    modules = [importlib.import_module(f"lit_sparse.{name}") for name in SUBPACKAGES]
    made = dict.fromkeys(getattr(module, name) for module in modules for name in module.__all__)
    built = (cls for cls in made if isinstance(cls, type) and cls.__init__ is not object.__init__)  # type: ignore[misc]
    return [cls for cls in built if not inspect.isabstract(cls) and not is_dataclass(cls)]


@pytest.mark.parametrize("cls", public_constructors(), ids=lambda cls: cls.__name__)
def test_public_constructors_refuse_arguments_of_another_type(cls: type) -> None:
    for name, parameter in inspect.signature(cls).parameters.items():  # a base's are tested with the base
        anything = any(word in str(parameter.annotation) for word in ("Any", "VocabularyOptions"))  # a vocabulary may be any
        if parameter.kind is parameter.VAR_KEYWORD or anything:
            continue
        with pytest.raises(LitSparseError):
            cls(**{name: object()})


@pytest.mark.parametrize("value", ["false", None, 1.5, [True]])
def test_flags_are_not_read_as_truths(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="Expected argument `nonneg` to be True or False but got"):
        HoyerProjection(0.5, nonneg=value)


LABELS = torch.zeros(3, dtype=torch.int64)


class Bright(ImageDataModule):
    def load(self) -> Any:
        return {"train": Images(torch.full((3, 4), 255.0), LABELS)}


class Predicting(torch.nn.Linear):
    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        result: torch.Tensor = self(batch["pixels"])
        return result


def likely(
    loss_fn: Any = lambda latent: latent.values.sum(1), of: Any = (0, 0, 1), index: Any = (0, 1), **options: Any
) -> None:
    of, index = torch.as_tensor(of), torch.as_tensor(index)
    marginal_likelihood(loss_fn, LatentBatch(torch.eye(3), of), index, samples=4, **options)


def whitened(scale: float) -> None:
    class Rows(RegressionDataModule):
        def load(self) -> Any:
            return {"train": Table(scale * torch.rand(20, 2, dtype=torch.float64), torch.rand(20))}

    Rows(whiten=True).setup()


def test_seeds_of_numpy_and_torch_are_those_of_python() -> None:
    for seed in (np.int64(7), torch.tensor(7)):
        assert torch.equal(seeded_normal(seed, torch.arange(3)), seeded_normal(7, torch.arange(3)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: VocabularyOptions(lowercase="no"),  # type: ignore[arg-type]
        lambda: Tree(single_root="no"),  # type: ignore[arg-type]
        lambda: Sequence(length=3, tags=10**12),
        lambda: Selection(torch.tensor([0]), torch.ones(1), trace="x"),  # type: ignore[arg-type]
        lambda: Selection(torch.tensor([0]), torch.tensor([math.inf])),
        lambda: GaussianPosterior(torch.zeros(3), torch.eye(2)),
        lambda: GaussianPosterior(torch.zeros(2), torch.tensor([[1.0, 5.0], [0.0, 1.0]])),
        lambda: GaussianPosterior(torch.zeros(2), torch.full((2, 2), math.nan)),
        lambda: GaussianPosterior(torch.full((2,), math.nan), torch.eye(2)),
        lambda: BayesianRegression(NormalLikelihood(), in_features=2, prior_mean=math.nan),
        lambda: SignalingGame(Sparsemax(), Marginalize(), entropy_weight=math.nan),
        lambda: Images(torch.zeros(3, 4), torch.zeros(3)),
        lambda: Images(torch.zeros(3, 4).double(), LABELS),
        lambda: Images(torch.zeros(3, 2, 2), LABELS),
        lambda: Images(torch.zeros(3, 4), LABELS.int()),
        lambda: Images(torch.zeros(3, 4), LABELS[:, None]),
        lambda: Images(torch.zeros(3, 4), LABELS, groups=torch.zeros(5, dtype=torch.int64)),
        lambda: Images(torch.zeros(3, 4), LABELS, true_labels=LABELS[:2]),
        lambda: Bright().setup(),
        lambda: DigitsDataModule(val_size=2.5).setup(),
        lambda: DigitsDataModule(binarize=False, normalize=(0.5,)),  # type: ignore[arg-type]
        lambda: seeded_normal(0, torch.arange(3), (-1,)),
        lambda: seeded_normal(0, torch.arange(3), 4),  # type: ignore[arg-type]
        lambda: Vocabulary.build(["\ud800"], kind="bpe"),
        lambda: sparse_decode(torch.ones(2, 3), torch.ones(4, 5)),
        lambda: sparse_encode(torch.ones(2, 3), torch.ones(4, 5)),
        lambda: whitened(1e200),
        lambda: likely(rows_at_once=0),
        lambda: likely(index=torch.arange(1)),
        lambda: likely(index=torch.rand(2)),
        lambda: likely(posterior=torch.ones(6)),
        lambda: likely(posterior=torch.full((2, 3), math.nan)),
        lambda: likely(loss_fn=lambda latent: latent.values),
        lambda: likely(of=torch.tensor([1, 0, 1])),
        lambda: likely(of=torch.tensor([0, 1])),
        lambda: with_gradient_of(torch.ones(3), torch.ones(3, 1)),
        lambda: GaussianPosterior.isotropic(-1),
        lambda: GaussianPosterior.isotropic(2).sample(-1),
        lambda: LastLayerGradients(model=torch.nn.Linear(3, 2))(Examples.of(pixels=torch.rand(3, 3), label=LABELS)),
        lambda: LastLayerGradients(model=Predicting(3, 2))(Examples.of(pixels=torch.rand(3, 3), label=LABELS.float())),
        lambda: LogLikelihoodVectors(NormalLikelihood())(Examples.of(features=torch.rand(3), target=torch.rand(3))),
        lambda: LogLikelihoodVectors(NormalLikelihood())(Examples.of(features=torch.rand(3, 2), target=torch.rand(3, 1))),
        lambda: Ragged(torch.tensor([1, 2, 3]), torch.tensor([1, 1])),
        lambda: Ragged(torch.tensor([1, 2, 3]), torch.tensor([-1, 4])),
        lambda: RadialBases(scales=()),
        lambda: DigitsDataModule(labelled=math.inf),
        lambda: DigitsDataModule(val_size=math.nan).setup(),
        lambda: DigitsDataModule(seed=2**62),
        lambda: seeded_normal("seed", torch.arange(3)),  # type: ignore[arg-type]
        lambda: seeded_normal(0, torch.tensor([0.5])),
        lambda: attention(*torch.randn(3, 2, 4), Sparsemax(), is_causal="no"),  # type: ignore[call-overload]
        lambda: attention(*torch.randn(3, 2, 4), Sparsemax(), need_weights="no"),  # type: ignore[call-overload]
        lambda: MultiheadAttention(4, 2)(*torch.randn(3, 2, 4), need_weights="no"),  # type: ignore[arg-type]
        lambda: Marginalize(Sparsemax())([[1.0]], lambda latent: latent.values.sum(-1)),  # type: ignore[arg-type]
        lambda: Marginalize(Sparsemax())(torch.zeros(2, 3), None),  # type: ignore[arg-type]
        lambda: Marginalize(Sparsemax())(torch.zeros(2, 0), lambda latent: latent.values.sum(-1)),
        lambda: EpochLoader(lambda epoch: [], lambda epoch, indices: {}, num_workers=-1),
        lambda: ClassSamplesPlot(columns=0),
        lambda: SparseAttentionPooling(4)(torch.ones(2, 3, 4, dtype=torch.int64)),
        lambda: hoyer_sparseness(torch.ones(2, 3), (0, -2)),
        lambda: Points.of([[1.0], [1.0, 2.0]]),
        lambda: Coreset(torch.tensor([0]), torch.ones(1), True, size=2),
        lambda: GIGA()(torch.randn(9, 3), 2, state="x"),  # type: ignore[arg-type]
        lambda: export_onnx(Sparsemax(), torch.zeros(2, 3), "x.onnx"),  # type: ignore[arg-type]
        lambda: plan_penalty(torch.ones(2), -1.0, 0.1, "safe"),
        lambda: plan_penalty(None, 1.0, 0.1, "safe"),  # type: ignore[arg-type]
        lambda: log_plan_density("x", 0.1, "safe"),  # type: ignore[arg-type]
        lambda: sparse_encode(None, torch.ones(4, 5)),  # type: ignore[arg-type]
        lambda: sparse_decode(torch.ones(2, 3), None),  # type: ignore[arg-type]
        lambda: length_mask(torch.tensor([1]), None),  # type: ignore[arg-type]
        lambda: fenchel_young_loss_func(Sparsemax(), shift="no"),  # type: ignore[arg-type]
        lambda: risk_loss_func(CVaR(0.5), shift=1.5),  # type: ignore[arg-type]
        lambda: risk_loss_func(CVaR(0.5), 3),  # type: ignore[arg-type]
        lambda: safe_logsumexp(torch.ones(2), 0.1, weights=torch.ones(2, device="meta")),
        lambda: seeded_normal(np.array([0, 1]), torch.arange(3)),  # type: ignore[arg-type]
        lambda: F.sparsemax(torch.ones(2), dim=torch.ones(1, device="meta")),  # type: ignore[arg-type]
        lambda: F.sparsemap(torch.ones(2), BitVector(), potentials=[10**400]),
        lambda: DigitsDataModule(val_size=10**400).setup(),
        lambda: Coreset(torch.tensor([0]), torch.ones(1), 10**400, size=2),
        lambda: TemperatureAnnealing(rate=10**400),
        lambda: HoyerSparseness(dim=10**400),
        lambda: BitVector(d=2**63),
        lambda: length_mask(torch.tensor([1]), 10**400),
        lambda: BlockVectors(lambda rows: torch.ones(len(rows), 2), 3, device="x"),
        lambda: attention(*torch.randn(3, 2, 4), Sparsemax(), bias=torch.ones(2, device="meta")),
        lambda: attention(*torch.randn(3, 2, 4), Sparsemax(), torch.ones(2, device="meta").bool()),
    ],
)
def test_records_and_functions_check_what_they_get(make: Any) -> None:
    with pytest.raises(LitSparseError):
        make()


@pytest.mark.parametrize("output", [torch.zeros(2, 3), torch.zeros(9), torch.zeros(9, 3, dtype=torch.int64), None])
def test_a_projection_makes_a_vector_for_each_example(output: Any) -> None:
    """Rows that a function leaves out would be memory that nobody wrote."""
    examples, projection = Examples(lambda indices: indices, 9), FunctionVectors(lambda batch: output)
    with pytest.raises(DataError):
        projection(examples)
    with pytest.raises(DataError):
        projection.streamed(examples)
