"""Curves over training: decoder calls, sizes of supports, the negative ELBO, the success of a game."""

from __future__ import annotations

from typing import Any

from lit_sparse.callbacks.pictures.base import Picture, new_figure
from lit_sparse.lightning import pl
from lit_sparse.state_checks import AMOUNT, NUMBER, Kind, ListOf, OneOf

__all__ = ["DecoderCallsPlot", "NegativeELBOPlot", "SuccessPlot", "SupportSizePlot"]

#: Example of a value that may be NaN.
FLOAT = Kind("a float", lambda value: isinstance(value, float))


class CountPlot(Picture):
    """Base of pictures of a count over training: median with the band from the 10th to the 90th percentile, and mean."""

    #: The name of the counts in a step's output, and how they are called.
    count = "decoder_calls"
    label = "decoder calls per example"

    def __init__(self, folder: str | None = None) -> None:
        super().__init__(folder)
        self.history: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        logged = {key: trainer.callback_metrics.get(f"train/{self.count}_{key}") for key in ("p10", "median", "p90", "mean")}
        if any(value is None for value in logged.values()):
            return
        self.history.append(
            {
                "epoch": float(trainer.current_epoch + 1),
                **{key: float(value) for key, value in logged.items() if value is not None},
            }
        )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.history or not trainer.is_global_zero:
            return
        figure, axes = new_figure(1, 1, width=5.0, height=3.2)
        axis = axes[0]
        epochs = [row["epoch"] for row in self.history]
        axis.fill_between(
            epochs,
            [row["p10"] for row in self.history],
            [row["p90"] for row in self.history],
            alpha=0.25,
            label="10th to 90th percentile",
        )
        axis.plot(epochs, [row["median"] for row in self.history], label="median", marker="." if len(epochs) < 20 else None)
        axis.plot(epochs, [row["mean"] for row in self.history], label="mean", linestyle="--", linewidth=1)
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylabel(self.label)
        axis.set_ylim(bottom=0)
        axis.legend()
        self.save(trainer, figure)

    def state_dict(self) -> dict[str, Any]:
        """Return the epochs drawn so far."""
        return {"history": self.history}

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of a state."""
        return {"history": ListOf(dict.fromkeys(("epoch", "p10", "median", "p90", "mean"), NUMBER))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the curve of a resumed run."""
        self.history = list(state_dict["history"])


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


class ValidationPlot(Picture):
    """Base of plots of a validation mean against epochs and against their cost, the cumulative median of decoder calls.

    The cost of an epoch is the median over its examples. An epoch without validation adds its cost and no point. The callback
    reads the values that ``CountLogger`` logs, so it must come after it in the list.
    """

    #: Name of the logged mean ``val/{metric}``, its label, and the limits of its axis.
    metric = "loss"
    label = "loss of validation"
    limits: tuple[float | None, float | None] = (None, None)

    def __init__(self, folder: str | None = None) -> None:
        super().__init__(folder)
        self.history: list[dict[str, float]] = []
        self.calls = 0.0
        self._validated: float | None = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        value = trainer.callback_metrics.get(f"val/{self.metric}")
        if value is not None and not trainer.sanity_checking:
            self._validated = float(value)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        median = trainer.callback_metrics.get("train/decoder_calls_median")
        if median is None:
            return
        self.calls += float(median)
        if self._validated is not None:
            self.history.append(
                {"epoch": float(trainer.current_epoch + 1), "decoder_calls": self.calls, self.metric: self._validated}
            )
        self._validated = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.history or not trainer.is_global_zero:
            return
        figure, axes = new_figure(1, 2, width=8.0, height=3.2)
        marker = "." if len(self.history) < 20 else None
        for axis, key, label in zip(
            axes, ("epoch", "decoder_calls"), ("epoch", "cumulative median decoder calls per example"), strict=True
        ):
            axis.plot([row[key] for row in self.history], [row[self.metric] for row in self.history], marker=marker)
            axis.set_xlabel(label)
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.set_xlim(left=0)
            axis.set_ylim(*self.limits)
        axes[0].set_ylabel(self.label)
        self.save(trainer, figure)

    def state_dict(self) -> dict[str, Any]:
        """Return the points so far, and the cost."""
        return {"history": self.history, "calls": self.calls, "validated": self._validated}

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of a state."""
        row = {"epoch": NUMBER, "decoder_calls": NUMBER, self.metric: FLOAT}
        return {"history": ListOf(row), "calls": AMOUNT, "validated": OneOf(FLOAT)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the curves of a resumed run."""
        self.history = list(state_dict["history"])
        self.calls, self._validated = state_dict["calls"], state_dict["validated"]


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
