"""What modules are called with: a wrong tensor gets an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_sparse.coresets import LogisticLikelihood
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Marginalize
from lit_sparse.hf import SparseAttentionPooling
from lit_sparse.mappings import Sparsemax
from lit_sparse.models import (
    BayesianRegression,
    RobustRegressor,
    SignalingGame,
    SparseAutoencoder,
    SupervisedOnlineAutoencoder,
)
from lit_sparse.nn import (
    MLP,
    ConvNet,
    EntailmentNetwork,
    NoiseBases,
    Receiver,
    RecurrentBody,
    Sender,
    SharedCategorical,
    TransformerBody,
    WordVectors,
)

LENGTHS = torch.tensor([3, 2])
ACTIVATIONS = SparseAutoencoder(Sparsemax(), in_features=4, width=6)
ONLINE = SupervisedOnlineAutoencoder(Sparsemax(), in_features=4, width=6, classes=2, initial_bases=NoiseBases())
CALLS: dict[str, tuple[Callable[[], Any], tuple[Tensor, ...]]] = {
    "mlp": (lambda: MLP([4, 2]), (torch.rand(2, 4),)),
    "convolutions": (lambda: ConvNet(8, 8, channels=[2]), (torch.rand(2, 64),)),
    "sender": (lambda: Sender(4, 5), (torch.rand(2, 4),)),
    "receiver": (lambda: Receiver(4, 5), (torch.rand(2, 3, 4), torch.eye(5)[:2], torch.tensor([0, 1]))),
    "words": (lambda: WordVectors(5, 3, 0), (torch.tensor([[1, 4]]),)),
    "entailment": (
        lambda: EntailmentNetwork(Sparsemax(), 4, 2),
        (torch.rand(2, 3, 4), LENGTHS, torch.rand(2, 3, 4), LENGTHS),
    ),
    "recurrent": (lambda: RecurrentBody(4, 1).encode, (torch.rand(2, 3, 4), LENGTHS)),
    "transformer": (lambda: TransformerBody(4, 1, heads=1, feedforward=4).encode, (torch.rand(2, 3, 4), LENGTHS)),
    "categorical": (lambda: SharedCategorical(4, 2), (torch.rand(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64))),
    "pooling": (lambda: SparseAttentionPooling(4), (torch.rand(2, 3, 4),)),
    "activations": (lambda: ACTIVATIONS, (torch.rand(2, 4),)),
    "activity": (lambda: ACTIVATIONS.decode, (torch.rand(2, 6),)),
    "first activations": (lambda: ACTIVATIONS.start_from, (torch.rand(9, 4),)),
    "online": (lambda: ONLINE, (torch.rand(2, 4),)),
    "first images": (lambda: ONLINE.start_from, (torch.rand(9, 4),)),
    "bayes": (lambda: BayesianRegression(LogisticLikelihood(), in_features=4), (torch.rand(2, 4),)),
    "regression": (lambda: RobustRegressor(in_features=4), (torch.rand(2, 4),)),
    "game": (lambda: SignalingGame(Sparsemax(), Marginalize(), in_features=4, vocabulary=5), (torch.rand(2, 4),)),
}
WRONG: dict[str, Callable[[Tensor], Any]] = {
    "width": lambda x: torch.cat([x, x[..., :1]], -1),
    "dtype": lambda x: x.long() if x.is_floating_point() else x.float(),
    "complex": lambda x: x.to(torch.complex64),
    "scalar": lambda x: x.flatten()[0],
    "list": lambda x: x.tolist(),
    "range": lambda x: x - 9,
}
#: What messages call each argument.
NAMES = {
    "mlp": ["inputs"],
    "convolutions": ["images"],
    "sender": ["images"],
    "receiver": ["candidates", "messages", "rows"],
    "words": ["ids"],
    "entailment": ["premises", "lengths", "hypotheses", "lengths"],
    "recurrent": ["embedded sentences", "lengths"],
    "transformer": ["embedded sentences", "lengths"],
    "categorical": ["features", "values"],
    "pooling": ["tokens"],
    "activations": ["features"],
    "activity": ["activity"],
    "first activations": ["examples"],
    "online": ["images"],
    "first images": ["images|examples"],
    "bayes": ["in_features=4|features"],
    "regression": ["in_features=4|features"],
    "game": ["images"],
}
#: Calls that are right: ids of any shape.
RIGHT = {("words", "width", 0), ("words", "scalar", 0)}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_input_is_named(name: str, wrong: str) -> None:
    make, arguments = CALLS[name]
    call = make()
    call(*arguments)
    for place, given in enumerate(arguments):
        if (name, wrong, place) in RIGHT or (wrong == "range" and given.is_floating_point()):
            continue
        with pytest.raises(ConfigurationError, match=f"Expected .*{NAMES[name][place]}"):
            call(*arguments[:place], WRONG[wrong](given), *arguments[place + 1 :])


def test_a_receiver_takes_candidates_of_each_game() -> None:
    with pytest.raises(ConfigurationError, match=r"candidates \(B, N, 4\) but got shape \(2, 4\)"):
        Receiver(4, 5)(torch.rand(2, 4), torch.eye(5)[:2], torch.tensor([0, 1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_takes_other_dtypes(dtype: torch.dtype) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert MLP([4, 2])(torch.rand(2, 4, dtype=dtype)).dtype == torch.bfloat16


class Packed(torch.nn.Linear):
    """A layer that stores its weight in bytes, as quantized ones do."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.weight = torch.nn.Parameter(torch.ones(2, 4, dtype=torch.uint8), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (torch's name)
        return torch.nn.functional.linear(input, self.weight.to(input.dtype))


@pytest.mark.parametrize("layer", [Packed(), torch.nn.Identity()])
def test_quantized_weights_take_floating_inputs(layer: torch.nn.Module) -> None:
    network = MLP([4, 2])
    network[0] = layer
    x = torch.rand(3, 4)
    assert torch.equal(network(x), layer(x))


def test_a_network_without_parameters_takes_floating_inputs() -> None:
    network = MLP([4, 2])
    network[0] = torch.nn.Identity()
    assert torch.equal(network(torch.ones(3, 4)), torch.ones(3, 4))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_quantized_inputs_pass_to_quantized_layers() -> None:
    network = MLP([4, 2])
    network[0] = torch.nn.Identity()
    x = torch.quantize_per_tensor(torch.rand(3, 4), 0.1, 0, torch.quint8)
    assert network(x) is x


def test_activations_in_half_precision_are_promoted() -> None:
    x = torch.rand(3, 4)
    assert torch.equal(ACTIVATIONS.encode(x.bfloat16()), ACTIVATIONS.encode(x.bfloat16().float()))


def test_a_network_of_the_user_takes_integers() -> None:
    model = RobustRegressor(
        in_features=4, network=torch.nn.Sequential(torch.nn.Embedding(5, 1), torch.nn.Flatten(), torch.nn.Linear(4, 1))
    )
    assert model(torch.tensor([[0, 1, 2, 4]])).shape == (1,)
