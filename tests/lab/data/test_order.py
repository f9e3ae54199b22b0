"""The order in which examples are visited, and which of them validate."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ademamix.lab.data.order import ShuffledEpochs, spread_evenly


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**40))
def test_every_item_is_visited_once_an_epoch(items, batch, seed):
    order = ShuffledEpochs(items, batch=batch, seed=seed)
    visited = np.concatenate([order(step) for step in range(3 * items)])
    for epoch in visited[: len(visited) // items * items].reshape(-1, items):
        assert sorted(epoch.tolist()) == list(range(items))


@given(st.integers(0, 200), st.integers(1, 20), st.integers(0, 250))
def test_validation_has_nothing_twice_and_even_gaps_whatever_the_chunk(items, chunk, count):
    chosen = list(spread_evenly(items, chunk=chunk, count=count))
    assert sum(map(len, chosen)) == min(count, items)
    assert all(len(each) == chunk for each in chosen[:-1])
    if chosen:
        everything = np.concatenate(chosen)
        assert np.array_equal(everything, np.concatenate(list(spread_evenly(items, chunk=7, count=count))))
        assert everything[0] == 0
        assert everything[-1] < items
        gaps = np.diff(everything)
        assert gaps.min(initial=1) >= 1
        assert gaps.max(initial=0) - gaps.min(initial=items) <= 1
