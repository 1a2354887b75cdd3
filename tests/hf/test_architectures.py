"""The list of architectures of transformers: its states, on a few of them and on all, and the page with the table."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")

from lit_sparse.hf import sparsify  # noqa: E402
from lit_sparse.mappings import Softmax, Sparsemax  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.scripts.test_scripts import load  # noqa: E402

from . import tiny  # noqa: E402

TABLE = ROOT / "docs" / "reference" / "hugging_face_architectures.csv"
#: States that would be faults of this package.
FAULTS = {"silent", "differs", "fails"}


@pytest.fixture(scope="module")
def script() -> Any:
    return load("list_hf_architectures")


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


@pytest.mark.parametrize(
    ("model_type", "state", "layers"),
    [
        ("bert", "works", "2"),
        ("clip", "works", "4"),  # composed of two
        ("t5", "works", "6"),
        ("qwen2_5_vl_vision", "works", "2"),  # flattened patches
        ("blip_2_vision_model", "works", "2"),  # a part without an entry in the table of base models
        ("jamba", "works", "1"),  # experts are chosen by a softmax inside a layer that is called attention
        ("glm5_next_text", "works", "1"),  # the function of attention gets arguments of the model
        ("siglip", "works", "5"),  # its last layer is torch's
        ("aimv2_vision_model", "works in part", "2"),  # its last layer calls a fused softmax itself
        ("bloom", "refused", ""),
        ("mamba", "no attention", ""),
        ("timm_wrapper", "no tiny model", ""),
    ],
)
def test_the_state_of_an_architecture(script: Any, model_type: str, state: str, layers: str) -> None:
    row = script.row_of(model_type, script.class_of(model_type))
    assert (row[0], row[2]) == (state, layers)
    assert not row[3] or float(row[3]) == 0.0
    assert bool(row[4]) == (state in ("works in part", "refused", "no tiny model"))


def test_layers_without_their_mapping_are_silent(script: Any) -> None:
    model = tiny.bert()
    sparsify(model, Sparsemax())
    inputs = tiny.inputs_of(model)
    assert script.silent_layers(model, inputs) == []
    model.set_attn_implementation("eager")
    assert script.silent_layers(model, inputs) == [f"bert.encoder.layer.{n}.attention.self" for n in range(2)]


def test_a_difference_and_a_failure_are_told(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: Any, mapping: Any, *args: Any, **options: Any) -> Any:
        return sparsify(model, Sparsemax(gamma=0.1) if isinstance(mapping, Softmax) else mapping, *args, **options)

    monkeypatch.setattr(script, "WITHIN", 1e-9)
    monkeypatch.setattr(script, "sparsify", wrong)
    assert script.row_of("bert", "BertModel")[0] == "differs"
    monkeypatch.setattr(script, "sparsify", lambda *args, **options: 1 / 0)
    assert script.row_of("bert", "BertModel")[0] == "fails"


def test_the_script_writes_a_table(script: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    import torch

    threads = torch.get_num_threads()
    arguments = ["--only", "bert", "bloom", "--output", str(tmp_path / "table.csv")]
    monkeypatch.setattr("sys.argv", ["list_hf_architectures", *arguments])
    try:
        script.main()
    finally:
        torch.set_num_threads(threads)
        script.logging.disable(script.logging.NOTSET)
    assert [row[:3] for row in rows_of(tmp_path / "table.csv")] == [
        ["bert", "BertModel", "works"],
        ["bloom", "BloomModel", "refused"],
    ]
    assert "2 architectures" in capsys.readouterr().err


def check(rows: list[list[str]]) -> None:
    """No layer may be silently softmax, and many architectures use the interface."""
    assert not [row for row in rows if row[2] in FAULTS]
    assert sum(row[3] == "yes" for row in rows) > 300


def check_share(rows: list[list[str]]) -> None:
    """At least 95 % of the architectures that use the interface work."""
    using = [row for row in rows if row[3] == "yes"]
    assert sum(row[2] == "works" for row in using) / len(using) >= 0.95


def test_the_page_shows_the_table(script: Any) -> None:
    rows = rows_of(TABLE)
    check(rows)
    page = TABLE.with_suffix(".md").read_text(encoding="utf-8")
    version = re.search(r"transformers (\d\S+): ", page)
    assert version is not None
    printed = script.summary(rows).replace(f"transformers {transformers.__version__}", f"transformers {version[1]}")
    assert printed in " ".join(page.split())


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_architectures(script: Any) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    rows = [[name, *script.within_limit(name, 60.0)] for name in CONFIG_MAPPING_NAMES]
    check(rows)
    check_share(rows)
