"""Two processes of the Trainer log the sparsity, and learn the weights, of one with the whole batch."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install -e '.[hf]'")

from lit_sparse.hf import callbacks
from tests.support.processes import run_python


@pytest.mark.gate
@pytest.mark.slow
def test_two_processes_log_and_learn_as_one(tmp_path: Path) -> None:
    found = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(number), "OMP_NUM_THREADS": "1"}
        with ThreadPoolExecutor() as pool:
            started = [
                pool.submit(
                    run_python,
                    "-m",
                    "tests.hf.two_processes",
                    str(folder),
                    str(8 // number),
                    **shared,
                    RANK=rank,
                    LOCAL_RANK=rank,
                )
                for rank in map(str, range(number))
            ]
        for process in started:
            process.result()
        found.append((json.loads((folder / "log.json").read_text()), torch.load(folder / "weights.pt")))
    (one, weights_of_one), (two, weights_of_two) = found
    assert len(one) == len(two) == 3  # two steps and an evaluation
    for expected, row in zip(one, two, strict=True):
        assert row.keys() == expected.keys() and len(row) == 18
        assert row == pytest.approx(expected, abs=1e-9)
    assert one[0]["attention/zeros"] == 0.0 and 0.0 < one[-1]["eval_attention/zeros"] < 1.0  # softmax at first
    for key, weight in weights_of_one.items():
        torch.testing.assert_close(weights_of_two[key], weight, rtol=1e-4, atol=1e-6)


def test_a_layer_may_run_in_one_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    other = [torch.tensor([[1, 2, 1]]), torch.tensor([[3, 4, 1]]), None]
    monkeypatch.setattr(callbacks, "gather_objects", lambda mine: [mine, other])
    summed = callbacks._over_processes([torch.tensor([[1, 1, 1]]), None, None])
    assert torch.equal(summed[0], torch.tensor([[2, 3, 2]])) and torch.equal(summed[1], other[1]) and summed[2] is None
