"""Where text comes from: the standard library's sources, files and folders, and (in hub.py) the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ademamix.lab.data import DataError
from ademamix.lab.data.king_james import king_james_files
from ademamix.output.atomic import write_atomically

TEXT_SUFFIXES = (".txt", ".md", ".py", ".jsonl")
"""Files of a folder that must be text; others are taken only if they are valid UTF-8."""
VALIDATION_SHARE = 10
"""One file in so many is for validation, or the last such part of every file."""
SPLIT = 2
"""Increased when the same files would be split differently."""
LEAST_VALIDATION, MOST_VALIDATION = 0.02, 0.5
"""Between these shares of the text, files are validation as a whole."""
CHARACTERS_AT_ONCE = 1 << 20

LEFT_OUT_FOLDERS = {
    *("site-packages", "dist-packages", "lib-dynload", "__pycache__"),  # not the standard library's sources
    *("test", "tests", "idle_test"),
    *("encodings", "pydoc_data", "msilib"),  # generated tables teach nothing about code
}
LEFT_OUT_FILES = {
    *("html/entities.py", "locale.py", "re/_casefix.py", "stringprep.py", "_opcode_metadata.py"),  # likewise
    *("sitecustomize.py", "usercustomize.py"),  # not Python's own
}


class Piece(NamedTuple):
    """A document or a part of one."""

    text: str
    validation: bool
    ends_document: bool
    place: Callable[[], Any] | None = None
    """Tells, until the next piece is taken, where its source continues after this one: an argument of `Source.pieces`,
    as JSON. None if the source can only be read from its beginning."""


@dataclass(frozen=True)
class Source:
    """Text that can be read again and again, always in the same order."""

    key: str
    """Differs whenever the text differs."""
    pieces: Callable[[Any], Iterator[Piece]]
    """The pieces after a place, or all of them after None."""
    streamed: bool = False
    """Whether it comes over the network and may not end: read no more of it than is needed."""


def open_source(name: str, cache: Path) -> Source:
    """Return the source that a config names: "stdlib", "kjv", a file, a folder, or something of the hub."""
    from ademamix.lab.data import hub

    if name == "stdlib":
        return local_source("stdlib", standard_library(), cache)
    if name == "kjv":
        return local_source("kjv", king_james_files(cache), cache)
    if hub.is_of_the_hub(name):
        return hub.text_source(name, cache)
    path = Path(name).expanduser()
    if path.is_file():
        return local_source(name, {path.name: path}, cache)
    if name and path.is_dir():
        if cache.resolve().is_relative_to(path.resolve()):
            raise DataError(f"{name!r} holds the folder {cache}, to which results are written: keep them elsewhere")
        return local_source(name, folder_files(path), cache)
    raise DataError(
        f"there is no text at {name!r}: give 'stdlib', 'kjv', a file, a folder, {', '.join(map(repr, hub.PRESETS))} or "
        "'hub:NAME'"
    )


def standard_library(root: Path | None = None) -> dict[str, Path]:
    """Return the sources of Python's standard library by relative path, cleaned.

    Left out are tests, installed packages, and tables that were generated from other data and are not code to learn
    from (codecs, HTML entities, locale names, help topics, build settings). With Python 3.11 about 600 files
    of 10 MB stay; about a tenth is validation. Other versions have other sources, and so other losses.

    >>> len(standard_library()) > 300, "test/test_os.py" in standard_library()
    (True, False)
    """
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    files = {
        name: path
        for name, path in folder_files(root, left_out=LEFT_OUT_FOLDERS).items()
        if name.endswith(".py")
        and name not in LEFT_OUT_FILES
        and not name.startswith(("_sysconfigdata", "config-"))  # settings of the build
        and _is_text(path)
    }
    if not files:
        raise DataError(
            f"this Python has no sources of its standard library in {root}: install them, or name a file or folder of "
            "text as the source"
        )
    return files


def folder_files(root: Path, left_out: Collection[str] = ()) -> dict[str, Path]:
    """Return all files under a folder by relative path, sorted, without hidden ones and some inner folders."""
    found: dict[str, Path] = {}
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if not name.startswith(".") and name not in left_out]
        for name in names:
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file():
                found[path.relative_to(root).as_posix()] = path
    return dict(sorted(found.items()))


def local_source(name: str, files: Mapping[str, Path], cache: Path) -> Source:
    """Return the source that consists of some files.

    A file is validation if the hash of its relative path says so, so that a new file does not move the others; one in
    ten is. Where that leaves too little for validation, less than a fiftieth, or for training, less than half, as with
    a single file, the last tenth of every file is validation.
    """

    def pieces(_: None) -> Iterator[Piece]:
        texts = {relative: path for relative, path in files.items() if path.suffix in TEXT_SUFFIXES or _is_text(path)}
        if len(files) == 1:  # it was named: say why it is not taken
            texts = dict(files)
        if not texts:
            why = f"none of its {len(files)} files is valid UTF-8" if files else "it is empty"
            raise DataError(f"there is no text in {name!r}: {why}. Give a file or folder with text in UTF-8")
        chosen = {relative for relative in texts if is_validation(relative, VALIDATION_SHARE)}
        size = {relative: path.stat().st_size for relative, path in texts.items()}
        share = sum(size[relative] for relative in chosen) / max(1, sum(size.values()))
        cut_each = not LEAST_VALIDATION <= share <= MOST_VALIDATION
        for relative, path in texts.items():
            if cut_each:
                length = sum(len(text) for text, _ in _read(path))
                yield from _cut(_read(path), length - length // VALIDATION_SHARE)
            else:
                yield from (Piece(text, relative in chosen, ends) for text, ends in _read(path))

    return Source(key=f"{SPLIT} {content_hash(files, cache)}", pieces=pieces)


def is_validation(identity: str, share: int) -> bool:
    """Tell whether the item of this identity is one of the `1/share` for validation; the same on every machine.

    >>> [name for name in "abcdefghij" if is_validation(name, 10)]
    ['a', 'c', 'i']
    """
    return int.from_bytes(hashlib.sha256(identity.encode(errors="surrogateescape")).digest()[:8], "big") % share == 0


def clean(text: str) -> str:
    r"""Return the text with "\n" at the end of lines, without invalid UTF-8 and the byte that separates documents.

    >>> clean("one\r\ntwo\rthree\0")
    'one\ntwo\nthree'
    """
    valid = text.encode("utf-8", "replace").decode()  # a string can hold half a surrogate pair, JSON as well
    return valid.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def content_hash(files: Mapping[str, Path], cache: Path) -> str:
    """Return a hash of the names and contents of files, remembered while no name, size or time of change differs."""
    listing = _listing(files)
    remembered = cache / "hashes" / hashlib.sha256(json.dumps(listing).encode()).hexdigest()
    if remembered.is_file() and len(known := remembered.read_text()) == 64:  # shorter: torn by a failing disk
        return known
    total = hashlib.sha256()
    for name, path in files.items():
        total.update(f"{name}\0{file_hash(path)}\0".encode(errors="surrogateescape"))
    newest = max((changed for *_, changed in listing), default=0)
    # A file that was changed just now may change again within one tick of the file system's clock.
    if time.time_ns() - newest > 2_000_000_000 and _listing(files) == listing:
        remembered.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(remembered, total.hexdigest())
    return total.hexdigest()


def _listing(files: Mapping[str, Path]) -> list[tuple[str, str, int, int]]:
    states = ((name, path, path.stat()) for name, path in files.items())
    return [(name, str(path.resolve()), state.st_size, state.st_mtime_ns) for name, path, state in states]


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content, read in blocks."""
    content = hashlib.sha256()
    try:
        with path.open("rb") as handle:
            while block := handle.read(1 << 20):
                content.update(block)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}: make it readable, or move it away") from error
    return content.hexdigest()


def _read(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the text of a file in parts; True with a part that ends a document."""
    try:
        if path.suffix == ".jsonl":
            yield from ((text, True) for text in _json_lines(path))
        else:
            yield from ((clean(text), ends) for text, ends in _parts(path))
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text: convert it, or move it away") from None


def _parts(path: Path) -> Iterator[tuple[str, bool]]:
    with path.open(encoding="utf-8") as handle:
        part = handle.read(CHARACTERS_AT_ONCE)
        while part:
            following = handle.read(CHARACTERS_AT_ONCE)
            yield part, not following
            part = following


def _json_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as handle:
        for number, line in enumerate(handle, start=1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)["text"]
            except (json.JSONDecodeError, KeyError, TypeError):
                text = None
            if not isinstance(text, str):
                raise DataError(f'line {number} of {path} is no JSON object with a string "text": {line[:80]!r}')
            yield clean(text)


def _is_text(path: Path) -> bool:
    try:
        return all("\0" not in part for part, _ in _parts(path))
    except UnicodeDecodeError:
        return False


def _cut(parts: Iterable[tuple[str, bool]], border: int) -> Iterator[Piece]:
    """Yield the characters before the border for training, those after it for validation."""
    position = 0
    for text, ends in parts:
        training = text[: max(0, border - position)]
        validation = text[len(training) :]
        if training:
            yield Piece(training, validation=False, ends_document=ends or bool(validation))
        if validation:
            yield Piece(validation, validation=True, ends_document=ends)
        position += len(text)
