"""Callbacks of the Trainer of transformers: sparsity of attention, and annealing from softmax, with its mapping."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import Count, Number, check_number, ranges
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.distributed import gather_objects
from lit_sparse.hf.adapter import LayerMapping
from lit_sparse.mappings import Entmax, SparseMapping

__all__ = ["AlphaAnnealing", "AnnealedEntmax", "SparsityCallback"]


class _Callback:
    """Callback of a Trainer that ignores all events but those it handles.

    It does not derive from ``TrainerCallback``, so that this module does not import transformers.
    """

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return lambda *_args, **_options: None
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@ranges(every=Count())
class SparsityCallback(_Callback):
    """Trainer callback that logs how sparse the attention of each layer and head is.

    For layer l and head h, it logs ``attention/layer_l/head_h/support``, the mean number of nonzero weights
    of a query, and ``attention/layer_l/head_h/zeros``, the fraction of allowed keys with a weight of exactly zero. Both are
    also logged over all heads, as ``attention/support`` and ``attention/zeros``. Weights are counted before dropout, over
    all processes; examples that the Trainer repeats to fill the processes' last batch count again. Keys of padding do not
    count, but queries of padding do where the model lets them attend to words, as BERT does. Layers are numbered in
    the order of the report of :func:`lit_sparse.hf.sparsify`. Evaluations during training are logged with the prefix
    ``eval_``. Each log is a row of its own; the Trainer's rows stay as they are.

    Args:
        trainer: the Trainer, whose ``log`` is called.
        every: number of optimizer steps between measurements; None for the Trainer's ``logging_steps``.
        per_head: whether to log each layer and head, besides the means over all.

    Raises:
        ConfigurationError: if ``trainer`` cannot log, ``every`` is not a positive integer, or the model was not sparsified.

    Example:
        >>> trainer.add_callback(SparsityCallback(trainer))  # doctest: +SKIP
    """

    def __init__(self, trainer: Any, every: int | None = None, per_head: bool = True) -> None:
        if not callable(getattr(trainer, "log", None)):
            raise ConfigurationError(
                f"Expected a Trainer of transformers but got {full_name(trainer)}. Write"
                " trainer.add_callback(SparsityCallback(trainer))."
            )
        self.trainer, self.every, self.per_head = trainer, every, per_head

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **_options: Any) -> None:
        """Raise an error for a model without mappings.

        Raises:
            ConfigurationError: if the model was not sparsified.
        """
        if not _layers(model):
            raise ConfigurationError(
                f"SparsityCallback found no mapping in {type(model).__name__}. Call `lit_sparse.hf.sparsify(model, mapping)`"
                " before training."
            )

    def on_step_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **_options: Any) -> None:
        """Start counting weights in a step that is logged."""
        every = self.every if self.every is not None else max(1, int(state.logging_steps))
        if (state.global_step + 1) % every == 0:
            _record(model, True)

    def on_step_end(self, args: Any, state: Any, control: Any, model: nn.Module, **_options: Any) -> None:
        """Log the counts of the step, and count in a following evaluation."""
        self._log(model, control, "")
        self.on_epoch_end(args, state, control, model)

    def on_epoch_end(self, args: Any, state: Any, control: Any, model: nn.Module, **_options: Any) -> None:
        """Start counting weights for a following evaluation."""
        if control.should_evaluate:
            _record(model, True)

    def on_evaluate(self, args: Any, state: Any, control: Any, model: nn.Module, **_options: Any) -> None:
        """Log the counts of the evaluation."""
        self._log(model, control, "eval_")

    def _log(self, model: nn.Module, control: Any, prefix: str) -> None:
        parts = _layers(model)
        if not any(part.recording for part in parts):
            return
        counts = [part.take_counts() for part in parts]
        _record(model, False)
        values = _values(_over_processes(counts), prefix, self.per_head)
        if values:
            wanted = control.should_log
            self.trainer.log(values)
            control.should_log = wanted  # a row of our own does not replace the Trainer's


def _over_processes(counts: list[Tensor | None]) -> list[Tensor | None]:
    """Return the sums of the layers' counts over processes. A layer may have run in some of them only."""
    processes = gather_objects([None if each is None else each.cpu() for each in counts])
    layers = ([each for each in layer if each is not None] for layer in zip(*processes, strict=True))
    return [torch.stack(layer).sum(0) if layer else None for layer in layers]


def _values(layers: list[Tensor | None], prefix: str, per_head: bool) -> dict[str, float]:
    """Return the numbers to log from the counts (H, 3) of each layer."""
    values: dict[str, float] = {}
    known = {number: counts.double() for number, counts in enumerate(layers) if counts is not None}
    rows = [(f"layer_{number}/head_{head}/", row) for number, counts in known.items() for head, row in enumerate(counts)]
    total = sum(row for _, row in rows) if rows else None
    for name, row in [*(rows if per_head else []), *([] if total is None else [("", total)])]:
        nonzero, allowed, queries = (float(x) for x in row)
        if queries:
            values[f"{prefix}attention/{name}support"] = nonzero / queries
            values[f"{prefix}attention/{name}zeros"] = 1.0 - nonzero / allowed
    return values


@ranges(target=Number(1.0, 100.0, open_low=True))
class AnnealedEntmax(Entmax):
    r"""Entmax whose alpha rises from 1, where it is softmax, to a target; alpha is saved with the model's weights.

    .. math:: \alpha = 1 + \mathrm{progress} \cdot (\mathrm{target} - 1)

    where the progress is a number in [0, 1]. For the mapping, see :func:`~lit_sparse.mappings.functional.entmax`.

    :class:`lit_sparse.hf.AlphaAnnealing` raises alpha while a Trainer runs. In a loop of your own, call
    :meth:`set_progress`.

    Args:
        target: alpha at the end, > 1 and <= 100; 2 is sparsemax.
        progress: initial progress, in 0 .. 1.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.

    Raises:
        ConfigurationError: if an argument is out of its range.

    Source: after Correia, Niculae & Martins (2019), Adaptively Sparse Transformers, where alpha is learned.

    Example:
        >>> mapping, scores = AnnealedEntmax(1.5), torch.tensor([3.0, 0.0])
        >>> bool((mapping(scores) > 0).all())
        True
        >>> mapping.set_progress(1.0)
        >>> mapping(scores).tolist()
        [1.0, 0.0]
    """

    alpha: nn.Parameter

    def __init__(self, target: float = 1.5, progress: float = 0.0, *, gamma: float = 1.0, dim: int = -1) -> None:
        SparseMapping.__init__(self, gamma=gamma, dim=dim)
        self.target = target
        self.alpha = nn.Parameter(torch.ones(()), requires_grad=False)  # in the state dict, and not trained
        self.set_progress(progress)

    @property
    def progress(self) -> float:
        """The progress of alpha from 1 to its target, in 0 .. 1."""
        return float(self.alpha.detach().double() - 1.0) / (self.target - 1.0)

    def set_progress(self, progress: float) -> None:
        """Set alpha between 1 and its target.

        Args:
            progress: number in 0 .. 1.
        """
        self.alpha.data.fill_(1.0 + (self.target - 1.0) * check_number("progress", progress, 0.0, 1.0))

    @classmethod
    @override
    def examples(cls) -> list[Self]:
        return [cls(), cls(progress=1.0)]


@ranges(share=Number(0.0, 1.0, open_low=True))
class AlphaAnnealing(_Callback):
    """Trainer callback that raises the alpha of annealed mappings from 1 (softmax) to its target, linearly in the steps.

    Call :func:`lit_sparse.hf.sparsify` with ``start="annealed"`` first. A pretrained model loses quality if its softmax is
    replaced at once. The alphas are saved with the weights, and a resumed run continues the schedule.

    Args:
        share: fraction of all steps after which the target is reached, in (0, 1].

    Raises:
        ConfigurationError: if ``share`` is out of its range, or the model has nothing to anneal.

    Source: after Correia, Niculae & Martins (2019), Adaptively Sparse Transformers, where alpha is learned.

    Example:
        >>> trainer.add_callback(AlphaAnnealing(share=0.5))  # doctest: +SKIP
    """

    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def progress(self, step: int, steps: int) -> float:
        """Return the position of alpha between 1 and its target at a step, in 0 .. 1."""
        return min(1.0, step / max(1.0, self.share * steps))

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **_options: Any) -> None:
        """Raise an error for a model without annealed mappings.

        Raises:
            ConfigurationError: if the model has no annealed mapping.
        """
        if not any(True for _ in _annealed(model)):
            raise ConfigurationError(
                f"AlphaAnnealing found no annealed mapping in {type(model).__name__}. Call `lit_sparse.hf.sparsify(model,"
                ' mapping, start="annealed")`. A learnable alpha needs no callback.'
            )

    def on_step_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **_options: Any) -> None:
        """Set the alphas for the step."""
        for mapping in _annealed(model):
            mapping.set_progress(self.progress(state.global_step, state.max_steps))

    def on_step_end(self, args: Any, state: Any, control: Any, model: nn.Module, **_options: Any) -> None:
        """Set the alphas for a checkpoint or an evaluation after the step."""
        self.on_step_begin(args, state, control, model)

    def on_train_end(self, args: Any, state: Any, control: Any, model: nn.Module, **_options: Any) -> None:
        """Warn if training stopped before the target."""
        reached = self.progress(state.global_step, state.max_steps)
        if reached < 1.0:
            warnings.warn(
                f"AlphaAnnealing has completed {reached:.0%} of its schedule, because training stopped after"
                f" {state.global_step} of {state.max_steps} steps. Attention is less sparse than requested. Train longer, or"
                " decrease `share`.",
                stacklevel=2,
            )


def _layers(model: nn.Module) -> list[LayerMapping]:
    return [part for part in model.modules() if isinstance(part, LayerMapping)]


def _annealed(model: nn.Module) -> Iterator[AnnealedEntmax]:
    return (part for part in model.modules() if isinstance(part, AnnealedEntmax))


def _record(model: nn.Module, on: bool) -> None:
    for part in _layers(model):
        part.recording = on
