"""The counter's state is saved and restored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lit_sparse.callbacks import CountLogger

MODULE: Any = SimpleNamespace(device=torch.device("cpu"))
TRAINER: Any = None


def test_counts_of_an_unfinished_epoch_survive_a_checkpoint() -> None:
    logger, other = CountLogger(max_count=10), CountLogger(max_count=10)
    logger.on_stage_start(TRAINER, MODULE, "train")
    outputs = {"loss": torch.tensor(0.0), "decoder_calls": torch.tensor([1, 2, 9]), "support_size": None}
    logger.on_stage_batch_end(TRAINER, MODULE, outputs, "train")
    other.on_stage_start(TRAINER, MODULE, "train")
    other.load_state_dict(logger.state_dict())
    for name in ("decoder_calls", "support_size"):
        expected, got = logger._of("train")[name].compute(), other._of("train")[name].compute()
        for statistic, value in expected.items():
            torch.testing.assert_close(got[statistic], value, equal_nan=True)
    assert float(other._of("train")["decoder_calls"].compute()["total"]) == 12


@pytest.mark.parametrize(("most", "largest"), [(20, 9), (5, 5)])
def test_counts_survive_another_max_count(most: int, largest: int) -> None:
    logger, other = CountLogger(max_count=10), CountLogger(max_count=most)
    logger.on_stage_batch_end(TRAINER, MODULE, {"decoder_calls": torch.tensor([1, 2, 9])}, "train")
    other.load_state_dict(logger.state_dict())
    found = {name: float(value) for name, value in other._of("train")["decoder_calls"].compute().items()}
    assert found == {"mean": 4, "p10": 1, "median": 2, "p90": largest, "total": 12}


def test_steps_that_return_no_counts_are_no_error() -> None:
    logger = CountLogger()
    logger.on_stage_batch_end(TRAINER, MODULE, {"loss": torch.tensor(0.0)}, "val")
    logger.on_stage_batch_end(TRAINER, MODULE, None, "val")
