"""One page about runs or a study: the same file for the same input, and it works in a browser without a network."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_sparse.callbacks.pictures.heat_maps import Attention
from lit_sparse.cli import main
from tests.conftest import CONFIGS, ROOT

pytest.importorskip("jinja2", reason="reports need the extra 'report'")

PNG = (ROOT / "pictures" / "mappings_2d.png").read_bytes()


def write_run(folder: Path, start: float, lr: float, epochs: int = 3) -> Path:
    (folder / "pictures").mkdir(parents=True)
    lines = [f"{epoch},{start - epoch},{4.0 / (epoch + 1)},1,9" for epoch in range(epochs)]
    head = "epoch,val/nelbo,train/decoder_calls_median,train/decoder_calls_p10,train/decoder_calls_p90"
    (folder / "metrics.csv").write_text("\n".join([head, *lines]) + "\n")
    (folder / "config.yaml").write_text(f"model:\n  lr: {lr}\n  name: <b>bold</b>\noutput_dir: {folder}\n")
    (folder / "test" / "0").mkdir(parents=True)
    (folder / "test" / "0" / "metrics.csv").write_text(f"test/nelbo\n{start + 1}\n")
    return folder


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (write_run(tmp_path / "a", 10.0, 0.1) / "pictures" / "support_size.png").write_bytes(PNG)
    attention = Attention(torch.tensor([[0.25, 0.75, 0.0]]), ["the", "<b>", "cat"], ["die"], "cats")
    (tmp_path / "a" / "pictures" / "attention").mkdir()
    (tmp_path / "a" / "pictures" / "attention" / "7.json").write_text(json.dumps(attention.numbers()))
    write_run(tmp_path / "b", 9.0, 0.2)
    write_run(tmp_path / "c", 100.0, 0.2)
    words = [f"sparse={tmp_path / 'a'}", f"dense={tmp_path / 'b'}", f"<i>={tmp_path / 'c'}"]
    assert main(["report", *words, "-o", str(tmp_path / "report.html"), "--title", "Some runs"]) == 0
    return tmp_path / "report.html"


def test_the_page_of_runs(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    assert "<h1>Some runs</h1>" in text
    assert "<td>sparse</td>" in text
    assert "<li><code>model.lr: 0.1, now 0.2</code></li>" in text
    assert "&lt;b&gt;bold" in text
    assert "<i>" not in text, "names are no markup"
    assert text.count("<img ") == 1
    assert 'alt="support size of sparse"' in text
    assert "<caption>Attention: cats</caption>" in text
    assert '<th scope="col">&lt;b&gt;</th>' in text
    assert '<th scope="row">die</th><td style="--weight: 0.25">0.25</td>' in text
    assert '<td style="--weight: 0">0</td></tr>' in text, "exact zeros"
    assert "aria-label=" in text
    assert "http" not in text.replace("http://www.w3.org/", "").replace("http://purl.org/", "").replace(
        "http://creativecommons.org/", ""
    )
    words = [f"sparse={tmp_path / 'a'}", f"dense={tmp_path / 'b'}", f"<i>={tmp_path / 'c'}", "--title", "Some runs"]
    assert main(["report", *words, "-o", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


@pytest.mark.parametrize("study", ["soae", "logsumexp_transport"])
def test_the_page_of_a_study(study: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert (
        main(["report", str(CONFIGS / "studies" / f"{study}.yaml"), "--results", str(ROOT / "results"), "-o", str(path)]) == 0
    )
    text = path.read_text()
    assert "<svg" in text
    assert text.count("<section") >= 8
    assert "<details>" in text


def test_mistakes_are_explained(write_study: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for words, text in (
        ([str(tmp_path / "empty")], "is not a run folder"),
        ([str(write_study()), "--results", str(tmp_path)], "nothing of the study is finished yet"),
        (["nowhere"], "Expected a file or the name of a study"),
    ):
        assert main(["report", *words, "-o", str(tmp_path / "x.html")]) == 2
        assert text in capsys.readouterr().err


@pytest.mark.gate
def test_fifty_runs_of_two_hundred_epochs_are_a_small_page(tmp_path: Path) -> None:
    words = [f"run{number}={write_run(tmp_path / str(number), 10.0 + number, 0.1, 200)}" for number in range(50)]
    assert main(["report", *words, "-o", str(tmp_path / "report.html")]) == 0
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_page_in_a_browser(page: Path, browser: Any) -> None:
    browser.get(page.as_uri())

    def names() -> list[str]:
        return [
            row.text for row in browser.find_elements("css selector", "#summary tbody tr td:first-child") if row.is_displayed()
        ]

    assert names() == ["sparse", "dense", "<i>"]
    heads = browser.find_elements("css selector", "#summary th button")
    test = next(head for head in heads if head.text.startswith("test/nelbo"))
    test.click()
    assert names() == ["dense", "sparse", "<i>"], "10, 11 and 101 as numbers"
    test.click()
    assert names() == ["<i>", "sparse", "dense"]
    browser.find_element("id", "filter").send_keys("SPA")
    time.sleep(0.2)
    assert names() == ["sparse"]
    assert [
        part.get_attribute("data-name") for part in browser.find_elements("css selector", ".run") if part.is_displayed()
    ] == ["sparse"]
    config = browser.find_element("css selector", ".run pre")
    assert not config.is_displayed()
    cells = browser.find_elements("css selector", ".map td + td, .map th + td")
    shades = [cell.value_of_css_property("background-color") for cell in cells if cell.text]
    assert len(set(shades)) == 3, "one for each weight"
    browser.find_element("css selector", ".run summary").click()
    assert config.is_displayed()
    assert all(entry["level"] != "SEVERE" for entry in browser.get_log("browser"))
    requested = [
        entry["message"] for entry in browser.get_log("performance") if "Network.requestWillBeSent" in entry["message"]
    ]
    assert not [message for message in requested if '"url":"http' in message]
    assert all(figure.get_attribute("aria-label") for figure in browser.find_elements("css selector", "figure[role=img]"))
