"""What a model computes: the output of a step, the objective of its losses, and its predictor."""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_sparse.checks import check_choice, check_result, check_tensor
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.arguments import KeepsArguments
from lit_sparse.lightning.choice import pl
from lit_sparse.lightning.internals import check_hooks
from lit_sparse.models.data_protocols import Batch, check_batch
from lit_sparse.risks import BrokenLossError, Mean, Risk

__all__ = ["ObjectiveModule", "Stage", "StepOutput", "column_of"]

Stage: TypeAlias = Literal["train", "val", "test"]

#: Counts of a step, one for each decision, and all that callbacks get as it is.
COUNTS = ("support_size", "decoder_calls", "num_allowed", "groups")
REPORTED = ("example_index", *COUNTS, "artifacts")


@dataclass
class StepOutput:
    """Output of a model's step: losses and measurements of one batch, from which the objective is computed.

    Args:
        losses: (R,) losses, whose risk is minimized in training. R is the batch size B unless ``example_index`` is given.
        objective: scalar to minimize in training, for a model whose objective is not the risk of ``losses``.
        example_index: (R,) position in the batch of each loss's example.
        transport_cost: (R,) cost of the perturbed inputs, from :meth:`LitSparseModule.perturbed`, subtracted from the
            losses.
        penalty: scalar term of the objective and the logged loss, such as a prior's.
        per_example: name -> (M,) values, whose exact mean is logged as ``{stage}/{name}``; ``loss`` is ``losses`` by
            default.
        support_size: (N,) int64, number of values with probability above zero, per decision.
        decoder_calls: (N,) int64, number of decoder evaluations, per decision.
        num_allowed: (N,) int64, number of entries that are not masked, per decision.
        groups: (N,) int64, number of groups of equal neighbours, per decision.
        artifacts: tensors and texts for callbacks to draw, in validation and test.
    """

    losses: Tensor | None = None
    objective: Tensor | None = None
    example_index: Tensor | None = None
    transport_cost: Tensor | None = None
    penalty: Tensor | None = None
    per_example: dict[str, Tensor] = field(default_factory=dict)
    support_size: Tensor | None = None
    decoder_calls: Tensor | None = None
    num_allowed: Tensor | None = None
    groups: Tensor | None = None
    artifacts: dict[str, Any] = field(default_factory=dict)


@contextmanager
def checked_batch(model: object, batch: Any) -> Iterator[None]:
    """Check the rows of a batch, and name an entry that a model does not find in it within a context.

    Raises:
        ConfigurationError: if the batch is no dict of tensors with equally many rows, or lacks the entry.
    """
    check_batch(batch)
    try:
        yield
    except KeyError as error:
        if not error.args or error.args[0] in batch:
            raise
        raise ConfigurationError(
            f"Expected the entry {error.args[0]!r} in a batch for {type(model).__name__} but got"
            f" {', '.join(map(str, batch)) or 'none'}. Use a data module that provides it."
        ) from error


def _checking(predict: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(predict)
    def predict_step(self: Any, batch: Any, *args: Any, **options: Any) -> Any:
        with checked_batch(self, batch):
            return predict(self, batch, *args, **options)

    return predict_step


class ObjectiveModule(KeepsArguments, pl.LightningModule, ABC):
    """Base class of modules that minimize a risk of the losses computed by :meth:`step`."""

    #: Whether a risk may perturb the inputs; ``step`` then calls :meth:`perturbed`.
    adversarial: ClassVar[bool] = False
    #: What :meth:`compile` makes of ``step``.
    _compiled_step: Callable[..., StepOutput] | None = None

    def __init__(self, risk: Risk | None = None) -> None:
        super().__init__()
        if risk is not None and risk.adversary is not None and not self.adversarial:
            raise ConfigurationError(
                f"Expected a risk that does not perturb inputs for {type(self).__name__} but got {type(risk).__name__}. Use"
                " another risk, such as SafeKLDRO, or a model of images or features, such as RobustClassifier."
            )
        self.risk = Mean() if risk is None else risk

    def __init_subclass__(cls, **options: Any) -> None:
        """Check the hooks of a user's class, and let its ``predict_step`` name an entry that a batch lacks."""
        super().__init_subclass__(**options)
        check_hooks(cls, "on_", "setup")
        if (predict := vars(cls).get("predict_step")) is not None:
            cls.predict_step = _checking(predict)  # type: ignore[method-assign]

    @abstractmethod
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        """Return the losses and measurements of a batch; a subclass implements it.

        Args:
            batch: batch of the data module.
            batch_idx: index of the batch in its epoch.
            stage: ``"train"``, ``"val"`` or ``"test"``.
        """

    @override
    def compile(self, *args: Any, **options: Any) -> None:
        """Compile :meth:`step` with ``torch.compile`` and these arguments; Lightning's own code is not compiled."""
        self._compiled_step = torch.compile(self.step, *args, **options)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without compiled code, which belongs to this object and process."""
        return {name: value for name, value in super().__getstate__().items() if name != "_compiled_step"}

    def run_step(self, batch: Batch, batch_idx: int, stage: Stage) -> dict[str, Any]:
        """Return the objective of a batch as ``loss``, with the measurements of the step, as a dict.

        The objective is the risk of the losses in training, and their mean in validation and test, with the weights of the
        examples.

        Args:
            batch: batch of the data module.
            batch_idx: index of the batch in its epoch.
            stage: ``"train"``, ``"val"`` or ``"test"``.

        Raises:
            BrokenLossError: if a loss is NaN, or infinite and the risk is not the mean; it names the example.
        """
        check_choice("stage", stage, get_args(Stage))
        with checked_batch(self, batch):
            output = (self._compiled_step or self.step)(batch, batch_idx, stage)
        if not isinstance(output, StepOutput):
            raise ConfigurationError(
                f"Expected `step` of {full_name(self)} to return a StepOutput but got a {type(output).__name__}."
            )
        objective, losses, rows = output.objective, output.losses, output.example_index
        if rows is not None:
            check_tensor(rows, f"`example_index` of {full_name(self)} to be indices (R,)", shape=(None,), dtypes=(torch.int64,))
        known = batch.get("index", losses) if rows is None else rows
        each = tuple(known.shape[:1]) if isinstance(known, Tensor) else ()
        for name, shape in (("objective", ()), ("penalty", ()), ("losses", each), ("transport_cost", each)):
            if (value := getattr(output, name)) is not None:
                check_result(self, f"step(...).{name}", value, shape)
        if not isinstance(output.per_example, dict):
            raise ConfigurationError(
                f"Expected `per_example` of {full_name(self)} to be a dict of tensors but got {full_name(output.per_example)}."
            )
        counts = {name: count for name in COUNTS if (count := getattr(output, name)) is not None}
        for name, values in (output.per_example | counts).items():
            check_tensor(values, f"{name!r} in the step's output of {full_name(self)} to be a tensor (M,)", shape=(None,))
        if losses is not None:
            logged = self.weighted(losses, batch, rows)
            if objective is None:
                minimized = losses if output.transport_cost is None else losses - output.transport_cost
                objective = self.objective(minimized, batch, stage, rows)
            if output.penalty is not None:
                objective, logged = objective + output.penalty, logged + output.penalty
        elif objective is not None:
            logged = objective.reshape(1)
        else:
            raise ConfigurationError(f"Expected `losses` or an `objective` from {full_name(self)} but got neither.")
        per_example = {name: values.detach() for name, values in ({"loss": logged} | output.per_example).items()}
        return {"loss": objective, "per_example": per_example} | {name: getattr(output, name) for name in REPORTED}

    @staticmethod
    def weighted(losses: Tensor, batch: Batch, rows: Tensor | None = None) -> Tensor:
        """Return losses times the weights of their examples; unchanged losses for data without weights.

        Args:
            losses: (B,), or (R,) with ``rows``.
            batch: batch, whose entry ``weight`` (B,) holds the weights, such as a coreset has.
            rows: (R,) position in the batch of the example that each loss belongs to.
        """
        weights = column_of("weight", batch, rows)
        return losses if weights is None else losses * weights.to(losses.dtype)

    def objective(
        self, losses: Tensor, batch: Batch, stage: Stage, rows: Tensor | None = None, shares: Tensor | None = None
    ) -> Tensor:
        """Return the risk of weighted losses in training, and their weighted mean in validation and test.

        Args:
            losses: (B,), or (R,) with ``rows``.
            batch: batch, whose entry ``weight`` (B,) holds the weights, such as a coreset has.
            stage: ``"train"``, ``"val"`` or ``"test"``.
            rows: (R,) position in the batch of each loss's example.
            shares: (R,) further factor of each weight.

        Raises:
            BrokenLossError: if a loss is NaN, or infinite and the risk is not the mean; it names the example.
        """
        if stage != "train":
            return self.weighted(losses, batch, rows).mean()
        try:
            weights = column_of("weight", batch, rows)
            if shares is not None:
                weights = shares if weights is None else shares * weights
            risk: Tensor = self.risk(losses, weights, column_of(self.risk.group_key, batch, rows))
        except BrokenLossError as error:
            row, index = error.row if rows is None else int(rows[error.row]), batch.get("index")
            where = f" (number {int(index[row])} of the training data)" if isinstance(index, Tensor) else ""
            raise error.located(row, where) from None
        return risk

    def perturbed(self, loss_fn: Callable[[Tensor], Tensor], inputs: Tensor, stage: Stage) -> tuple[Tensor, Tensor | None]:
        """Return the inputs as the risk perturbs them in training, and the transport cost (B,), or None without perturbation.

        Args:
            loss_fn: function from inputs (B, ...) to losses (B,).
            inputs: (B, ...) floating.
            stage: ``"train"``, ``"val"`` or ``"test"``; only training perturbs inputs.

        Raises:
            ConfigurationError: if the risk's adversary returns inputs or costs of other shapes.
        """
        if stage != "train" or self.risk.adversary is None:
            return inputs, None
        moved, cost = self.risk.perturb(loss_fn, inputs)
        if moved.shape != inputs.shape or cost.shape != inputs.shape[:1]:
            raise ConfigurationError(
                f"Expected `adversary` of {full_name(self.risk)} to return inputs {tuple(inputs.shape)} and a cost of each but"
                f" got {tuple(moved.shape)} and {tuple(cost.shape)}."
            )
        return moved, cost

    def configure_predictor(self) -> nn.Module:
        """Return a plain torch module that computes the model's predictions; it may share the model's parts.

        Raises:
            ConfigurationError: for a model without a predictor.
        """
        raise ConfigurationError(
            f"Expected a model with a predictor but got {type(self).__name__}. Override `configure_predictor`, or use one of"
            " its modules."
        )

    def predictor(self) -> nn.Module:
        """Return a copy of the model for serving: a plain torch module in evaluation, without Lightning, the risk or gradients.

        Raises:
            ConfigurationError: for a model without a predictor, or one whose vocabularies are not set yet.
        """
        served = self.configure_predictor()
        if not isinstance(served, nn.Module):
            raise ConfigurationError(
                f"Expected `configure_predictor` of {full_name(self)} to return a torch module but got {full_name(served)}."
            )
        return copy.deepcopy(served).requires_grad_(False).eval()

    def exported(self) -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
        """Return the modules that ``lit-sparse export`` writes, by suffix of the file name, with example arguments.

        By default the predictor, for two examples with ``in_features`` features.
        """
        return {"": (self.predictor(), (torch.rand(2, int(getattr(self, "in_features", 1))),))}


def column_of(name: str | None, batch: Batch, rows: Tensor | None) -> Tensor | None:
    """Return an entry (B,) of a batch at each of some rows (R,), at all rows for None; None for a batch without it."""
    if name is None or name not in batch:
        return None
    column: Tensor = batch[name]
    return column if rows is None else column[rows]
