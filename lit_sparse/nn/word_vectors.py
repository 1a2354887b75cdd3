"""Word vectors: learned ones, or fixed ones that travel with the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lit_sparse.checks import FEATURES, INPUTS, check_count, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.nn.inputs import check_ids

__all__ = ["WordVectors"]


@ranges(words=INPUTS, features=FEATURES)
class WordVectors(nn.Embedding):
    """Embedding of words that is trained unless :meth:`fix` sets its vectors permanently.

    The state dict holds the vectors and whether they are fixed, so loading it needs no file of vectors.

    Args:
        words: V, number of words.
        features: E, width of a vector.
        padding: id of the word whose vector is always zero.

    Example:
        >>> words = WordVectors(3, 2, padding=0)
        >>> words.fix(torch.tensor([[9.0, 9.0], [1.0, 2.0], [3.0, 4.0]]))
        >>> words(torch.tensor([2, 0]))
        tensor([[3., 4.],
                [0., 0.]])
        >>> loaded = WordVectors(3, 2, padding=0)
        >>> _ = loaded.load_state_dict(words.state_dict())
        >>> loaded.weight.requires_grad, bool(loaded.fixed)
        (False, True)
    """

    fixed: Tensor

    def __init__(self, words: int, features: int, padding: int) -> None:
        self.padding = check_count("padding", padding, 0, words - 1)
        super().__init__(words, features, padding_idx=padding)
        self.register_buffer("fixed", torch.tensor(False))
        self.register_load_state_dict_post_hook(_train_unless_fixed)  # type: ignore[no-untyped-call]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (torch's name)
        """Return the vectors (..., E) of words given by their ids (...).

        Raises:
            ConfigurationError: for ids that are no integers, or on a CPU outside of 0 .. V - 1.
        """
        check_ids("ids of words", input, self.num_embeddings)
        return super().forward(input)

    def fix(self, vectors: Tensor) -> None:
        """Set vectors (V, E) that are not trained; the padding word's vector becomes zero.

        Raises:
            ConfigurationError: if they have another shape.
        """
        if vectors.shape != self.weight.shape:
            raise ConfigurationError(
                f"Expected vectors of shape {tuple(self.weight.shape)}, words and features, but got {tuple(vectors.shape)}."
            )
        with torch.no_grad():
            self.weight.copy_(vectors)
            self.weight[self.padding] = 0.0
            self.fixed.fill_(True)
        self.weight.requires_grad_(False)


def _train_unless_fixed(words: WordVectors, _: Any) -> None:
    words.weight.requires_grad_(not bool(words.fixed))
