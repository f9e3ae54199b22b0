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


def spread_batches(items: int, *, batch: int, count: int) -> Iterator[NDArray[np.int64]]:
    """Yield the items of at most `count` batches: evenly spaced over all items, none twice, each batch over all of it.

    >>> [chosen.tolist() for chosen in spread_batches(8, batch=2, count=2)]
    [[0, 4], [2, 6]]
    >>> [chosen.tolist() for chosen in spread_batches(5, batch=2, count=9)]
    [[0, 2], [1, 3]]
    """
    count = min(count, items // batch)
    chosen = np.arange(count * batch) * items // max(1, count * batch)
    for index in range(count):
        yield chosen[index::count]
