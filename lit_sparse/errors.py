"""Errors that state what was expected, what was given, and the next step."""

from __future__ import annotations

import copyreg
import difflib
import errno
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

__all__ = [
    "DISK_IS_FULL",
    "INTERRUPTED",
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "LitSparseError",
    "MissingExtraError",
    "Terminated",
    "cause_of",
    "did_you_mean",
    "error_chain",
    "full_name",
    "install_command",
    "is_terminable",
    "needs_extra",
    "printable",
    "refusal_of_system",
    "terminable",
]

#: Errors of the operating system after which nothing more can be written.
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
Caught = TypeVar("Caught", bound=BaseException)
#: Exit status after Ctrl-C.
INTERRUPTED = 130
#: Largest number of characters of a message, which may have values from files in it.
LONGEST = 20_000
#: Characters that are printed as they are, beside letters, marks and the usual space.
KEPT = "\n\t\u00a0\u202f\u3000"


class Terminated(KeyboardInterrupt):
    """Exception raised at SIGTERM, which stops a command as Ctrl-C does."""

    status = 128 + signal.SIGTERM


@contextmanager
def terminable() -> Iterator[None]:
    """Raise :class:`Terminated` at SIGTERM, within a context in the main thread.

    A forked process, such as a data loader's worker, ends at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def stop(number: int, frame: Any) -> None:
        if os.getpid() != owner:
            os._exit(Terminated.status)
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def is_terminable() -> bool:
    """Return whether SIGTERM raises :class:`Terminated` here."""
    return getattr(signal.getsignal(signal.SIGTERM), "__module__", None) == __name__


class LitSparseError(Exception):
    """Base class of the package's errors, which the command line prints as one message without a traceback."""

    def __str__(self) -> str:
        """Return the message, shortened if it is long, with control characters escaped."""
        text = super().__str__()
        return printable(text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}")


class ConfigurationError(LitSparseError, ValueError):
    """Error for an argument with a value that is not allowed, alone or together with another argument."""


class DataError(LitSparseError, ValueError):
    """Error for a data set that is missing, unreadable, or malformed."""


class CheckpointError(LitSparseError, RuntimeError):
    """Error for a checkpoint that is missing, unreadable, or does not match the command."""


class MissingExtraError(LitSparseError, ImportError):
    """Error for an optional package that is needed, and is missing or too old.

    Args:
        what: the feature that needs the package, for example ``"The bundled MNIST images"``.
        extra: the extra of this package that installs it.
        but: what was found instead, for example ``" but got transformers 4.57"``.
        command: command that installs it; by default :func:`install_command`.
    """

    def __init__(self, what: str, extra: str, but: str = "", command: str = "") -> None:
        super().__init__(f"{what} need the extra '{extra}'{but}. Install it with: {command or install_command(extra)}")

    def __reduce__(self) -> tuple[Any, ...]:
        make = copyreg.__newobj__  # type: ignore[attr-defined]  # not the constructor, which takes no message
        return make, (type(self), *self.args)


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Turn the error of an import within a context into a :class:`MissingExtraError`, whose arguments these are."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(what, extra) from error


def printable(text: str) -> str:
    r"""Return a text with its control characters escaped, except for line breaks and tabs, so that it is safe to print.

    Example:
        >>> print(printable("naïve \x1b]0;title\x07"))
        naïve \x1b]0;title\x07
    """
    return "".join(
        letter if letter.isprintable() or letter in KEPT else letter.encode("unicode_escape").decode() for letter in text
    )


def refusal_of_system(error: BaseException) -> str | None:
    """Return the message for a full or read-only disk or a lack of permissions, or None for another error."""
    denied = isinstance(error, PermissionError)
    if not isinstance(error, OSError) or not (denied or error.errno in DISK_IS_FULL) or (denied and error.filename is None):
        return None
    place = "the disk" if error.filename is None else repr(os.fsdecode(error.filename))
    advice = "Check its permissions" if denied else "Choose another place, or free space"
    return f"Expected to use {place} but got: {error.strerror}. {advice}."


def install_command(*extras: str) -> str:
    """Return the command that installs optional extras, from this package's clone or by their requirements.

    The package is not on PyPI, so ``pip install`` of its name would fail, or install another project.
    """
    clone = Path(__file__).resolve().parents[1]
    if (clone / "pyproject.toml").is_file():
        return f'pip install -e "{clone}[{",".join(extras)}]"'
    try:
        names = dict.fromkeys(requirement for extra in extras for requirement in _requirements(extra))
    except metadata.PackageNotFoundError:  # a copy of the folder
        return f'pip install -e "CLONE[{",".join(extras)}]", where CLONE is the path of a clone of lit_sparse'
    return " ".join(["pip install", *(f'"{name}"' for name in names)])


def _requirements(extra: str) -> Iterator[str]:
    """Yield the requirements of an extra in the metadata of the installed package; double quotes become single ones."""
    for line in metadata.requires("lit-sparse") or ():
        name, _, condition = line.replace('"', "'").partition(";")
        others = re.sub(rf"( and )?\bextra == '{extra}'", "", condition).strip()
        if others == condition.strip():
            continue
        own = re.fullmatch(r"lit-sparse\[(.+)\]", name.strip())
        if own:
            for inner in own[1].split(","):
                yield from _requirements(inner)
        else:
            yield f"{name.strip()}; {others}" if others else name.strip()


def full_name(thing: object) -> str:
    """Return the name of an object's class with its module, to distinguish classes of the same name.

    Example:
        >>> full_name([])
        'list'
        >>> from decimal import Decimal
        >>> full_name(Decimal(1))
        'decimal.Decimal'
    """
    kind = type(thing)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return ``" Did you mean 'X'?"`` for the closest allowed name, or an empty string if none is close.

    Example:
        >>> did_you_mean("Sparsmax", ["Softmax", "Sparsemax"])
        " Did you mean 'Sparsemax'?"
    """
    by_lower = {str(candidate).lower(): candidate for candidate in allowed if candidate != name}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean '{by_lower[close[0]]}'?" if close else ""


def cause_of(error: BaseException | None, kind: type[Caught]) -> Caught | None:
    """Return the first error of a given class among an error and its causes, or None."""
    return next((cause for cause in error_chain(error) if isinstance(cause, kind)), None)


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
