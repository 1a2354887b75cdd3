"""Trained models give plain torch modules, which export and compile ahead of time."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves, tree_map

from lit_sparse.cli import main
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Marginalize, ScoreFunction
from lit_sparse.export import decompose, export_onnx
from lit_sparse.mappings import Entmax, LearnableEntmax, Sparsemax
from lit_sparse.models import (
    EntailmentClassifier,
    LitSparseModule,
    RobustClassifier,
    RobustRegressor,
    SemiSupervisedVAE,
    Seq2Seq,
)
from lit_sparse.nn import RecurrentBody, TransformerBody
from lit_sparse.risks import CVaR
from lit_sparse.text import BOS, EOS, PAD, UNK, Vocabulary

if not hasattr(Dim, "DYNAMIC"):
    pytest.skip("exports need a newer torch", allow_module_level=True)

WORDS = Vocabulary.from_tokens([PAD, BOS, EOS, UNK, *"abcdefg"])
BODIES = {
    "transformer": lambda: TransformerBody(8, 1, 0.5, heads=2, feedforward=16),
    "lstm": lambda: RecurrentBody(8, 2, 0.5),
    "gru": lambda: RecurrentBody(8, 1, 0.5, cell="gru", bidirectional=True, input_feeding=False),
}


def entailment() -> EntailmentClassifier:
    torch.manual_seed(0)
    model = EntailmentClassifier(Sparsemax(gamma=0.1), width=8, vector_size=6, dropout=0.5, risk=CVaR(0.5))
    model.build({"text": WORDS})
    return model


def vae() -> SemiSupervisedVAE:
    torch.manual_seed(0)
    options = {"classifier_hidden": (8,), "inference_hidden": (8,), "generator_hidden": (8,)}
    return SemiSupervisedVAE(LearnableEntmax(), Marginalize(), in_features=16, classes=4, **options)


def seq2seq(body: str) -> Seq2Seq:
    torch.manual_seed(0)
    model = Seq2Seq(Sparsemax(gamma=0.1), BODIES[body](), output_mapping=Entmax(1.5), init_range=None)
    model.build({"source": WORDS, "target": WORDS})
    return model


def sentences(*lengths: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return torch.randint(4, 11, (len(lengths), max(lengths)), generator=generator), torch.tensor(lengths)


def pairs(*lengths: int) -> tuple[Tensor, ...]:
    return *sentences(*lengths), *sentences(*lengths[::-1])


def step_arguments(predictor: Any, *lengths: int) -> tuple[Any, ...]:
    """Return the arguments of the third decoding step."""
    memory, state = predictor.encoder(*sentences(*lengths))
    tokens = torch.full((len(lengths),), WORDS.bos)
    for _ in range(2):
        scores, _, state = predictor(tokens, memory, state)
        tokens = scores.argmax(-1)
    return tokens, memory, state


def dynamic(args: Any) -> Any:
    """Return dynamic shapes that leave to torch which dimensions of the arguments may change."""
    return tree_map(lambda tensor: dict.fromkeys(range(tensor.dim()), Dim.AUTO), args)


#: Each case: a function from the lengths of rows to a predictor and its arguments.
CASES: dict[str, Any] = {
    "entailment": lambda *lengths: (entailment().predictor(), pairs(*lengths)),
    "vae": lambda *lengths: (vae().predictor(), (torch.rand(len(lengths), 16),)),
}
for body_name in BODIES:

    def _step(*lengths: int, body: str = body_name) -> tuple[nn.Module, Any]:
        predictor = seq2seq(body).predictor()
        return predictor, step_arguments(predictor, *lengths)

    def _encoder(*lengths: int, body: str = body_name) -> tuple[nn.Module, Any]:
        return seq2seq(body).predictor().encoder, sentences(*lengths)

    CASES[f"{body_name}-step"], CASES[f"{body_name}-encoder"] = _step, _encoder


def same(actual: Any, expected: Any) -> None:
    for found, wanted in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.cases(gate=5)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("lengths", [(5, 3, 2), (4, 0, 6, 1)], ids=["fixed", "dynamic"])
def test_a_predictor_exports(case: str, lengths: tuple[int, ...]) -> None:
    """In dynamic shapes it computes the same for rows of other lengths, an empty one among them, in another batch."""
    module, args = CASES[case](5, 3, 2)
    with torch.no_grad():
        program = torch.export.export(module, args, dynamic_shapes=dynamic(args) if len(lengths) == 4 else None)
    _, others = CASES[case](*lengths)
    same(program.module()(*others), module(*others))


@pytest.mark.parametrize(
    ("ending", "network"), [("pt2", nn.Upsample(2)), ("onnx", nn.Linear(5, 1)), ("pt2", nn.TransformerEncoderLayer(8, 1))]
)
def test_a_network_that_cannot_be_exported_is_named(
    network: nn.Module, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if ending == "onnx":
        pytest.importorskip("onnxscript")
    monkeypatch.setattr("lit_sparse.runs.loading.load", lambda *args, **kwargs: RobustRegressor(in_features=3, network=network))
    monkeypatch.chdir(tmp_path)
    assert main(["export", "last.ckpt", "-o", f"model.{ending}"]) == 2
    assert f"Expected the module {type(network).__name__} to be exported but got " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="needs a compiler of C++")
@pytest.mark.parametrize("case", ["entailment", "vae", "transformer-step", "lstm-step"])
def test_a_predictor_is_compiled_ahead_of_time(case: str, tmp_path: Path) -> None:
    """The batch is dynamic. Lengths are fixed, because this torch cannot compile a scan ahead of time."""
    module, args = CASES[case](5, 3, 2)
    package = tmp_path / "model.pt2"
    with torch.no_grad():
        batch = tree_map(lambda tensor: {0: Dim.DYNAMIC}, args)
        program = decompose(torch.export.export(module, args, dynamic_shapes=batch))
    torch._inductor.aoti_compile_and_package(program, package_path=str(package))
    _, others = CASES[case](5, 0, 4, 1)
    same(torch._inductor.aoti_load_package(str(package))(*others), module(*others))


EXPORTED: dict[str, Callable[[], LitSparseModule]] = {
    "vae": vae,
    "entailment": entailment,
    "seq2seq": lambda: seq2seq("lstm"),
    "regressor": lambda: RobustRegressor(in_features=3),
}


@pytest.mark.cases(quick=1, gate=1)
@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.parametrize("ending", ["pt2", "onnx"])
def test_the_command_exports_a_checkpoint(
    ending: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if ending == "onnx":
        pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    model = EXPORTED[name]().eval()
    saved = pl.Trainer(logger=False, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False)
    saved.strategy.connect(model)
    saved.save_checkpoint("last.ckpt", weights_only=True)
    capsys.readouterr()
    assert main(["export", "last.ckpt", "-o", f"model.{ending}"]) == 0
    exported = model.exported()
    assert capsys.readouterr().out.split() == [f"model{suffix}.{ending}" for suffix in exported]
    for suffix, (module, args) in exported.items():
        if ending == "pt2":
            same(torch.export.load(f"model{suffix}.pt2").module()(*args), module(*args))
    assert main(["export", "last.ckpt", "-o", "model.txt"]) == 2
    if (ending, name) == ("pt2", next(iter(EXPORTED))):  # torch ends the process if it cannot write the file itself
        Path("link.pt2").symlink_to("/dev/full")
        assert main(["export", "last.ckpt", "-o", "link.pt2"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("case", ["entailment", "lstm-step"])
def test_a_predictor_is_the_same_in_onnxruntime(case: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    module, args = CASES[case](5, 3, 2)
    export_onnx(module, args, tmp_path / "model.onnx", dynamic_shapes=dynamic(args))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    _, others = CASES[case](4, 0, 6, 1)
    given = {place.name: tensor.numpy() for place, tensor in zip(session.get_inputs(), tree_leaves(others), strict=True)}
    same([torch.from_numpy(array) for array in session.run(None, given)], tree_leaves(module(*others)))


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (entailment(), pairs(5, 3, 2)),
        (RobustRegressor(in_features=3), (torch.randn(4, 3),)),
        (
            RobustClassifier(in_features=3, classes=2, network=nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))),
            (torch.randn(4, 3),),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_predictor_computes_the_models_scores(model: LitSparseModule, args: tuple[Tensor, ...]) -> None:
    """It is a copy in evaluation that needs no gradient, and the model stays as it was."""
    model = copy.deepcopy(model).train()
    predictor = model.predictor()
    assert not any(part.training for part in predictor.modules())
    assert not any(parameter.requires_grad for parameter in predictor.parameters())
    assert model.training and all(parameter.requires_grad for parameter in model.parameters() if parameter.is_floating_point())
    expected = tree_map(lambda tensor: tensor.squeeze(-1), tree_leaves(model.eval()(*args))[0])
    torch.testing.assert_close(tree_leaves(predictor(*args))[0].squeeze(-1), expected)
    before = [parameter.clone() for parameter in predictor.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    same(list(predictor.parameters()), before)


def test_a_vae_predicts_the_probabilities_of_classes() -> None:
    model = vae()
    pixels = torch.rand(5, 16)
    torch.testing.assert_close(model.predictor()(pixels), model.class_probabilities(pixels))


def test_decoding_steps_are_those_of_search() -> None:
    model = seq2seq("lstm").eval()
    predictor = model.predictor()
    source, lengths = sentences(5, 3)
    (best, *_), *_ = model.search(model.encode(source, lengths), lengths, beam_size=1)
    memory, state = predictor.encoder(source, lengths)
    tokens = torch.full((2,), WORDS.bos)
    written, total = [], 0.0
    for _ in best.tokens:
        scores, _, state = predictor(tokens, memory, state)
        scores[:, [WORDS.pad, WORDS.bos]] = -torch.inf
        tokens = scores.argmax(-1)
        written.append(int(tokens[0]))
        total += float(scores[0, tokens[0]])
    assert written == best.tokens and written
    end = float(predictor(tokens, memory, state)[0][0, WORDS.eos])
    assert best.score in (pytest.approx(total, abs=1e-5), pytest.approx(total + end, abs=1e-5))


@pytest.mark.gate
def test_a_predictor_loads_without_lightning(tmp_path: Path) -> None:
    torch.save(entailment().predictor(), tmp_path / "predictor.pt")
    code = (
        "import sys, torch; p = torch.load('predictor.pt', weights_only=False);"
        " print(type(p).__name__, [name for name in ('pytorch_lightning', 'lightning') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout == "EntailmentPredictor []\n"


def test_models_without_a_predictor_name_themselves() -> None:
    class Plain(SemiSupervisedVAE):
        configure_predictor = LitSparseModule.configure_predictor  # type: ignore[assignment]

    with pytest.raises(ConfigurationError, match="a model with a predictor but got Plain"):
        Plain(Sparsemax(), ScoreFunction(), in_features=4).predictor()
    with pytest.raises(ConfigurationError, match="vocabularies"):
        EntailmentClassifier(Sparsemax()).predictor()
