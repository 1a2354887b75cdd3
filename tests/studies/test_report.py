"""One page about runs or a study: the same file for the same input, and it works in a browser without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_sparse.callbacks.pictures.heat_maps import Attention
from lit_sparse.cli import main
from lit_sparse.studies import compare, report
from lit_sparse.studies.pages.figures import series
from lit_sparse.studies.settings import settings_of
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
    write_run(tmp_path / "b", 9.0, 0.2)
    for run in "ab":
        (tmp_path / run / "pictures" / "attention").mkdir()
        (tmp_path / run / "pictures" / "attention" / "7.json").write_text(json.dumps(attention.numbers()))
    write_run(tmp_path / "c", 100.0, 0.2)
    words = [f"sparse={tmp_path / 'a'}", f"dense={tmp_path / 'b'}", f"<i>={tmp_path / 'c'}"]
    assert main(["report", *words, "-o", str(tmp_path / "report.html"), "--title", "Some runs"]) == 0
    return tmp_path / "report.html"


def test_the_page_of_runs(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    assert "<h1>Some runs</h1>" in text
    assert '<td><a href="#config1" title="config of sparse">sparse</a></td><td>0.1</td>' in text, "settings come first"
    assert "Best run: <strong>dense</strong> (lr 0.2)" in text
    assert "Its best val/nelbo is 7, the smallest of 3; next is sparse with 8. Each has one seed" in text
    row = text[text.index('<tr><th scope="rowgroup" colspan="3"><span>cats</span>') :]
    assert [cell.count("<table") for cell in row.split("<td data-run=")[1:4]] == [1, 1, 0], "beside each other"
    assert "<li><code>model.lr: 0.2, now 0.1</code></li>" in text
    assert f"run folder: {tmp_path / 'b'}" in text
    legend = text[text.index('<div id="legend">') :]
    assert legend.index("\u2605 dense") < legend.index('title="sparse (lr 0.1)"') < legend.index("&lt;i&gt;"), "the best first"
    assert "train/<wbr>decoder_<wbr>calls_<wbr>median" not in text
    assert "test/<wbr>nelbo</button>" in text, "long headings may break"
    assert "<p>The same in all: epochs 3.</p>" in text
    assert "epochs</button>" not in text
    assert "&lt;b&gt;bold" in text
    assert "<i>" not in text, "names are no markup"
    assert text.count("<img ") == 1
    assert 'alt="support size of sparse"' in text
    assert '<th scope="col">&lt;b&gt;</th>' in text
    assert '<th scope="row">die</th><td style="--weight: 0.25">0.25</td>' in text
    assert '<td style="--weight: 0">0</td></tr>' in text, "exact zeros"
    assert "aria-label=" in text
    assert "http" not in text.replace("http://www.w3.org/", "").replace("http://purl.org/", "").replace(
        "http://creativecommons.org/", ""
    )
    words = [f"sparse={tmp_path / 'a'}", f"dense={tmp_path / 'b'}", f"<i>={tmp_path / 'c'}", "--title", "Some runs"]
    assert main(["report", *words, "-o", str(tmp_path / "again.html")]) == 0
    assert main(["report", *words, "-o", str(tmp_path)]) == 2  # a folder
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


@pytest.mark.parametrize("study", ["soae", "logsumexp_transport"])
def test_the_page_of_a_study(study: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert (
        main(["report", str(CONFIGS / "studies" / f"{study}.yaml"), "--results", str(ROOT / "results"), "-o", str(path)]) == 0
    )
    text = path.read_text()
    assert "<svg" in text
    assert text.count("<details>") >= 8


@pytest.mark.parametrize("database", [False, True])
def test_the_folder_of_a_sweep(database: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    optuna = pytest.importorskip("optuna", reason="sweeps need the extra 'sweep'")
    folder, page, states = tmp_path / "sweep", tmp_path / "page.html", ("COMPLETE", "COMPLETE", "FAIL")
    stored = tmp_path / "trials.db" if database else folder / "journal.log"
    words = ["report", str(folder), "-o", str(page), *(["--storage", f"sqlite:///{stored}"] if database else [])]
    for number in range(3):
        write_run(folder / f"trial_{number}/seed_0/0", 10.0 - number, 0.1 * (number + 1))
    backend = optuna.storages.journal.JournalFileBackend(str(stored))
    storage = optuna.storages.RDBStorage(words[-1]) if database else optuna.storages.JournalStorage(backend)
    study = optuna.create_study(storage=storage, study_name="sweep")
    study.set_user_attr("settings", {"metrics": ["val/nelbo"]})
    for number, state in enumerate(states):
        value = {"value": 8.0 - number} if state == "COMPLETE" else {}
        spaces = {"model.lr": optuna.distributions.FloatDistribution(0.1, 1)}
        params = {"model.lr": 0.1 * (number + 1)}
        study.add_trial(optuna.create_trial(params=params, distributions=spaces, state=optuna.trial.TrialState[state], **value))
    if database:
        (folder / "queue.lock").touch()
        assert main(words[:-2]) == 0
        assert "--storage URL adds their history" in capsys.readouterr().err
        optuna.create_study(storage=storage, study_name="another")
        storage.remove_session()
        storage.engine.dispose()
    assert main(words) == 0
    text = page.read_text()
    assert "Best run: <strong>trial_1</strong> (lr 0.2). Its val/nelbo is 7, the smallest of 2; next is trial_0 with 8." in text
    assert 'aria-label="val/nelbo of each trial"' in text
    assert "<h1>Sweep of sweep</h1>" in text
    assert text.count('<a href="#config') == 3
    whole, _ = stored.read_bytes(), capsys.readouterr()
    damages = [b"{}\n", b"[" * 9000 + b"\n", b'{"op_code": 2, "worker_id": "", "study_id": 0, "user_attr": {"settings": 1}}\n']
    for damaged in (whole[:5000], b"", None) if database else (whole + damage for damage in damages):
        stored.unlink() if damaged is None else stored.write_bytes(damaged)
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "Expected the trials of a sweep in" in error
        assert error.count("\n") == 1
        assert stored.exists() == (damaged is not None)


def test_the_folder_of_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, page = tmp_path / "study", tmp_path / "page.html"
    for seed in range(2):
        write_run(folder / f"slow/seed_{seed}/0", 10.0 + 2 * seed, 0.1)
        write_run(folder / f"fast/seed_{seed}/0", 9.0, 0.2)
        inner = folder / f"fast/seed_{seed}/0/fit/version_0"  # as a program writes
        inner.mkdir(parents=True)
        for name in ("metrics.csv", "config.yaml"):
            (inner.parents[1] / name).rename(inner / name)
    assert main(["report", str(folder), "-o", str(page)]) == 0
    text = page.read_text()
    assert "Best run: <strong>fast</strong> (lr 0.2)" in text
    assert "is 7 ± 0, the smallest of 2; next is slow with 9.0 ± 1.4." in text
    assert "± is the standard deviation over seeds. <em>nelbo</em>: negative evidence lower bound" in text
    assert main(["report", f"x={folder}", f"y={folder / 'fast'}", "-o", str(page)]) == 0
    assert all(f">{name}</a>" in page.read_text() for name in ("x/slow", "x/fast", "y/y"))
    (folder / "slow/seed_1/0/pictures/x.png").symlink_to(ROOT / "pictures" / "mappings_2d.png")
    assert main(["report", str(folder), "-o", str(page)]) == 2
    assert "Expected only files and folders" in capsys.readouterr().err


def test_the_metric_that_is_asked_for_chooses_the_best_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = report.Search("sweep", "val/nelbo", "min", [(0, 8.0), (1, 7.0)], {})
    monkeypatch.setattr(report, "_search", lambda *_: search)
    for number, accuracy in enumerate((0.9, 0.8, 0.95)):
        folder = write_run(tmp_path / f"trial_{number}/seed_0/0", 1.0, 0.1)
        lines = [f"{epoch},{8 - number},{accuracy},1" for epoch in (0, 1)]
        (folder / "metrics.csv").write_text("\n".join(["epoch,val/nelbo,val/accuracy,val/width", *lines]) + "\n")
    for words, reason in (
        ([], "Best run: <strong>trial_1</strong>. Its val/nelbo is 7, the smallest of 2;"),
        (["--metric", "nelbo"], "Best run: <strong>trial_1</strong>. Its val/nelbo is 7, the smallest of 2;"),
        (["--metric", "accuracy"], "Best run: <strong>trial_0</strong>. Its best val/accuracy is 0.9, the largest of 2;"),
        (["--metric", "width"], "No single best run: whether width should be large or small is not known."),
    ):
        assert main(["report", str(tmp_path), *words, "-o", str(tmp_path / "page.html")]) == 0
        assert reason in (tmp_path / "page.html").read_text()


def test_curves_of_several_runs_have_common_axes(tmp_path: Path) -> None:
    for name in "ab":
        folder = write_run(tmp_path / name, 10.0, 0.1)
        for picture in ("decoder_calls", "negative_elbo", "reconstructions"):
            (folder / f"pictures/{picture}.png").write_bytes(PNG)
    for runs, pictures in (("a", 3), ("ab", 2)):
        assert main(["report", *(str(tmp_path / name) for name in runs), "-o", str(tmp_path / "page.html")]) == 0
        assert (tmp_path / "page.html").read_text().count("<img ") == pictures


def test_a_model_names_the_metric_that_is_best_in_its_best_epoch(tmp_path: Path) -> None:
    for name, values in (("a", (0.2, 0.9, 0.8)), ("b", (0.1, 0.85, 0.85))):
        write_run(tmp_path / name, 1.0, 0.1)
        lines = [f"{epoch},{epoch},{value}" for epoch, value in enumerate(values)]
        (tmp_path / name / "metrics.csv").write_text("\n".join(["epoch,val/nelbo,val/accuracy", *lines]) + "\n")
        (tmp_path / name / "config.yaml").write_text("model: {class_path: lit_sparse.models.SemiSupervisedVAE}\n")
    words = [f"{name}={tmp_path / name}" for name in "ab"]
    for more, reason in (
        ([], "a</strong>. Its best val/accuracy is 0.9, the largest of 2; next is b with 0.85. Each has one seed"),
        (["--metric", "nelbo"], "No single best run: 2 of 2 tie for the smallest best val/nelbo, in bold below."),
    ):
        assert main(["report", *words, *more, "-o", str(tmp_path / "page.html")]) == 0
        text = (tmp_path / "page.html").read_text()
        assert reason in text
        assert ("\u2605 a" in text) == (not more)


def test_values_of_a_single_epoch_are_no_curve(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", 10.0, 0.1)
    lines = (folder / "metrics.csv").read_text().splitlines()
    (folder / "metrics.csv").write_text("\n".join([lines[0], *(line.replace(",10.0,", ",,") for line in lines[1:3])]) + "\n")
    assert main(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg xmlns") == 1
    assert "decoder calls</text>" in text


def test_the_next_command_is_that_of_the_best_run(tmp_path: Path) -> None:
    for name, start in (("a", 10.0), ("b", 9.0)):
        checkpoint = write_run(tmp_path / name, start, 0.1) / "checkpoints" / "best.ckpt"
        checkpoint.parent.mkdir()
        checkpoint.touch()
    words = [f"{name}={tmp_path / name}" for name in "ab"]
    assert main(["report", *words, "-o", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    config = tmp_path / "b" / "config.yaml"
    assert f"test with: lit-sparse test -c {config} --ckpt_path best" in text[: text.index("<table")]


def test_settings_of_other_classes_are_left_out() -> None:
    configs = [
        {"model": {"init_args": {"mapping": mapping, "risk": risk}}}
        for mapping, risk in (
            ({"class_path": "a.Softmax", "init_args": {}}, None),
            ({"class_path": "a.Sparsemax", "init_args": {"gamma": 1.0}}, {"class_path": "a.CVaR", "init_args": {"alpha": 0.1}}),
        )
    ]
    expected = {"a": {"mapping": "Softmax", "risk": "-"}, "b": {"mapping": "Sparsemax", "risk": "CVaR(alpha=0.1)"}}
    assert settings_of(dict(zip("ab", configs, strict=True))) == expected


def test_mistakes_are_explained(write_study: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for words, text in (
        ([str(tmp_path / "empty")], "is not a run folder"),
        ([str(write_study()), "--results", str(tmp_path)], "nothing of the study is finished yet"),
        (["nowhere"], "Expected a file or the name of a study"),
        (["soae", "--results", str(ROOT / "results"), "--metric", "success"], "Expected run folders with --metric"),
        (["ssvae", "--storage", "sqlite:///x.db"], "Expected the folder of one sweep with --storage"),
        ([str(tmp_path / "empty"), "--schedule", "smoke"], "Expected one study with --schedule but got run folders"),
        ([str(tmp_path / "empty"), "ssvae", "--results", "r"], "Expected one study with --results but got run folders"),
    ):
        assert main(["report", *words, "-o", str(tmp_path / "x.html")]) == 2
        assert text in capsys.readouterr().err


def written(name: str, metric: str = "val/loss", values: tuple[str, str] = ("1", "2"), config: bytes = b"a: 1") -> Path:
    """Write a run folder here."""
    folder = Path(name)
    (folder / "pictures" / "attention").mkdir(parents=True)
    (folder / "metrics.csv").write_text(f'epoch,step,"{metric}"\n0,1,{values[0]}\n1,2,{values[1]}\n')
    (folder / "config.yaml").write_bytes(config)
    return folder


def test_odd_names_are_drawn_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written("plain")
    written("m", metric=r"val/$\frac$")
    assert main(["report", "m", "-o", "m.html"]) == 0
    assert r"val/$\frac$</text>" in Path("m.html").read_text()
    names = [r"$\frac$", "y" * 3000, "a\udc80", "\ud800", "a\nb\x00", "x_1^{$", r"\$", "\u4e2d"]
    for words in ([f"{name}=plain" for name in names], ["a\udc80=plain", "--title", "\udc80"]):
        assert main(["report", *words, "-o", "names.html"]) == 0
    assert main(["compare", *(f"{name}=plain" for name in names)]) == 0
    assert main(["report", *(f"{name}=plain" for name in names), "-o", "names.html"]) == 0
    text = Path("names.html").read_text()
    assert r"$\frac$</button>" in text
    assert ">a?</a></td>" in text
    assert len(Path("comparison.png").read_bytes()) > 1000


def test_names_do_not_act_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written("a\x1b[2J")
    assert main(["compare", "a\x1b[2J"]) == 0
    (tmp_path / "a\x1b[2J" / "metrics.csv").write_text("epoch,val/loss,\x1b[2J\n0,1,2\n")
    assert main(["report", "a\x1b[2J"]) == 2
    printed = "".join(capsys.readouterr())
    assert "\x1b" not in printed
    assert r"a\x1b[2J" in printed


@pytest.mark.parametrize("epochs", [7, 25])
def test_a_long_run_is_a_curve_of_few_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int) -> None:
    monkeypatch.setattr(compare, "MOST_POINTS", 10)
    folder = write_run(tmp_path / "a", 10.0, 0.1, epochs)
    calls = [4.0 / (epoch + 1) for epoch in range(epochs)]
    _, figure, _, curves = compare.comparison(compare.sources([f"a={folder}"]), None)
    assert len(curves) == min(epochs, 9)
    assert (curves[-1]["epoch"], curves[-1]["val/nelbo"]) == (str(epochs), str(10 - epochs + 1))
    assert [*series(curves, figure.panels[-1])][-1] == pytest.approx(sum(calls), rel=1e-6)


def test_weights_of_attention_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "MOST", 10_000)
    monkeypatch.chdir(tmp_path)
    for size, status in ((10, 0), (20, 2)):
        attention = Attention(torch.zeros(size, size), ["a"] * size, ["b"] * size, "")
        (written(str(size)) / "pictures/attention/0.json").write_text(json.dumps(attention.numbers()))
        assert main(["report", str(size)]) == status
    assert "pictures of at most 10,000 bytes" in capsys.readouterr().err
    attention = {"title": "a" * 2000, "source": [], "output": [], "heads": [[]] * 9}  # the title of each head
    (tmp_path / "10" / "pictures/attention/0.json").write_text(json.dumps(attention))
    assert main(["report", "10"]) == 2


def test_odd_columns_of_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (written("a") / "metrics.csv").write_text("cell,seed,val/loss,epoch\n3,4,nan,0\n3,4,inf,1\n3,4,-1e100,2\n3,4,1e100,2.5\n")
    (written("b") / "metrics.csv").write_text("epoch,val/loss,train/decoder_calls_median\n0,1,2\n")
    for command in ("compare", "report"):
        assert main([command, "a"]) == 0
        assert main([command, "b"]) == 0


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.csv", b"epoch,step,val/loss\n0,1,abc\n", "Expected numbers"),
        ("metrics.csv", b"epoch,step,val/loss\n0,1,2,3\n", "Expected 3 cells in line 2"),
        ("metrics.csv", b"\xff\xfe", "Expected text in UTF-8"),
        ("config.yaml", b"[1,2]", "Expected keys and values"),
        ("config.yaml", b"\xff\xfe\x00a", "Expected text in UTF-8"),
        ("config.yaml", b"a: !!python/object/apply:os.system [x]\n", "Expected YAML"),
        ("config.yaml", b"a: &a [*a]\n", "a value that contains itself through an alias"),
        ("pictures/attention/0.json", b"{broken", "Expected JSON"),
        (
            "pictures/attention/0.json",
            b'{"title": "", "source": ["a"], "output": ["o"], "heads": [[["x"]]]}',
            "Expected a title",
        ),
        ("pictures/x.png", b"<svg>", "Expected a PNG picture"),
        ("test/0/metrics.csv", b"test/loss\nx\n", "Expected numbers"),
    ],
)
def test_damaged_files_are_one_message(
    file: str, content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written("run") / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    assert main(["report", "run"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert f"'run/{file}'" in error
    assert error.count("\n") == 1
    assert not Path("report.html").exists()


@pytest.mark.parametrize(
    "place", ["pictures", "pictures/x.png", "pictures/attention/0.json", "config.yaml", "metrics.csv", "test"]
)
def test_a_link_to_what_is_outside_is_not_read(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run, other = written("run"), written("other")
    (other / "pictures" / "x.png").write_bytes(PNG)
    (other / "pictures" / "attention" / "0.json").write_text('{"title": "secret"}')
    (other / "test" / "0").mkdir(parents=True)
    (other / "test" / "0" / "metrics.csv").write_text("test/loss\n1\n")
    path = run / place
    if path.exists():
        path.rename(tmp_path / "before")
    path.symlink_to(tmp_path / other / place)
    assert main(["report", "run"]) == 2
    assert f"Expected plain data in 'run/{place}" in (error := capsys.readouterr().err)
    assert "a symbolic link" in error


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

    def displayed(selector: str) -> int:
        return sum(part.is_displayed() for part in browser.find_elements("css selector", selector))

    assert names() == ["dense", "sparse", "<i>"], "the best first"
    heads = browser.find_elements("css selector", "#summary th button")
    test = next(head for head in heads if head.text.startswith("test/nelbo"))
    test.click()
    assert names() == ["dense", "sparse", "<i>"], "10, 11 and 101 as numbers"
    test.click()
    assert names() == ["<i>", "sparse", "dense"]
    cells = browser.find_elements("css selector", ".map td + td, .map th + td")
    shades = [cell.value_of_css_property("background-color") for cell in cells if cell.text]
    assert len(set(shades)) == 3, "one for each weight"
    lines = [f"[id=run{place}-line]" for place in range(3)]
    panels = displayed(lines[0])
    assert panels == 3
    kept, entry, _ = browser.find_elements("css selector", "#legend button")
    for expected in (0, panels):
        entry.click()
        assert [displayed(line) for line in lines] == [panels, expected, panels]
        assert displayed(".grid img") == (expected > 0)
        assert displayed(".map") == 1 + (expected > 0)
    browser.find_element("id", "filter").send_keys("DEN")
    assert [displayed(line) for line in lines] == [panels, 0, 0]
    assert (entry.get_attribute("aria-pressed"), kept.get_attribute("aria-pressed")) == ("false", "true")
    assert not displayed("pre")
    browser.find_element("link text", "dense").click()
    assert displayed("pre") == 1, "the config of the run"
    browser.set_window_size(400, 900)
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert all(entry["level"] != "SEVERE" for entry in browser.get_log("browser"))
    requested = [
        entry["message"] for entry in browser.get_log("performance") if "Network.requestWillBeSent" in entry["message"]
    ]
    assert not [message for message in requested if '"url":"http' in message]
    assert all(part.get_attribute("aria-label") for part in browser.find_elements("css selector", "[role=img]"))


def test_the_pictures_of_a_page_have_a_limit_in_all(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a" / "pictures"
    for number in range(5):
        (folder / f"{number}.png").hardlink_to(folder / "support_size.png")
    monkeypatch.setattr("lit_sparse.studies.report.MOST", 4 * len(PNG))
    assert main(["report", str(tmp_path / "a"), "-o", str(tmp_path / "report.html")]) == 2
    assert "Expected pictures of at most" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "computed"), [(1, True), (60, False)])
def test_the_importance_of_very_many_choices_is_not_computed(options: int, computed: bool, tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna", reason="sweeps need the extra 'sweep'")
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "journal.log"))
    study = optuna.create_study(storage=optuna.storages.JournalStorage(backend), study_name=tmp_path.name)
    study.set_user_attr("settings", {"metrics": ["val/loss"]})
    spaces = {f"o{number}": optuna.distributions.CategoricalDistribution([*range(1000)]) for number in range(options)}
    for value in (1, 2, 3):
        study.add_trial(optuna.create_trial(params=dict.fromkeys(spaces, value), distributions=spaces, value=value))
    found = report._search(tmp_path, None)
    assert found is not None and len(found.values) == 3 and bool(found.importances) == computed
