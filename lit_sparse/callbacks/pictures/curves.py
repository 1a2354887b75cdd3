"""Curves over training: decoder calls, sizes of supports, the negative ELBO, the success of a game."""

from __future__ import annotations

from typing import Any, ClassVar

from typing_extensions import override

from lit_sparse.callbacks.pictures.base import Picture, new_figure
from lit_sparse.lightning import pl
from lit_sparse.state_checks import AMOUNT, NUMBER, Kind, ListOf, OneOf

__all__ = ["DecoderCallsPlot", "NegativeELBOPlot", "SuccessPlot", "SupportSizePlot"]

#: Example of a value that may be NaN.
FLOAT = Kind("a float", lambda value: isinstance(value, float))
#: Statistics of a count over the examples of an epoch.
KEYS = ("p10", "median", "p90", "mean")


class CurvePlot(Picture):
    """Base of pictures of values over training, one row of values an epoch; a run that is continued adds to its own."""

    shown: ClassVar[tuple[str, ...]] = ("history",)

    def __init__(self, folder: str | None = None) -> None:
        super().__init__(folder)
        self.history: list[dict[str, float]] = []

    def add(self, trainer: pl.Trainer, **values: float) -> None:
        """Add a row for this epoch."""
        self.history = [*self.history, {"epoch": float(trainer.current_epoch + 1), **values}]

    def values(self, name: str) -> list[float]:
        """Return one value of each row."""
        return [row[name] for row in self.history]

    def draw(self, marker: str | None) -> Any:
        """Return the figure; a short curve has a marker at each point."""
        raise NotImplementedError

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.history and trainer.is_global_zero:
            self.save(trainer, self.draw("." if len(self.history) < 20 else None))


class CountPlot(CurvePlot):
    """Base of pictures of a count over training: median with the band from the 10th to the 90th percentile, and mean."""

    #: The name of the counts in a step's output, and how they are called.
    count = "decoder_calls"
    label = "decoder calls per example"

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        logged = {key: trainer.callback_metrics.get(f"train/{self.count}_{key}") for key in KEYS}
        known = {key: float(value) for key, value in logged.items() if value is not None}
        if len(known) == len(KEYS):
            self.add(trainer, **known)

    @override
    def draw(self, marker: str | None) -> Any:
        figure, (axis,) = new_figure(1, 1, width=5.0, height=3.2)
        epochs = self.values("epoch")
        axis.fill_between(epochs, self.values("p10"), self.values("p90"), alpha=0.25, label="10th to 90th percentile")
        axis.plot(epochs, self.values("median"), label="median", marker=marker)
        axis.plot(epochs, self.values("mean"), label="mean", linestyle="--", linewidth=1)
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylabel(self.label)
        axis.set_ylim(bottom=0)
        axis.legend()
        return figure

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of a state."""
        return {"history": ListOf(dict.fromkeys(("epoch", *KEYS), NUMBER))}


class DecoderCallsPlot(CountPlot):
    """Plot decoder calls per example over training: median with the band from the 10th to the 90th percentile.

    It reads the values that ``CountLogger`` logs, so it must come after it in the list. To use it in a config (the command line
    adds it by itself)::

        trainer:
          callbacks: [CountLogger, DecoderCallsPlot]
    """

    name = "decoder_calls"


class SupportSizePlot(CountPlot):
    """Plot support sizes over training, as :class:`DecoderCallsPlot` plots decoder calls.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [CountLogger, SupportSizePlot]

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables via
    Sparsity, figure 4.
    """

    name = "support_size"
    count = "support_size"
    label = "values with probability above zero"


class ValidationPlot(CurvePlot):
    """Base of plots of a validation mean against epochs and against their cost, the cumulative median of decoder calls.

    The cost of an epoch is the median over its examples. An epoch without validation adds its cost and no point. The callback
    reads the values that ``CountLogger`` logs, so it must come after it in the list.
    """

    shown = ("history", "calls", "validated")
    #: Name of the logged mean ``val/{metric}``, its label, and the limits of its axis.
    metric = "loss"
    label = "loss of validation"
    limits: tuple[float | None, float | None] = (None, None)

    def __init__(self, folder: str | None = None) -> None:
        super().__init__(folder)
        self.calls = 0.0
        self.validated: float | None = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        value = trainer.callback_metrics.get(f"val/{self.metric}")
        if value is not None and not trainer.sanity_checking:
            self.validated = float(value)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        median = trainer.callback_metrics.get("train/decoder_calls_median")
        if median is None:
            return
        self.calls += float(median)
        if self.validated is not None:
            self.add(trainer, decoder_calls=self.calls, **{self.metric: self.validated})
        self.validated = None

    @override
    def draw(self, marker: str | None) -> Any:
        figure, axes = new_figure(1, 2, width=8.0, height=3.2)
        labels = {"epoch": "epoch", "decoder_calls": "cumulative median decoder calls per example"}
        for axis, (key, label) in zip(axes, labels.items(), strict=True):
            axis.plot(self.values(key), self.values(self.metric), marker=marker)
            axis.set_xlabel(label)
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.set_xlim(left=0)
            axis.set_ylim(*self.limits)
        axes[0].set_ylabel(self.label)
        return figure

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of a state."""
        row = {"epoch": NUMBER, "decoder_calls": NUMBER, self.metric: FLOAT}
        return {"history": ListOf(row), "calls": AMOUNT, "validated": OneOf(FLOAT)}


class NegativeELBOPlot(ValidationPlot):
    """Plot the negative ELBO of validation against epochs, and against the cumulative median of decoder calls.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [CountLogger, NegativeELBOPlot]

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables via
    Sparsity, figure 5.
    """

    name = "negative_elbo"
    metric = "nelbo"
    label = "negative ELBO of validation, nats"


class SuccessPlot(ValidationPlot):
    """Plot the validation success of a game against epochs and cost, as :class:`NegativeELBOPlot` does.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks: [CountLogger, SuccessPlot]
    """

    name = "success"
    metric = "success"
    label = "success in validation"
    limits = (0.0, 1.0)
