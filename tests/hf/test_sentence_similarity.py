"""The script that compares sentence similarities runs on a tiny encoder, and its loss and its measure are right."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")

from lit_sparse.errors import CheckpointError  # noqa: E402
from lit_sparse.studies.problems.autoencoders import TEMPERATURE  # noqa: E402
from tests.scripts.test_scripts import load  # noqa: E402

from . import tiny  # noqa: E402

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "dog", "runs", "sleeps"]
ROWS = [
    {"premise": "a man runs", "hypothesis": "a man runs a", "label": "entailment", "relatedness": 5.0},
    {"premise": "a man sleeps", "hypothesis": "dog a a runs", "label": "contradiction", "relatedness": 1.0},
    {"premise": "a dog", "hypothesis": "a dog sleeps", "label": "neutral", "relatedness": 3.0},
]


class Vectors:
    """An encoder with given vectors: the premises, then the hypotheses."""

    def __init__(self, *vectors: list[float]) -> None:
        self.vectors = torch.tensor(vectors)

    def __call__(self, texts: list[str]) -> torch.Tensor:
        return self.vectors


def test_the_loss_ranks_pairs() -> None:
    script = load("sentence_similarity")
    rows = [ROWS[0], ROWS[1]]
    # similarities: entailment 1, contradiction 0.6, the hypotheses of the other pair 0 and 0.8
    encoder = Vectors([1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.8, 0.6])
    ranked = torch.tensor([0.6 - 1.0, 0.8 - 1.0, 0.0 - 1.0, 0.8 - 0.6, 0.0 - 0.6]) / TEMPERATURE
    assert torch.allclose(script.loss_of(encoder, rows), (1 + ranked.exp().sum()).log())


def test_a_folder_that_names_code_is_refused(tmp_path: Path) -> None:
    tiny.bert(vocab_size=len(WORDS)).bert.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_kernels": True}))
    with pytest.raises(CheckpointError, match="use_kernels"):
        load("sentence_similarity").Encoder(str(tmp_path))


@pytest.mark.gate
def test_the_script_prints_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    tiny.bert(vocab_size=len(WORDS)).bert.save_pretrained(tmp_path / "bert")
    transformers.BertTokenizer(vocab={word: n for n, word in enumerate(WORDS)}).save_pretrained(tmp_path / "bert")
    file = tmp_path / "pairs.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))
    files = [part for name in ("train", "dev", "test") for part in (f"--{name}", str(file))]
    options = ["--model", str(tmp_path / "bert"), "--steps", "2", "--batch", "4", "--alpha", "2", "--lr", "1e-3"]
    monkeypatch.setattr("sys.argv", ["sentence_similarity", *files, *options])
    load("sentence_similarity").main()
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines() if "steps |" in line
    ]
    assert [line[:2] for line in lines] == [
        ["softmax", "0 steps"],
        ["softmax", "2 steps"],
        ["entmax 2, at once", "0 steps"],
        ["entmax 2, annealed", "2 steps"],
    ]
    assert [line[4] for line in lines[:2]] == ["0.0%", "0.0%"] and all(float(line[4][:-1]) > 0 for line in lines[2:])
    assert all(float(line[5]) < float(lines[0][5]) for line in lines[2:]) and lines[0][2] == lines[0][3]


def test_weights_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load("sentence_similarity")
    monkeypatch.setattr(script, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"pip install -e .*\[demo,hf\]"):
        script.packaged()
