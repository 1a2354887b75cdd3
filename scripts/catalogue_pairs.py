"""Write the messages of installed programs and their translations as parallel text, for TranslationDataModule.

pip install jupyterlab-language-pack-fr-FR
python scripts/catalogue_pairs.py catalogues --language fr --distributions jupyterlab-language-pack-fr-FR

The folder then holds ``train.en``, ``train.fr`` and so on. The split of a message is a function of the message and the seed, so
that all its translations are in the same split. Catalogues are ``.mo`` and ``.po`` files; the latter need the extra ``text``.
"""

from __future__ import annotations

import argparse
import codecs
import hashlib
import re
import struct
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module, metadata
from pathlib import Path, PurePath

from lit_sparse.checks import MOST_EXAMPLES, check_number
from lit_sparse.data.readers.sizes import check_rows
from lit_sparse.data.readers.text_files import in_folder, open_bounded
from lit_sparse.data.splits import held_out
from lit_sparse.errors import ConfigurationError, DataError, LitSparseError, MissingExtraError, did_you_mean

#: First bytes of a compiled catalogue, and the byte order of its integers.
MAGIC = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}
#: Python's codecs of text that are no character sets; some take quadratic time.
NO_CHARSETS = {"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"}
#: Largest number of lines of a text or comment in a catalogue that is not compiled; polib takes quadratic time.
MOST_LINES = 10_000
LANGUAGE = re.compile(r"[A-Za-z]{2,3}([_-][A-Za-z0-9]{2,4})*(@[A-Za-z]+)?")
#: Format placeholders, and HTML tags (compared by name).
PLACEHOLDER = re.compile(
    r"""%% | %\(\w+\)[-#0+]*(?:[1-9]\d*)?(?:\.\d+)?[a-zA-Z]       # Python's names
    | %(?:\d+\$)?[-#0+]*(?:[1-9]\d*)?(?:\.\d+)?(?:l|ll|z)?[diouxXeEfFgGcrsan](?![a-zA-Z]) | %\d+   # C, Qt
    | \$?\{[^{}\s]*\} | \{\{[^{}]*\}\}                  # str.format, templates
    | (?P<tag></?[a-zA-Z][\w-]*)(?:\s[^<>]*)?/?>        # HTML""",
    re.VERBOSE,
)
ENTITY = re.compile(r"&#?\w+;")
#: Marks of access keys in menus, as in "&File", "E&xit" or, in scripts without Latin letters, "(&F)".
AMPERSAND = re.compile(r"\s*\(&\w\)|(?<!\w)&(?=[^\W\d_])|(?<=[^\W\d_])&(?=[^\W\d_A-Z])")
UNDERSCORE = re.compile(r"\s*\(_\w\)|(?<!\w)_(?=[^\W\d_])")
#: An identifier in place of an English message, and an identifier that cannot contain the mark of an access key.
IDENTIFIER, CAPITALS, WORD = re.compile(r"[^\W_]_\w"), re.compile(r"[a-z]_[A-Z]"), re.compile(r"\w+")

Pair = tuple[str, str]


def read_catalogues(*, distributions: Sequence[str] = (), folders: Sequence[str] = (), language: str) -> list[tuple[str, str]]:
    """Return the English messages of programs and their translations, from gettext catalogues.

    Catalogues are ``<language>/LC_MESSAGES/*.mo`` and files such as ``fr.mo``. A ``.po`` file is read unless its compiled
    catalogue exists. If a distribution or folder lacks the language, ``fr_FR`` falls back to ``fr``, and ``fr`` to ``fr_FR``
    or to the only variant. :func:`clean_pair` cleans and filters the messages.

    Args:
        distributions: names of installed distributions to search, such as ``jupyterlab-language-pack-fr-FR``.
        folders: folders to search, with their subfolders.
        language: code of the language, such as ``fr`` or ``pt_BR``.

    Returns:
        Sorted, unique pairs (English message, translation). A message with several translations has several pairs.

    Raises:
        ConfigurationError: if neither distributions nor folders are given.
        DataError: if a distribution is not installed, a folder is missing, a catalogue for the language is missing in one of
            them, or a catalogue is broken.
        MissingExtraError: if a ``.po`` file must be read but polib is not installed.
    """
    if isinstance(distributions, str) or isinstance(folders, str) or not (distributions or folders):
        raise ConfigurationError(
            "Expected argument `distributions` or `folders` to list the sources of catalogues but got"
            f" {distributions!r} and {folders!r}. Give one, such as distributions=['jupyterlab-language-pack-fr-FR']."
        )
    files = [file for name in distributions for file in _chosen(_installed(name), language, f"distribution {name!r}")]
    files += [file for name in folders for file in _chosen(_within(name), language, f"folder {name!r}")]
    cleaned = (clean_pair(*pair) for file in files for pair in _pairs(file))
    return sorted({pair for pair in cleaned if pair is not None})


def clean_pair(message: str, translation: str) -> tuple[str, str] | None:
    r"""Return a message and its translation without markup, or None if they are not a usable pair.

    Contexts and the marks of access keys (``&File``, ``_Open``) are removed, and white space is collapsed. A pair is usable
    if its sides differ and both have letters, the message is not an identifier, and both sides have the same placeholders
    and tags (``%s``, ``%1``, ``{name}``, ``<b>``).

    Args:
        message: the message in English.
        translation: its translation.

    Example:
        >>> clean_pair("menu\x04&Save   all", "Tout &enregistrer")
        ('Save all', 'Tout enregistrer')
        >>> clean_pair("%s files", "fichiers") is clean_pair("OK", "OK") is None
        True
    """
    message = message.rpartition("\x04")[2]
    if WORD.fullmatch(message) and CAPITALS.search(message):
        return None
    message, translation = " ".join(message.split()), " ".join(translation.split())  # long runs of blanks take long below
    message, translation = _without_underscores(_without_ampersand(message), _without_ampersand(translation))
    message, translation = " ".join(message.split()), " ".join(translation.split())
    if message == translation or not (_has_letters(message) and _has_letters(translation)):
        return None
    if WORD.fullmatch(message) and IDENTIFIER.search(message):
        return None
    return (message, translation) if _placeholders(message) == _placeholders(translation) else None


def _without_ampersand(text: str) -> str:
    marked = text.count("&") == 1 and "=" not in text and not ENTITY.search(text)  # excludes addresses and HTML
    return AMPERSAND.sub("", text) if marked else text


def _without_underscores(*sides: str) -> Iterator[str]:
    """Yield the sides without access keys; an underscore within a word is one only if the words of both sides differ."""
    if any("=" in side or "_" in "".join(_placeholders(side)) for side in sides):
        yield from sides
        return
    words = [[word for word in WORD.findall(side) if "_" in word] for side in sides]
    everywhere = all(len(marks) == 1 and marks[0].count("_") == 1 for marks in words) and words[0] != words[1]
    for side in sides:
        marked = UNDERSCORE.sub("", side) if side.count("_") == 1 else side
        yield marked.replace("_", "") if everywhere else marked


def _has_letters(text: str) -> bool:
    return any(character.isalpha() for character in PLACEHOLDER.sub("", text))


def _placeholders(text: str) -> Counter[str]:
    return Counter((match["tag"] or match[0]).lower() for match in PLACEHOLDER.finditer(text))


def _installed(name: str) -> list[Path]:
    """Return the files of a distribution."""
    try:
        files = metadata.distribution(name).files or []
    except (metadata.PackageNotFoundError, ValueError) as error:
        raise DataError(f"The distribution {name!r} is not installed. Install it with: pip install {name}") from error
    return [Path(str(file.locate())) for file in files if file.suffix in (".mo", ".po")]


def _within(name: str) -> list[Path]:
    """Return the catalogues in a folder."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise DataError(f"The folder {name!r} of catalogues does not exist.{in_folder(folder.parent, folder.name)}")
    return [file for ending in ("mo", "po") for file in folder.rglob(f"*.{ending}")]


def _chosen(files: Iterable[Path], language: str, where: str) -> list[Path]:
    """Return the catalogues of a language, compiled ones if both exist."""
    by_language: dict[str, dict[Path, Path]] = {}
    for file in sorted(files):  # .mo before .po
        code = _language_of(file)
        if code is not None and file.is_file():
            by_language.setdefault(code, {}).setdefault(file.with_suffix(""), file)
    wanted = _code(language)
    bare = wanted.partition("_")[0]
    variants = [code for code in by_language if code.partition("_")[0] == bare]
    fallbacks = [bare] if wanted != bare else [f"{bare}_{bare}", *(variants if len(variants) == 1 else ())]
    for code in (wanted, *fallbacks):
        if code in by_language:
            return list(by_language[code].values())
    if not by_language:
        raise DataError(
            f"Expected gettext catalogues, such as {language}/LC_MESSAGES/name.mo, in the {where} but got none. Give another."
        )
    raise DataError(
        f"Expected a catalogue for {language!r} in the {where} but got only {', '.join(sorted(by_language))}."
        f"{did_you_mean(wanted, by_language)} Choose one of these."
    )


def _language_of(file: PurePath) -> str | None:
    """Return the language code of a catalogue, from its folder or its name."""
    name = file.parent.parent.name if file.parent.name == "LC_MESSAGES" else file.stem
    name = name.partition(".")[0]  # fr.UTF-8 -> fr
    return _code(name) if LANGUAGE.fullmatch(name) else None


def _code(name: str) -> str:
    return name.lower().replace("-", "_")


def _pairs(file: Path) -> Iterator[Pair]:
    """Yield the messages and translations of a catalogue."""
    for messages, translations in _from_mo(file) if file.suffix == ".mo" else _from_po(file):
        yield messages[0], translations[0]
        if len(messages) > 1:
            yield messages[1], translations[-1]


def _from_mo(file: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the singular and plural forms of the messages of a compiled catalogue, and of their translations."""
    with open_bounded(file) as opened:
        data = opened.read()
    order = MAGIC.get(data[:4])
    if order is None:
        raise DataError(f"{str(file)!r} is not a compiled catalogue: it starts with {data[:4]!r}. Fetch it again.")

    def texts(table: int, count: int) -> list[bytes]:
        check_rows(file, count)
        entries = list(struct.iter_unpack(f"{order}2I", data[table : table + 8 * count]))
        if len(entries) < count or any(start + length > len(data) for length, start in entries):
            raise struct.error(f"{len(data)} bytes are too few")
        if sum(length for length, _ in entries) > len(data):  # overlapping texts could expand a small file
            raise struct.error("its texts overlap")
        return [data[start : start + length] for length, start in entries]

    try:
        _, count, messages, translations = struct.unpack_from(f"{order}4I", data, 4)
        raw = list(zip(texts(messages, count), texts(translations, count), strict=True))
        header = dict(raw).get(b"", b"").decode("ascii", "replace")
        charset = re.search(r"charset=([\w:.-]+)", header)
        encoding = charset[1] if charset and charset[1] != "CHARSET" else "utf-8"
        if codecs.lookup(encoding).name in NO_CHARSETS:
            raise LookupError(f"{encoding} is no character set")
        for pair in raw:
            message, translation = (side.decode(encoding).split("\0") for side in pair)
            yield message, translation
    except (struct.error, UnicodeError, LookupError) as error:
        raise DataError(f"{str(file)!r} is not a whole catalogue ({error}). Install or fetch it again.") from error


def _lines(file: Path) -> Iterator[bytes]:
    with open_bounded(file) as opened:
        yield from map(bytes.strip, opened)


def _from_po(file: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the same from a catalogue that is not compiled, without fuzzy entries."""
    try:
        polib = import_module("polib")
    except ImportError as error:
        raise MissingExtraError(f"Catalogues that are not compiled, such as {file.name},", "text") from error
    lines = 0
    for number, line in enumerate(_lines(file), 1):
        lines = lines + 1 if line[:1] in (b'"', b"#") else lines * (not line)
        if lines > MOST_LINES:
            raise DataError(f"Expected texts of at most {MOST_LINES:,} lines in {str(file)!r} but got more in line {number}.")
    try:
        entries = polib.pofile(str(file))
    except (OSError, ValueError, LookupError) as error:
        raise DataError(f"{str(file)!r} is not a catalogue: {error}. Fetch it again.") from error
    for entry in entries:
        if entry.obsolete or "fuzzy" in entry.flags:
            continue
        if entry.msgid_plural:
            yield [entry.msgid, entry.msgid_plural], [entry.msgstr_plural[form] for form in sorted(entry.msgstr_plural)]
        else:
            yield [entry.msgid], [entry.msgstr]


def divided(pairs: Sequence[Pair], *, val_size: float = 0.05, test_size: float = 0.1, seed: int = 0) -> dict[str, list[Pair]]:
    """Return the pairs of each split.

    Args:
        pairs: English messages and their translations.
        val_size: messages held out for validation: a fraction if below 1, else a number.
        test_size: messages held out for the test: a fraction if below 1, else a number.
        seed: seed of the splits.

    Raises:
        ConfigurationError: if no messages remain for training.
    """
    sizes = {"val_size": val_size, "test_size": test_size}
    for name, size in sizes.items():
        check_number(name, size, 0.0, MOST_EXAMPLES, open_low=True)
    if val_size < 1.0 and test_size < 1.0 and val_size + test_size >= 1.0:
        raise ConfigurationError(
            f"Expected a sum of `val_size` and `test_size` below 1 but got {val_size} and {test_size}. Decrease them."
        )
    places = [_place_of(message, seed) for message, _ in pairs]
    ordered = sorted({*places})
    end, ends = 0.0, []
    for name, size in sizes.items():
        first = bisect_left(ordered, end)
        end = end + size if size < 1.0 else ordered[first + held_out(name, size, len(ordered), len(ordered) - first)]
        ends.append(end)
    splits: dict[str, list[Pair]] = {"train": [], "val": [], "test": []}
    for place, pair in zip(places, pairs, strict=True):
        splits["val" if place < ends[0] else "test" if place < ends[1] else "train"].append(pair)
    return splits


def _place_of(message: str, seed: int) -> float:
    """Return a number in [0, 1), a function of the message and the seed; those held out have the smallest numbers."""
    digest = hashlib.blake2b(f"{seed} {message}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder that is written")
    parser.add_argument("--language", default="fr", help="code of the other language, such as fr or pt_BR")
    parser.add_argument("--distributions", nargs="*", default=[], help="installed distributions with catalogues")
    parser.add_argument("--folders", nargs="*", default=[], help="folders with catalogues")
    parser.add_argument("--val-size", type=float, default=0.05, help="a fraction of the messages if below 1, else a number")
    parser.add_argument("--test-size", type=float, default=0.1, help="a fraction of the messages if below 1, else a number")
    parser.add_argument("--seed", type=int, default=0, help="seed of the splits")
    options = parser.parse_args(arguments)
    try:
        pairs = read_catalogues(distributions=options.distributions, folders=options.folders, language=options.language)
        splits = divided(pairs, val_size=options.val_size, test_size=options.test_size, seed=options.seed)
    except LitSparseError as error:
        sys.exit(str(error))
    options.folder.mkdir(parents=True, exist_ok=True)
    for split, kept in splits.items():
        for side, language in enumerate(("en", options.language)):
            lines = "".join(f"{pair[side]}\n" for pair in kept)
            (options.folder / f"{split}.{language}").write_text(lines, encoding="utf-8", newline="\n")
    print(f"{options.folder}: {', '.join(f'{split} {len(kept)}' for split, kept in splits.items())} pairs")


if __name__ == "__main__":
    main()
