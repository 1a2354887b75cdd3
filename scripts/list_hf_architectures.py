"""Print, for each architecture of the installed transformers, whether `lit_sparse.hf.sparsify` changes its attention.

Each architecture is built with a tiny random config (see tiny_models.py) in a process with a time limit. The model must run
with eager attention. Then softmax through the interface is compared with it, and the calls of a sparse mapping are counted
in each layer. The states are

- works;
- works in part: it is refused as a whole, and works where only the layers that use the interface are chosen;
- refused: with a reason;
- differs: from eager attention;
- silent: layers run without their mapping;
- fails: with an error that is not of this package;
- no attention: no layer uses the interface or is called attention;
- no tiny model: none can be built that runs.

Usage: python scripts/list_hf_architectures.py [--only NAME ...] [--limit SECONDS] [--output FILE.csv]
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import logging
import math
import multiprocessing
import os
import resource
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from lit_sparse.errors import LitSparseError
from lit_sparse.hf import LayerMapping, sparsify
from lit_sparse.hf.probe import uses_interface
from lit_sparse.mappings import Softmax, TopKSparsemax

sys.path.insert(0, str(Path(__file__).parent))
from tiny_models import class_of, first_pass, run, tiny_models

WITHIN = 1e-4
COLUMNS = ["model_type", "class", "state", "interface", "layers", "difference", "reason"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CONFIG_MAPPING_NAMES), help="model types; all by default")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of computing time for each architecture")
    parser.add_argument("--output", type=Path, help="file of the table; printed by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rows = []
    opened = options.output.open("w", encoding="utf-8", newline="") if options.output else contextlib.nullcontext(sys.stdout)
    with opened as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for model_type in options.only:
            rows.append([model_type, *within_limit(model_type, options.limit)])
            table.writerow(rows[-1])
            file.flush()
    print(summary(rows), file=sys.stderr)


def summary(rows: list[list[str]]) -> str:
    """Return the numbers of architectures in each state, and the share that works of those that use the interface."""
    states = Counter(row[2] for row in rows)
    using = Counter(row[2] for row in rows if row[3] == "yes")
    share = using["works"] / max(1, using.total())
    return (
        f"transformers {transformers.__version__}: {len(rows)} architectures: {dict(states)}. {share:.1%} of the"
        f" {using.total()} that use the interface work, {using['works in part']} in part."
    )


def within_limit(model_type: str, limit: float) -> list[str]:
    """Return the row of an architecture from a process of its own."""
    try:
        name = class_of(model_type)
        getattr(transformers, name, None)  # the parent imports, once
    except Exception as error:
        return ["", "no tiny model", "", "", "", shortened(error)]
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_row, args=(sender, model_type, name, limit))
    process.start()
    sender.close()
    row = ["no tiny model", "", "", "", f"more than {20 * limit:g} seconds"]
    if receiver.poll(20 * limit):  # a machine may be busy
        with contextlib.suppress(EOFError):
            row[-1] = f"the process died, perhaps after {limit:g} seconds"
            row = receiver.recv()
    process.kill()
    process.join()
    return [name, *row]


def _send_row(sender: Any, model_type: str, name: str, limit: float) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), math.ceil(limit)))
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):  # noqa: PTH123
        row = row_of(model_type, name)
    sender.send(row)


def row_of(model_type: str, name: str) -> list[str]:
    """Return the state, whether layers use the interface, the number of layers, the difference to eager attention, a reason."""
    errors: list[BaseException] = []
    for model in tiny_models(model_type, name):
        try:
            if isinstance(model, BaseException):
                raise model
            inputs, reference = first_pass(model)
            break
        except BaseException as error:
            errors.append(error)
    else:
        return ["no tiny model", "", "", "", shortened(errors[0])]
    using = [part_name for part_name, part in model.named_modules() if uses_interface(part)]
    if not using and not any("attention" in type(part).__name__.lower() for part in model.modules()):
        return ["no attention", "no", "", "", ""]
    interface, reason = "yes" if using else "no", ""
    for layers in [None, using] if using else [None]:
        try:
            report = sparsify(model, Softmax(), layers, example=inputs)
            difference = float((run(model, inputs) - reference).abs().max() / reference.abs().max().clamp_min(1e-6))
            sparsify(model, TopKSparsemax(1), layers, example=inputs)
        except LitSparseError as error:
            reason = reason or shortened(error)
            continue
        except Exception as error:
            return ["fails", interface, "", "", shortened(error)]
        numbers = [interface, str(len(report.layers)), f"{difference:.1e}"]
        if silent := silent_layers(model, inputs):
            return ["silent", *numbers, " ".join(silent)]
        state = "differs" if difference > WITHIN else "works" if layers is None else "works in part"
        return [state, *numbers, reason]
    return ["refused", interface, "", "", reason]


def silent_layers(model: Any, inputs: dict[str, Any]) -> list[str]:
    """Return the layers that ran without their mapping: they use the interface, or have a mapping, and counted nothing."""
    ran: set[str] = set()
    hooks = []
    for name, part in model.named_modules():
        if uses_interface(part) or hasattr(part, "lit_sparse"):
            hooks.append(part.register_forward_hook(lambda *_, name=name: ran.add(name)))
        if isinstance(part, LayerMapping):
            part.recording = True
    run(model, inputs)
    for hook in hooks:
        hook.remove()
    mappings = {name: getattr(model.get_submodule(name), "lit_sparse", None) for name in sorted(ran)}
    return [name for name, mapping in mappings.items() if mapping is None or mapping.take_counts() is None]


def shortened(error: BaseException) -> str:
    text = str(error) if isinstance(error, LitSparseError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:160]


if __name__ == "__main__":
    main()
