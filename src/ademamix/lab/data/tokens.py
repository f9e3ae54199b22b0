"""Token files, built once and memory-mapped, and the windows that batches of text are made of."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ademamix.lab.atomic import to_disk
from ademamix.lab.config import Text
from ademamix.lab.data import Batch, DataError
from ademamix.lab.data.order import ShuffledEpochs, spread_batches
from ademamix.lab.data.text import CHARACTERS_AT_ONCE, Piece, Source, open_source
from ademamix.lab.data.tokenizers import Tokenizer, make_tokenizer, tokenizer_key

FORMAT = 1
"""Raised whenever the same text and tokeniser would give other token files."""
Tokens = NDArray[np.integer[Any]]


def load_text(config: Text, *, context: int, batch: int, seed: int, cache: Path) -> Windows:
    """Return a text as batches of windows; its tokens are taken from the cache, or put there."""
    tokens = token_files(config, cache)
    return Windows(tokens, context=context, batch=batch, held_out_batches=config.held_out_batches, seed=seed)


class TokenFiles(NamedTuple):
    """A text as tokens."""

    training: Tokens
    validation: Tokens
    vocabulary: int
    fingerprint: str


class Windows:
    r"""Batches of windows of a text.

    The training tokens are cut into windows of context + 1 tokens, each beginning with the last token of the one
    before; a window's inputs are all its tokens but the last, its targets all but the first. Each epoch cuts at other
    places and visits every window once. The held-out batches are cut from the end of the training tokens first, so
    nothing of them is in any window.

    >>> tokens = TokenFiles(np.arange(100, dtype=np.uint16), np.arange(100, 120, dtype=np.uint16), 120, "an example")
    >>> data = Windows(tokens, context=4, batch=2, held_out_batches=1, seed=0)
    >>> data.held_out(0).inputs.tolist()
    [[91, 92, 93, 94], [95, 96, 97, 98]]
    >>> [batch.targets.tolist() for batch in data.validation(1)]
    [[[101, 102, 103, 104], [109, 110, 111, 112]]]
    """

    def __init__(self, tokens: TokenFiles, *, context: int, batch: int, held_out_batches: int, seed: int) -> None:
        self.outputs, self.fingerprint = tokens.vocabulary, tokens.fingerprint
        self._context, self._batch, self._held_out_batches = context, batch, held_out_batches
        held_out_tokens = held_out_batches * batch * context + 1 if held_out_batches else 0
        self._held_out_start = len(tokens.training) - held_out_tokens
        # One window less than fit, so that there are as many at every phase.
        windows = self._held_out_start // context - 1
        self._validation_windows = (len(tokens.validation) - 1) // context
        wanted = f"a batch of {batch} windows of {context} + 1 tokens"
        if windows < batch:
            raise DataError(
                f"{wanted} and {held_out_batches} held-out ones need {(batch + 1) * context + held_out_tokens:,} tokens"
                f" of training text, got {len(tokens.training):,}: give more text, or a smaller batch or context"
            )
        if self._validation_windows < batch:
            raise DataError(
                f"{wanted} needs {batch * context + 1:,} tokens of validation text, got {len(tokens.validation):,}: "
                "give more text, or a smaller batch or context"
            )
        self._starts = ShuffledEpochs(windows, batch=batch, seed=seed, stride=context)
        self._training = sliding_window_view(tokens.training, context + 1)
        self._validation = sliding_window_view(tokens.validation, context + 1)

    def batch(self, step: int) -> Batch:
        """Return the training batch of a step, counted from 0."""
        return _as_batch(self._training[self._starts(step)])

    def validation(self, count: int) -> Iterator[Batch]:
        """Yield `count` batches of windows spread evenly over the validation text; fewer if it has not as many."""
        for windows in spread_batches(self._validation_windows, batch=self._batch, count=count):
            yield _as_batch(self._validation[windows * self._context])

    def held_out(self, index: int) -> Batch:
        """Return one of the batches that were taken out of training."""
        if not 0 <= index < self._held_out_batches:
            raise DataError(f"there is no held-out batch {index}: held_out_batches is {self._held_out_batches}")
        windows = np.arange(index, self._held_out_batches * self._batch, self._held_out_batches)
        return _as_batch(self._training[self._held_out_start + windows * self._context])


def _as_batch(windows: Tokens) -> Batch:
    # Two copies: views into one would not be contiguous.
    return Batch(*(torch.from_numpy(part.astype(np.int64)) for part in (windows[:, :-1], windows[:, 1:])))


def token_files(config: Text, cache: Path) -> TokenFiles:
    """Return the tokens of a text, memory-mapped; the files are built if the cache does not have them.

    Their folder appears in the cache whole or not at all, whenever the process that builds it is killed. A second
    process that needs the same waits for the first. `config.tokens` bounds the training text alone: the validation
    split of a local text stays whole, so that losses at several bounds can be compared.
    """
    try:
        return _open(_built(config, cache))
    except OSError as error:
        raise DataError(f"the tokens of {config.source!r} cannot be kept in {cache}: {error}") from error


def _built(config: Text, cache: Path) -> Path:
    source = open_source(config.source, cache)
    if source.streamed and config.tokens is None:
        raise DataError(f"{config.source!r} may not end: say with `tokens` how many tokens of it to take")
    key = json.dumps([FORMAT, source.key, tokenizer_key(config.tokenizer, cache), config.tokens])
    folder = cache / hashlib.sha256(key.encode()).hexdigest()[:16]
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed: the lock is ours
            if not folder.exists():
                try:
                    _build(partial, source, config, cache)
                    partial.rename(folder)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
                to_disk(cache)
    return folder


def _build(folder: Path, source: Source, config: Text, cache: Path) -> None:
    folder.mkdir()
    tokenizer = make_tokenizer(config.tokenizer, source, folder)
    dtype: np.dtype[Any] = np.dtype(np.uint16 if tokenizer.vocabulary <= 1 << 16 else np.uint32)
    training = _TokenWriter(folder / "train.bin", dtype, config.tokens)
    validation = _TokenWriter(folder / "validation.bin", dtype, None)
    with closing(training), closing(validation):
        for pieces in _groups(source):
            if training.full and source.streamed:
                break
            wanted = [piece for piece in pieces if piece.validation or not training.full]
            _write(wanted, tokenizer, training, validation)
    contents = [
        tokenizer.vocabulary,
        training.digest,
        validation.digest,
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
    if open_source(config.source, cache).key != source.key:
        raise DataError(f"{config.source!r} was changed while it was read: try again when it does not change")


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
    """A token file that is being written, at most `limit` tokens long."""

    def __init__(self, path: Path, dtype: np.dtype[Any], limit: int | None) -> None:
        self.count = 0
        self._dtype, self._limit = dtype, limit
        self._handle = path.open("wb")
        self._hash = hashlib.sha256()

    @property
    def full(self) -> bool:
        return self._limit is not None and self.count >= self._limit

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def append(self, ids: Tokens) -> None:
        taken = ids if self._limit is None else ids[: self._limit - self.count]
        content = taken.astype(self._dtype).tobytes()
        self._handle.write(content)
        self._hash.update(content)
        self.count += len(taken)

    def close(self) -> None:
        self._handle.close()


def _groups(source: Source) -> Iterator[list[Piece]]:
    """Yield the pieces of a source in lists of about a megabyte, which tokenisers encode faster than one by one."""
    group: list[Piece] = []
    characters = 0
    for piece in source.pieces():
        group.append(piece)
        characters += len(piece.text)
        if characters >= CHARACTERS_AT_ONCE:
            yield group
            group, characters = [], 0
    yield group


def _write(pieces: list[Piece], tokenizer: Tokenizer, training: _TokenWriter, validation: _TokenWriter) -> None:
    separator = np.array([tokenizer.separator])
    encoded = tokenizer.encode([piece.text for piece in pieces])
    parts: dict[bool, list[Tokens]] = {True: [], False: []}
    for piece, ids in zip(pieces, encoded, strict=True):
        parts[piece.validation] += [ids, separator] if piece.ends_document else [ids]
    for is_validation, writer in ((False, training), (True, validation)):
        writer.append(np.concatenate([separator[:0], *parts[is_validation]]))
