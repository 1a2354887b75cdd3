"""Pictures of logged values over a training."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, ClassVar

from lit_sparse.callbacks.pictures.base import Picture
from lit_sparse.ground.state_checks import NUMBER, Kind, ListOf, OneOf
from lit_sparse.lightning.choice import pl

__all__ = [
    "DecoderCallsPlot",
    "NegativeELBOPlot",
    "SuccessPlot",
    "SupportSizePlot",
]

#: Statistics of a count over the examples of an epoch.
KEYS = ("p10", "median", "p90", "mean")
#: Logged value whose sum is the cost of a training.
CALLS = "train/decoder_calls_median"
#: Example of a value that may be NaN.
FLOAT = Kind("a float", lambda value: isinstance(value, float))


class CurvePlot(Picture):
    """Base class of plots of logged values over training; a resumed run adds to its earlier epochs.

    It reads the values that ``CountLogger`` logs, so it must come after it in the list.
    """

    shown = ("history", "validated")
    #: Logged values of an epoch, and what the picture calls them.
    metrics: ClassVar[tuple[str, ...]] = ()
    label = ""

    def __init__(self, folder: str | None = None) -> None:
        super().__init__(folder)
        self.history: list[dict[str, Any]] = []
        self.validated = dict.fromkeys(name for name in self.metrics if name.startswith("val/"))

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of this callback's state, with the types and shapes that a stored state must have."""
        row = {"epoch": NUMBER, **dict.fromkeys(self.metrics, OneOf(FLOAT))}
        return {"history": ListOf(row), "validated": dict.fromkeys(self.validated, OneOf(FLOAT))}

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.validated = _logged(trainer, self.validated)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add a row for this epoch; an epoch without validation has None for its values."""
        row = {**_logged(trainer, self.metrics), **self.validated}
        if any(value is not None for value in row.values()):
            self.history = [*self.history, {"epoch": float(trainer.current_epoch + 1), **row}]
        self.validated = dict.fromkeys(self.validated)

    @property
    def rows(self) -> list[dict[str, float]]:
        """Rows of all epochs with all values, and with the cumulative sum of the median decoder calls."""
        calls = accumulate(row.get(CALLS) or 0.0 for row in self.history)
        return [{**row, "calls": total} for row, total in zip(self.history, calls, strict=True) if None not in row.values()]

    def artifact(self, trainer: pl.Trainer, module: Any) -> dict[str, Any] | None:
        """Return the rows to plot, or None if an earlier plot of this run shows the same values.

        A plot whose values equal the values of other plots in all epochs is labelled with all of their names.
        """
        curves = [plot for plot in trainer.callbacks if isinstance(plot, CurvePlot)]  # type: ignore[attr-defined]
        mine = [[*row.values()] for row in self.history]
        equal = [plot for plot in curves if plot.folder == self.folder and [[*row.values()] for row in plot.history] == mine]
        if not self.rows or self is not equal[0]:
            return None
        return {"rows": self.rows, "metrics": self.metrics, "label": "\n= ".join(plot.label for plot in equal)}


class DecoderCallsPlot(CurvePlot):
    """Plot the decoder calls per example over training: the median, with a band from the 10th to the 90th percentile.

    If support sizes and decoder calls are equal, one picture shows both. To use it in a config (the command line adds it by
    itself)::

        trainer:
          callbacks: [CountLogger, DecoderCallsPlot]
    """

    name = "decoder_calls"
    metrics = tuple(f"train/decoder_calls_{key}" for key in KEYS)
    label = "decoder calls per example"


class SupportSizePlot(CurvePlot):
    """Plot support sizes over training, as :class:`DecoderCallsPlot` plots decoder calls.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [CountLogger, SupportSizePlot]

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables via
    Sparsity, figure 4.
    """

    name = "support_size"
    metrics = tuple(f"train/support_size_{key}" for key in KEYS)
    label = "support size per example"


class NegativeELBOPlot(CurvePlot):
    """Plot the validation negative ELBO against epochs, and against the cumulative median of decoder calls.

    The cost of an epoch is the median over its examples. An epoch without validation adds its cost and no point. To use it in a
    config (the command line adds it by itself)::

        trainer:
          callbacks: [CountLogger, NegativeELBOPlot]

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables via
    Sparsity, figure 5.
    """

    name = "negative_elbo"
    metrics = (CALLS, "val/nelbo")
    label = "validation negative ELBO, nats"


class SuccessPlot(CurvePlot):
    """Plot the validation success of a game against epochs and cost, as :class:`NegativeELBOPlot` does.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [CountLogger, SuccessPlot]
    """

    name = "success"
    metrics = (CALLS, "val/success")
    label = "validation success"


def _logged(trainer: pl.Trainer, names: Iterable[str]) -> dict[str, float | None]:
    found = {name: trainer.callback_metrics.get(name) for name in names}
    return {name: None if value is None else float(value) for name, value in found.items()}
