"""How long the parts of a run take, so how long is left, and when to save."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Literal

from ademamix.lab.config import VALIDATION_COST, Run

now = time.monotonic  # no change of the clock disturbs it


class Pace:
    """The times of the steps, validations and saves of a run, since it began or was continued.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> pace = Pace(DEFAULT)
    >>> with pace.measured("step"):
    ...     pass
    >>> pace.seconds_left(DEFAULT.steps)
    0.0
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seconds = {"step": 0.0, "validation": 0.0, "save": 0.0}
        self._times = {"step": 0, "validation": 0, "save": 0}

    @contextlib.contextmanager
    def measured(self, what: Literal["step", "validation", "save"]) -> Iterator[None]:
        """Measure the time of the block."""
        start = now()
        yield
        self._seconds[what] += now() - start
        self._times[what] += 1

    @property
    def steps_per_second(self) -> float:
        """The speed of steps alone."""
        return self._times["step"] / max(self._seconds["step"], 1e-9)

    def seconds_left(self, step: int) -> float:
        """Return how long the run will take after `step`, with its validations, and with saves at the rate so far.

        Until there has been a validation, its time is guessed from that of a step.
        """
        run, per_step = self._run, 1 / self.steps_per_second
        if self._times["validation"]:
            per_validation = self._seconds["validation"] / self._times["validation"]
        else:
            per_validation = VALIDATION_COST * run.validation_examples / run.batch * per_step
        validations = -(-run.steps // run.validate_every) - step // run.validate_every if step < run.steps else 0
        left = (run.steps - step) * per_step + validations * per_validation
        trained = max(self._seconds["step"] + self._seconds["validation"], 1e-9)
        return left * (1 + self._seconds["save"] / trained)


class Saves:
    """When to save: at most once in `every` seconds, and so that saving takes at most `share` of the time."""

    def __init__(self, *, every: float, share: float) -> None:
        self._every, self._share = every, share
        self._due_at = now() + every

    @property
    def due(self) -> bool:
        """Whether it is time."""
        return now() >= self._due_at

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Save in the block: the longer that takes, the longer until it is due again."""
        start = now()
        yield
        took = now() - start
        self._due_at = now() + max(self._every, took * (1 / self._share - 1))
