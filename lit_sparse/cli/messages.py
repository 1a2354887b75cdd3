"""Shortens the parser's messages about unions and subclasses to one sentence with the next step."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, get_origin

import torch

from lit_sparse.coresets import CoresetSelector
from lit_sparse.data import LabelNoise
from lit_sparse.errors import LitSparseError, did_you_mean, error_chain
from lit_sparse.estimators import Estimator
from lit_sparse.lightning import pl
from lit_sparse.mappings import SparseMapping
from lit_sparse.metrics import TextMetric
from lit_sparse.nn import EncoderDecoder
from lit_sparse.risks import Risk
from lit_sparse.structures import Structure
from lit_sparse.transport import Measure, Potentials

__all__ = ["about_checkpoint", "plain_message", "started_in"]

BASES: dict[str, type] = {
    "mapping": SparseMapping,
    "output_mapping": SparseMapping,
    "estimator": Estimator,
    "risk": Risk,
    "body": EncoderDecoder,
    "metrics": TextMetric,
    "structure": Structure,
    "selector": CoresetSelector,
    "model": pl.LightningModule,
    "data": pl.LightningDataModule,
    "label_noise": LabelNoise,
    "source": Measure,
    "target": Measure,
    "potentials": Potentials,
    "callbacks": pl.Callback,
    "sender": torch.nn.Module,
    "receiver": torch.nn.Module,
    "optimizer": torch.optim.Optimizer,
    "lr_scheduler": torch.optim.lr_scheduler.LRScheduler,
}

#: Examples of arguments of mappings by structures.
STRUCTURES = {
    "structure": "structure: {class_path: Budget, init_args: {budget: 2}}",
    "factors": "graph: {class_path: lit_sparse.structures.FactorGraph, init_args: {variables: 9, factors: [{structure: Xor}]}}",
}
#: Names of the parser's types in messages.
KINDS = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "text", "NoneType": "null", "list": "a list"}


_start: ContextVar[Path | None] = ContextVar("_start", default=None)
_of_checkpoint: ContextVar[bool] = ContextVar("_of_checkpoint", default=False)


@contextmanager
def about_checkpoint() -> Iterator[None]:
    """Import nothing for messages within this block: their names may come from a checkpoint."""
    token = _of_checkpoint.set(True)
    try:
        yield
    finally:
        _of_checkpoint.reset(token)


@contextmanager
def started_in() -> Iterator[None]:
    """Store the current folder for messages: the parser changes to the config's folder while it reads a config."""
    token = _start.set(_start.get() or Path.cwd())
    try:
        yield
    finally:
        _start.reset(token)


def plain_message(message: str, error: BaseException | None = None, options: Sequence[str] = (), owner: str = "") -> str:
    """Return a parser's message, shortened.

    Args:
        message: the parser's own message.
        error: cause of the message.
        options: names of the options of this parser.
        owner: class or command that has these options.
    """
    for cause in error_chain(error):
        if isinstance(cause, LitSparseError):
            return str(cause)
    refused = re.fullmatch(r"Option '([^']+)' is not accepted", message)
    if refused and options:
        name = refused.group(1)
        return f"There is no option {name!r} in {owner}.{did_you_mean(name, options)} The options are: {', '.join(options)}."
    for pattern, describe in PATTERNS:
        match = re.search(pattern, message, re.DOTALL)
        if match:
            return describe(_key(message), *match.groups())
    return _shortened(message)


def _shortened(message: str) -> str:
    """Shorten a parser's message about a value that fits no type of a union: drop the types and the value."""
    errors = re.search(r"Errors:\s*\n(.*?)\n\s*Given value type:", message, re.DOTALL)
    if errors is None:
        return re.sub(r"\s*\n\s*", " ", message.strip())
    reasons = [" ".join(line.split()) for line in re.split(r"^\s*- ", errors[1], flags=re.MULTILINE)]
    reasons = [line for line in reasons if line and not line.startswith(("Expected a <class", "Not a valid subclass"))]
    own = [line for line in reasons if line.startswith(("Missing: ", "Expected `", "There is no "))]
    return (
        f"`{_key(message)}` is not accepted: {' '.join(own[:1] or reasons[:2])[:400]}"
        if reasons
        else f"`{_key(message)}` is not accepted."
    )


def _unknown_class(key: str, name: str) -> str:
    path, base = name.strip(), BASES.get(key)
    module, _, short = path.rpartition(".")
    if module:
        trouble = _trouble_with(path, module, short, key, base)
        if trouble is not None:
            return trouble
    if key and base is None:
        return f"Expected `{key}` to be a number, or a class or function by its full path, but got {path!r}."
    if base is torch.nn.Module:
        return f"There is no {path!r} for `{key}`. Name a module by its full path, as in lit_sparse.nn.MLP or my_module.MyOwn."
    others = [kind for kind in BASES.values() if kind is not torch.nn.Module and short in set(_class_names(kind))]
    if base and others:
        return f"Expected `{key}` to be of the kind {base.__name__} but got the {others[0].__name__} {path!r}. {_known(base)}"
    classes = sorted(set(_class_names(base)) if base else {n for b in BASES.values() for n in _class_names(b)})
    near = did_you_mean(short, [name for name in classes if name != short])
    known = _known(base) if base else f"Known: {', '.join(classes[:12])}."
    return f"There is no class {path!r} for `{key}`.{near} {known}"


def _known(base: type) -> str:
    """List this package's subclasses of a base, or the first of other packages."""
    shown = sorted(set(_class_names(base, "lit_sparse"))) or sorted(set(_class_names(base)))[:12]
    return f"Known: {', '.join(shown)}."


def _trouble_with(path: str, module: str, short: str, key: str, base: type | None) -> str | None:
    """Return a message about a class with a full path, or None if no cause is found."""
    if _of_checkpoint.get() and module not in sys.modules:  # names of a checkpoint are never imported
        return None
    try:
        imported: Any = importlib.import_module(module)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not (module == missing or module.startswith(f"{missing}.")):
            return f"{path!r} for `{key}` cannot be imported: {type(error).__name__}: {error}"
        if base is None:
            return None
        start = _start.get() or Path.cwd()
        message = f"There is no module {missing!r} for `{key}` {path!r}, neither installed nor in the folder {str(start)!r}."
        if start != Path.cwd() and (Path.cwd() / f"{missing}.py").is_file():
            message += f" It is in the config's folder: start the command in {str(Path.cwd())!r}, or add this to PYTHONPATH."
        return message
    part = getattr(imported, short, None)
    if part is None:
        names = [name for name, value in vars(imported).items() if _fits(value, base)]
        own = [name for name in names if str(vars(imported)[name].__module__).startswith(module)]
        listed = f" It defines: {', '.join(own[:12])}." if own else ""
        return f"There is no {short!r} in {module!r} for `{key}`.{did_you_mean(short, names)}{listed}"
    if base is not None and not (isinstance(part, type) and issubclass(part, base)):
        return f"Expected `{key}` to be a subclass of {base.__module__.split('.')[0]}'s {base.__name__} but got {path!r}."
    if inspect.isabstract(part):
        missing_methods = ", ".join(sorted(part.__abstractmethods__))
        return f"{path!r} for `{key}` cannot be built: it does not define {missing_methods}."
    return None


def _fits(value: Any, base: type | None) -> bool:
    """Return whether a module's member is a subclass of a base, or any class or function if the base is None."""
    if not inspect.isclass(value) or get_origin(value) is not None:  # Python 3.10 counts dict[str, int] as a class
        return base is None and inspect.isfunction(value)
    return base is None or issubclass(value, base)


def _unknown_option(key: str, name: str) -> str:
    if not name.startswith("-") and (name.endswith((".yaml", ".yml")) or Path(name).is_file()):
        return f"Expected options but got {name!r}. Give a config with -c: lit-sparse COMMAND -c {name}"
    top = name.lstrip("-").split(".", 1)[0].split("=")[0]
    if "." in name and top not in TOP and not name.startswith(tuple(f"--{key}" for key in TOP)) and did_you_mean(top, TOP):
        return f"There is no option {top!r}.{did_you_mean(top, TOP)} `lit-sparse COMMAND --help` lists the options."
    short = name.split("=")[0].lstrip("-").rsplit(".", 1)[-1]
    if short in _option_names():
        return (
            f"The option {name!r} belongs to a class that is not given. Give the class first, as in -c CONFIG or --model CLASS."
        )
    return f"There is no option {name!r}.{did_you_mean(short, _option_names())} `lit-sparse COMMAND --help` lists the options."


def _wrong_type(key: str, kind: str, value: str) -> str:
    return f"Expected `{key}` to be {KINDS.get(kind, kind)} but got {value.strip()!r}."


def _not_allowed(key: str, allowed: str, value: str) -> str:
    names = re.findall(r"'([^']*)'", allowed)
    return f"Expected `{key}` to be one of {allowed} but got {value!r}.{did_you_mean(value, names)}"


def _no_union_member(key: str, kinds: str, value: str) -> str:
    names = [name.rpartition(".")[2] for name in re.findall(r"<class '([^']+)'>", kinds)]
    return f"Expected `{key}` to be {' or '.join(KINDS.get(name, name) for name in names)} but got {value.strip()!r}."


def _missing(key: str, names: str) -> str:
    missing = ", ".join(name.split(".", 1)[-1] for name in names.strip().split(", "))
    if {"model", "data"} & set(missing.split(", ")):
        return f"Missing: {missing}. Give a config, as in -c ssvae/digits, or the options one by one."
    example = STRUCTURES.get(missing)
    where = f", as in `{example}`. {_known(Structure)}" if example else "."
    return f"Missing: {missing}, which has no default. Set it in the init_args of the class{where}"


def _not_utf8(key: str, byte: str, position: str) -> str:
    place = f" in `{key}`" if key else ""
    return f"Expected a config in UTF-8 but got byte {byte} at position {position} of the file{place}. Save it as UTF-8."


def _not_yaml(key: str, name: str, reason: str) -> str:
    where = re.search(r'(.*?)\s*in "[^"]*", line (\d+), column (\d+)\s*(.*?)(?:\s*in "|\n|$)', reason, re.DOTALL)
    line = f" in line {where[2]}" if where else ""
    what = (where[4] or where[1]) if where else reason
    return f"Expected {name.strip(chr(39))!r} to be YAML but got{line}: {what}. Correct it."


def _unknown_key(_: str, name: str) -> str:
    return _unknown_option("", name)


#: Options of a command with nested options, and options without.
TOP = ("model", "data", "trainer", "optimizer", "seed_everything", "output_dir", "name", "ckpt_path", "config")


def _several(key: str, name: str, paths: str) -> str:
    candidates = " or ".join(paths.rstrip(".").split(", "))
    return f"Expected `{key}` to name one class but {name!r} may be {candidates}. Give the full path."


PATTERNS: list[tuple[str, Callable[..., str]]] = [
    (r"Multiple subclasses with name (\w+)\. Give the full class path to avoid ambiguity: ([\w., ]+)", _several),
    (r"codec can't decode byte (\w+) in position (\d+)", _not_utf8),
    (r"Invalid content in sub-config file (\S+): (.*)", _not_yaml),
    (r"Unable to load config ('[^']*')\s*-?\s*(.*)", _not_yaml),
    (r"Expected a dot import path string: (\S+)", _unknown_class),
    (r"module '[\w.]+' has no attribute '[^']+'\. Got value: ([^\n]+)", _unknown_class),
    (r"Problem with given class_path ['\"]?([\w.]+)", _unknown_class),
    (r"Import path (?!does )['\"]?([\w.]+)", _unknown_class),
    (r"No module named ['\"]?([\w.]+)", _unknown_class),
    (r"Got value: (\S+)\s+.*?class_path.*?not.*?subclass", _unknown_class),
    (r"Option '([^']+)' is not accepted", _unknown_option),
    (r"[Ss]ubcommand '\w+' does not accept option '([^']+)'", _unknown_key),
    (r"[Uu]nrecognized arguments: (\S+)", _unknown_option),
    (r"Key '([^']+)' is not expected", _unknown_option),
    (r"Expected a <class '(\w+)'>\. Got value: ([^\n]+)", _wrong_type),
    (r"Expected a typing\.Literal\[([^\]]*)\]\. Got value: (\S+)", _not_allowed),
    (r"but [\w.]+ either not accessible.*Expected an instantiatable class, but (\S+) is abstract", _unknown_class),
    (r"Expected '([\w.]+)' to be a subclass of", _unknown_class),
    (r"\([\w.]+\.py, line \d+\).*?key='(?:[\w.]+\.)?(\w+)', val='([\w.]+)'", lambda _, key, name: _unknown_class(key, name)),
    (r"Subtypes: [\[(]((?:<class '\w+'>,? ?)+)[\])].*Given value: ([^\n]+)", _no_union_member),
    (r"the following arguments are required: ([\w., ]+)", _missing),
]


def _key(message: str) -> str:
    keys = re.findall(r'Parser key "([\w.]+)"|^--([\w.]+)\.help: ', message)
    return "".join(keys[-1]).rsplit(".", 1)[-1] if keys else ""


def _class_names(base: type, package: str | None = None) -> Iterator[str]:
    subclasses: list[type] = base.__subclasses__()
    for cls in subclasses:
        inside = package is None or cls.__module__.split(".")[0] == package
        if inside and not inspect.isabstract(cls) and not cls.__name__.startswith("_"):
            yield cls.__name__
        yield from _class_names(cls, package)


def _option_names() -> list[str]:
    names = {"output_dir", "name", "ckpt_path", "config", "seed_everything", "checkpoint_every_n_steps"}
    for base in (SparseMapping, Estimator, Risk, Structure, pl.LightningModule, pl.LightningDataModule):
        waiting: list[type] = [base]
        while waiting:
            cls = waiting.pop()
            waiting += cls.__subclasses__()
            if cls.__module__.startswith("lit_sparse"):
                names |= set(inspect.signature(cls).parameters)
    return sorted(names | set(inspect.signature(pl.Trainer.__init__).parameters) - {"self"})
