"""States that each process of a run has of its own: sums of metrics, logged values, and random generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torchmetrics import Metric

from lit_sparse.ground.distributed import world_size
from lit_sparse.ground.state_checks import NUMBER, SCALAR, Kind, ListOf, OneOf, Some, is_plain, one_of
from lit_sparse.lightning.choice import StochasticWeightAveraging, move_data_to_device, pl
from lit_sparse.lightning.internals import between_epochs

__all__ = ["PAIRED", "TENSOR", "copied", "example_of_process", "restore_process", "state_of_process"]

TENSOR = Kind("a tensor", lambda value: isinstance(value, Tensor))
#: Attributes of a logged value: how it is logged, and what it is so far.
META = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx", "metric_attribute")
VALUES = ("value", "cumulated_batch_size", "_forward_cache")
#: Attribute of DistributedDataParallel: whether the next forward pass takes the statistics of the first process.
SYNCS = "require_forward_param_sync"
PARTS = Kind(
    "a list of tensors that differ in their first size only",
    lambda found: (
        isinstance(found, list)
        and all(isinstance(part, Tensor) for part in found)
        and len({(part.dtype, part.dim(), part.shape[1:]) for part in found}) <= 1
    ),
)
#: States of torchmetrics with an entry for each example.
PAIRED = ("preds", "target", "indexes")
#: Words and position of a Mersenne Twister, which numpy and Python use, and the second of two normal numbers, drawn ahead.
TWISTER = [
    Kind(
        "624 words and a position",
        lambda found: (
            is_plain(found)
            and found.dtype == torch.int64
            and found.shape == (625,)
            and found.min() >= 0
            and found.max() < 2**32
            and found[-1] <= 624
        ),
    ),
    OneOf(NUMBER),
]
#: Functions that reduce logged values; checkpoints hold their places here.
REDUCTIONS = (torch.mean, torch.sum, torch.max, torch.min, sum, max, min)


def state_of_process(trainer: pl.Trainer) -> dict[str, Any]:
    """Return a process's own state within an epoch: accumulated gradients, torchmetrics, and logged values.

    Between two epochs, it holds gradients that Lightning uses again while it updates the statistics of averaged weights,
    which differ between processes.
    """
    model, loop = trainer.lightning_module, trainer.fit_loop.epoch_loop
    averages = any(isinstance(callback, StochasticWeightAveraging) for callback in trainer.callbacks)  # type: ignore[attr-defined]
    gradients = averages if between_epochs(trainer)[0] else loop._should_accumulate()
    logged = [result for result in loop._results.values() if not result.has_reset and result.meta.reduce_fx in REDUCTIONS]
    python_state = random.getstate()
    return copied(
        {
            "generators": {
                "torch": torch.get_rng_state(),
                "numpy": _numpy_state(),
                "python": [torch.tensor(python_state[1]), python_state[2]],
            },
            "gradients": {
                name: weight.grad for name, weight in model.named_parameters() if gradients and weight.grad is not None
            },
            "syncs": getattr(trainer.model, SYNCS, True),
            "statistics": {
                f"{name}.{part}": value
                for name, module in model.named_modules()
                if isinstance(module, nn.modules.batchnorm._BatchNorm) and world_size() > 1
                for part, value in module.named_buffers(recurse=False)
            },
            "torchmetrics": {
                name: {part: getattr(metric, part) for part in (*metric._defaults, "_update_count")}
                for name, metric in _torchmetrics(model)
                if metric.update_called
            },
            "logged": [
                {
                    "meta": {name: getattr(result.meta, name) for name in META},
                    "sync": {"sync_dist": result.meta.sync.should, "rank_zero_only": result.meta.sync.rank_zero_only},
                    "reduce_fx": REDUCTIONS.index(result.meta.reduce_fx),
                    "values": {name: getattr(result, name) for name in VALUES if isinstance(getattr(result, name, 0), Tensor)},
                }
                for result in logged
            ],
        }
    )


def example_of_process(trainer: pl.Trainer) -> dict[str, Any]:
    """Return an example of the result of :func:`state_of_process`, to check a stored one against."""
    model = trainer.lightning_module
    text, flag = "", True
    meta: dict[str, Any] = dict.fromkeys(META, flag) | {"fx": text, "name": text, "metric_attribute": None}
    values = dict.fromkeys(VALUES, SCALAR) | {VALUES[1]: torch.zeros((), dtype=torch.int64)}
    logged = {
        "meta": meta,
        "sync": {"sync_dist": flag, "rank_zero_only": flag},
        "reduce_fx": Kind("the number of a function", lambda found: type(found) is int and 0 <= found < len(REDUCTIONS)),
        "values": Some(values),
    }
    metrics = [name for name, module in model.named_modules() if isinstance(module, Metric)]
    of_metric = logged | {
        "meta": meta | {"metric_attribute": one_of("the metrics of the model", metrics)},
        "values": Some({name: values[name] for name in VALUES[1:]}),
    }
    return {
        "generators": {
            "torch": Kind("a state of torch's generator", _is_torch_state),
            "numpy": OneOf(TWISTER),
            "python": TWISTER,
        },
        "gradients": Some({name: weight.detach() for name, weight in model.named_parameters()}),
        "syncs": flag,
        "statistics": Some(dict(model.named_buffers())),
        "torchmetrics": Some(
            {
                name: {part: value if isinstance(value, Tensor) else PARTS for part, value in metric._defaults.items()}
                | {"_update_count": 0}
                for name, metric in _torchmetrics(model)
            }
        ),
        "logged": ListOf(OneOf(logged, of_metric)),
    }


def restore_process(trainer: pl.Trainer, kept: dict[str, Any]) -> None:
    """Restore the result of :func:`state_of_process`, as far as it belongs to the present epoch."""
    model, results = trainer.lightning_module, trainer.fit_loop.epoch_loop._results
    if kept["generators"]["numpy"] is not None:
        words, ahead = kept["generators"]["numpy"]
        state = ("MT19937", words[:-1].numpy().astype(np.uint32), int(words[-1]), int(ahead is not None), ahead or 0.0)
        np.random.set_state(state)  # noqa: NPY002
    words, ahead = kept["generators"]["python"]
    random.setstate((3, tuple(words.tolist()), ahead))
    torch.set_rng_state(kept["generators"]["torch"])
    kept = move_data_to_device(kept, trainer.strategy.root_device)
    for name, weight in model.named_parameters():
        if name in kept["gradients"]:
            weight.grad = kept["gradients"][name]
    if hasattr(trainer.model, SYNCS):
        setattr(trainer.model, SYNCS, bool(kept["syncs"]))
    for name, buffer in model.named_buffers():
        if name in kept["statistics"]:
            buffer.copy_(kept["statistics"][name])
    if between_epochs(trainer)[0]:
        return
    for name, metric in _torchmetrics(model):
        if name in kept["torchmetrics"]:
            for part in (*metric._defaults, "_update_count"):
                setattr(metric, part, kept["torchmetrics"][name][part])
    for entry in kept["logged"]:
        meta = {name: entry["meta"][name] for name in META}
        values = {name: value for name, value in entry["values"].items() if name in VALUES}
        value = torch.zeros(()) if "value" in values else model.get_submodule(meta["metric_attribute"])
        options = {**meta, **entry["sync"], "reduce_fx": REDUCTIONS[entry["reduce_fx"]]}
        results.log(value=value, batch_size=1, sync_dist_fn=trainer.strategy.reduce, **options)
        vars(results[f"{meta['fx']}.{meta['name']}"]).update(values)
    trainer._logger_connector._first_loop_iter = True  # as after a batch: the first batch of an epoch resets what was logged


def _numpy_state() -> list[Any] | None:
    """Return the state of numpy's generator; None for one that the user has set in place of its Mersenne Twister."""
    found: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    if found["bit_generator"] != "MT19937":
        return None
    words = torch.tensor([*found["state"]["key"].tolist(), found["state"]["pos"]])
    return [words, found["gauss"] if found["has_gauss"] else None]


def _is_torch_state(found: Any) -> bool:
    try:
        torch.Generator().set_state(found)
    except (RuntimeError, TypeError):
        return False
    return is_plain(found)


def copied(found: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a state with its tensors on the CPU."""
    return apply_to_collection(found, Tensor, lambda value: value.detach().cpu().clone())  # type: ignore[no-any-return]


def _torchmetrics(model: nn.Module) -> Iterator[tuple[str, Metric]]:
    """Yield the metrics of training in a model; validation and test begin anew."""
    for name, module in model.named_modules():
        if isinstance(module, Metric) and not name.startswith(("val_", "test_")):
            yield name, module
