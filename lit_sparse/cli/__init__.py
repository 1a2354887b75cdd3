"""The command line ``lit-sparse``, and :func:`build_cli` for notebooks.

This module imports nothing heavy, so that ``--help`` and ``--version`` answer at once.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TextIO

from lit_sparse.errors import INTERRUPTED, ConfigurationError, LitSparseError, did_you_mean, refusal_of_system
from lit_sparse.version import __version__

if TYPE_CHECKING:
    from lit_sparse.cli.app import LitSparseCLI

__all__ = ["build_cli", "main", "wait_passively"]

COMMANDS = {
    "fit": "train a model: lit-sparse fit -c ssvae/digits",
    "validate": "score a checkpoint on the validation data: lit-sparse validate -c CONFIG --ckpt_path CHECKPOINT",
    "test": "score a checkpoint on the test data: lit-sparse test -c CONFIG --ckpt_path CHECKPOINT",
    "predict": "write a checkpoint's predictions: lit-sparse predict -c CONFIG --ckpt_path CHECKPOINT",
    "export": "write a model as ONNX or for torch.export: lit-sparse export RUN_FOLDER -o model.onnx",
    "select": "select a coreset of the data: lit-sparse select -c coreset/logistic",
    "compare": "tabulate and draw runs: lit-sparse compare sparse=RUN_FOLDER dense=RUN_FOLDER",
    "report": "write one page about runs, a sweep or a study: lit-sparse report RUN_FOLDER RUN_FOLDER -o report.html",
    "sweep": "search over values of a config: lit-sparse sweep -c CONFIG -s SPACE --metric val/nelbo",
    "study": "train and test many models, and tabulate the results: lit-sparse study ssvae --schedule smoke",
    "configs": "list, print or copy the configs: lit-sparse configs ssvae/digits",
    "list": "list the mappings, models, data modules and other parts: lit-sparse list mappings",
    "compile": "compile mappings ahead of their first call: lit-sparse compile Sparsemax",
    "completion": "print the script by which a shell completes commands: lit-sparse completion bash",
}

#: Command that does not run a model -> module with its ``main`` and ``parser``.
MODULES = {
    "export": "lit_sparse.cli.export",
    "select": "lit_sparse.cli.select",
    "compare": "lit_sparse.studies.compare",
    "report": "lit_sparse.studies.report",
    "sweep": "lit_sparse.studies.search.command",
    "study": "lit_sparse.studies.command",
    "configs": "lit_sparse.cli.show_configs",
    "list": "lit_sparse.cli.show_parts",
    "compile": "lit_sparse.cli.compile",
    "completion": "lit_sparse.cli.completion",
}
#: Exit status after the reader of the output has closed it, as of a program that SIGPIPE ends.
CLOSED = 141
#: Environment variables that set how OpenMP threads wait: of the standard, GNU and LLVM.
WAIT_VARIABLES = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}

HELP = "\n".join(
    [
        "usage: lit-sparse COMMAND [options]",
        "",
        "Neural networks that decide sparsely.",
        "",
        "commands:",
        *(f"  {name:<12}{what}" for name, what in COMMANDS.items()),
        "",
        "options:",
        "  --help        this list; `lit-sparse COMMAND --help` has the options of a command",
        "  --version     the version",
    ]
)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line ``lit-sparse``, and return the exit status.

    Args:
        args: arguments after ``lit-sparse``; by default the process's own.

    Returns:
        Exit status: 0, 2 after a message about what to change, 130 after Ctrl-C, 141 after the reader of the output has
        closed it, 143 after SIGTERM.
    """
    if args is not None:  # a call by another program
        return _run(list(args), program=False)
    try:
        try:
            return _run(sys.argv[1:], program=True)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError:
        failure = _failure_of(sys.stdout, "\n")
        message = "\n" if failure is None else ""
        if failure is not None and not isinstance(failure, BrokenPipeError):
            reason = f"Expected to write the output but got: {failure.strerror}. Free space there, or send it elsewhere."
            message = f"lit-sparse: error: {reason}\n"
        other = _failure_of(sys.stderr, message)
        if failure is None and other is None:  # it is about something else
            raise
        return CLOSED if isinstance(failure or other, BrokenPipeError) else 2


def _failure_of(stream: TextIO | None, text: str) -> OSError | None:
    """Return why a stream rejects a text, as after ``head`` has ended, or None; the rest of the output is then discarded."""
    if stream is None:
        return None
    try:
        stream.write(text)
        stream.flush()
    except OSError as failure:
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), stream.fileno())
        return failure
    return None


def _run(args: list[str], *, program: bool) -> int:
    """Run the command line, in the program's own process or for another program."""
    wait_passively()
    if program:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # for characters that its encoding lacks
    if not args or args[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0 if args else 2
    if args[0] in ("-V", "--version"):
        print(f"lit-sparse {__version__}")
        return 0
    try:
        if args[0].startswith("-"):
            raise LitSparseError(f"Expected a command first, then its options: lit-sparse fit {' '.join(args)[:100]}")
        if args[0] not in COMMANDS:
            raise LitSparseError(
                f"Expected one of the commands {', '.join(COMMANDS)} but got {args[0]!r}.{did_you_mean(args[0], COMMANDS)}"
            )
        encoding = sys.getfilesystemencoding()
        undecoded = [arg for arg in args if encoding != "utf-8" and any("\udc80" <= letter <= "\udcff" for letter in arg)]
        if undecoded:
            raise LitSparseError(f"Expected text in {encoding} but got {undecoded[0]!r}. Set PYTHONUTF8=1 if it is UTF-8.")
        if args[0] != "compile":
            from lit_sparse.ground import train_extra  # noqa: F401

        here = str(Path.cwd())  # whose modules are importable as with `python -m lit_sparse`; installed ones come first
        if here not in sys.path and "" not in sys.path:
            sys.path.append(here)
        with _help_is_written(args):
            if args[0] in MODULES:
                command: Callable[[Sequence[str]], int] = import_module(MODULES[args[0]]).main
                return command(args[1:])
            return int(_import_app(program).run(args))
    except LitSparseError as error:
        print(f"lit-sparse: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if (reason := refusal_of_system(error)) is None:
            raise
        print(f"lit-sparse: error: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        return int(getattr(stop, "status", INTERRUPTED))


@contextmanager
def _help_is_written(args: Sequence[str]) -> Iterator[None]:
    """Build the help first, then write it, because argparse ignores a full disk when it prints."""
    if not {"-h", "--help"} & {*args}:
        yield
        return
    text = io.StringIO()
    try:
        with redirect_stdout(text):
            yield
    finally:
        print(text.getvalue(), end="")


def _import_app(program: bool) -> ModuleType:
    """Return the module of the commands that run Lightning.

    The imported objects stay alive, so in the program's own process the garbage collector skips them, and the
    first step comes a quarter sooner.
    """
    name = "lit_sparse.cli.app"
    if not program:
        return import_module(name)
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def wait_passively() -> None:
    """Make idle OpenMP threads sleep, unless an OpenMP variable says how they wait or torch is already imported.

    Spinning threads would take cores from other processes. Torch reads the variable once, when it is imported.
    """
    if "torch" not in sys.modules and not WAIT_VARIABLES & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def build_cli(args: Sequence[str], *, run: bool = False) -> LitSparseCLI:
    """Return model, data and trainer built as the command line would build them, for a notebook or a script.

    Args:
        args: arguments after ``lit-sparse``, e.g. ``["fit", "-c", "ssvae/digits"]``.
        run: whether to also run the command.

    Returns:
        An object with ``model``, ``datamodule`` and ``trainer``.

    Raises:
        ConfigurationError: if it is no list that begins with a command.
        LitSparseError: if an argument is invalid; the message says what to change.
        MissingExtraError: without the extra ``train``.
    """
    from lit_sparse.ground import train_extra  # noqa: F401
    from lit_sparse.cli.app import LitSparseCLI

    known, words = [name for name in COMMANDS if name not in MODULES], [*args] if isinstance(args, list | tuple) else []
    if not words or words[0] not in known or not all(isinstance(word, str) for word in words):
        raise ConfigurationError(f"Expected a list of words, the first one of {', '.join(known)}, but got {args!r}.")
    return LitSparseCLI(words, execute=run)
