"""Vocabularies of all kinds: order, special tokens, unknown text, files, and torchtext's vocabularies."""

from __future__ import annotations

import base64
import json
import pickle
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.text import BOS, EOS, PAD, UNK, Vocabulary, VocabularyOptions
from lit_sparse.text.tokenization import with_breaks
from lit_sparse.text.tokenizer_json import guarded

LINES = ["A man's t-shirt, (red)!", "a man runs.", "The man sees a dog ...", "Ein Hund läuft über die Straße."]


def test_words_are_ranked_by_count_and_then_by_name() -> None:
    vocabulary = Vocabulary.build(["b a c", "c B", "d"])
    assert vocabulary.get_itos() == [PAD, BOS, EOS, UNK, "b", "c", "a", "d"]
    assert Vocabulary.build(["b a c", "c b", "d"], max_size=6).get_itos() == [PAD, BOS, EOS, UNK, "b", "c"]
    assert Vocabulary.build(["b a c", "c b", "d"], min_count=2).get_itos() == [PAD, BOS, EOS, UNK, "b", "c"]


@pytest.mark.parametrize(
    ("kind", "line", "tokens"),
    [
        ("words", "A man's t-shirt, 3.5 $!", ["a", "man", "'s", "t-shirt", ",", "3.5", "$", "!"]),
        ("words", "a man\u2019s", ["a", "man", "\u2019s"]),
        ("words", "'yes', 1,000 at 10:30: 5.", ["'", "yes", "'", ",", "1,000", "at", "10:30", ":", "5", "."]),
        ("spaces", "a man 's ##.# -lrb- x", ["a", "man", "'s", "##.#", "-lrb-", "x"]),
        ("spaces", "  a \t b\u00a0c ", ["a", "b", "c"]),
    ],
)
def test_text_is_cut_into_tokens(kind: str, line: str, tokens: list[str]) -> None:
    assert Vocabulary.build([], kind=kind).tokenize(line) == tokens  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["words", "bpe"])
@pytest.mark.parametrize("line", LINES)
def test_text_comes_back(kind: str, line: str) -> None:
    vocabulary = Vocabulary.build(LINES, kind=kind, lowercase=False)  # type: ignore[arg-type]
    expected = line.replace(" ...", "...") if kind == "words" else line
    assert vocabulary.decode(vocabulary.encode([line])[0]) == expected


@pytest.mark.parametrize(
    "line",
    [
        "she said 'yes' to it.",
        'he said "yes" now, "no" then.',
        "it costs 3.50 or 1,000 at 10:30.",
        "don't you see the dogs' bowls (all of them)?",
        "he said 'i don't know' twice; it's rock 'n' roll!",
        "\u201cwell\u201d, she said \u2018oh\u2019",
        "l'homme d'\u00e9tat: 50% \u00abvrai\u00bb",
        'an inch is 1 "',
    ],
)
def test_words_and_marks_are_put_together_as_people_write_them(line: str) -> None:
    vocabulary = Vocabulary.build([line])
    written = line.replace("\u00abvrai\u00bb", "\u00ab vrai \u00bb")  # with spaces in one language, without in another
    assert vocabulary.decode(vocabulary.encode([line])[0]) == written


def test_tokenizers_of_others_are_read() -> None:
    """External tokenizers decode by their own decoder, and may lack one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    specials = ["<pad>", "<bos>", "<eos>", "<unk>"]
    pieces = Tokenizer(models.Unigram([(token, 0.0) for token in [*specials, "\u2581a", "b", "\u2581"]], unk_id=3))
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    read = Vocabulary.from_json(pieces.to_str())
    assert read.decode(read.encode(["ab a"])[0]) == "ab a"
    stoi = {token: number for number, token in enumerate([*specials, "a", "b"])}
    for model in (models.WordLevel(stoi, "<unk>"), models.BPE(stoi, [], unk_token="<unk>")):
        read = Vocabulary.from_json(Tokenizer(model).to_str())
        assert read.encode(["a"]) == [[4]]
        assert read.decode([4, 5]) == "a b"
        assert read.tokenize("a") == ["a"]
    bare = json.loads(Vocabulary.build(["a"]).to_json())
    del bare["kind"]
    with pytest.raises(DataError, match="it has no 'kind'"):
        Vocabulary.from_json(json.dumps(bare))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    Vocabulary.build(["a b"], kind="bpe", lowercase=False).save(tmp_path / "v.json")
    for options in ({"kind": "moses"}, {"kind": "spaces"}):
        with pytest.raises(ConfigurationError, match="has kind='bpe', not"):
            VocabularyOptions(file=str(tmp_path / "v.json"), **options).make([])  # type: ignore[arg-type]
    Vocabulary.build(["a b"]).save(tmp_path / "w.json")
    with pytest.raises(ConfigurationError, match="has lowercase=True, not False"):
        VocabularyOptions(file=str(tmp_path / "w.json"), lowercase=False).make([])
    assert VocabularyOptions(file=str(tmp_path / "v.json"), kind="bpe").make([]).kind == "bpe"


def test_one_text_is_no_list_of_texts() -> None:
    vocabulary = Vocabulary.build(["ein Hund"])
    for call in (Vocabulary.build, vocabulary.encode, vocabulary, vocabulary.lookup_indices):
        with pytest.raises(ConfigurationError, match=r"but got one text: write \['ein Hund'\]"):
            call("ein Hund")


def test_moses_tokens_come_back() -> None:
    pytest.importorskip("sacremoses", reason="the tokens of Moses need the extra 'text'")
    vocabulary = Vocabulary.build(LINES, kind="moses", lowercase=False)
    assert vocabulary.tokenize("A man's dog.") == ["A", "man", "'s", "dog", "."]
    assert vocabulary.decode(vocabulary.encode(["A man's t-shirt."])[0]) == "A man's t-shirt."
    assert pickle.loads(pickle.dumps(vocabulary)) == vocabulary


@settings(max_examples=60)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=5))
def test_any_text_has_numbers_and_every_number_text(lines: list[str]) -> None:
    for kind in ("words", "spaces", "bpe"):
        vocabulary = Vocabulary.build(LINES, kind=kind)  # type: ignore[arg-type]
        for line, numbers in zip(lines, vocabulary.encode(lines), strict=True):
            assert all(0 <= number < len(vocabulary) for number in numbers)
            assert {"\n", "\r"}.isdisjoint(vocabulary.decode(numbers))
            if kind != "bpe":
                assert len(numbers) == len(vocabulary.tokenize(line))
                assert [vocabulary[token] for token in vocabulary.tokenize(line)] == numbers


def test_words_that_look_like_special_tokens_are_unknown_or_words() -> None:
    """Text cannot end a sequence."""
    for kind in ("words", "spaces", "bpe"):
        vocabulary = Vocabulary.build(["a <eos> b"], kind=kind)  # type: ignore[arg-type]
        assert vocabulary.eos not in vocabulary.encode(["a <eos> b"])[0], kind


def test_lower_case_and_composed_characters_are_one() -> None:
    vocabulary = Vocabulary.build(["Straße über"])
    assert vocabulary.encode([unicodedata.normalize("NFD", "STRASSE ÜBER")])[0][1] == vocabulary["über"]
    assert vocabulary.lowercase
    assert not Vocabulary.build(["x"], lowercase=False).lowercase


def test_decoding_ends_at_the_end_token_and_skips_padding() -> None:
    vocabulary = Vocabulary.build(["a b c"])
    a, b, c = vocabulary.lookup_indices(["a", "b", "c"])
    assert vocabulary.decode([vocabulary.bos, a, vocabulary.pad, b, vocabulary.eos, c]) == "a b"


def test_torchtexts_methods() -> None:
    vocabulary = Vocabulary.build(["b a b"])
    assert len(vocabulary) == 6
    assert "b" in vocabulary
    assert "x" not in vocabulary
    assert vocabulary(["b", "a", "x"]) == [4, 5, 3]
    assert vocabulary.lookup_tokens([4, 5]) == ["b", "a"]
    assert vocabulary.lookup_token(4) == "b"
    assert vocabulary.get_stoi()["a"] == 5
    assert vocabulary.get_default_index() == 3
    vocabulary.set_default_index(None)
    with pytest.raises(DataError, match="'x' is not in the vocabulary"):
        vocabulary["x"]
    with pytest.raises(DataError, match=r"0 \.\. 5"):
        vocabulary.lookup_token(6)
    with pytest.raises(DataError, match=r"0 \.\. 5"):
        vocabulary.set_default_index(9)


class TorchtextVocab:
    """The interface of torchtext.vocab.Vocab."""

    def __init__(self, tokens: list[str], default: int | None) -> None:
        self.tokens, self.default = tokens, default

    def get_itos(self) -> list[str]:
        return self.tokens

    def get_default_index(self) -> int | None:
        return self.default


def test_a_vocabulary_of_torchtext_keeps_its_numbers() -> None:
    found = Vocabulary.of(TorchtextVocab(["[?]", "<pad>", "the", "</s>", "dog"], 0))
    assert found.get_itos() == [UNK, PAD, "the", EOS, "dog", BOS]
    assert (found.unk, found.pad, found.eos, found.bos) == (0, 1, 3, 5)
    assert found.encode(["the cat dog"]) == [[2, 0, 4]]
    with pytest.raises(ConfigurationError, match=r"torchtext\.vocab\.Vocab but got int"):
        Vocabulary.of(3)


@pytest.mark.parametrize("kind", ["words", "spaces", "bpe"])
def test_a_file_brings_everything_back(kind: str, tmp_path: Path) -> None:
    vocabulary = Vocabulary.build(LINES, kind=kind, lowercase=False)  # type: ignore[arg-type]
    vocabulary.save(tmp_path / "v.json")
    for again in (Vocabulary.load(tmp_path / "v.json"), pickle.loads(pickle.dumps(vocabulary))):
        assert again == vocabulary
        assert again.encode(LINES) == vocabulary.encode(LINES)
        assert again.tokenize(LINES[0]) == vocabulary.tokenize(LINES[0])
    assert VocabularyOptions(file=str(tmp_path / "v.json")).make([]) == vocabulary


def test_vocabularies_that_differ_are_not_equal() -> None:
    one = Vocabulary.build(["a b"])
    assert one == Vocabulary.build(["A b"])
    assert one != Vocabulary.build(["a b"], lowercase=False)
    assert one != Vocabulary.build(["a c"])
    assert one != 3


def test_byte_pairs_are_made_alike_each_time() -> None:
    lines = [f"word{i % 17} und{i % 5} läuft{i % 3}" for i in range(300)]
    assert Vocabulary.build(lines, kind="bpe", max_size=80) == Vocabulary.build(lines, kind="bpe", max_size=80)


def test_files_that_are_no_vocabulary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no vocabulary"):
        Vocabulary.load(tmp_path / "none.json")
    for content in (b"{", b"[]", b'{"a": 1}', b"\xff\xfe"):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(DataError, match="cannot be read as a vocabulary"):
            Vocabulary.load(tmp_path / "bad.json")
    with pytest.raises(DataError, match=r"'a' occurs 2 times"):
        Vocabulary.from_tokens(["a", "b", "a"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "letters"}, "kind"),
        ({"max_size": 4}, "max_size"),
        ({"min_count": 0}, "min_count"),
        ({"max_size": 10**12}, r"`max_size` to be in 5 \.\. 10,000,000"),
        ({"min_count": 10**12}, r"`min_count` to be in 1 \.\."),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        VocabularyOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["words", "spaces"])
def test_a_count_that_leaves_no_token_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"`min_count` to leave some tokens but got 3: the most .* occurs 2 times"):
        Vocabulary.build(["a b", "b c"], kind=kind, min_count=3)


def test_byte_pairs_of_a_line_without_spaces_take_no_longer_than_others() -> None:
    line = "".join(random.Random(0).choices("abcdefghij", k=40_000))
    assert all(len(word) <= 250 for word in with_breaks(line).split(" ")), "the time grows with the square of a word's length"
    assert with_breaks(line).replace(" ", "") == line
    assert with_breaks("a b " * 1000) == "a b " * 1000
    vocabulary = Vocabulary.build([line], kind="bpe", max_size=200)
    assert vocabulary.decode(vocabulary.encode([line])[0]) == line


def test_a_missing_token_for_unknown_words_is_refused(tmp_path: Path) -> None:
    described = json.loads(Vocabulary.build(["a b c"]).to_json())
    described["tokenizer"]["model"]["unk_token"] = "nope"
    (tmp_path / "a.json").write_text(json.dumps(described))
    with pytest.raises(DataError, match=r"its token for unknown words, 'nope'"):
        Vocabulary.load(tmp_path / "a.json")


FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _described(**steps: Any) -> str:
    described = json.loads(Vocabulary.build(["a b c"]).to_json())
    kind = steps.pop("kind", described["kind"])
    return json.dumps({**described, "kind": kind, "tokenizer": {**described["tokenizer"], **steps}})


def _replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _charsmap(longest: int, unit: int = 0) -> dict[str, str]:
    content = (1024).to_bytes(4, "little") + 256 * unit.to_bytes(4, "little") + b"x" * longest + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


HOSTILE: list[tuple[dict[str, Any], str]] = [
    (
        {"normalizer": {"type": "Sequence", "normalizers": [_replace("aa", String="a")] * 9}},
        "`pattern` in the component 'Replace'",
    ),
    ({"normalizer": _replace("", Regex="(a+)+$")}, "'Replace' of the normalizer"),
    ({"normalizer": _replace("ab", Regex=r"\s+")}, "'Replace' of the normalizer"),
    ({"normalizer": _replace("", String="")}, "'Replace' of the normalizer"),
    ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 2}}, "of the normalizer only once"),
    ({"normalizer": {"type": "Sequence", "normalizers": [_replace("", String="a")] * 40}}, "at most 32 components"),
    ({"normalizer": {"type": "Prepend", "prepend": "x" * 99}}, "`prepend` in the component 'Prepend'"),
    ({"normalizer": _charsmap(99)}, "`precompiled_charsmap` in the component 'Precompiled'"),
    ({"normalizer": _charsmap(9, 300 << 10)}, "`precompiled_charsmap`"),  # another place of the trie
    ({"normalizer": _charsmap(9, 1 << 8)}, "`precompiled_charsmap`"),  # a text
    ({"model": {"type": "BPE", "merges": ["a b"], "continuing_subword_prefix": "##"}}, "second tokens of all merges"),
    ({"normalizer": "Sequence"}, "component None of the normalizer"),
    ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "'FixedLength' of the pre_tokenizer to be one of"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Removed"}}, "component 'Split'"),
    ({"decoder": {"type": "Strip", "content": "a", "start": 9, "stop": 10**9}}, "`stop` in the component 'Strip'"),
    ({"decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 1}}, "`stop` in the component 'Strip'"),
    ({"decoder": None, "kind": "bpe"}, "a decoder for the kind 'bpe' but got none"),
    ({"model": {"type": "Unigram", "vocab": [["<unk>", 0.0]], "unk_id": None}}, "Expected `unk_id`"),
    ({"model": {"type": "Unigram", "vocab": [["a" * 129, 0.0]], "unk_id": 0}}, "tokens of at most 128 characters"),
    ({"model": {"type": "WordPiece", "max_input_chars_per_word": 10**6}}, "`max_input_chars_per_word` in the model WordPiece"),
    ({"model": {"type": "BPE", "continuing_subword_prefix": "x" * 10**4}}, "`continuing_subword_prefix` in the model BPE"),
    ({"model": {"type": "Other"}}, "Expected a model BPE"),
    ({"added_tokens": [{"content": ""}]}, "added token"),
    (
        {"added_tokens": [{"id": 9, "content": "d", **dict.fromkeys(FLAGS, False)}]},
        "token 'd' to have the next number but got 9",
    ),
]


@pytest.mark.parametrize(("steps", "words"), HOSTILE)
def test_a_tokenizer_that_may_fill_the_memory_or_hang_is_refused(steps: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Vocabulary.from_json(_described(**steps))


def test_a_map_of_characters_is_read() -> None:
    assert Vocabulary.from_json(_described(normalizer=_charsmap(9))).encode(["a"]) == [[4]]


def test_a_panic_of_the_tokenizer_is_an_error() -> None:
    from tokenizers import decoders

    with pytest.raises(DataError, match="The tokens cannot be decoded"), guarded("The tokens cannot be decoded"):
        decoders.Strip("a", 0, 9).decode(["a"])


@pytest.mark.parametrize("typed", [True, False])
def test_common_tokenizers_are_read(typed: bool) -> None:
    """Older files do not name the type of the model."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    specials = [PAD, BOS, EOS, UNK]
    gpt2 = Tokenizer(models.BPE())
    gpt2.pre_tokenizer, gpt2.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    bert = Tokenizer(models.WordPiece(unk_token=UNK))
    bert.normalizer, bert.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    bert.decoder = decoders.WordPiece()
    t5 = Tokenizer(models.Unigram())
    t5.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t5.pre_tokenizer, t5.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    for tokenizer, trainer in (
        (gpt2, trainers.BpeTrainer(special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())),
        (bert, trainers.WordPieceTrainer(special_tokens=specials)),
        (t5, trainers.UnigramTrainer(special_tokens=specials, unk_token=UNK)),
    ):
        tokenizer.train_from_iterator(LINES, trainer)
        described = json.loads(tokenizer.to_str())
        if not typed:
            del described["model"]["type"]
        read = Vocabulary.from_json(json.dumps(described))
        assert read.encode(LINES) == [tokenizer.encode(line).ids for line in LINES]
        assert read.decode(read.encode(["a man runs."])[0]) == "a man runs."
        assert Vocabulary.from_json(read.to_json()) == read
    assert Vocabulary.from_json(_described(normalizer=_charsmap(33))).encode(["a"]) == [[4]]


def test_nothing_is_dropped_at_random() -> None:
    described = json.loads(Vocabulary.build(["low lower lowest"] * 9, kind="bpe", max_size=60).to_json())
    described["tokenizer"]["model"]["dropout"] = 0.5
    read = Vocabulary.from_json(json.dumps(described))
    assert len({str(read.encode(["lowest lower"])) for _ in range(20)}) == 1


def test_tokens_of_an_iterator_are_joined() -> None:
    assert Vocabulary.build(["a b"], kind="spaces").join(token for token in "ab") == "a b"  # type: ignore[arg-type]
