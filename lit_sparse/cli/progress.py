"""What a person watches while a command runs: what is trained, then a line for each epoch or a bar in a terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from textwrap import fill
from typing import TYPE_CHECKING, Any, TextIO

from typing_extensions import override

from lit_sparse.cli.best_metrics import monitor_of, ordered
from lit_sparse.cli.stopping import LOGGERS
from lit_sparse.ground.arguments import constructor_parameters
from lit_sparse.lightning.choice import ModelSummary, ProgressBar, pl

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["Parts", "Watch"]

#: Metrics that are shown.
SHOWN = 3
#: Seconds between two changes of the bar.
SECONDS = 0.1
#: Characters of the time left.
WIDTH = len("1:23:45 left")


class Parts(ModelSummary):
    """Print what is trained: the model, the parts of it that a config chooses, the data, and the number of parameters.

    Args:
        model: the model.
        data: the data module; None without one.
    """

    def __init__(self, model: pl.LightningModule, data: pl.LightningDataModule | None) -> None:
        place = "" if data is None else f" on {type(data).__name__}"
        super().__init__(max_depth=1, model=type(model).__name__, place=place, chosen=constructor_parameters(type(model)))

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]],
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        *_: Any,
        **options: Any,
    ) -> None:
        """Print it, within 80 columns."""
        columns = dict(summary_data)
        parts = zip(columns["Name"], columns["Type"], strict=True)
        chosen = ", ".join(f"{name} {kind}" for name, kind in parts if name in options["chosen"])
        frozen = total_parameters - trainable_parameters
        count = f"{total_parameters:,} parameters{f', {frozen:,} of them frozen' if frozen else ''}"
        text = f"{options['model']}{f' ({chosen})' if chosen else ''}{options['place']}, {count}"
        print(fill(text, 80), flush=True)


class Watch(ProgressBar):
    """Progress display: a line for each epoch, or a bar in a terminal, with the epoch, the time left and three metrics.

    The metrics are the training loss, the metric that selects the best checkpoint, and the validation loss or else the next
    metric of the model. The time left is for the nearest of ``max_epochs`` and ``max_steps``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._bar: Live | None = None
        self._values: dict[str, float] = {}
        self._due: list[str] = []
        self._started = self._drawn = self._share = self._first = 0.0
        self._batches, self._ended = 0, False

    @override
    def disable(self) -> None:
        self._enabled = False

    @override
    def enable(self) -> None:
        self._enabled = True

    # Training

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin(_done(trainer, float(trainer.current_epoch)))

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._print_epoch(trainer, pl_module)

    @override
    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        if self._is_due():
            step = {name: float(value) for name, value in trainer.progress_bar_metrics.items() if name == "train/loss_step"}
            batches = trainer.fit_loop.batch_idx + 1
            self._share = _done(trainer, trainer.current_epoch + batches / trainer.num_training_batches)
            self._draw(_place(trainer), _texts(pl_module, {**self._values, **step}))

    @override
    def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.state.fn != "fit":
            self._count("validation", trainer.num_val_batches)
        elif not trainer.sanity_checking and self._is_due():
            done: Any = trainer.fit_loop.epoch_loop.val_loop.batch_progress.current
            self._draw(_place(trainer), [f"validation, batch {done.ready}"])

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking and self._enabled:
            self._keep(trainer, training=False)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Store the metrics of the epoch; Lightning knows its training metrics only after this hook."""
        self._share = _done(trainer, trainer.current_epoch + 1)
        self._due = [_place(trainer)]

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._ended = True
        self._print_epoch(trainer, pl_module)
        self._end()

    def _keep(self, trainer: pl.Trainer, *, training: bool) -> None:
        """Keep the newest metrics of training, or of validation."""
        metrics = trainer.callback_metrics.items()
        new = {name: float(value) for name, value in metrics if name.startswith("train") == training}
        self._values |= {name: value for name, value in new.items() if not name.endswith("_step")}

    def _print_epoch(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Print the line of the epoch that has ended; the bar keeps the metrics of an older validation."""
        if not self._due or not self._enabled:
            return
        self._keep(trainer, training=True)
        texts = _texts(module, self._values)
        (place,), self._due = self._due, []
        if self._bar is None:
            print("  ".join([place, self._time(), *texts]).rstrip(), flush=True)
            self._values = {}
        else:
            self._draw(place, texts)

    # Scoring

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit":
            self._begin(0.0)

    @override
    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin(0.0)

    on_predict_start = on_test_start

    @override
    def on_test_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._count("test", trainer.num_test_batches)

    @override
    def on_predict_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._count("predictions", trainer.num_predict_batches)

    def _count(self, what: str, batches: Iterable[float]) -> None:
        self._batches += 1
        self._share = self._batches / max(1, sum(batches))
        self._ended = self._share >= 1
        if self._is_due() or self._ended:
            self._draw(what, [])

    # The bar

    def _begin(self, share: float) -> None:
        self._started, self._share, self._first = time.monotonic(), share, share
        self._values, self._due, self._batches, self._ended = {}, [], 0, False
        if self._enabled and sys.stdout.isatty():
            from rich.live import Live

            self._bar = Live(auto_refresh=False, redirect_stderr=sys.stderr.isatty())
            self._bar.start()
            _print_logs_to(sys.stderr)

    def _is_due(self) -> bool:
        return self._bar is not None and self._enabled and time.monotonic() - self._drawn > SECONDS

    def _draw(self, place: str, texts: list[str]) -> None:
        if self._bar is not None:
            self._drawn = time.monotonic()
            drawing = _drawing(self._bar.console.width, place, self._share, self._time(), texts)
            self._bar.update(drawing, refresh=True)

    def _time(self) -> str:
        """Return the time left, estimated from the progress since the start, or the time taken if the run has ended."""
        passed, done = time.monotonic() - self._started, self._share - self._first
        if self._ended:
            text = f"took {timedelta(seconds=round(passed))}"
        else:
            text = f"{timedelta(seconds=round(passed * (1 - self._share) / done))} left" if done > 0 else ""
        return f"{text:>{WIDTH}}"

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            _print_logs_to(sys.stderr)
        self._bar = None

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._end()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._end()


def _print_logs_to(stream: TextIO) -> None:
    """Print Lightning's log messages through a stream that redraws the progress bar below them."""
    for name in LOGGERS:
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
                handler.setStream(stream)


def _done(trainer: pl.Trainer, epochs: float) -> float:
    """Return the share of a training that is done, by the nearest of its limits; 0 without a limit."""
    limits = ((epochs, trainer.max_epochs), (float(trainer.global_step), trainer.max_steps))
    return min(1.0, max((done / limit for done, limit in limits if limit and limit > 0), default=0.0))


def _place(trainer: pl.Trainer) -> str:
    """Return the number of the epoch, from 1, and of the step if steps are limited, each with its limit.

    A number is as wide as its limit, so that the lines of all epochs are aligned.
    """
    numbers = {"epoch": (trainer.current_epoch + 1, trainer.max_epochs or -1)}
    if trainer.max_steps > 0:
        numbers["step"] = (trainer.global_step, trainer.max_steps)
    texts = (
        f"{name} {number:>{len(str(limit))}}/{limit}" if limit > 0 else f"{name} {number}"
        for name, (number, limit) in numbers.items()
    )
    return ", ".join(texts)


def _texts(module: pl.LightningModule, values: Mapping[str, float]) -> list[str]:
    """Return the chosen metrics with their values, training first; of training only the loss, in the bar of the last step."""
    loss = "train/loss_step" if "train/loss_step" in values else "train/loss"
    others = ordered((name for name in values if not name.startswith("train")), module)
    names = [name for name in dict.fromkeys([monitor_of(module)[0], "val/loss", loss, *others]) if name in values][:SHOWN]
    return [f"{name} {values[name]:<7.4g}" for name in sorted(names, key=lambda name: not name.startswith("train"))]


def _drawing(width: int, place: str, share: float, left: str, texts: list[str]) -> Any:
    """Return the bar with a line of metrics below it, as many as fit into the width of the terminal."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Column, Table
    from rich.text import Text

    bar = Table.grid(Column(no_wrap=True), Column(ratio=1), Column(no_wrap=True), padding=(0, 1), expand=True)
    bar.add_row(place, ProgressBar(1.0, share), left)
    while texts and len("  ".join(texts).rstrip()) > width:
        texts = texts[:-1]
    return Group(bar, *([Text("  ".join(texts).rstrip())] if texts else []))
