"""The time of a training step in two runs of the lab, measured so that they can be compared.

Runs that are carried out one after another find the machine in another state each. Here they take their steps in turns,
in one process with one thread, and the one that begins is drawn anew in every round; each counts with its fastest step.
On a CPU that is processor time: what other processes take meanwhile does not count.
"""

from __future__ import annotations

import gc
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from ademamix.lab.config import Run
from ademamix.lab.data import load
from ademamix.lab.optimizers.memory import state_bytes
from ademamix.lab.train import Training

WARM_UP = 3
"""Steps that are not timed: in the first ones state is allocated and kernels are loaded."""


@dataclass(frozen=True)
class Cost:
    """What a run costs."""

    seconds: float
    """The time of its fastest step."""
    parameters: int
    state_bytes: int
    """Of its optimizer."""


class Costs(NamedTuple):
    """What two runs cost that took turns."""

    first: Cost
    second: Cost

    @property
    def added(self) -> float:
        """The share of time that a step of the second takes more.

        >>> Costs(Cost(1.0, 100, 800), Cost(1.5, 100, 1200)).added
        0.5
        """
        return self.second.seconds / self.first.seconds - 1


def measure(first: Run, second: Run, rounds: int, cache: Path, device: str = "cpu") -> Costs:
    """Return what two runs of one model on the same data cost, from `rounds` timed steps of each.

    >>> import tempfile
    >>> from ademamix.lab.reproduction.scale import SCALES
    >>> smoke = SCALES["smoke"].lm("110m")
    >>> with tempfile.TemporaryDirectory() as cache:
    ...     costs = measure(smoke.run("adamw"), smoke.run("ademamix"), rounds=2, cache=Path(cache))
    >>> [round(cost.state_bytes / cost.parameters) for cost in costs]
    [8, 12]
    """
    data = load(first.data, model=first.model, batch=first.batch, seed=first.seed, cache=cache)
    trainings = [Training(run, data, device) for run in (first, second)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
    try:
        return _in_turns(trainings, rounds, device)
    finally:
        gc.enable()
        torch.set_num_threads(threads)


def _in_turns(trainings: list[Training], rounds: int, device: str) -> Costs:
    order, fastest = list(trainings), dict.fromkeys(trainings, math.inf)
    draw = random.Random(0)
    for number in range(WARM_UP + rounds):
        draw.shuffle(order)  # or each would always find the caches as the other leaves them
        for training in order:
            seconds = _seconds_of_a_step(training, device)
            if number >= WARM_UP:
                fastest[training] = min(fastest[training], seconds)
    sizes = [sum(parameter.numel() for parameter in each.model.parameters()) for each in trainings]
    return Costs(
        *(Cost(fastest[each], size, state_bytes(each.optimizer)) for each, size in zip(trainings, sizes, strict=True))
    )


def _seconds_of_a_step(training: Training, device: str) -> float:
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    training.advance()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return clock() - start
