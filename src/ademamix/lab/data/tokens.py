"""Token files, built once and memory-mapped."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from ademamix.lab.config import Text
from ademamix.lab.data import DataError, OnRead
from ademamix.lab.data.text import CHARACTERS_AT_ONCE, Piece, Source, file_hash, open_source
from ademamix.lab.data.tokenizers import Bytes, Tokenizer, make_tokenizer, tokenizer_key
from ademamix.output.atomic import to_disk, write_atomically

FORMAT = 1
"""Increased whenever the same text and tokeniser would give other token files."""
PROGRESS = "progress.json"
SAVE_EVERY = 60.0
"""Seconds between saves while a stream is read."""
Tokens = NDArray[np.integer[Any]]


class TokenFiles(NamedTuple):
    """A text as tokens."""

    training: Tokens
    validation: Tokens
    vocabulary: int
    fingerprint: str
    tokenizer: Callable[[], Tokenizer] = Bytes
    """Makes the one that made the tokens."""


def token_files(config: Text, cache: Path, on_read: OnRead = lambda count, wanted: None) -> TokenFiles:
    """Return the tokens of a text, memory-mapped; the files are built if the cache does not have them.

    Their folder appears in the cache whole or not at all, whenever the process that builds it is killed. A second
    process that needs the same waits for the first. A text of the hub may take days to read: if the process is killed
    or the network fails, reading continues from at most a minute before. `config.tokens` bounds only the training text:
    the validation split of a local text stays whole, so that losses at several bounds can be compared.
    `on_read(count, wanted)` is told how many tokens of training text there are so far, and how many there may be.
    """
    try:
        folder = _built(config, cache, on_read)
        return _open(folder)._replace(tokenizer=partial(_kept_tokenizer, config, cache, folder))
    except OSError as error:
        raise DataError(f"the tokens of {config.source!r} cannot be kept in {cache}: {error}") from error


def _kept_tokenizer(config: Text, cache: Path, folder: Path) -> Tokenizer:
    return make_tokenizer(config.tokenizer, open_source(config.source, cache), folder)


def _built(config: Text, cache: Path, on_read: OnRead) -> Path:
    source = open_source(config.source, cache)
    if source.streamed and config.tokens is None:
        raise DataError(f"{config.source!r} may not end: say with `tokens` how many tokens of it to take")
    key = json.dumps([FORMAT, source.key, tokenizer_key(config.tokenizer, cache), config.tokens])
    folder = cache / hashlib.sha256(key.encode()).hexdigest()[:16]
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not folder.exists():
                partial = folder.with_suffix(".partial")
                with _kept_if_it_goes_on(partial):
                    _build(partial, source, config, cache, on_read)
                    partial.rename(folder)
                    to_disk(cache)
                (folder / PROGRESS).unlink(missing_ok=True)
    return folder


@contextmanager
def _kept_if_it_goes_on(partial: Path) -> Iterator[None]:
    """Remove an unfinished build, unless the next attempt can continue from it."""
    try:
        yield
    except DataError as error:
        if (partial / PROGRESS).exists():
            raise DataError(
                f"{error}. The text read so far is kept in {partial}: the same command continues from there"
            ) from error
        raise
    finally:
        if not (partial / PROGRESS).exists():
            shutil.rmtree(partial, ignore_errors=True)


def _build(folder: Path, source: Source, config: Text, cache: Path, on_read: OnRead) -> None:
    start = _progress(folder)
    if start is None:
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed: the lock is ours
        folder.mkdir()
        start = _Progress(training=0, validation=0, place=None, made_with={})
    tokenizer = make_tokenizer(config.tokenizer, source, folder)
    dtype: np.dtype[Any] = np.dtype(np.uint16 if tokenizer.vocabulary <= 1 << 16 else np.uint32)
    training = _TokenWriter(folder / "train.bin", dtype, start.training, config.tokens)
    validation = _TokenWriter(folder / "validation.bin", dtype, start.validation, None)

    def check_unchanged() -> None:
        if open_source(config.source, cache).key != source.key:
            (folder / PROGRESS).unlink(missing_ok=True)
            raise DataError(f"{config.source!r} was changed while it was read: try again when it does not change")

    with closing(training), closing(validation):
        saved_at = -math.inf
        for pieces in _groups(source.pieces(start.place)):
            wanted = [piece for piece in pieces if piece.validation or not training.full]
            _write(wanted, tokenizer, training, validation)
            on_read(training.count, config.tokens)
            if training.full and source.streamed:
                break  # unsaved: continuing from here would read a group too many
            if (place := pieces[-1].place) is not None and time.monotonic() - saved_at >= SAVE_EVERY:
                check_unchanged()
                _save(folder, training, validation, place())
                saved_at = time.monotonic()
    check_unchanged()
    contents = [
        tokenizer.vocabulary,
        file_hash(training.path),
        file_hash(validation.path),
        tokenizer_key(config.tokenizer, cache),
    ]
    meta = {
        "format": FORMAT,
        "source": config.source,
        "tokenizer": config.tokenizer,
        "vocabulary": tokenizer.vocabulary,
        "dtype": dtype.name,
        "training": training.count,
        "validation": validation.count,
        "fingerprint": hashlib.sha256(json.dumps(contents).encode()).hexdigest(),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    for path in (*folder.iterdir(), folder):
        to_disk(path)


class _Progress(NamedTuple):
    """How far a text was read: the tokens on disk, and the place where the source continues after them."""

    training: int
    validation: int
    place: Any
    made_with: dict[str, str]
    """Versions of the libraries that made the tokens and that must understand the place."""


def _progress(folder: Path) -> _Progress | None:
    """Return the state of a build that can be continued; None if there is none."""
    try:
        progress = _Progress(**json.loads((folder / PROGRESS).read_text()))
    except (FileNotFoundError, ValueError, TypeError):  # damage costs only time: all is read again
        return None
    return progress if progress.made_with == _versions() else None


def _save(folder: Path, training: _TokenWriter, validation: _TokenWriter, place: Any) -> None:
    for writer in (training, validation):
        writer.to_disk()
    progress = _Progress(training.count, validation.count, place, _versions())
    write_atomically(folder / PROGRESS, json.dumps(progress._asdict()))


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("datasets", "sentencepiece", "tokenizers", "transformers")}


def _open(folder: Path) -> TokenFiles:
    path = folder / "meta.json"
    try:
        meta = json.loads(path.read_text())
        dtype, vocabulary, fingerprint = np.dtype(meta["dtype"]), int(meta["vocabulary"]), str(meta["fingerprint"])
        training, validation = int(meta["training"]), int(meta["validation"])
    except (FileNotFoundError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} is damaged ({error}): delete {folder}") from error

    def tokens(name: str, count: int) -> Tokens:
        path = folder / name
        if path.stat().st_size != count * dtype.itemsize:
            raise DataError(f"{path} is damaged: {path.stat().st_size:,} bytes, not {count:,} tokens: delete {folder}")
        # as a plain array, which is faster to index; an empty file cannot be mapped
        return np.asarray(np.memmap(path, dtype, mode="r")) if count else np.empty(0, dtype)

    return TokenFiles(tokens("train.bin", training), tokens("validation.bin", validation), vocabulary, fingerprint)


class _TokenWriter:
    """A token file that is being written, at most `limit` tokens long; the first `count` tokens are kept."""

    def __init__(self, path: Path, dtype: np.dtype[Any], count: int, limit: int | None) -> None:
        self.path, self.count = path, count
        self._dtype, self._limit = dtype, limit
        self._handle = path.open("r+b" if count else "wb")
        kept = count * dtype.itemsize
        if self._handle.seek(0, os.SEEK_END) < kept:  # longer is usual: the process was killed after it was saved
            raise DataError(f"{path} is damaged, for it should have {kept:,} bytes: delete {path.parent}")
        self._handle.seek(self._handle.truncate(kept))

    @property
    def full(self) -> bool:
        return self._limit is not None and self.count >= self._limit

    def append(self, ids: Tokens) -> None:
        taken = ids if self._limit is None else ids[: self._limit - self.count]
        self._handle.write(taken.astype(self._dtype).tobytes())
        self.count += len(taken)

    def to_disk(self) -> None:
        self._handle.flush()
        os.fsync(self._handle.fileno())

    def close(self) -> None:
        self._handle.close()


def _groups(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield pieces in lists of about a megabyte, which tokenisers encode faster than one by one."""
    group: list[Piece] = []
    characters = 0
    for piece in pieces:
        group.append(piece)
        characters += len(piece.text)
        if characters >= CHARACTERS_AT_ONCE:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _write(pieces: list[Piece], tokenizer: Tokenizer, training: _TokenWriter, validation: _TokenWriter) -> None:
    separator = np.array([tokenizer.separator])
    encoded = tokenizer.encode([piece.text for piece in pieces])
    parts: dict[bool, list[Tokens]] = {True: [], False: []}
    for piece, ids in zip(pieces, encoded, strict=True):
        parts[piece.validation] += [ids, separator] if piece.ends_document else [ids]
    for is_validation, writer in ((False, training), (True, validation)):
        writer.append(np.concatenate([separator[:0], *parts[is_validation]]))
