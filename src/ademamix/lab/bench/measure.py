"""How `ademamix bench` times optimizers: in turns, on the same parameters and gradients, in one process.

Only the code that runs in that process imports torch.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ademamix.lab.optimizers.memory import state_bytes

Shape = tuple[int, ...]
Result = dict[str, Any]  # of one optimizer in one process: seconds, steps and state_bytes, or error


@dataclass(frozen=True)
class Row:
    """An optimizer of the table; `factory` makes it from a list of parameters."""

    name: str
    baseline: str  # name of the row that its time is divided by
    factory: Callable[[list[Any]], Any]
    target: float | None = None  # the time ratio should be at most this
    package: str | None = None  # the peer that it comes from; None for ours and torch's own


class Candidate:
    """An optimizer whose steps are timed."""

    def __init__(self, row: Row, params: list[Any], grads: list[Any]) -> None:
        self.row, self.params, self.grads = row, params, grads
        self.times: list[float] = []
        self.error: str | None = None
        self.optimizer: Any = None

    def attempt(self, action: Callable[[], Any]) -> None:
        """Carry out `action`; if it raises, keep the reason."""
        try:
            action()
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            self.error, self.optimizer = f"{type(error).__name__}: {lines[0]}", None

    def warm_up(self) -> None:
        """Build the optimizer and take the steps in which state is allocated and peers compile."""
        self.optimizer = self.row.factory(self.params)
        before = [param.detach().flatten()[:64].clone() for param in self.params]
        for _ in range(3):
            self.step()
        self.times.clear()
        after = [param.detach().flatten()[:64] for param in self.params]
        if any(bool((x == y).all()) for x, y in zip(before, after, strict=True)):
            raise RuntimeError("step() left a parameter as it was")

    def step(self) -> None:
        """Take one step, timed."""
        for param, grad in zip(self.params, self.grads, strict=True):
            param.grad = grad  # some peers remove it
        start = time.perf_counter()
        self.optimizer.step()
        self.times.append(time.perf_counter() - start)

    def wants_more(self, seconds: float) -> bool:
        """Tell whether it has not been stepped for `seconds`, or not often enough: a peer may be very slow."""
        return sum(self.times) < seconds or len(self.times) < (10 if self.row.package is None else 2)

    def result(self) -> Result:
        """Return the fastest step and the size of the state, or what went wrong."""
        if self.error is not None:
            return {"error": self.error}
        return {
            "seconds": min(self.times),
            "steps": len(self.times),
            "state_bytes": state_bytes(self.optimizer),
        }


def measure(rows: Sequence[Row], shapes: Sequence[Shape], seconds: float) -> dict[str, Result]:
    """Step the optimizers of `rows` in turns in this process, each for about `seconds`."""
    import torch

    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(0.02 * torch.randn(shape, generator=generator)) for shape in shapes]
    grads = [1e-3 * torch.randn(shape, generator=generator) for shape in shapes]
    candidates = [Candidate(row, params, grads) for row in rows]
    order = random.Random(0)
    for candidate in candidates:
        candidate.attempt(candidate.warm_up)
    gc.collect()
    gc.disable()
    try:
        while waiting := [c for c in candidates if c.error is None and c.wants_more(seconds)]:
            order.shuffle(waiting)  # or each would always find the caches as the same other one leaves them
            for candidate in waiting:
                candidate.attempt(candidate.step)
    finally:
        gc.enable()
    return {candidate.row.name: candidate.result() for candidate in candidates}
