"""Logs and draws statistics of the messages of a signaling game."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.callbacks.base import Stage, artifacts_of
from lit_sparse.callbacks.pictures.base import Picture
from lit_sparse.callbacks.pictures.drawings import LINE
from lit_sparse.checks import Count, ranges
from lit_sparse.ground.state_checks import ListOf, OneOf
from lit_sparse.lightning.choice import AGREED, pl
from lit_sparse.metrics import MessageCounts, MessageStructure
from lit_sparse.metrics.language import InputDistance

__all__ = ["LanguageLogger"]

NEEDED = ("messages", "targets", "index")
#: Number of distinguished classes if the data module does not name them.
UNNAMED = 256


@ranges(examples=Count())
class LanguageLogger(Picture):
    """Log and draw, for each validation and test, which messages a signaling game's sender uses for which inputs.

    It logs ``{stage}/message_entropy`` (nats), ``{stage}/used_vocabulary``, ``{stage}/topographic_similarity``, where
    classes are known ``{stage}/class_information`` (nats), and where the data module has ``attributes`` ``{stage}/posdis``
    and ``{stage}/bosdis``. It draws how often each symbol is sent for each class. It reads ``messages`` (B,), ``targets``
    (B, F), ``index`` (B,) and, if present, ``labels`` (B,) and ``attributes`` (B, A) of a step's artifacts; other models
    are ignored.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [LanguageLogger]

    and with the distance of inputs that is usual for attributes::

        trainer:
          callbacks:
            - class_path: LanguageLogger
              init_args: {input_distance: hamming}

    Args:
        examples: number of examples of a split whose pairs are compared.
        folder: folder of the pictures; None for the logger's folder.
        input_distance: distance of inputs in the topographic similarity: "cosine", or "hamming" for the number of
            attributes that differ (of features, where there are no attributes). A message is one symbol, so that the
            Hamming and the edit distance of messages are the same.

    Raises:
        ConfigurationError: for another distance.
    """

    name = "messages_by_class"
    shown = ("_drawn", "_names")
    stages = ("train", "test")

    def __init__(self, examples: int = 1000, folder: str | None = None, input_distance: InputDistance = "cosine") -> None:
        super().__init__(folder)
        self.examples, self.input_distance = examples, input_distance
        self._counts: MessageCounts | None = None
        self._structure: MessageStructure | None = None
        self._drawn: Tensor | None = None
        self._names: list[str] = []

    def state_example(self, model: Any) -> dict[str, Any]:
        """Return an example of this callback's state, with the types and shapes that a stored state must have."""
        names = getattr(getattr(model.trainer, "datamodule", None), "class_names", ())
        counts = torch.zeros(len(names) or UNNAMED, getattr(model, "vocabulary", 0), dtype=torch.long)
        return {"_drawn": OneOf(counts), "_names": ListOf("")}

    @override
    def on_stage_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        self._counts = self._structure = None
        model: Any = pl_module
        if stage != "train" and hasattr(model, "in_features") and hasattr(model, "vocabulary"):
            data = getattr(trainer, "datamodule", None)
            attributes = getattr(data, "attribute_count", 0)
            self._names = list(getattr(data, "class_names", []))
            classes = len(self._names) or UNNAMED
            self._counts = MessageCounts(model.vocabulary, classes).to(model.device)
            options: Any = {"examples": self.examples, "input_distance": self.input_distance}
            self._structure = MessageStructure(model.in_features, attributes, **options).to(model.device)

    @override
    def on_stage_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, stage: Stage, dataloader_idx: int = 0
    ) -> None:
        artifacts = artifacts_of(outputs)
        if dataloader_idx or self._counts is None or self._structure is None or not set(NEEDED) <= set(artifacts):
            return
        messages, targets, index = (artifacts[name].detach() for name in NEEDED)
        self._counts.update(messages, artifacts.get("labels", torch.zeros_like(messages)))
        unknown = index.new_zeros(len(index), self._structure.attributes.shape[1])
        self._structure.update(index, targets, messages.unsqueeze(-1), artifacts.get("attributes", unknown))

    @override
    def on_stage_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        if stage == "train" or self._counts is None or self._structure is None:  # training ends after its validation
            return
        found = self._counts.compute() | self._structure.compute()
        with self._counts.sync_context():
            self._drawn = self._counts.counts.cpu()
        if int((self._drawn.sum(1) > 0).sum()) < 2:  # without classes there is nothing to tell of them
            del found["class_information"]
            self._drawn = None
        for name, value in found.items():
            pl_module.log(f"{stage}/{name}", value.float(), **AGREED)

    @override
    def artifact(self, trainer: pl.Trainer, module: Any) -> dict[str, Any] | None:
        if self._drawn is None:
            return None
        classes = (self._drawn.sum(1) > 0).nonzero().squeeze(-1)
        counts = self._drawn[classes].double()
        # Used symbols, sorted so that those mostly sent for the same class are neighbours.
        used = (counts.sum(0) > 0).nonzero().squeeze(-1)
        shares = counts[:, used] / counts[:, used].sum(0)
        names = dict(enumerate(self._names))
        order = (shares.argmax(0) * 2 - shares.amax(0)).argsort()
        return {
            "shares": (counts[:, used] / counts.sum(1, keepdim=True))[:, order],
            "classes": [names.get(int(number), int(number)) for number in classes],
            "symbols": used[order].tolist(),
            "cells": (len(used), len(classes), LINE),
            "vocabulary": self._drawn.shape[1],
        }
