"""Pools the vectors of tokens to one vector, with sparse weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lit_sparse.checks import FEATURES, check_tensor, ranges
from lit_sparse.errors import CheckpointError
from lit_sparse.ground.files import replaced
from lit_sparse.hf.registry import check_on_simplex
from lit_sparse.hf.saved_files import place_of, read_saved
from lit_sparse.mappings import SparseMapping, Sparsemax
from lit_sparse.nn.inputs import check_input
from lit_sparse.runs.allocation import Limits
from lit_sparse.runs.builder import plan_arguments
from lit_sparse.runs.checkpoint_files import check_finite, check_kinds, restoring_error
from lit_sparse.runs.descriptions import describe
from lit_sparse.runs.torch_files import read_torch_file

__all__ = ["SparseAttentionPooling"]


@ranges(dim=FEATURES)
class SparseAttentionPooling(nn.Module):
    """Pool the vectors of tokens to one vector by sparse attention, which gives most tokens a weight of exactly zero.

    The weights are ``mapping(token @ w + b)``.

    Initially it is the mean over tokens, because w is zero. It is also a module for sentence-transformers: given its
    features, it reads ``token_embeddings`` and ``attention_mask``, and adds ``sentence_embedding`` and ``token_weights``.

    Args:
        dim: width D of the vectors.
        mapping: mapping onto the simplex; None for ``Sparsemax()``.

    Raises:
        ConfigurationError: if ``dim`` is not a positive integer, or the mapping is not one onto the simplex.

    Example:
        >>> pool = SparseAttentionPooling(4)
        >>> tokens, mask = torch.randn(2, 3, 4), torch.tensor([[1, 1, 0], [1, 1, 1]])
        >>> torch.allclose(pool(tokens, mask)[0], tokens[0, :2].mean(0))
        True
    """

    def __init__(self, dim: int, mapping: SparseMapping | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.mapping = Sparsemax() if mapping is None else mapping
        check_on_simplex(self.mapping)
        self.score = nn.Linear(self.dim, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, tokens: Any, mask: Tensor | None = None) -> Any:
        """Return the pooled vectors of texts.

        Args:
            tokens: (B, L, D), or the features of sentence-transformers.
            mask: (B, L), True or 1 at tokens that count; None for all.

        Returns:
            The vectors (B, D), zero without tokens; or the features.

        Raises:
            ConfigurationError: if the shapes do not match.
        """
        if isinstance(tokens, Mapping):
            vectors = tokens["token_embeddings"]
            pooled, weights = self.pool(vectors, tokens.get("attention_mask"))
            return {**tokens, "sentence_embedding": pooled, "token_weights": weights}
        return self.pool(tokens, mask)[0]

    def pool(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the pooled vectors (B, D) and the weights (B, L) of the tokens; see :meth:`forward`.

        Raises:
            ConfigurationError: if the shapes or dtypes do not match.
        """
        check_input("tokens", tokens, ("B", "L", self.dim), self.score.weight)
        if mask is not None:
            what = f"a mask of shape {tuple(tokens.shape[:2])}"
            mask = check_tensor(mask, what, shape=tokens.shape[:2]).bool()
            tokens = torch.where(mask.unsqueeze(-1), tokens, 0.0)  # a NaN in padding would reach the gradient
        weights = self.mapping.map(self.score(tokens).squeeze(-1), mask, -1)
        return (weights.unsqueeze(-2) @ tokens).squeeze(-2), weights

    def get_sentence_embedding_dimension(self) -> int:
        """Return the width of the vectors."""
        return self.dim

    def save(self, output_path: str, *_args: Any, **_options: Any) -> None:
        """Write the arguments and the weights to a folder, in sentence-transformers' layout."""
        folder = Path(output_path)
        folder.mkdir(parents=True, exist_ok=True)
        config = {"dim": self.dim, "mapping": describe(self.mapping)}
        with replaced(folder / "config.json", "w") as file:
            json.dump(config, file, indent=2)
        with replaced(folder / "pooling.pt", "wb") as file:
            torch.save(self.state_dict(), file)

    @classmethod
    def load(cls, input_path: str) -> Self:  # sentence-transformers gives a folder to what takes one argument
        """Return a module from a folder written by :meth:`save`.

        ``SentenceTransformer(folder, trust_remote_code=True)`` calls it; without ``trust_remote_code`` it loads only its
        own classes.

        Raises:
            CheckpointError: if the files are damaged, or the config names a class that is not allowed.
        """
        folder = Path(input_path)
        source, file = repr(str(folder / "config.json")), folder / "pooling.pt"
        config = read_saved(place_of(folder / "config.json", folder))
        if config is None:
            raise CheckpointError(
                f"Expected the arguments of the pooling in {source} but there is no such file. Save it again."
            )
        state = read_torch_file(place_of(file, folder), repr(str(file)))
        try:
            with Limits.of(source, state).kept():
                pool: Self = plan_arguments(source, config, cls).build(source)
            check_kinds(pool, {"state_dict": state})
            pool.load_state_dict(state)
            check_finite(repr(str(file)), {"state_dict": state})
        except (AttributeError, RuntimeError, TypeError) as error:
            raise restoring_error(repr(str(file)), error) from error
        return pool
