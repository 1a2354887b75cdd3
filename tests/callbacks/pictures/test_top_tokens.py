"""The picture of the tokens for which units are most active."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lit_sparse.callbacks import TopTokensPlot
from lit_sparse.callbacks.pictures.drawings import draw
from lit_sparse.errors import ConfigurationError


class Data:
    """Tokens that are numbers."""

    def size(self, split: str) -> int:
        return 100

    def token_text(self, split: str, index: int) -> tuple[str, str, str]:
        return f"{split} {index - 1}", str(index), ""


def test_the_most_active_tokens_are_listed() -> None:
    """Over batches, in order, each in its text; a unit that is never active says so, and a broken state shows nothing."""
    plot, trainer = TopTokensPlot(units=3, tokens=2), SimpleNamespace(datamodule=Data(), state=SimpleNamespace(fn="fit"))
    assert plot.artifact(trainer, None) is None  # type: ignore[arg-type]
    activity = torch.rand(50, 4, generator=torch.Generator().manual_seed(0))
    activity[:, 1] = 0
    for first in (0, 30):
        rows = torch.arange(first, min(first + 30, 50))
        plot.see(SimpleNamespace(), {"artifacts": {"activity": activity[rows], "index": rows}})  # type: ignore[arg-type]
    plot.on_stage_end(trainer, None, "val")  # type: ignore[arg-type]
    artifact: Any = plot.artifact(trainer, None)  # type: ignore[arg-type]
    for unit, tokens in artifact["rows"]:
        expected = [] if unit == 1 else activity[:, unit].topk(2).indices.tolist()
        assert [int(token) for _, _, token, _ in tokens] == expected
        assert all(before == f"val {int(token) - 1}" for _, before, token, _ in tokens)
    texts = [text.get_text() for text in draw("top_tokens", artifact).axes[0].texts]
    assert len(texts) == 7 and texts[3] == "unit 1: never active" and "[" in texts[1]
    plot.load_state_dict({"_top": torch.full((2, 3, 2), 1e6, dtype=torch.float64)})
    assert plot.artifact(trainer, None)["rows"] == [(0, []), (1, []), (2, [])]  # type: ignore[arg-type, index]
    with pytest.raises(ConfigurationError, match="`units`"):
        TopTokensPlot(units=0)
    assert plot.artifact(SimpleNamespace(datamodule=None), None) is None  # type: ignore[arg-type]


def test_it_is_drawn_by_a_run(tmp_path: Path) -> None:
    figure = draw("top_tokens", {"rows": [(0, [(1.5, "a", "dog", "runs")])], "cells": (30, 2, 0.18)})
    figure.savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
