"""The package with torchtext and the old torch that it needs. Run by scripts/check_torchtext.sh; skipped elsewhere."""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from lit_sparse.cli import main
from lit_sparse.data import TranslationDataModule, Vocabulary
from lit_sparse.data.readers.word_vectors import read_vectors
from lit_sparse.mappings import Fusedmax, Sparsemax
from lit_sparse.mappings import functional as F
from lit_sparse.models import Seq2Seq
from lit_sparse.nn import RecurrentBody
from tests.data.pairs import WORDS, write_pairs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        import torchtext
        from torchtext.vocab import Vectors, vocab
    except (ImportError, OSError) as error:  # its library refuses other versions of torch
        pytest.skip(f"torchtext does not load here: {error}", allow_module_level=True)

LINES = [" ".join(WORDS[i:]) for i in range(len(WORDS))]


@pytest.fixture
def theirs() -> torchtext.vocab.Vocab:
    counts = Counter(token for line in LINES for token in line.split())
    found = vocab(OrderedDict(counts.most_common()), min_freq=2, specials=["<unk>", "<pad>", "<bos>", "<eos>"])
    found.set_default_index(found["<unk>"])
    return found


def test_a_vocabulary_of_theirs_answers_as_ours(theirs: torchtext.vocab.Vocab) -> None:
    ours = Vocabulary.of(theirs)
    tokens = [*LINES[0].split(), "neverseen", "<pad>"]
    assert len(ours) == len(theirs)
    assert ours.get_itos() == theirs.get_itos()
    assert ours.get_stoi() == theirs.get_stoi()
    assert ours.lookup_indices(tokens) == theirs.lookup_indices(tokens)
    assert ours(tokens) == theirs(tokens)
    assert ours.lookup_tokens([0, 5, 3]) == theirs.lookup_tokens([0, 5, 3])
    assert ours.lookup_token(4) == theirs.lookup_token(4)
    assert ours["Hund"] == theirs["Hund"]
    assert ("Hund" in ours, "x" in ours) == ("Hund" in theirs, "x" in theirs)
    assert ours.get_default_index() == theirs.get_default_index()
    assert ours.encode(LINES) == [theirs.lookup_indices(line.split()) for line in LINES]


def test_a_vocabulary_of_ours_becomes_one_of_theirs() -> None:
    ours = Vocabulary.build(LINES, kind="spaces")
    found = vocab(OrderedDict((token, 1) for token in ours), specials=[])
    found.set_default_index(ours.get_default_index())
    assert found.get_itos() == ours.get_itos()
    assert [found.lookup_indices(line.lower().split()) for line in LINES] == ours.encode(LINES)


def test_vectors_of_their_cache_are_read(tmp_path: Path) -> None:
    rows = "".join(f"{word} {i}.5 -{i} 0.25\n" for i, word in enumerate(WORDS))
    (tmp_path / "mine.txt").write_text(rows, encoding="utf-8")
    cached = Vectors("mine.txt", cache=str(tmp_path))
    (cache,) = tmp_path.glob("*.pt")
    found, known = read_vectors(str(cache), [*WORDS, "neverseen"])
    torch.testing.assert_close(found[:-1], torch.stack([cached[word] for word in WORDS]))
    assert known.tolist() == [True] * len(WORDS) + [False]


def test_a_model_trains_on_a_vocabulary_of_theirs(theirs: torchtext.vocab.Vocab, tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write_pairs(tmp_path, split, 20)
    data = TranslationDataModule(str(tmp_path), source="de", target="en", source_vocabulary=theirs)
    model = Seq2Seq(Fusedmax(), RecurrentBody(16, 1, 0.0))
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", **options)  # type: ignore[arg-type]
    trainer.fit(model, data)
    assert model.vocabularies["source"].get_itos() == theirs.get_itos()
    trainer.save_checkpoint(tmp_path / "it.ckpt")
    again = Seq2Seq.load_from_checkpoint(tmp_path / "it.ckpt", weights_only=True)
    assert again.generate(["ein Hund läuft"]) == model.generate(["ein Hund läuft"])


def test_the_command_line_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("train", "val", "test"):
        write_pairs(tmp_path / "pairs", split, 20)
    config = Path(__file__).resolve().parents[1] / "support" / "translation.yaml"
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "-c", str(config)]) == 0
    assert main(["test", "-c", str(config), "--ckpt_path", "best"]) == 0


@pytest.mark.parametrize("name", ["sparsemax", "entmax", "sq_pnorm_max", "fusedmax", "oscarmax", "softmax", "hoyer"])
def test_mappings_run_eagerly(name: str) -> None:
    functions = {"hoyer": lambda x: F.hoyer_projection(x, 0.6), "entmax": lambda x: F.entmax(x, 1.5)}
    function = functions.get(name, getattr(F, name, None))
    assert function is not None
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (scores,))
    found = function(scores.detach())
    torch.testing.assert_close(torch.func.vmap(function)(scores.detach()), found)
    if name != "hoyer":
        torch.testing.assert_close(found.sum(-1), torch.ones(3, dtype=torch.float64))
    assert (Sparsemax()(torch.tensor([5.0, 0.0])) == torch.tensor([1.0, 0.0])).all()
