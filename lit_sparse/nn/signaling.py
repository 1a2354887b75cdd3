"""Sender and receiver of a referential game, as published, in plain torch."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from lit_sparse.checks import INPUTS, POSITIVE, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.nn.inputs import check_ids, check_input

__all__ = ["Receiver", "Sender"]

#: Numbers that are worked on at once.
CACHED = 1 << 19


@ranges(features=INPUTS, vocabulary=INPUTS, embedding=INPUTS, filters=INPUTS, scale=POSITIVE)
class Sender(nn.Module):
    """Sender of a referential game: a network that scores the symbols of a vocabulary for an image.

    A linear layer is followed by two 1 x 1 convolutions with sigmoids, applied to each embedded feature separately, one to
    ``filters`` channels and one back, and another linear layer.

    Args:
        features: F, number of features of an image.
        vocabulary: V, number of symbols.
        embedding: size of the embedded image.
        filters: number of channels between the convolutions.
        scale: number by which the scores are divided.
        bias: whether the convolutions and the last layer have biases; the paper's sender has none.

    Source: Lazaridou, Peysakhovich & Baroni (2017), Multi-agent cooperation and the emergence of (natural) language, the
    informed sender, with one image; scaled as in Correia, Niculae, Aziz & Martins (2020).

    Example:
        >>> Sender(20, vocabulary=8)(torch.rand(3, 20)).shape
        torch.Size([3, 8])
    """

    def __init__(
        self,
        features: int,
        vocabulary: int = 256,
        embedding: int = 256,
        filters: int = 512,
        scale: float = 10.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.features, self.vocabulary, self.embedding, self.filters = features, vocabulary, embedding, filters
        self.embed = nn.Linear(features, embedding, bias=False)
        self.widen = nn.Linear(1, filters, bias)  # a 1 x 1 convolution over the embedded features, as is the next
        self.narrow = nn.Linear(filters, 1, bias)
        self.score = nn.Linear(embedding, vocabulary, bias)
        self.scale, self.bias = scale, bias

    def forward(self, image: Tensor) -> Tensor:
        """Return scores (B, V) of the symbols for images (B, F).

        Raises:
            ConfigurationError: for images of another shape or dtype.
        """
        check_input("images", image, ("B", self.features), self.embed.weight)
        embedded = self.embed(image)
        # All filters of all features at once are (B, E, filters): on a CPU ten times faster in parts that its caches hold.
        most = CACHED // (embedded.shape[1] * self.widen.out_features) if image.device.type == "cpu" else len(image)
        parts = [self.narrow(self.widen(part.unsqueeze(-1)).sigmoid_()) for part in embedded.split(max(1, most))]
        scores: Tensor = self.score(torch.sigmoid(torch.cat(parts).squeeze(-1)))
        return scores / self.scale


@ranges(features=INPUTS, vocabulary=INPUTS, embedding=INPUTS)
class Receiver(nn.Module):
    """Receiver of a referential game: scores candidate images for a symbol, by inner products of their embeddings.

    Args:
        features: F, number of features of an image.
        vocabulary: V, number of symbols.
        embedding: size of the embeddings.
        init: initial embedding of the symbols: ``"normal"``, from N(0, 1) as :class:`torch.nn.Embedding`, or ``"linear"``,
            as :class:`torch.nn.Linear`. The paper uses the latter for relaxed symbols.

    Raises:
        ConfigurationError: for another ``init``.

    Source: Lazaridou, Peysakhovich & Baroni (2017), Multi-agent cooperation and the emergence of (natural) language.
    Initial embeddings: the code of Correia, Niculae, Aziz & Martins (2020).

    Example:
        >>> receiver = Receiver(20, vocabulary=8)
        >>> messages = torch.eye(8)[[3, 5, 1]]
        >>> rows = torch.tensor([0, 0, 1])  # two for the first game, one for the second
        >>> receiver(torch.rand(2, 4, 20), messages, rows).shape
        torch.Size([3, 4])
    """

    def __init__(
        self, features: int, vocabulary: int = 256, embedding: int = 256, init: Literal["normal", "linear"] = "normal"
    ) -> None:
        super().__init__()
        self.features, self.vocabulary, self.embedding, self.init = features, vocabulary, embedding, init
        self.see = nn.Linear(features, embedding, bias=False)
        self.hear = nn.Linear(vocabulary, embedding, bias=False)  # an embedding, of one-hot messages and of relaxed ones
        if init == "normal":
            nn.init.normal_(self.hear.weight)

    def forward(self, candidates: Tensor, messages: Tensor, rows: Tensor) -> Tensor:
        """Return the scores (R, N) of the candidates for each message.

        Args:
            candidates: (B, N, F).
            messages: (R, V), one-hot or relaxed.
            rows: (R,) sorted, index of each message's game.

        Raises:
            ConfigurationError: for tensors of other shapes or dtypes, or a game that is not there.
        """
        check_input("candidates", candidates, ("B", "N", self.features), self.see.weight)
        check_input("messages", messages, ("R", self.vocabulary), self.hear.weight)
        check_ids("rows", rows, len(candidates))
        if rows.shape != messages.shape[:1]:
            raise ConfigurationError(
                f"Expected rows ({len(messages)},), the game of each message, but got {tuple(rows.shape)}."
            )
        seen = self.see(candidates)
        counts = torch.bincount(rows, minlength=len(candidates))
        most = int(counts.max()) if len(rows) else 0
        place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]

        def aligned(flat: Tensor) -> Tensor:
            """Put what belongs to a game side by side, so that its images need not be copied for each message."""
            return flat.new_zeros(len(candidates), most, flat.shape[-1]).index_put((rows, place), flat)

        vocabulary, embedding = self.hear.in_features, self.hear.out_features
        games, images = candidates.shape[:2]
        one_by_one = len(rows) * embedding * (vocabulary + images)
        every_symbol = vocabulary * images * (games * embedding + len(rows))
        if one_by_one <= every_symbol:
            scores = aligned(self.hear(messages)) @ seen.mT
        else:
            scores = aligned(messages) @ (self.hear.weight.mT @ seen.mT)  # of all symbols, once for each game
        found: Tensor = scores[rows, place]
        return found
