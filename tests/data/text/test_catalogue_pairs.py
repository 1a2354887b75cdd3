"""Catalogues of translated messages: their files, and what is kept of what stands in them."""

from __future__ import annotations

import gettext
import gzip
import io
import struct
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from lit_sparse.data import TranslationDataModule
from lit_sparse.data.readers import sizes
from lit_sparse.errors import ConfigurationError, DataError, MissingExtraError
from tests.scripts.test_scripts import load

script = load("catalogue_pairs")
clean_pair, read_catalogues = script.clean_pair, script.read_catalogues

HEADER = "Language: fr\nContent-Type: text/plain; charset={}\nPlural-Forms: nplurals=2; plural=n > 1;\n"
MESSAGES = {
    "Open the file": "Ouvrir le fichier",
    "menu\x04&Save": "&Enregistrer",
    "%d day\0%d days": "%d jour\0%d jours",
    "Untranslated": "",
    "OK": "OK",
    "A caf\u00e9": "Un caf\u00e9",
}
PAIRS = [
    ("%d day", "%d jour"),
    ("%d days", "%d jours"),
    ("A caf\u00e9", "Un caf\u00e9"),
    ("Open the file", "Ouvrir le fichier"),
    ("Save", "Enregistrer"),
]


def compiled(messages: Mapping[str, str], order: str = "<", encoding: str = "utf-8", header: str | None = HEADER) -> bytes:
    """Return the bytes of a compiled catalogue."""
    everything = dict(messages) if header is None else {"": header.format(encoding), **messages}
    entries = sorted((key.encode(encoding), value.encode(encoding)) for key, value in everything.items())
    tables, strings = [b"", b""], b""
    start = 28 + 16 * len(entries)
    for side in (0, 1):
        for entry in entries:
            tables[side] += struct.pack(f"{order}2I", len(entry[side]), start + len(strings))
            strings += entry[side] + b"\0"
    sizes = (0x950412DE, 0, len(entries), 28, 28 + 8 * len(entries), 0, start)
    return struct.pack(f"{order}7I", *sizes) + b"".join(tables) + strings


def catalogue(folder: Path, messages: Mapping[str, str] = MESSAGES, language: str = "fr", name: str = "app") -> Path:
    path = folder / language / "LC_MESSAGES" / f"{name}.mo"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(compiled(messages))
    return path


PO = """
msgid ""
msgstr "Content-Type: text/plain; charset=utf-8\\n"

msgid "Open the file"
msgstr "Ouvrir "
"le fichier"

msgctxt "menu"
msgid "&Save"
msgstr "&Enregistrer"

msgid "%d day"
msgid_plural "%d days"
msgstr[0] "%d jour"
msgstr[1] "%d jours"

msgid "A caf\u00e9"
msgstr "Un caf\u00e9"

#, fuzzy
msgid "Close the file"
msgstr "Fermer la porte"

msgid "Untranslated"
msgstr ""

msgid "OK"
msgstr "OK"

#~ msgid "Obsolete"
#~ msgstr "Ancien"
"""


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1"])
def test_compiled_catalogues(tmp_path: Path, order: str, encoding: str) -> None:
    content = compiled(MESSAGES, order, encoding)
    catalogue(tmp_path).write_bytes(content)
    assert read_catalogues(folders=[str(tmp_path)], language="fr") == PAIRS
    other = gettext.GNUTranslations(io.BytesIO(content))
    assert [other.gettext(pair[0]) for pair in PAIRS[2:4]] == [pair[1] for pair in PAIRS[2:4]]
    assert [other.ngettext("%d day", "%d days", n) for n in (1, 2)] == ["%d jour", "%d jours"]


def test_a_catalogue_without_a_header_is_in_utf8(tmp_path: Path) -> None:
    catalogue(tmp_path).write_bytes(compiled(MESSAGES, header=None))
    assert read_catalogues(folders=[str(tmp_path)], language="fr") == PAIRS
    catalogue(tmp_path).write_bytes(compiled(MESSAGES, header="charset=CHARSET"))
    assert read_catalogues(folders=[str(tmp_path)], language="fr") == PAIRS


def test_catalogues_that_are_not_compiled(tmp_path: Path) -> None:
    pytest.importorskip("polib", reason="the extra 'text' is not installed")
    (tmp_path / "fr.po").write_text(PO, encoding="utf-8")
    assert read_catalogues(folders=[str(tmp_path)], language="fr") == PAIRS


def test_a_compiled_catalogue_stands_for_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polib", None)
    source = catalogue(tmp_path).with_suffix(".po")
    source.write_text("no catalogue")
    assert read_catalogues(folders=[str(tmp_path)], language="fr") == PAIRS
    source.with_suffix(".mo").unlink()
    with pytest.raises(MissingExtraError, match=r"such as app\.po, need the extra 'text'"):
        read_catalogues(folders=[str(tmp_path)], language="fr")


@pytest.mark.parametrize("size", [0, 3, 10, 27, 60, -1])
def test_broken_catalogues(tmp_path: Path, size: int) -> None:
    path = catalogue(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: size if size >= 0 else -2])
    with pytest.raises(DataError, match=r"app\.mo' is no"):
        read_catalogues(folders=[str(tmp_path)], language="fr")


@pytest.mark.parametrize(
    "content",
    [
        compiled({"a": "b"})[:8] + b"\xff" * 20,
        compiled({"A caf\u00e9": "Un caf\u00e9"}, encoding="iso-8859-1", header="charset=utf-8"),
        compiled({"a": "b"}, header="charset=none-such"),
        compiled({"a": "b"}, header="charset=undefined"),
        compiled({"a": "b"}, header="charset=punycode"),
    ],
)
def test_catalogues_of_nonsense(tmp_path: Path, content: bytes) -> None:
    catalogue(tmp_path).write_bytes(content)
    with pytest.raises(DataError, match=r"app\.mo' is not a whole catalogue|at most .* rows or values in '.*app\.mo'"):
        read_catalogues(folders=[str(tmp_path)], language="fr")


@pytest.mark.parametrize("content", [b'msgid "a"\nmsgwrong "b"\n', b'msgid "\xff"\nmsgstr "b"\n'])
def test_sources_of_nonsense(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("polib", reason="the extra 'text' is not installed")
    (tmp_path / "fr.po").write_bytes(content)
    with pytest.raises(DataError, match=r"fr\.po' is not a catalogue"):
        read_catalogues(folders=[str(tmp_path)], language="fr")


@pytest.mark.parametrize("line", ['"a"\n', "#. a\n", '"a"\n\n'])
def test_sources_with_an_endless_text(tmp_path: Path, line: str) -> None:
    pytest.importorskip("polib", reason="the extra 'text' is not installed")
    (tmp_path / "fr.po").write_text(f'msgid "b"\nmsgstr "c"\n{line * 10_001}')
    with pytest.raises(DataError, match=r"at most 10,000 lines in .*fr\.po"):
        read_catalogues(folders=[str(tmp_path)], language="fr")


@pytest.mark.parametrize(
    ("there", "asked", "found"),
    [
        (["fr", "fr_CA", "de"], "fr", "fr"),
        (["fr", "fr_CA", "de"], "fr_CA", "fr_CA"),
        (["fr", "fr_CA", "de"], "fr-ca", "fr_CA"),
        (["fr", "fr_CA", "de"], "fr_FR", "fr"),
        (["fr_FR", "fr_CA"], "fr", "fr_FR"),
        (["fr_CA", "de"], "fr", "fr_CA"),
        (["fr.UTF-8", "de"], "fr", "fr.UTF-8"),
        (["ca", "ca@valencia"], "ca@valencia", "ca@valencia"),
    ],
)
def test_the_nearest_variant_of_a_language(tmp_path: Path, there: list[str], asked: str, found: str) -> None:
    for language in there:
        catalogue(tmp_path, {"language": f"this is {language}"}, language)
    catalogue(tmp_path, {"language": "none"}, "templates and more")
    assert read_catalogues(folders=[str(tmp_path)], language=asked) == [("language", f"this is {found}")]


@pytest.mark.parametrize(
    ("there", "asked", "words"),
    [
        (["pt_BR", "pt_AO"], "pt", r"a catalogue for 'pt' .* got only pt_ao, pt_br\."),
        (["fr_CA"], "fr_FR", r"a catalogue for 'fr_FR' .* got only fr_ca\."),
        (["de"], "fr", r"a catalogue for 'fr' .* got only de\."),
        ([], "fr", r"gettext catalogues, such as fr/LC_MESSAGES/name\.mo, .* got none"),
    ],
)
def test_languages_that_are_not_there(tmp_path: Path, there: list[str], asked: str, words: str) -> None:
    for language in there:
        catalogue(tmp_path, language=language)
    with pytest.raises(DataError, match=words):
        read_catalogues(folders=[str(tmp_path)], language=asked)


def install(folder: Path, name: str, files: list[Path]) -> None:
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{path.relative_to(folder)},,\n" for path in files))


def test_pairs_of_several_places_are_sorted_and_come_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, folder = tmp_path / "site", tmp_path / "folder"
    first = catalogue(site / "app" / "locale", {"b": "bb", "a": "aa"}, "fr_FR")
    second = catalogue(site / "app" / "locale", {"b": "bbb", "a": "aa"}, "fr_FR", "more")
    catalogue(site / "app" / "locale", {"c": "of no distribution"})
    install(site, "some-app", [first, second, site / "app" / "locale" / "fr_FR" / "LC_MESSAGES" / "gone.mo"])
    monkeypatch.syspath_prepend(site)
    catalogue(folder, {"a": "aa", "d": "dd"})
    pairs = read_catalogues(distributions=["some-app"], folders=[str(folder)], language="fr")
    assert pairs == [("a", "aa"), ("b", "bb"), ("b", "bbb"), ("d", "dd")]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda p: read_catalogues(language="fr"), ConfigurationError, "`distributions` or `folders`"),
        (lambda p: read_catalogues(distributions="some-app", language="fr"), ConfigurationError, "but got 'some-app'"),
        (
            lambda p: read_catalogues(distributions=["no-such"], language="fr"),
            DataError,
            "'no-such' is not .* pip install no-such$",
        ),
        (lambda p: read_catalogues(folders=[f"{p}/locales"], language="fr"), DataError, "not exist.* Did you mean 'locale'"),
        (
            lambda p: read_catalogues(distributions=["pytest"], language="fr"),
            DataError,
            "gettext catalogues, .*'pytest' but got none",
        ),
    ],
)
def test_nothing_to_search(tmp_path: Path, call: Callable[[Path], object], kind: type[Exception], words: str) -> None:
    (tmp_path / "locale").mkdir()
    with pytest.raises(kind, match=words):
        call(tmp_path)


@pytest.mark.parametrize(
    ("message", "translation", "kept"),
    [
        (" Two\n\tlines\u00a0here ", "Deux lignes\n ici", ("Two lines here", "Deux lignes ici")),
        ("ctx\x04Open", "Ouvrir", ("Open", "Ouvrir")),
        ("Open", "", None),
        (" ", "Ouvrir", None),
        ("ctx\x04OK", " OK", None),
        ("%s: %d", "%s : %d", None),
        ("50 %", "50\u00a0% !", None),
        # keys
        ("&File", "&Fichier", ("File", "Fichier")),
        ("E&xit", "Quitter", ("Exit", "Quitter")),
        ("Save &As...", "\u540d\u524d (&A)...", ("Save As...", "\u540d\u524d...")),
        ("Salt & pepper", "Sel & poivre", ("Salt & pepper", "Sel & poivre")),
        ("R&D at AT&T", "R&D chez AT&T", ("R&D at AT&T", "R&D chez AT&T")),
        ("The R&D", "La R&D", ("The R&D", "La R&D")),
        ("See a?b&c=d now", "Voir a?b&c=d", ("See a?b&c=d now", "Voir a?b&c=d")),
        ("One&nbsp;space", "Une&nbsp;espace", ("One&nbsp;space", "Une&nbsp;espace")),
        ("_Open", "_Ouvrir", ("Open", "Ouvrir")),
        ("Save _as", "Enregistrer", ("Save as", "Enregistrer")),
        ("Chil_dren", "Kin_der", ("Children", "Kinder")),
        ("F_ull size", "\u5168\u753b\u9762(_U)", ("Full size", "\u5168\u753b\u9762")),
        ("Set cell_type now", "D\u00e9finir cell_type", ("Set cell_type now", "D\u00e9finir cell_type")),
        ("the value of max_size", "la valeur", ("the value of max_size", "la valeur")),
        ("underscores (_)", "tirets bas (_)", ("underscores (_)", "tirets bas (_)")),
        ('<a target="_blank">Go</a>', '<a target="_blank">Va</a>', ('<a target="_blank">Go</a>', '<a target="_blank">Va</a>')),
        ("<my_name> here", "ici <my_name>", ("<my_name> here", "ici <my_name>")),
        ("{_name} here", "ici {_name}", ("{_name} here", "ici {_name}")),
        ("label_title", "Titre", None),
        ("Not_Related", "Nicht_verwandt", None),
        # what is filled in
        ("%s of %s", "%s de %s", ("%s of %s", "%s de %s")),
        ("%s of %s", "%s de", None),
        ("%(a)s of %(b)d", "%(b)d : %(a)s de", ("%(a)s of %(b)d", "%(b)d : %(a)s de")),
        ("%(a)s file", "%(b)s fichier", None),
        ("{name} {0:.2f} m", "{0:.2f} m {name}", ("{name} {0:.2f} m", "{0:.2f} m {name}")),
        ("{name} file", "{nom} fichier", None),
        ("${name} file", "fichier", None),
        ("{{ name }} file", "fichier {{ nom }}", None),
        ("%1 of %2", "%1 sur %1", None),
        ("%.1f seconds", "%.2f secondes", None),
        ("100% sure", "s\u00fbr", ("100% sure", "s\u00fbr")),
        ("100%sure", "s\u00fbr", ("100%sure", "s\u00fbr")),
        ("%d%% done", "%d%% faits", ("%d%% done", "%d%% faits")),
        ("%d%% done", "%d faits", None),
        ("<b>Bold</b> text", "Texte <b>gras</b>", ("<b>Bold</b> text", "Texte <b>gras</b>")),
        ("<b>Bold</b> text", "Texte gras", None),
        ('<a href="x">A</a>', "<a href='y'>Un</a>", ('<a href="x">A</a>', "<a href='y'>Un</a>")),
        ("less < more", "moins", ("less < more", "moins")),
    ],
)
def test_what_is_kept_of_a_pair(message: str, translation: str, kept: tuple[str, str] | None) -> None:
    assert clean_pair(message, translation) == kept


def test_the_catalogues_of_a_language_pack() -> None:
    name = "jupyterlab-language-pack-fr-FR"
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    pairs = read_catalogues(distributions=[name], language="fr")
    assert len(pairs) > 2_000
    assert pairs == sorted(set(pairs)) == read_catalogues(distributions=[name], language="fr_FR")
    assert ("Open selected files", "Ouvrir les fichiers s\u00e9lectionn\u00e9s") in pairs
    assert all(message and translation and message != translation and "\x04" not in message for message, translation in pairs)


# Splits


def splits(folder: Path, **options: Any) -> dict[str, list[str]]:
    pairs = read_catalogues(folders=[str(folder)], language="fr")
    return {split: [message for message, _ in kept] for split, kept in script.divided(pairs, **options).items()}


@pytest.fixture
def many(tmp_path: Path) -> Path:
    catalogue(tmp_path, {f"Open the file {i}": f"Ouvrir le fichier {i}" for i in range(200)})
    catalogue(tmp_path, {"Open the file 3": "Ouvrez le fichier 3"}, name="other")  # a second translation
    return tmp_path


def test_fractions_of_messages_do_not_depend_on_the_other_messages(many: Path, tmp_path: Path) -> None:
    before = splits(many, val_size=0.2, test_size=0.3)
    assert {split: len(set(found)) for split, found in before.items()} == pytest.approx(
        {"train": 100, "val": 40, "test": 60}, abs=25
    )
    catalogue(tmp_path, {f"Save the file {i}": f"Enregistrer le fichier {i}" for i in range(50)}, name="third")
    after = splits(many, val_size=0.2, test_size=0.3)
    assert all(set(before[split]) < set(after[split]) for split in before)


@pytest.mark.parametrize(("val", "test", "sizes"), [(7, 11, (7, 11)), (0.2, 11, (None, 11)), (7, 0.3, (7, None))])
def test_sizes_of_splits_may_be_numbers_of_messages(many: Path, val: float, test: float, sizes: tuple[int | None, ...]) -> None:
    found = {split: set(messages) for split, messages in splits(many, val_size=val, test_size=test).items()}
    assert len(found["train"] | found["val"] | found["test"]) == sum(map(len, found.values())) == 200
    for split, size in zip(("val", "test"), sizes, strict=True):
        assert len(found[split]) == size if size else 10 < len(found[split]) < 100
    assert found["val"] <= set(splits(many, val_size=99, test_size=1)["val"]) or val < 1


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"val_size": 0.5, "test_size": 0.5}, "sum of `val_size` and `test_size` below 1"),
        ({"val_size": 0}, "`val_size` to be a number"),
        ({"test_size": -3}, "`test_size` to be a number"),
        ({"val_size": 200}, r"`val_size` to hold out 1 \.\. 199 examples but got 200"),
        ({"val_size": 100, "test_size": 100}, r"`test_size` to hold out 1 \.\. 99 examples"),
    ],
)
def test_sizes_of_splits_that_leave_nothing(many: Path, sizes: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        splits(many, **sizes)


def test_the_pairs_are_written_as_parallel_text(many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.main([str(tmp_path / "pairs"), "--folders", str(many), "--val-size", "7", "--test-size", "11"])
    data = TranslationDataModule(str(tmp_path / "pairs"), source="en", target="fr")
    data.setup("fit")
    assert data.size("val") >= 7
    assert dict(zip(*data.read("train").values(), strict=True))["Open the file 5"] == "Ouvrir le fichier 5"
    assert "train" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="to list the sources of catalogues"):
        script.main([str(tmp_path / "pairs")])


def overlapping(entries: int, size: int) -> bytes:
    """Return a compiled catalogue each of whose texts is the whole file."""
    end = 28 + 16 * entries
    text = size.to_bytes(4, "little") + end.to_bytes(4, "little")
    return struct.pack("<7I", 0x950412DE, 0, entries, 28, 28 + 8 * entries, 0, 0) + 2 * entries * text + b"x" * size


def empty_texts(entries: int) -> bytes:
    """Return a compiled catalogue of empty texts."""
    return struct.pack("<7I", 0x950412DE, 0, entries, 28, 28 + 8 * entries, 0, 0) + bytes(16 * entries)


def test_a_catalogue_of_many_empty_texts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "ROWS", 2**16)
    (tmp_path / "fr.mo").write_bytes(gzip.compress(empty_texts(2**20)))
    with pytest.raises(DataError, match="lines, rows or values"):
        read_catalogues(folders=[str(tmp_path)], language="fr")
    (tmp_path / "fr.mo").write_bytes(empty_texts(2**17))  # as many as it has bytes for
    assert read_catalogues(folders=[str(tmp_path)], language="fr") == []


def test_texts_of_a_catalogue_that_overlap_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "fr" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "a.mo").write_bytes(overlapping(200, 20_000))
    with pytest.raises(DataError, match=r"is not a whole catalogue \(its texts overlap\)"):
        read_catalogues(folders=[str(tmp_path)], language="fr")


MANY = 100_000


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["%" + "0" * MANY, "a" * MANY, "a&b" + " " * MANY, "a_" * MANY + "!", "aA_" * MANY + "!"])
def test_long_messages_take_little_time(text: str) -> None:
    assert len(clean_pair(f"{text} a", "b") or "no") == 2
