"""Sequence to sequence: learns by heart, searches as a loop written apart, keeps its vocabularies, loses no line."""

from __future__ import annotations

import functools
import gzip
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as nnf

from lit_sparse.callbacks import AttentionPlot
from lit_sparse.data import TranslationDataModule
from lit_sparse.errors import CheckpointError, ConfigurationError, DataError
from lit_sparse.mappings import (
    Entmax,
    FenchelYoungLoss,
    Fusedmax,
    LearnableEntmax,
    Oscarmax,
    Softmax,
    SparseMAP,
    SparseMapping,
    Sparsemax,
)
from lit_sparse.metrics import Bleu, ChrF, Rouge
from lit_sparse.models import Seq2Seq
from lit_sparse.nn import RecurrentBody, TransformerBody, length_mask
from lit_sparse.structures import Sequence
from lit_sparse.testing import concrete_subclasses
from lit_sparse.text import Vocabulary, VocabularyOptions
from tests.data.pairs import WORDS, write_pairs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, number in (("train", 60), ("val", 11), ("test", 13)):
        write_pairs(tmp_path, split, number)
    return tmp_path


def data_of(folder: Path, **options: Any) -> TranslationDataModule:
    return TranslationDataModule(str(folder), source="de", target="en", **{"batch_size": 16, "eval_batch_size": 5, **options})


def small(mapping: SparseMapping | None = None, **options: Any) -> Seq2Seq:
    body = options.pop("body", None) or RecurrentBody(16, 1, 0.1)
    adam = functools.partial(torch.optim.Adam, lr=5e-3)
    return Seq2Seq(
        mapping or Sparsemax(), body, **{"loss_normalization": "token", "init_range": None, "optimizer": adam, **options}
    )


def trainer(**options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="cpu", **{"max_epochs": 1, "num_sanity_val_steps": 0, **quiet, **options})


def trained(folder: Path, model: Seq2Seq, **options: Any) -> Seq2Seq:
    torch.manual_seed(0)
    trainer(**options).fit(model, data_of(folder))
    return model


ONE_OF_EACH = [kind.examples()[0] for kind in concrete_subclasses(SparseMapping) if kind.on_simplex]


LEARNERS = [
    pytest.param(
        mapping,
        id=type(mapping).__name__,
        marks=[] if type(mapping) in (Sparsemax, Fusedmax, SparseMAP) else [pytest.mark.slow],
    )
    for mapping in [*ONE_OF_EACH, SparseMAP(Sequence(select=1), learn_potentials=True)]
]


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize("mapping", LEARNERS)
def test_sixty_four_pairs_are_learnt_by_heart(mapping: SparseMapping, shared: Path, tmp_path: Path) -> None:
    lines = {}
    for language in ("de", "en"):
        with gzip.open(shared / "data" / "multi30k" / f"train.{language}.gz", "rt", encoding="utf-8") as file:
            lines[language] = file.read().splitlines()
    short = [i for i, line in enumerate(lines["de"]) if len(line.split()) <= 9 and len(lines["en"][i].split()) <= 9][:64]
    for split in ("train", "val", "test"):
        for language, some in lines.items():
            (tmp_path / f"{split}.{language}").write_text("".join(f"{some[i]}\n" for i in short), encoding="utf-8")
    adam = functools.partial(torch.optim.Adam, lr=1e-2, fused=True)
    body = RecurrentBody(64, 1, 0.0, input_feeding=False)
    model = small(mapping, body=body, optimizer=adam, metrics=[Bleu(lowercase=True)])
    data = data_of(tmp_path, batch_size=32, eval_batch_size=64)
    torch.manual_seed(0)
    run = trainer(max_epochs=60, limit_val_batches=0, gradient_clip_val=5.0)
    run.fit(model, data)
    assert run.test(model, data, verbose=False)[0]["test/bleu"] > 95


@pytest.mark.parametrize("mapping", [Sparsemax(gamma=0.2), Oscarmax(0.02, gamma=0.2)], ids=repr)
def test_the_step_is_what_its_parts_say(mapping: SparseMapping, folder: Path) -> None:
    """The loss, the counts and the shares, computed one token at a time."""
    model = trained(folder, small(mapping, label_smoothing=0.1), max_epochs=3).eval().double()
    data = data_of(folder)
    data.use_vocabularies(model.vocabularies)
    data.setup("test")
    batch = next(iter(data.test_dataloader()))
    output = model.run_step(batch, 0, "test")
    losses, nlls, right, support, zeros, groups = [], [], [], [], [], []
    for row in range(len(batch["source"])):
        size, length = int(batch["source_length"][row]), int(batch["target_length"][row])
        source, target = batch["source"][row : row + 1, :size], batch["target"][row : row + 1, :length]
        scores, weights = model(source, torch.tensor([size]), target[:, :-1])
        for t in range(length - 1):
            log_probs = scores[0, t].log_softmax(-1)
            nlls.append(-log_probs[target[0, t + 1]])
            losses.append(0.9 * nlls[-1] - 0.1 * log_probs.mean())
            right.append(float(log_probs.argmax() == target[0, t + 1]))
            row_weights = weights[0, 0, t].tolist()
            support.append(sum(w != 0 for w in row_weights))
            zeros.append(1 - support[-1] / size)
            runs = [w for i, w in enumerate(row_weights) if w != 0 and (i == 0 or row_weights[i - 1] != w)]
            groups.append(len(runs) if isinstance(mapping, Sparsemax) else len({w for w in row_weights if w != 0}))
    torch.testing.assert_close(output["loss"], torch.stack(losses).mean())
    torch.testing.assert_close(output["per_example"]["nll"].sum(), torch.stack(nlls).sum())
    assert output["per_example"]["accuracy"].mean().item() == pytest.approx(sum(right) / len(right))
    assert sorted(output["support_size"].tolist()) == sorted(support)
    assert sorted(output["groups"].tolist()) == sorted(groups)
    assert output["per_example"]["zeros"].mean().item() == pytest.approx(sum(zeros) / len(zeros))
    assert output["num_allowed"].sum() == ((batch["target_length"] - 1) * batch["source_length"]).sum()


def test_the_loss_is_divided_by_sentences_or_by_tokens(folder: Path) -> None:
    model = trained(folder, small()).eval()
    data = data_of(folder)
    data.use_vocabularies(model.vocabularies)
    batch = next(iter(data.val_dataloader()))
    by_token = model.run_step(batch, 0, "train")["loss"]
    model.loss_normalization = "sentence"
    by_sentence = model.run_step(batch, 0, "train")["loss"]
    tokens = (batch["target_length"] - 1).sum() / len(batch["source"])
    torch.testing.assert_close(by_sentence, by_token * tokens)


def test_label_smoothing_is_torchs(folder: Path) -> None:
    model = small(label_smoothing=0.2)
    model.output = torch.nn.Linear(4, 9)
    hidden, gold = torch.randn(7, 4), torch.randint(9, (7,))
    losses, _, _ = model._losses(hidden, gold)
    torch.testing.assert_close(losses, nnf.cross_entropy(model.output(hidden), gold, reduction="none", label_smoothing=0.2))


def greedy(model: Seq2Seq, line: str) -> str:
    """Write one sentence, the whole prefix anew for each token."""
    vocabulary, target = model.vocabularies["source"], model.vocabularies["target"]
    source = torch.tensor(vocabulary.encode([line]))
    length = torch.tensor([source.shape[1]])
    tokens = [target.bos]
    while len(tokens) - 1 < min(model.max_output, 3 * int(length) + 10):
        scores, _ = model(source, length, torch.tensor([tokens]))
        last: Tensor = scores[0, -1]
        last[[target.pad, target.bos]] = -torch.inf
        tokens.append(int(last.argmax()))
        if tokens[-1] == target.eos:
            break
    return target.decode(tokens)


BODIES = {
    "recurrent": lambda: RecurrentBody(16, 2, 0.1, bidirectional=True),
    "transformer": lambda: TransformerBody(16, 2, 0.1, heads=2, feedforward=32),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_greedy_search_is_a_beam_of_one_and_no_output_depends_on_others(name: str, folder: Path) -> None:
    model = trained(folder, small(Fusedmax(), body=BODIES[name](), beam_size=1), max_epochs=4).eval()
    with torch.no_grad():  # a model that says many things
        for parameter in [*model.body.parameters(), model.output.weight]:
            parameter.normal_(0.0, 0.7)
        model.output.bias[model.vocabularies["target"].eos] -= 4.0
    lines = [*write_pairs(folder, "more", 23), "", "nie gesehen"]
    with torch.no_grad():
        expected = [greedy(model, line) if line else "" for line in lines]
    assert model.generate(lines) == expected
    assert len(set(expected)) > 5
    for beam in (1, 4):
        model.beam_size = beam
        whole = model.generate(lines, batch_size=64)
        for size in (1, 7):
            assert model.generate(lines, batch_size=size) == whole


def test_a_sparse_output_layer_writes_only_what_has_a_probability(folder: Path) -> None:
    model = small(Sparsemax(), output_mapping=Entmax(1.5), label_smoothing=0.0)
    before = trained(folder, model, max_epochs=8)
    data = data_of(folder)
    data.use_vocabularies(before.vocabularies)
    batch = next(iter(data.val_dataloader()))
    model.eval()
    scores, _ = model(batch["source"], batch["source_length"], batch["target"][:, :-1])
    there = length_mask(batch["target_length"] - 1, batch["target"].shape[1] - 1)
    loss = FenchelYoungLoss(Entmax(1.5))(scores[there], batch["target"][:, 1:][there])
    torch.testing.assert_close(model.run_step(batch, 0, "train")["loss"], loss)
    assert (Entmax(1.5)(scores) == 0).any()
    found = model.search(model.encode(batch["source"], batch["source_length"]), batch["source_length"])
    assert all(math.isfinite(one.score) for best in found for one in best)


def test_metrics_of_outputs_are_logged_with_their_signatures(folder: Path, tmp_path: Path) -> None:
    metrics = [Bleu(lowercase=True), ChrF(), Rouge(truncate_bytes=75)]
    model = small(metrics=metrics, validation_beam_size=1)
    data = data_of(folder)
    run = trainer(logger=True, default_root_dir=str(tmp_path), log_every_n_steps=1)
    run.fit(model, data)
    assert {"val/bleu", "val/chrf", "val/perplexity", "val/rouge75_L"} <= set(run.callback_metrics)
    found = run.test(model, data, verbose=False)[0]
    signatures = (Path(run.log_dir or "") / "signatures.txt").read_text()
    assert "case:lc" in signatures
    lines = data.texts("test")
    outside = Bleu(lowercase=True)
    outside.update(model.generate(lines["source"]), [[line] for line in lines["target"]])
    assert found["test/bleu"] == pytest.approx(float(outside.compute()["bleu"]), rel=1e-6)
    assert found["test/perplexity"] == pytest.approx(math.exp(found["test/nll"]), rel=1e-5)
    for name in ("source", "target"):
        assert Vocabulary.load(Path(run.log_dir or "") / "vocabularies" / f"{name}.json") == model.vocabularies[name]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("mapping", "body"),
    [
        (Fusedmax(lam=0.3), lambda: RecurrentBody(16, 2, 0.1, cell="gru", bidirectional=True)),
        (LearnableEntmax(shape=(2, 1, 1)), BODIES["transformer"]),
    ],
    ids=["recurrent", "transformer"],
)
def test_a_checkpoint_brings_mapping_body_and_vocabularies(
    mapping: SparseMapping, body: Any, folder: Path, tmp_path: Path
) -> None:
    model = small(mapping, body=body(), metrics=[Bleu(lowercase=True)])
    run = trainer()
    run.fit(model, data_of(folder, source_vocabulary=VocabularyOptions(kind="bpe", max_size=40)))
    run.save_checkpoint(tmp_path / "it.ckpt")
    again = Seq2Seq.load_from_checkpoint(tmp_path / "it.ckpt", weights_only=True)
    assert repr(again.mapping) == repr(model.mapping)
    assert again.vocabularies == model.vocabularies
    assert again.metrics[0].lowercase
    lines = write_pairs(folder, "more", 5)
    written = model.generate(lines)
    assert again.generate(lines) == written
    # other data than it was trained on: the model's vocabularies are used
    (folder / "train.de").write_text("ganz andere Wörter\n" * 3)
    (folder / "train.en").write_text("something else\n" * 3)
    other = data_of(folder)
    trainer().test(again, other, verbose=False)
    assert other.vocabularies == model.vocabularies
    given = data_of(folder, source_vocabulary=Vocabulary.build(["x"]))
    with pytest.raises(ConfigurationError, match="vocabulary of the checkpoint"):
        trainer().test(again, given, verbose=False)


def test_a_warm_start_takes_the_vocabularies_too(folder: Path, tmp_path: Path) -> None:
    model = small()
    run = trainer()
    run.fit(model, data_of(folder))
    run.save_checkpoint(tmp_path / "first.ckpt")
    (folder / "train.de").write_text("ein neues Wort\n" * 20)
    (folder / "train.en").write_text("a new word\n" * 20)
    second = small(Fusedmax(), initial_weights=str(tmp_path / "first.ckpt"))
    trainer(max_steps=1).fit(second, data_of(folder))
    assert second.vocabularies == model.vocabularies
    with pytest.raises(CheckpointError, match="does not exist"):
        trainer().fit(small(initial_weights=str(tmp_path / "none.ckpt")), data_of(folder))


def test_predictions_lose_no_line(folder: Path) -> None:
    hostile = [
        "ein Hund",
        "",
        "   ",
        "Straße " * 10_000,
        "😀 👩‍👩‍👧",
        "שלום עולם مرحبا",
        "ein\u0000Hund",
        "\u2028 \x0b",
        "ein Mann <eos> <pad>",
        "\ufeffHaus",
    ]
    (folder / "in.txt").write_text("\n".join(hostile) + "\n", encoding="utf-8")
    model = trained(folder, small(Softmax(), n_best=3), max_epochs=2)
    data = data_of(folder, predict=str(folder / "in.txt"))
    with pytest.warns(UserWarning, match=r"source 4 \(counted from 1\)"):
        batches = trainer().predict(model, data) or []
    found = {}
    for batch in batches:
        for place, index in enumerate(batch["index"].tolist()):
            found[index] = batch["lines"][place]
            assert 1 <= len(batch["candidates"][place]) <= 3
            assert batch["candidates"][place][0]["text"] == batch["lines"][place]
            assert batch["source"][place] == hostile[index]
    assert sorted(found) == list(range(len(hostile)))
    assert found[1] == found[2] == ""
    assert all("\n" not in line for line in found.values())
    (folder / "in.txt").write_bytes(b"gut\nschlecht \xe4\n")
    with pytest.raises(DataError, match="line 2"):
        trainer().predict(model, data_of(folder, predict=str(folder / "in.txt")))


def test_unknown_words_are_copied_from_where_the_model_looks(folder: Path) -> None:
    model = small(replace_unknown=True)
    vocabularies = {"source": Vocabulary.build(["ein Hund"]), "target": Vocabulary.build(["a dog"])}
    model.build(vocabularies).eval()
    with torch.no_grad():
        model.output.bias[vocabularies["target"].unk] = 50.0
    for text in model.generate(["ein Hund"]):
        assert set(text.split()) <= {"ein", "hund"}
        assert text
    (name,) = model.generate(["Schwarzenegger"])
    assert set(name.split()) == {"schwarzenegger"}, "a word that the source's vocabulary does not have either"


def test_a_search_keeps_no_more_attention_than_it_returns(folder: Path) -> None:
    model = trained(folder, small(body=TransformerBody(16, 2, 0.0, heads=4, feedforward=32))).eval()
    lengths = torch.full((6,), 7)
    with torch.no_grad():
        found = model.search(model.encode(torch.randint(4, 9, (6, 7)), lengths), lengths)
    for (best,) in found:
        assert best.attention.untyped_storage().nbytes() == 4 * best.attention.numel()


def test_what_is_no_text_is_not_written_about(folder: Path) -> None:
    model = small().build({"source": Vocabulary.build(["a"]), "target": Vocabulary.build(["b"])})
    for lines, words in (
        ("ein Hund", r"one text\. Write \['ein Hund'\]"),
        ([None], "got None at position 0"),
        (["a", "\ud800"], "at position 1"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            model.generate(lines)  # type: ignore[arg-type]
    for size in (0, -1):
        with pytest.raises(ConfigurationError, match="`batch_size`"):
            model.generate(["a"], batch_size=size)
    assert model.generate([]) == []


def test_empty_outputs_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = trained(folder, small())
    with torch.no_grad():
        model.output.bias[model.vocabularies["target"].eos] = 50.0
    with caplog.at_level(logging.INFO):
        trainer().test(model, data_of(folder), verbose=False)
    assert "13 of 13 outputs are empty" in caplog.text


def test_means_keep_their_digits_in_bfloat16(folder: Path) -> None:
    model = small()
    run = trainer(precision="bf16-true")
    run.fit(model, data_of(folder))
    assert {metric.total.dtype for metric in model.stage_metrics("val")._means().values()} == {torch.float64}


def test_embeddings_are_tied_when_asked(folder: Path) -> None:
    model = trained(folder, small(tied_embeddings=True))
    assert model.output.weight is model.target_embedding.weight
    assert sum(p.numel() for p in model.parameters()) < sum(p.numel() for p in trained(folder, small()).parameters())


def test_published_initial_weights_leave_the_mapping_alone(folder: Path) -> None:
    model = small(LearnableEntmax(start=1.7), init_range=0.05)
    model.build({"source": Vocabulary.build(WORDS), "target": Vocabulary.build(WORDS)})
    assert model.body.encoder.weight_ih_l0.abs().max() <= 0.05
    assert float(model.mapping.alpha.detach()) == pytest.approx(1.7)
    assert (model.source_embedding.weight[model.vocabularies["source"].pad] == 0).all()


def test_what_cannot_be_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="n_best"):
        small(n_best=6)
    with pytest.raises(ConfigurationError, match="loss_normalization"):
        small(loss_normalization="word")
    with pytest.raises(ConfigurationError, match="Expected vocabularies for"):
        small().generate(["ein Hund"])
    loader = torch.utils.data.DataLoader([0])
    with pytest.raises(ConfigurationError, match=r"model\.build"):
        trainer().validate(small(), loader)
    model = small().build({"source": Vocabulary.build(["a"]), "target": Vocabulary.build(["b"])})
    with pytest.raises(ConfigurationError, match="Expected the model's vocabularies"):
        model.build({"source": Vocabulary.build(["a"]), "target": Vocabulary.build(["c"])})


@pytest.mark.parametrize("beam_size", [0, 1])
def test_training_without_heat_maps_says_so(
    beam_size: int, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        model = small(validation_beam_size=beam_size)
        trained(folder, model, callbacks=[AttentionPlot(1, folder=str(tmp_path))], limit_train_batches=1, limit_val_batches=1)
    assert ("AttentionPlot drew no heat maps, because validation searches no outputs" in caplog.text) == (beam_size == 0)
    assert bool(list(tmp_path.glob("pictures/attention/*.png"))) == (beam_size == 1)
