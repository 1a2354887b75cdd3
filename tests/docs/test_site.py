"""The site builds without a warning, and each of its pages works in a browser without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lit_sparse.studies.jobs.processes import locked
from tests.conftest import ROOT

pytestmark = [pytest.mark.gate, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; one worker builds it for all."""
    for package in ("sphinx", "furo", "myst_parser", "sphinxcontrib.bibtex"):
        pytest.importorskip(package, reason="the site needs the extra 'docs'")
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "site"
    with locked(folder.with_suffix(".lock")):
        log = folder / "log.txt"
        if not log.exists():
            command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-d", str(folder / "doctrees")]
            command += ["-D", "plot_gallery=0", "docs", str(folder / "html")]  # a slow test runs the examples
            built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            log.write_text(built.stdout + built.stderr if built.returncode else "", encoding="utf-8")
    assert not log.read_text(encoding="utf-8"), log.read_text(encoding="utf-8")
    return folder / "html"


def requests(browser: Any) -> list[str]:
    """Return the addresses that the page has asked for."""
    entries = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [entry["params"]["request"]["url"] for entry in entries if entry["method"] == "Network.requestWillBeSent"]


def test_a_colon_in_the_text_of_an_attribute_is_text(site: Path) -> None:
    page = (site / "reference/api/objects/lit_sparse.mappings.SparseMapping.html").read_text(encoding="utf-8")
    assert "Results are probabilities: not negative" in page


def test_a_mapping_describes_its_call(site: Path) -> None:
    page = (site / "reference/api/objects/lit_sparse.mappings.Sparsemax.html").read_text(encoding="utf-8")
    assert 'id="lit_sparse.mappings.Sparsemax.forward"' in page


def test_the_sidebar_lists_what_stands_beside_a_page(site: Path) -> None:
    page = (site / "reference/api/objects/lit_sparse.mappings.Sparsemax.html").read_text(encoding="utf-8")
    sidebar = page[page.index('class="sidebar-tree"') : page.index("</aside>")]
    for listed in ("lit_sparse.mappings.Entmax.html", "../structures.html", "../objectives.html", "../../../how_to/index.html"):
        assert listed in sidebar
    assert "lit_sparse.risks.CVaR.html" not in sidebar


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_page_opens_without_an_error_or_another_host(site: Path, browser: Any) -> None:
    pages = sorted(page for page in site.rglob("*.html") if "_static" not in page.parts)
    assert len(pages) > 250
    faults = []
    cut = "return [...document.querySelectorAll('pre')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
    for page in pages:
        browser.set_window_size(400, 900)
        browser.get(page.as_uri())
        name = page.relative_to(site)
        faults += [f"{name}: {entry['message']}" for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        faults += [f"{name}: asks for {url}" for url in requests(browser) if not url.startswith(("file:", "data:", "blob:"))]
        width = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        faults += [f"{name}: {width} pixels wider than a narrow window"] if width > 0 else []
        browser.set_window_size(1280, 900)
        if "_modules" not in page.parts:
            faults += [f"{name}: code is cut: {code}" for code in browser.execute_script(cut)]
        faults += [
            f"{name}: a picture without text" for image in browser.find_elements("css selector", "article img:not([alt])")
        ]
        broken = "return [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        faults += [f"{name}: no picture {source}" for source in browser.execute_script(broken)]
    assert not faults, "\n".join(faults)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("word", ["fusedmax", "Fusedmax", "nelbo"])
def test_search_finds_a_word(site: Path, browser: Any, word: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(f"{(site / 'search.html').as_uri()}?q={word}")
    found = "return [...document.querySelectorAll('#search-results li a')].map(a => a.textContent)"
    assert WebDriverWait(browser, 20).until(lambda page: page.execute_script(found))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dark_page_has_light_text(site: Path, browser: Any) -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    browser.get((site / "index.html").as_uri())
    style = (
        "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color].map(c => c.match(/\\d+/g).map(Number))"
    )
    background, text = browser.execute_script(style)
    assert max(background[:3]) < 60
    assert min(text[:3]) > 150


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_formulas_are_drawn(site: Path, browser: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    page = next(page for page in sorted(site.rglob("*.html")) if 'class="math' in page.read_text(encoding="utf-8"))
    browser.get(page.as_uri())
    WebDriverWait(browser, 30).until(lambda page: page.find_elements("css selector", "mjx-container svg"))
