"""Messages for errors while the parts of a run are built, and for what Lightning refuses of its settings."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jsonargparse import Namespace

from lit_sparse.errors import ConfigurationError, LitSparseError, cause_of, did_you_mean, error_chain
from lit_sparse.lightning.choice import MisconfigurationException

__all__ = ["build_error", "check_numbers", "refusal", "told_as", "trainer_error"]

#: The command in an ImportError, and the package that it installs.
INSTALL = re.compile(r"(pip install (?:-\S+ )*['\"]?([\w.-]+)[^`]*)`")
#: Endings of the names of a count's statistics.
STATISTICS = ("_mean", "_p10", "_median", "_p90", "_total", "_step")
LIGHTNING = ("pytorch_lightning", "lightning_fabric", "lightning")
#: Options that Lightning does not check -> their smallest value.
LEAST = {
    "checkpoint_every_n_steps": 1,
    "trainer.accumulate_grad_batches": 1,
    "trainer.check_val_every_n_epoch": 1,
    "trainer.gradient_clip_val": 0,
    "trainer.log_every_n_steps": 0,
    "trainer.num_sanity_val_steps": -1,
}


def check_numbers(options: Namespace) -> None:
    """Check numeric options with which Lightning would fail late, or silently train differently.

    Args:
        options: options of the command.

    Raises:
        ConfigurationError: for a seed or a count outside its range.

    Example:
        >>> check_numbers(
        ...     Namespace(seed_everything=7, trainer=Namespace(accumulate_grad_batches=2))
        ... )
        >>> check_numbers(Namespace(seed_everything=-1))
        Traceback (most recent call last):
            ...
        lit_sparse.errors.ConfigurationError: Expected `seed_everything` to be in 0 .. 2^32 - 1 but got -1. Choose another.
    """
    seed = options.get("seed_everything")
    if not isinstance(seed, bool) and seed is not None and not 0 <= seed < 2**32:
        raise ConfigurationError(f"Expected `seed_everything` to be in 0 .. 2^32 - 1 but got {seed}. Choose another.")
    for name, least in LEAST.items():
        number = options.get(name)
        if number is not None and number < least:
            raise ConfigurationError(
                f"Expected `{name}` to be at least {least} but got {number}. Choose another, or leave it out."
            )
    if options.get(name := "trainer.val_check_interval") == 0:  # which Lightning takes, and then fails or validates never
        raise ConfigurationError(f"Expected `{name}` to be above 0 but got {options[name]}. Choose another, or leave it out.")


def refusal(error: Exception, logged: Collection[str] = ()) -> ConfigurationError | None:
    """Return the message for a setting that Lightning refuses; None for errors with another cause.

    Lightning checks some settings only after data and optimizers are built: fractions of batches, intervals, monitored
    metrics.

    Args:
        error: exception of a command.
        logged: names of the logged metrics.

    Example:
        >>> print(refusal(MisconfigurationException("No `val_dataloader()`.")))
        Lightning refuses this run: No `val_dataloader()`.
        >>> refusal(ValueError("a bug"))
    """
    if isinstance(error, LitSparseError):
        return None
    callers = _modules(error)
    if isinstance(error, KeyError) and error.args == ("lr",) and "torch.optim.swa_utils" in callers:
        return ConfigurationError(
            "Expected an optimizer with a learning rate `lr` for StochasticWeightAveraging but the model's optimizer has none."
            " Leave out the callback."
        )
    if isinstance(error, ArithmeticError | RuntimeError | ValueError) and callers and callers[-1].startswith("torch.optim."):
        return ConfigurationError(f"The optimizer or its scheduler refuses this run: {error}. Change its arguments.")
    own = isinstance(error, RuntimeError | TypeError | ValueError) and callers and callers[-1].split(".")[0] in LIGHTNING
    own = own or (isinstance(error, AttributeError) and bool(callers) and ".tuner." in callers[-1])
    if not own and not isinstance(error, MisconfigurationException):
        return None
    found = {name: value for frame, _ in traceback.walk_tb(error.__traceback__) for name, value in frame.f_locals.items()}
    part, monitor = "ReduceLROnPlateau", found.get("monitor_key")  # of Lightning's loop
    if monitor is None:
        part, monitor = type(found.get("self")).__name__, getattr(found.get("self"), "monitor", None)
    if not isinstance(monitor, str) or monitor in logged:  # a model's is a pair
        return ConfigurationError(f"Lightning refuses this run: {' '.join(str(error).split())}")
    shown = [name for name in sorted(logged) if "/" in name and not name.endswith(STATISTICS)]
    return ConfigurationError(
        f"Expected {part} to monitor a logged metric but got {monitor!r}.{did_you_mean(monitor, logged)}"
        f" Choose from: {', '.join(shown)}."
    )


@contextmanager
def told_as(explain: Callable[[Exception], Exception | None]) -> Iterator[None]:
    """Provide a context whose errors ``explain`` may replace: it returns the error to raise instead, or None to keep one."""
    try:
        yield
    except Exception as error:
        if (told := explain(error)) is None or told is error:
            raise
        raise told from error


def trainer_error(error: Exception, callbacks: Any) -> ConfigurationError | None:
    """Return the error to raise if the trainer cannot be built, with an explanation.

    Args:
        error: exception while the trainer was built.
        callbacks: value of ``trainer.callbacks``.
    """
    if isinstance(error, LitSparseError):
        return None
    if isinstance(error, MisconfigurationException | ValueError | TypeError):
        return ConfigurationError(f"The trainer does not accept its arguments: {error}")
    keys = [callback.state_key for callback in callbacks] if isinstance(callbacks, list) else []
    twice = next((type(one).__name__ for one, key in zip(callbacks, keys, strict=True) if keys.count(key) > 1), None)
    if not isinstance(error, RuntimeError) or twice is None:
        return None
    return ConfigurationError(
        f"Expected different callbacks in `trainer.callbacks` but got two equal {twice}. To change the last callback of a"
        " config, set its options with --trainer.callbacks.NAME VALUE, without `--trainer.callbacks+`."
    )


def build_error(error: Exception, config: Namespace) -> Exception:
    """Return the error to raise if parts cannot be built: one explanation, or the error of the user's own class.

    Args:
        error: exception while the parts were built.
        config: options of the command.
    """
    if (own := cause_of(error, LitSparseError)) is not None:
        return own
    missing = cause_of(error, ImportError)
    if missing is not None and (hint := INSTALL.search(str(missing))):
        return ConfigurationError(f"Expected the package {hint[2]!r} but it is not installed. Install it with: {hint[1]}")
    *_, first = error_chain(error)
    if isinstance(first, MisconfigurationException):
        return ConfigurationError(f"Lightning refuses this run: {' '.join(str(first).split())}")
    roots = [name.split(".")[0] for name in _modules(first)]
    raised_by = next((root for root in reversed(roots) if root != "torch"), "")
    known = isinstance(first, RuntimeError | ValueError | TypeError | MemoryError | OverflowError)
    if not known or raised_by not in ("lit_sparse", "jsonargparse"):
        return first if isinstance(first, Exception) else error
    reason = " ".join(str(first).split())[:200] or type(first).__name__
    if raised_by == "jsonargparse":
        return ConfigurationError(f"The parts cannot be built: {reason.rstrip('.')}. Change their class or its arguments.")
    sizes = [f"{key} = {value}" for key, value in _sizes(config) if value < 1 or value > 10**6]
    change = ", ".join(sizes) or "the sizes of the model"
    return ConfigurationError(f"The parts cannot be built: {reason.rstrip('.')}. Change {change}.")


def _sizes(config: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the integers of the model with their keys."""
    if isinstance(config, Namespace | Mapping):
        for key, value in vars(config).items() if isinstance(config, Namespace) else config.items():
            if prefix or key == "model":
                yield from _sizes(value, f"{prefix}.{key}".removeprefix(".").replace("init_args.", ""))
    elif isinstance(config, list | tuple):
        for value in config:
            yield from _sizes(value, prefix)
    elif isinstance(config, int) and not isinstance(config, bool) and not prefix.endswith(("dim", "seed", "last_epoch")):
        yield prefix, config


def _modules(error: BaseException) -> list[str]:
    """Return the modules of an error's traceback; the last module raised it."""
    return [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
