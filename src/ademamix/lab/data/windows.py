"""The windows of a text that batches are made of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ademamix.lab.data import Batch, DataError
from ademamix.lab.data.order import ShuffledEpochs, spread_evenly
from ademamix.lab.data.tokens import TokenFiles, Tokens

MOST_TEXT = 1 << 20


class Windows:
    r"""Batches of windows of a text.

    The held-out windows are drawn over the whole training text, the same for every seed, and cut out of it. The rest is
    cut into windows of context + 1 tokens, each beginning with the last token of the one before; a window's inputs are
    all its tokens but the last, its targets all but the first. Each epoch cuts at other places and visits every window
    once.

    >>> tokens = TokenFiles(np.arange(100, dtype=np.uint16), np.arange(100, 120, dtype=np.uint16), 120, "an example")
    >>> data = Windows(tokens, context=4, batch=2, held_out_batches=1, seed=0)
    >>> data.held_out(0).inputs.tolist()
    [[80, 81, 82, 83], [60, 61, 62, 63]]
    >>> [batch.targets.tolist() for batch in data.validation(2, chunk=8)]
    [[[101, 102, 103, 104], [109, 110, 111, 112]]]
    """

    def __init__(self, tokens: TokenFiles, *, context: int, batch: int, held_out_batches: int, seed: int) -> None:
        self.outputs, self.fingerprint = tokens.vocabulary, tokens.fingerprint
        self.tokenizer = tokens.tokenizer
        self._tokens, self.context, self._batch = tokens, context, batch
        self._held_out_batches = held_out_batches
        held_out = held_out_batches * batch
        # One window less than fit, so that there are as many at every phase.
        windows = (len(tokens.training) - held_out * (context + 1)) // context - 1
        if windows < batch:
            raise DataError(
                f"a batch of {batch} windows of {context} + 1 tokens and {held_out_batches} held-out ones need "
                f"{(batch + 1) * context + held_out * (context + 1):,} tokens of training text, got "
                f"{len(tokens.training):,}: give more text, or a smaller batch or context"
            )
        self._validation_windows = (len(tokens.validation) - 1) // context
        if self._validation_windows < 1:
            raise DataError(
                f"a window needs {context + 1:,} tokens of validation text, got {len(tokens.validation):,}: give more "
                "text, or a smaller context"
            )
        slots = len(tokens.training) // (context + 1)
        self._held_out = np.random.default_rng(0).choice(slots, held_out, replace=False) * (context + 1)
        # where each lay, counted in the text that is left
        self._cuts = np.sort(self._held_out) - np.arange(held_out) * (context + 1)
        self._training_windows = windows
        self._starts = ShuffledEpochs(windows, batch=batch, seed=seed, stride=context)

    def batch(self, step: int) -> Batch:
        """Return the training batch of a step, counted from 0."""
        return self._trained_on(self._starts(step))

    def validation(self, count: int, *, chunk: int) -> Iterator[Batch]:
        """Yield `count` windows spread evenly over the validation text, in batches of `chunk`; fewer if it is short."""
        for windows in spread_evenly(self._validation_windows, count=count, chunk=chunk):
            yield self._cut(self._tokens.validation, windows * self.context)

    def training(self, count: int, *, chunk: int) -> Iterator[Batch]:
        """Yield `count` windows spread evenly over the training text, in batches of `chunk`; fewer if it is short."""
        for windows in spread_evenly(self._training_windows, count=count, chunk=chunk):
            yield self._trained_on(windows * self.context)

    def held_out(self, index: int) -> Batch:
        """Return one of the batches that were taken out of training."""
        if not 0 <= index < self._held_out_batches:
            raise DataError(f"there is no held-out batch {index}: held_out_batches is {self._held_out_batches}")
        return self._cut(self._tokens.training, self._held_out[index * self._batch : (index + 1) * self._batch])

    def validation_documents(self) -> list[str]:
        """Return the validation text, of a long one about the first million tokens, by document."""
        tokenizer, tokens = self.tokenizer(), self._tokens.validation[:MOST_TEXT]
        ends = np.flatnonzero(tokens == tokenizer.separator)
        parts = (part[part != tokenizer.separator] for part in np.split(tokens, ends))
        return [tokenizer.decode(part.tolist()) for part in parts if len(part)]

    def _trained_on(self, starts: NDArray[np.int64]) -> Batch:
        """Return windows by where they start in the training text that is left without the held-out ones."""
        places = starts[:, None] + np.arange(self.context + 1)
        places += np.searchsorted(self._cuts, places, side="right") * (self.context + 1)
        return _as_batch(self._tokens.training[places])

    def _cut(self, tokens: Tokens, starts: NDArray[np.int64]) -> Batch:
        return _as_batch(tokens[starts[:, None] + np.arange(self.context + 1)])


def _as_batch(windows: Tokens) -> Batch:
    # Two copies: views into one would not be contiguous.
    return Batch(*(torch.from_numpy(part.astype(np.int64)) for part in (windows[:, :-1], windows[:, 1:])))
