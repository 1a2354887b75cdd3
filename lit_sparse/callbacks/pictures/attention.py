"""Draws the attention weights of some examples."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from lit_sparse.callbacks.base import Stage, artifacts_of
from lit_sparse.callbacks.pictures.base import Format, Picture
from lit_sparse.callbacks.pictures.heat_maps import Attention, Groups, figure_of
from lit_sparse.checks import check_choice, check_count
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.distributed import gather_to_first
from lit_sparse.ground.files import replaced
from lit_sparse.ground.state_checks import DictOf, Kind, ListOf
from lit_sparse.lightning.choice import pl, rank_zero_info, rank_zero_warn

__all__ = ["AttentionPlot"]

FORMATS: tuple[Format, ...] = ("png", "svg", "json")
NEEDED = ("attention", "source_tokens", "output_tokens", "index")


class AttentionPlot(Picture):
    """Draw the attention of some examples of the last validation epoch or of a test, one picture each.

    The files are ``pictures/attention/<index>.png``, ``.svg`` and ``.json``, and ``attention/<index>`` in TensorBoard. The
    command ``lit-sparse report`` shows the JSON file as a table. The artifacts of a step must hold ``attention`` (B, T, S),
    zero for padding, ``source_tokens`` and ``output_tokens``, lists of B lists of strings, and ``index`` (B,). They may
    hold ``title``, a list of B strings. T is 1 for a classifier. Heads (B, heads, T, S) are drawn side by side. Other
    models, and all data loaders but the first, are ignored. The pictures do not depend on the batch size or the number of
    processes.

    To use it in a config::

        trainer:
          callbacks:
            - class_path: AttentionPlot
              init_args: {examples: [0, 7, 12]}

    Args:
        examples: number of examples, chosen by a fixed seed, or a list of their indices.
        groups: display of equal weights, as in :func:`draw_attention`; None for the one that suits the model's mapping.
        formats: file formats: pictures as ``"png"`` and ``"svg"``, tokens and weights as ``"json"``.
        folder: folder of the pictures; None for the logger's folder.

    Raises:
        ConfigurationError: for an invalid argument.
    """

    name = "attention"

    def __init__(
        self,
        examples: int | list[int] = 4,
        groups: Groups | None = None,
        formats: tuple[Format, ...] = FORMATS,
        folder: str | None = None,
    ) -> None:
        super().__init__(folder)
        self.examples = _check_examples(examples)
        self.groups: Groups | None = groups
        if not isinstance(formats, list | tuple) or not formats:
            raise ConfigurationError(f"Expected argument `formats` to be one or several of {FORMATS} but got {formats!r}.")
        self.formats = tuple(check_choice("formats", ending, FORMATS) for ending in formats)
        self._kept: dict[int, Attention] = {}
        self._seen = False

    def begin(self, module: pl.LightningModule) -> None:
        """Discard the examples of the last validation or test."""
        self._kept, self._seen = {}, False

    def see(self, module: pl.LightningModule, outputs: Any) -> None:
        """Store the examples of a batch that are chosen among all so far."""
        artifacts = artifacts_of(outputs)
        if set(NEEDED) <= set(artifacts):
            self._seen = True
            places = {index: place for place, index in enumerate(artifacts["index"].tolist())}
            chosen = self._choose({*self._kept, *places})
            self._kept = {i: self._kept[i] if i in self._kept else Attention.cut(artifacts, places[i]) for i in chosen}

    def _choose(self, indices: set[int]) -> list[int]:
        """Return the indices that are to be drawn."""
        if isinstance(self.examples, int):
            return sorted(indices, key=_place_in_line)[: self.examples]
        return [index for index in self.examples if index in indices]

    def on_stage_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        """Gather the examples on the first process."""
        if stage != "train":
            gathered = gather_to_first((self._seen, self._kept))
            kept = {index: example for _, examples in reversed(gathered) for index, example in examples.items()}
            self._kept, self._seen = {i: kept[i] for i in self._choose(set(kept))}, any(saw for saw, _ in gathered)

    def state_dict(self) -> dict[str, Any]:
        """Return the examples of the last validation."""
        return {"examples": {index: vars(example) for index, example in self._kept.items()}}

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of this callback's state, with the types and shapes that a stored state must have."""
        weights = Kind("weights", lambda value: isinstance(value, Tensor) and value.is_floating_point())
        return {"examples": DictOf({"weights": weights, "source": ListOf(""), "output": ListOf(""), "title": ""}, int)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the examples of the last validation.

        Raises:
            DataError: if there are not as many tokens as weights.
        """
        self._kept = {index: Attention(**example) for index, example in state_dict["examples"].items()}

    def on_finish(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        """Draw each example, and warn of requested examples that were not found."""
        if stage == "val" or not trainer.is_global_zero:
            return
        groups: Any = self.groups or getattr(getattr(pl_module, "mapping", None), "groups", "neighbours")
        kept, seen = self._kept, self._seen
        self.begin(pl_module)
        for index in kept:
            self.save(trainer, figure_of(kept[index], groups), f"{self.name}/{index}")
            if "json" in self.formats and (folder := self.folder or self._log_dir) is not None:
                with replaced(Path(folder) / "pictures" / self.name / f"{index}.json", "w") as file:
                    json.dump(kept[index].numbers(), file, ensure_ascii=False)
        if stage == "train" and not seen and getattr(pl_module, "validation_beam_size", None) == 0:
            rank_zero_info(
                "note: AttentionPlot drew no heat maps, because validation searches no outputs with `validation_beam_size: 0`."
                " Set --model.init_args.validation_beam_size 1, or run the test, which draws them."
            )
        absent = [] if isinstance(self.examples, int) or not seen else [i for i in self.examples if i not in kept]
        if absent:
            rank_zero_warn(f"AttentionPlot found no example with index {', '.join(map(str, absent))}; it drew {sorted(kept)}.")


def _check_examples(value: int | list[int]) -> int | list[int]:
    if not isinstance(value, list | tuple):
        return check_count("examples", value)
    if not value or not all(type(index) is int and index >= 0 for index in value) or len(set(value)) < len(value):
        raise ConfigurationError(
            f"Expected argument `examples` to be an integer of at least 1, or a list of different indices such as [0, 7, 12],"
            f" but got {value!r}."
        )
    return list(value)


def _place_in_line(index: int) -> tuple[bytes, int]:
    """Return a random key of an example, which sorts it among all others."""
    return hashlib.blake2b(f"0 {index}".encode(), digest_size=8).digest(), index
