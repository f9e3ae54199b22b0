"""beta3 and its half-life over a run, on AdEMAMix's schedule and on a line."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ademamix import beta3_at, half_life

STEPS = 1000
START = 0.9
LOW, HIGH = 0.999, 0.9999
PROGRESS = np.arange(1, STEPS + 1) / STEPS
SCHEDULES: dict[str, Callable[[int, float], float]] = {
    "AdEMAMix": lambda t, end: beta3_at(t, end, START, STEPS),
    "linear": lambda t, end: START + (end - START) * t / STEPS,
}


def betas(name: str, end: float) -> NDArray[np.float64]:
    """Return beta3 at steps 1 to `STEPS` under one of `SCHEDULES`.

    >>> [round(float(betas(name, 0.9999)[499]), 4) for name in SCHEDULES]
    [0.9998, 0.95]
    """
    return np.array([SCHEDULES[name](t, end) for t in range(1, STEPS + 1)])


def half_lives(name: str, end: float) -> NDArray[np.float64]:
    """Return the half-life at steps 1 to `STEPS` under one of `SCHEDULES`."""
    return np.array([half_life(beta) for beta in betas(name, end)])
