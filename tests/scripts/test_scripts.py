"""The scripts run, and the projections that benchmark_hoyer times compute the same as the package."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from lit_sparse.mappings import functional as F
from lit_sparse.structures import Budget, Factor, FactorGraph, Or, Pair, Xor

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
ALGORITHMS = ("linear time", "alternating", "Hoyer 2004")


def load(name: str) -> ModuleType:
    """Import a script from its file, with its neighbours in reach, as they are when it is run."""
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hoyer() -> Any:
    return load("benchmark_hoyer")


def assert_picture(path: Path) -> None:
    start = path.read_bytes()[:100]
    assert start.startswith(b"\x89PNG") if path.suffix == ".png" else b"<?xml" in start


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["png", "svg"])
def test_plot_mappings_draws_both_pictures(file_format: str, tmp_path: Path) -> None:
    load("plot_mappings").main(["--folder", str(tmp_path / "new"), "--format", file_format, "--resolution", "7"])
    for name in ("mappings_2d", "mappings_3d"):
        assert_picture(tmp_path / "new" / f"{name}.{file_format}")


def test_plot_mappings_shows_every_mapping() -> None:
    """A mapping that joins the package must join the pictures."""
    from lit_sparse import mappings

    script = load("plot_mappings")
    drawn = {type(mapping) for mapping in [*script.simplex_mappings().values(), *script.other_mappings().values()]}
    not_of_their_own = {mappings.SparseMapping, mappings.LearnableEntmax, mappings.LearnableFusedmax}
    not_of_their_own |= {mappings.SoftRank, mappings.SoftSort}  # whose results are no weights
    not_of_their_own |= {mappings.BatchTopK, mappings.JumpReLU, mappings.TopKEntmax}  # of auto-encoders, like those with top-k
    layers = {getattr(mappings, name) for name in mappings.__all__} - not_of_their_own
    assert {layer for layer in layers if issubclass(layer, mappings.SparseMapping)} == drawn
    assert all(mapping.on_simplex for mapping in script.simplex_mappings().values())


def test_values_in_two_dimensions_touch_the_hinge() -> None:
    """The constants added to max_Omega([t, 0]) make it max(t, 0) far away, for every Omega; the capped one is bent less."""
    script = load("plot_mappings")
    x = torch.tensor([[-60.0, 0.0], [60.0, 0.0]], dtype=torch.float64)
    for name, mapping in script.simplex_mappings().items():
        value = mapping.value(x) + script.to_touch(mapping)
        cap = 1 / (2 * script.RHO) if name.startswith("capped") else 1.0
        torch.testing.assert_close(value, torch.tensor([-60 * (1 - cap), 60 * cap], dtype=torch.float64))


@pytest.mark.parametrize("rho", [1.0, 0.2, 0.0])
def test_the_generator_of_safe_kl_and_its_conjugate_are_a_pair(rho: float) -> None:
    """The conjugate is the maximum of ``s t - f(t)``, here over a fine grid."""
    script = load("plot_safe_kl")
    t, s = torch.linspace(0, 1 / rho if rho else 20, 20_001, dtype=torch.float64), torch.linspace(-3, 2, 11).double()
    values = s.unsqueeze(1) * t - script.generator(t, rho)
    torch.testing.assert_close(values.amax(1), script.conjugate(s, rho), atol=1e-6, rtol=0)


def test_plot_safe_kl_draws(tmp_path: Path) -> None:
    load("plot_safe_kl").main(["--output", str(tmp_path / "new" / "safe_kl.png")])
    assert_picture(tmp_path / "new" / "safe_kl.png")


def test_plot_agreement_draws_attention_that_agreement_decides(tmp_path: Path) -> None:
    script = load("plot_agreement")
    script.main(["--output", str(tmp_path / "new" / "agreement.png")])
    assert_picture(tmp_path / "new" / "agreement.png")
    alone, matched, agreeing = script.attentions().values()
    articles = [place for place, word in enumerate(script.OUTPUT) if word == "a"]
    for weights in (alone, matched):
        torch.testing.assert_close(weights[articles][:, articles], torch.full((3, 3), 1 / 3))
    for weights in (matched, agreeing):
        torch.testing.assert_close(weights.sum(1), torch.ones(8))
        torch.testing.assert_close(weights.sum(0), torch.ones(8), atol=1e-5, rtol=0)
    assert bool((agreeing.diagonal() > 0.7).all())
    assert [int((weights == 0).sum()) for weights in (matched, agreeing)] == [48, 42]
    assert not bool(((agreeing > 0) & (agreeing < 1e-3)).any())


@pytest.mark.gate
def test_benchmark_hoyer_prints_tables_and_draws(hoyer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    hoyer.main(["--quick", "--rounds", "1", "--vectors", "2", "--folder", str(tmp_path)])
    assert_picture(tmp_path / "hoyer.png")
    printed = capsys.readouterr().out
    assert printed.count("\n| ---:") == 5
    assert "F.hoyer_projection is at least" in printed
    assert torch.get_num_threads() == threads


def test_benchmark_sparsemap_prints_its_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = load("benchmark_sparsemap")
    monkeypatch.setattr(
        sys, "argv", ["benchmark_sparsemap", "--quick", "--rounds", "1", "--threads", str(torch.get_num_threads())]
    )
    script.main()
    printed = capsys.readouterr().out
    assert "`BitVector(d=32)`" in printed
    assert "| 64 | 16 |" in printed


def test_benchmark_factor_graphs_prints_its_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the accuracy that belongs to the times."""
    script = load("benchmark_factor_graphs")
    monkeypatch.setattr(
        sys, "argv", ["benchmark_factor_graphs", "--quick", "--rounds", "1", "--threads", str(torch.get_num_threads())]
    )
    script.main()
    cells = capsys.readouterr().out.splitlines()[-1].split(" | ")
    assert cells[:2] == ["| chain of 50 pairs, budget of 10", "64"]
    assert float(cells[-2]) <= 1e-9
    assert float(cells[-1].removesuffix(" |")) <= 1e-7


class StandIn:
    """Factor graphs with the interface of the package lp-sparsemap, solved by ours."""

    def __init__(self) -> None:
        self.factors: list[Factor] = []
        self.links: list[float] = []
        self.size = 0

    def create_binary_variable(self) -> int:
        self.size += 1
        return self.size - 1

    def create_factor_pair(self, variables: list[int], link: float) -> None:
        self.factors.append(Factor(Pair(), variables))
        self.links.append(link)

    def create_factor_budget(self, variables: list[int], budget: int, flips: list[bool]) -> None:
        self.factors.append(Factor(Budget(None, budget), variables, [i for i, flip in enumerate(flips) if flip]))

    def create_factor_logic(self, kind: str, variables: list[int], flips: list[bool]) -> None:
        structure = {"XOR": Xor(), "OR": Or()}[kind]
        self.factors.append(Factor(structure, variables, [i for i, flip in enumerate(flips) if flip]))

    def set_log_potentials(self, scores: np.ndarray) -> None:
        self.scores = torch.from_numpy(scores)

    def solve_qp_ad3(self) -> tuple[float, list[float], list[float], int]:
        potentials = torch.tensor(self.links, dtype=torch.float64)
        found = F.lp_sparsemap(self.scores, FactorGraph(self.size, self.factors), potentials=potentials)
        return 0.0, found.marginals.tolist(), [], 0

    def __getattr__(self, name: str) -> Any:
        """Return a function that does nothing: options, and the derivative."""
        return lambda *_: None


def test_problems_are_written_for_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, path = load("benchmark_factor_graphs"), tmp_path / "problems.json"
    few = [case._replace(batch=min(case.batch, 2)) for case in script.cases(False)]
    monkeypatch.setattr(script, "cases", lambda quick: few)
    monkeypatch.setattr(sys, "argv", ["benchmark_factor_graphs", "--problems", str(path)])
    script.main()
    graphs = ModuleType("factor_graph")
    graphs.PFactorGraph = StandIn  # type: ignore[attr-defined]
    for name, module in (
        ("lpsmap", ModuleType("lpsmap")),
        ("lpsmap.ad3qp", ModuleType("ad3qp")),
        ("lpsmap.ad3qp.factor_graph", graphs),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "argv", ["time_lp_sparsemap", str(path)])
    load("time_lp_sparsemap").main()
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()][-4:]
    assert [cells[0][2:] for cells in lines] == [case.name for case in few[:4]]
    assert all(float(cells[-1].removesuffix(" |")) <= 1e-6 for cells in lines)


def test_benchmark_risks_prints_its_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = load("benchmark_risks")
    monkeypatch.setattr(script, "SHAPES", ((8, 10),))
    assert script.main(["--repeats", "1", "--threads", str(torch.get_num_threads())]) == 0
    printed = capsys.readouterr().out
    assert "| (8, 10) | 1e-3 |" in printed
    assert "| Mean | 1.00 |" in printed


def test_benchmark_mappings_prints_its_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = load("benchmark_mappings")
    monkeypatch.setattr(script, "SHAPES", [(2, 5)])
    monkeypatch.setattr(script, "keep_memory", lambda: None)  # it lasts as long as the process
    monkeypatch.setattr(sys, "argv", ["benchmark_mappings", "--rounds", "1", "--only", "sparsemax"])
    script.main()
    assert "| (2, 5) | sparsemax |" in capsys.readouterr().out


@pytest.mark.gate
def test_benchmark_onnx_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    load("benchmark_onnx").main(["--rounds", "1", "--only", "Softmax", "--shape", "2x5"])
    opset, *_, row = capsys.readouterr().out.splitlines()
    assert opset.startswith("opset 20, ")
    assert re.fullmatch(r"\| Softmax\(gamma=1.0, dim=-1\) \| \d+ \| \d+ \| \d+ \| [\d.]+ \| \de[+-]\d\d \|", row)


@pytest.mark.parametrize("sparseness", [0.05, 0.3, 0.6, 0.9, 0.97])
@pytest.mark.parametrize("n", [2, 3, 10, 77, 1500])
def test_algorithms_agree_with_the_package(hoyer: Any, n: int, sparseness: float) -> None:
    generator = np.random.default_rng(n)
    for scale, norm in ((1.0, 1.0), (30.0, 2.5), (0.01, 0.1)):
        x = scale * generator.standard_normal(n)
        rows = torch.from_numpy(x)
        with_signs = F.hoyer_projection(rows, sparseness, norm=norm).numpy()
        nonneg = F.hoyer_projection(rows, sparseness, nonneg=True, norm=norm).numpy()
        for name in ALGORITHMS:
            project = hoyer.ALGORITHMS[name]
            np.testing.assert_allclose(project(x, sparseness, norm).y, nonneg, rtol=0, atol=1e-6)
            np.testing.assert_allclose(np.copysign(project(abs(x), sparseness, norm).y, x), with_signs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sparseness", [0.05, 0.3, 0.6, 0.9, 0.97])
@pytest.mark.parametrize("n", [2, 3, 10, 77, 1500])
def test_sorted_form_agrees_with_the_package(hoyer: Any, n: int, sparseness: float) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    expected = F.hoyer_projection(x, sparseness)
    for sort in (hoyer.torch_sort, hoyer.numpy_sort):
        torch.testing.assert_close(hoyer.sorted_form(x, sparseness, sort), expected, rtol=0, atol=1e-6)


def test_traces_end_at_the_support_and_alternating_is_never_longer_than_hoyer(hoyer: Any) -> None:
    """Thom & Palm (2013): the step to the simplex drops at least what the step to the positive entries does."""
    for seed in range(50):
        x = hoyer.vector(500, None, np.random.default_rng(seed))
        found = {name: hoyer.ALGORITHMS[name](x, 0.8) for name in ALGORITHMS}
        for trace in found.values():
            assert trace.sizes[-1] == np.count_nonzero(trace.y)
        for name in ("alternating", "Hoyer 2004"):
            assert found[name].sizes[0] == 500
            assert (np.diff(found[name].sizes) < 0).all()
        shorter, longer = found["alternating"].sizes, found["Hoyer 2004"].sizes
        assert len(shorter) <= len(longer)
        assert all(a <= b for a, b in zip(shorter, longer, strict=False))


@pytest.mark.parametrize("sparseness", [0.1, 0.5, 0.85])
def test_vectors_have_the_sparseness_asked_for(hoyer: Any, sparseness: float) -> None:
    x = hoyer.vector(256, sparseness, np.random.default_rng(0))
    assert abs((16 - x.sum() / np.linalg.norm(x)) / 15 - sparseness) < 0.01
    assert (x > 0).all()


def test_a_wrong_result_stops_the_benchmark(hoyer: Any) -> None:
    x = hoyer.vector(20, None, np.random.default_rng(0))
    y = hoyer.alternating(x, 0.5).y
    hoyer.check(x, 0.5, y)
    for wrong in (y + 1e-6, y * np.nan):
        with pytest.raises(RuntimeError, match="off"):
            hoyer.check(x, 0.5, wrong)


def test_tables_of_quality_tell_no_times() -> None:
    """Their runs shared a machine with other work; times stand in the tables of the benchmarks and the costs."""
    paths = [path for path in (SCRIPTS.parent / "results").glob("*.md") if not path.name.startswith("benchmark")]
    heads = {f"{path.name}: {line}" for path in paths for line in path.read_text().splitlines()}
    assert len(heads) > 100
    pages = [SCRIPTS.parent / "README.md", *(SCRIPTS.parent / "docs" / "results").glob("*.md")]
    for page in pages:
        lines = page.read_text(encoding="utf-8").splitlines() if page.stem not in ("benchmarks", "costs") else []
        heads |= {f"{page.name}: {line}" for line, rule in itertools.pairwise(lines) if rule.startswith(("| ---", "| :---"))}
    assert not sorted(head for head in heads if re.search(r"\b(seconds|minutes|time|s a run)\b", head))


@pytest.mark.slow
def test_benchmark_training_compares_the_same_mathematics(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, threads = load("benchmark_training"), torch.get_num_threads()
    monkeypatch.setattr(script, "WARM_UP", 1)
    monkeypatch.setattr(script, "LABELLED", 640)
    monkeypatch.setattr(script, "UNLABELLED", 6400)
    try:
        script.main(["--rounds", "1", "--steps", "2", "--threads", str(threads)])
    finally:
        torch.set_num_threads(threads)
    assert "| sparse | 1." in capsys.readouterr().out


@pytest.mark.slow
def test_benchmark_pyepo_needs_few_calls_of_the_solver(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ortools")
    pytest.importorskip("pyepo")
    script, threads = load("benchmark_pyepo"), torch.get_num_threads()
    monkeypatch.setattr(script, "TRAINED", 20)
    monkeypatch.setattr(script, "TESTED", 20)
    try:
        script.main(["--seeds", "1", "--epochs", "2"])
    finally:
        torch.set_num_threads(threads)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    calls = {(problem, loss): float(calls) for problem, loss, _, calls, _ in rows}
    for problem in ("shortest path", "knapsack"):
        assert calls[problem, "`SparseMAPLoss(optmodel)`"] <= calls[problem, "PyEPO, regularized, 20 steps"] / 4
    assert calls["shortest path", "`SparseMAPLoss(ShortestPath.grid(5, 5))`"] == 0


@pytest.mark.filterwarnings("ignore:`ModelCheckpoint")  # without validation
@pytest.mark.parametrize(
    ("what", "printed"),
    [
        pytest.param("start", r"first step \| \d", marks=pytest.mark.slow),
        pytest.param("layer", r"first call of `HardThreshold\(2\)` \| \d", marks=pytest.mark.gate),
        pytest.param("loader", r"soae/digits \| 0\.\d+", marks=pytest.mark.gate),
    ],
)
def test_benchmark_start_prints_its_tables(
    what: str, printed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load("benchmark_start")
    monkeypatch.setitem(sys.modules, "benchmark_start", script)
    monkeypatch.setattr(script, "LAYERS", ("HardThreshold(2)",))
    threads = torch.get_num_threads()
    try:
        script.main([what, "--rounds", "1", "--steps", "3", "--run", "soae/digits --data.init_args.batch_size=8"])
    finally:
        torch.set_num_threads(threads)
    assert re.search(printed, capsys.readouterr().out)


def test_benchmark_categorical_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    threads = str(torch.get_num_threads())
    load("benchmark_categorical").main(["--rounds", "1", "--threads", threads, "--rows", "2", "--calls", "1"])
    printed = capsys.readouterr().out
    assert "| 2 | " in printed
    assert "| 1 | " in printed


@pytest.mark.slow
def test_benchmark_output_layer_prints_times_memory_and_supports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load("benchmark_output_layer")
    monkeypatch.setattr(script, "NAMES", (script.BASELINE, "sparsemax"))  # a process for each
    threads = str(torch.get_num_threads())
    sizes = ["--rows", "40", "--features", "8", "--classes", "3000", "--spreads", "1"]
    script.main([*sizes, "--rounds", "1", "--threads", threads])
    printed = capsys.readouterr().out
    assert re.search(r"\| sparsemax \| \d+\.\d+ \| \d+\.\d\d \| -?\d+ \| -?\d+\.\d% \| \d+\.\d, \d+ \|", printed)
    assert re.search(r"\| linear \+ cross_entropy \| .* \| 3000 \|", printed)


@pytest.mark.gate
def test_all_comparisons_with_peers_are_measured_and_drawn_from_their_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, rows = load("benchmark_all"), tmp_path / "new/rows.csv"
    sizes = ["--rounds=1", "--lengths", "70", "--classes", "300", f"--threads={torch.get_num_threads()}", f"--rows={rows}"]
    script.main(["measure", *sizes])
    lines = rows.read_text(encoding="utf-8").splitlines()
    for words in ("SDPA", "cross_entropy", "torch.softmax", "70 keys, causal"):
        assert any(words in line for line in lines)
    row = '"attention, training",4096 keys,sparsemax,"SDPA, softmax",2,4.000,0.963,125.000,2026-11-30,abc,a machine'
    rows.write_text(f"{lines[0]}\n{row}\n", encoding="utf-8")
    script.main(["draw", *sizes])
    printed = capsys.readouterr().out
    assert "| Sparsemax attention, 4,096 keys, training | PyTorch's softmax attention | 4\u00d7 | 0.96 to 120 |" in printed
    assert "2026-11-30, commit abc, a machine, 2 threads." in printed
    assert_picture(rows.with_suffix(".png"))


def test_language_models_are_trained_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, rows, threads = load("train_language_model"), tmp_path / "rows.csv", torch.get_num_threads()
    (tmp_path / "text.txt").write_text("All work and no play makes a dull text. " * 40, encoding="utf-8")
    sizes = ["--lengths=30", "--steps=8", "--every=4", "--tokens=60", "--width=8", "--layers=1", f"--rows={rows}", "--rate=0.1"]
    try:
        script.main(["train", str(tmp_path / "text.txt"), *sizes])
    finally:
        torch.set_num_threads(threads)
    script.main(["draw", *sizes, f"--figure={tmp_path / 'figure.png'}"])
    assert "| 30 | entmax 1.5 | " in capsys.readouterr().out
    assert_picture(tmp_path / "figure.png")
    curve = [(0.0, 0.0, 8.0), (10.0, 4.0, 6.0), (20.0, 8.0, 5.0)]
    assert [script.at(curve, 0, 5.0), script.at(curve, 1, 6.0), script.at(curve, 0, 99.0)] == [7.0, 5.5, 5.0]
    with pytest.raises(SystemExit, match="Expected files of text"):
        script.main(["train"])


def test_walks_count_hops_and_returns(capsys: pytest.CaptureFixture[str]) -> None:
    script = load("walks")
    assert script.hops_in(["a", "a", "b", "a", "c", "b"]) == (["b", "a", "c", "b"], ["a", "b"])
    script.main(["entmax", "--show"])
    printed = capsys.readouterr().out
    assert re.search(r"\| scores through `Entmax\(1.5\)`, forward \| \d+ \| \d+ \| \d+ \| \d+ \|", printed)
    assert re.search(r"\| mappings/base.py \| \d+ \| \d+ \|", printed)


@pytest.mark.gate
def test_the_loss_of_ranks_beats_the_squared_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SCRIPTS", SCRIPTS.parent / "examples")
    load("spearman_loss").main()
    squared, ranks = (float(line.split(": ")[1].split()[0]) for line in capsys.readouterr().out.splitlines())
    assert ranks > squared + 0.05
