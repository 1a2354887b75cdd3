"""How the bases of a layer, its rows of weights, are before training: noise, examples, or a sparse code of examples."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_sparse.checks import MOST_FEATURES, POSITIVE, Count, Number, check_count, ranges
from lit_sparse.errors import ConfigurationError, DataError, full_name
from lit_sparse.mappings.functional import hoyer_projection
from lit_sparse.nn.inputs import check_floating, check_input

__all__ = ["InitialBases", "NoiseBases", "SampleBases", "SparseCodingBases"]


class InitialBases(nn.Module, ABC):
    """Base class of initializations of a layer's bases, its rows of weights; a subclass implements :meth:`forward`."""

    def examples(self, width: int) -> int:
        """Return the number of training examples needed to initialize ``width`` bases."""
        return 0

    @abstractmethod
    def forward(self, examples: Tensor, width: int, generator: torch.Generator) -> Tensor:
        """Return initial bases (width, D), given training examples.

        Args:
            examples: (N, D) distinct training examples in random order, where N is the result of :meth:`examples`.
            width: number of bases.
            generator: random generator.

        Raises:
            ConfigurationError: unless the examples are floating (N, D), and the width is an integer of at least 1.
        """


@ranges(std=POSITIVE)
class NoiseBases(InitialBases):
    """Initialization of bases by small Gaussian noise.

    Args:
        std: standard deviation, > 0.
    """

    def __init__(self, std: float = 0.01) -> None:
        super().__init__()
        self.std = std

    @override
    def forward(self, examples: Tensor, width: int, generator: torch.Generator) -> Tensor:
        _check(examples, width, generator)
        return self.std * torch.randn(width, examples.shape[1], generator=generator, dtype=examples.dtype)


@ranges(norm=POSITIVE)
class SampleBases(InitialBases):
    """Initialization of bases by random training examples, scaled to a norm; zero examples are left out.

    Args:
        norm: Euclidean norm of each basis, > 0. Norms as large as an image's would saturate a tanh.
    """

    def __init__(self, norm: float = 1.0) -> None:
        super().__init__()
        self.norm = norm

    @override
    def examples(self, width: int) -> int:
        return 2 * width + 16

    @override
    def forward(self, examples: Tensor, width: int, generator: torch.Generator) -> Tensor:
        _check(examples, width, generator)
        norms = examples.norm(dim=1, keepdim=True)
        chosen = (norms.squeeze(1) > 0).nonzero().squeeze(1)[:width]
        if len(chosen) < width:
            raise DataError(
                f"Expected at least {width} training examples that are not all zero, one for each basis, but only"
                f" {len(chosen)} of the {len(examples)} drawn ones are. Lower the width, or start from NoiseBases."
            )
        bases: Tensor = self.norm * examples[chosen] / norms[chosen]
        return bases


@ranges(activity=Number(0.0, 1.0), connectivity=Number(0.0, 1.0), closeness=Number(0.0, 1e6), size=Count(2), rounds=Count())
class SparseCodingBases(InitialBases):
    """Initialization of bases by a sparse code of training examples, in which each unit is active for few examples.

    Examples X (N, D) are factorized as H W with codes H (N, width) and bases W (width, D). The layer's output X W^T should
    be close to H. Projected gradient steps, alternately in H and W, decrease ``||X - H W||^2 + closeness ||H - X W^T||^2``.
    The codes of each unit over all examples have the sparseness ``activity``. Each basis has the sparseness
    ``connectivity`` and unit norm.

    Args:
        activity: Hoyer sparseness of the codes of a unit over the examples, in [0, 1].
        connectivity: Hoyer sparseness of a basis, in [0, 1].
        closeness: weight of the distance between codes and the layer's output, >= 0.
        size: N, number of examples.
        rounds: number of alternating updates of codes and bases.

    Source: after Thom, Schweiggert & Palm (2011), Supervised Matrix Factorization with Sparseness Constraints and Fast
    Inference, which pre-trains the networks MLP-SCFC and SMLP-SCFC of Thom & Palm (2013). Learning rates and weights differ
    from the paper.
    """

    def __init__(
        self,
        activity: float = 0.8,
        connectivity: float = 0.75,
        closeness: float = 1.0,
        size: int = 5000,
        rounds: int = 30,
    ) -> None:
        super().__init__()
        self.activity, self.connectivity, self.closeness = activity, connectivity, closeness
        self.size, self.rounds = size, rounds

    @override
    def examples(self, width: int) -> int:
        return max(self.size, SampleBases().examples(width))

    @override
    def forward(self, examples: Tensor, width: int, generator: torch.Generator) -> Tensor:
        bases = hoyer_projection(SampleBases()(examples, width, generator), self.connectivity)
        x, close = examples[: self.size], self.closeness
        codes = self._sparse(x @ bases.T)
        spread = largest_eigenvalue(x.T @ x)
        for _ in range(self.rounds):
            error = codes @ bases - x
            slope = error @ bases.T + close * (codes - x @ bases.T)
            codes = self._sparse(codes - slope / (largest_eigenvalue(bases @ bases.T) + close))
            gram = codes.T @ codes
            slope = gram @ bases - codes.T @ x + close * ((x @ bases.T - codes).T @ x)
            bases = hoyer_projection(bases - slope / (largest_eigenvalue(gram) + close * spread), self.connectivity)
        return bases

    def _sparse(self, codes: Tensor) -> Tensor:
        """Return the nearest codes (N, width) of which each unit has its sparseness and keeps its norm."""
        units = codes.T.contiguous()
        found: Tensor = (hoyer_projection(units, self.activity) * units.norm(dim=1, keepdim=True)).T.contiguous()
        return found


def _check(examples: Tensor, width: int, generator: torch.Generator) -> None:
    if not isinstance(generator, torch.Generator):
        raise ConfigurationError(f"Expected a torch.Generator but got {full_name(generator)}.")
    check_count("width", width, most=MOST_FEATURES)
    check_input("examples", examples, ("N", "D"), None)
    check_floating("examples", examples)


def largest_eigenvalue(gram: Tensor, steps: int = 20) -> Tensor:
    """Return an estimate of the largest eigenvalue of a positive semi-definite matrix, by power iteration.

    Args:
        gram: (D, D) matrix.
        steps: number of iterations, from a constant vector. They converge from below, so the result is increased by a
            tenth.
    """
    vector = torch.ones_like(gram[0])
    for _ in range(steps):
        vector = gram @ vector
        vector = vector / vector.norm().clamp_min(torch.finfo(gram.dtype).tiny)
    found: Tensor = 1.1 * (gram @ vector).norm().clamp_min(torch.finfo(gram.dtype).tiny)
    return found
