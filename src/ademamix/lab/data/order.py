"""The order in which a run visits its data."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


class ShuffledEpochs:
    """Where the items of each step's batch start, every item once an epoch and each epoch in an order of its own.

    Item k of an epoch starts at phase + k stride. The phase is drawn anew for each epoch from 0 to stride - 1, so that
    windows are cut at other places each time. A batch may span two epochs.

    >>> order = ShuffledEpochs(items=5, batch=2, seed=0)
    >>> sorted(np.concatenate([order(0), order(1), order(2)[:1]]).tolist())
    [0, 1, 2, 3, 4]
    """

    def __init__(self, items: int, *, batch: int, seed: int, stride: int = 1) -> None:
        self._items, self._batch, self._seed, self._stride = items, batch, seed, stride
        self._epoch = functools.lru_cache(maxsize=2)(self._shuffle)

    def __call__(self, step: int) -> NDArray[np.int64]:
        """Return the starts of the batch of a step, counted from 0."""
        epoch, first = divmod(step * self._batch, self._items)
        starts = self._starts(epoch, first, self._batch)
        while len(starts) < self._batch:
            epoch += 1
            starts = np.concatenate([starts, self._starts(epoch, 0, self._batch - len(starts))])
        return starts

    def _starts(self, epoch: int, first: int, count: int) -> NDArray[np.int64]:
        order, phase = self._epoch(epoch)
        return order[first : first + count].astype(np.int64) * self._stride + phase

    def _shuffle(self, epoch: int) -> tuple[NDArray[np.uint32], int]:
        generator = np.random.default_rng([self._seed, epoch])
        phase = int(generator.integers(self._stride))
        order = np.arange(self._items, dtype=np.uint32)  # half the memory of int64: this is large for large data
        generator.shuffle(order)
        return order, phase


def spread_evenly(items: int, *, count: int, chunk: int) -> Iterator[NDArray[np.int64]]:
    """Yield `count` of the items, evenly spaced and none twice, in chunks; all of them if there are fewer.

    >>> [chosen.tolist() for chosen in spread_evenly(8, count=4, chunk=3)]
    [[0, 2, 4], [6]]
    >>> [chosen.tolist() for chosen in spread_evenly(3, count=4, chunk=8)]
    [[0, 1, 2]]
    """
    count = min(count, items)
    chosen = np.arange(count) * items // max(1, count)
    for first in range(0, count, chunk):
        yield chosen[first : first + chunk]
