"""How `ademamix bench` times optimizers: in turns, on the same parameters and gradients, in one process.

Only the code that runs in that process imports torch.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from ademamix.lab.bench.rows import Row, Shape
from ademamix.lab.optimizers.memory import state_bytes

Result = dict[str, Any]  # of one optimizer in one process: seconds, bare_seconds, steps and state_bytes, or error

DRAWS = 64
SHIFT = 64  # elements between the draws: whole lines of the cache, so that all draws are aligned alike


class Gradients:
    """Gradients of parameters that differ from step to step, as in training, and lie in the same memory.

    The gradient of a parameter is a window on random numbers that moves on with each step, to others that may be larger
    or smaller. Second moments are then averages of many squares, and the scales of blocks change about as often as in
    training (`benchmarks/block_scales.py`). One gradient for all steps would make second moments its squares, which lie
    so far apart that most blocks of compact state would be wide; in training hardly any are.
    """

    def __init__(self, shapes: Sequence[Shape], dtype: Any, generator: Any) -> None:
        import torch

        def numbers(count: int) -> Any:
            sizes = 1e-3 * torch.randn(count, 1, generator=generator).exp_()
            return torch.randn(count, SHIFT, generator=generator).mul_(sizes).to(dtype).flatten()

        sizes = [torch.Size(shape).numel() for shape in shapes]
        arrays = [numbers(-(-size // SHIFT) + DRAWS - 1) for size in sizes]
        self._draws = [
            [array[first : first + size].view(shape) for array, size, shape in zip(arrays, sizes, shapes, strict=True)]
            for first in range(0, DRAWS * SHIFT, SHIFT)
        ]

    def of_step(self, step: int) -> list[Any]:
        """Return the gradients of a step, which counts from 0."""
        return self._draws[step % DRAWS]


class Candidate:
    """An optimizer whose steps are timed."""

    def __init__(self, row: Row, params: list[Any], gradients: Gradients) -> None:
        self.row, self.params, self.gradients = row, params, gradients
        self.times: list[float] = []
        self.bare_times: list[float] = []
        self.error: str | None = None
        self.optimizer: Any = None
        self._taken = 0

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

    def take_turn(self, steps: int) -> None:
        """Take some steps, and pass as often over their arrays without arithmetic, where that can be compared."""
        for _ in range(steps):
            self.step()
        if self.row.one_pass:
            self.bare_times += bare_passes(self.optimizer, self.params, steps)

    def step(self) -> None:
        """Take one step, timed."""
        gradients = self.gradients.of_step(0 if self.row.one_gradient else self._taken)
        for param, grad in zip(self.params, gradients, strict=True):
            param.grad = grad  # some peers remove it
        self._taken += 1
        start = time.perf_counter()
        self.optimizer.step()
        self.times.append(time.perf_counter() - start)

    def wants_more(self, seconds: float) -> bool:
        """Tell whether it has not been stepped for `seconds`, or only once: some are very slow."""
        return sum(self.times) < seconds or len(self.times) < 2

    def result(self) -> Result:
        """Return the fastest step and the size of the state, or what went wrong."""
        if self.error is not None:
            return {"error": self.error}
        return {
            "seconds": min(self.times),
            "bare_seconds": min(self.bare_times, default=None),
            "steps": len(self.times),
            "state_bytes": state_bytes(self.optimizer),
        }


def bare_passes(optimizer: Any, params: Sequence[Any], count: int) -> list[float]:
    """Read the arrays of a step and write them back, except for gradients, `count` times; return the seconds of each.

    Scales of blocks are left out, for they are small; so are all arrays if there is no C++ core.
    """
    import torch

    from ademamix import native

    if native.core is None:
        return []
    arrays = []
    for param in params:
        moments = [value for value in optimizer.state[param].values() if isinstance(value, torch.Tensor)]
        of_elements = [param.grad, param, *(moment for moment in moments if moment.numel() == param.numel())]
        arrays.append([array.detach().reshape(-1).view(torch.uint8) for array in of_elements])
    sizes, threads = [param.numel() for param in params], torch.get_num_threads()
    return [native.core.stream(arrays, sizes, threads) for _ in range(count)]


def measure(rows: Sequence[Row], shapes: Sequence[Shape], seconds: float, *, turn: int = 1) -> dict[str, Result]:
    """Step the optimizers of `rows` in turns of `turn` steps in this process, each for about `seconds`."""
    import torch

    (dtype,) = {getattr(torch, row.parameters) for row in rows}
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter((0.02 * torch.randn(shape, generator=generator)).to(dtype)) for shape in shapes]
    gradients = Gradients(shapes, dtype, generator)
    candidates = [Candidate(row, params, gradients) for row in rows]
    order = random.Random(0)
    for candidate in candidates:
        candidate.attempt(candidate.warm_up)
    gc.collect()
    gc.disable()
    try:
        while waiting := [c for c in candidates if c.error is None and c.wants_more(seconds)]:
            order.shuffle(waiting)  # or each would always find the caches as the same other one leaves them
            for candidate in waiting:
                candidate.attempt(lambda chosen=candidate: chosen.take_turn(turn))  # type: ignore[misc]
    finally:
        gc.enable()
    return {candidate.row.name: candidate.result() for candidate in candidates}
