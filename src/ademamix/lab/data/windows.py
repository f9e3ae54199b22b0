"""The windows of a text that batches are made of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from ademamix.lab.data import Batch, DataError
from ademamix.lab.data.order import ShuffledEpochs, spread_evenly
from ademamix.lab.data.tokens import TokenFiles, Tokens


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
    >>> [batch.targets.tolist() for batch in data.validation(2, chunk=8)]
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
        if self._validation_windows < 1:
            raise DataError(
                f"a window needs {context + 1:,} tokens of validation text, got {len(tokens.validation):,}: give more "
                "text, or a smaller context"
            )
        self._starts = ShuffledEpochs(windows, batch=batch, seed=seed, stride=context)
        self._training = sliding_window_view(tokens.training, context + 1)
        self._validation = sliding_window_view(tokens.validation, context + 1)

    def batch(self, step: int) -> Batch:
        """Return the training batch of a step, counted from 0."""
        return _as_batch(self._training[self._starts(step)])

    def validation(self, count: int, *, chunk: int) -> Iterator[Batch]:
        """Yield `count` windows spread evenly over the validation text, in batches of `chunk`; fewer if it is short."""
        for windows in spread_evenly(self._validation_windows, count=count, chunk=chunk):
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
