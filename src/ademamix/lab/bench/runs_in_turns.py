"""The time of a training step in two runs of the lab that differ in their optimizers, measured so that it compares.

Runs that are carried out one after another find the machine in another state each. Here they take their steps in turns,
in one process with one thread, and the one that begins is drawn anew in every round. A step is the optimizer's part and
the rest, the same code for both: the fastest rest of either counts for both, and for each the fastest step of its own
optimizer. So an optimizer that adds a hundredth to a step is not lost in the noise of the rest. On a CPU all this is
processor time: what other processes take meanwhile does not count.
"""

from __future__ import annotations

import gc
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ademamix.lab.config import Run
from ademamix.lab.data import load
from ademamix.lab.optimizers.memory import state_bytes
from ademamix.lab.report.step_times import StepTimes
from ademamix.lab.runs.machine import processor
from ademamix.lab.training import Training

WARM_UP = 3
"""Steps that are not timed: in the first ones state is allocated and kernels are loaded."""


@dataclass(frozen=True)
class Cost:
    """What a run costs."""

    seconds: float
    """The time of a step."""
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


def measure_all(
    turns: Mapping[tuple[str, str], tuple[Run, Run]], rounds: int, seeds: Sequence[int], *, on_gpu: bool
) -> dict[str, Any]:
    """Return, as data, what pairs of runs cost on each seed, by the model and the variant; on a GPU if there is one."""
    device = "cuda" if on_gpu and torch.cuda.is_available() else "cpu"
    times = []
    with tempfile.TemporaryDirectory() as cache:
        for (model, variant), (first, second) in turns.items():
            seeded = [(first.changed(seed=seed), second.changed(seed=seed)) for seed in seeds]
            costs = [measure(*turn, rounds, Path(cache), device) for turn in seeded]
            ours = costs[0].second
            adamw, ademamix = [each.first.seconds for each in costs], [each.second.seconds for each in costs]
            times.append(asdict(StepTimes(model, variant, ours.parameters, ours.state_bytes, adamw, ademamix)))
    return {"processor": torch.cuda.get_device_name() if device == "cuda" else processor(), "times": times}


def _in_turns(trainings: list[Training], rounds: int, device: str) -> Costs:
    watches = [_Watch(training, device) for training in trainings]
    order, draw = list(watches), random.Random(0)
    for _ in range(WARM_UP + rounds):
        draw.shuffle(order)  # or each would always find the caches as the other leaves them
        for watch in order:
            watch.take_step()
    rest = min(seconds for watch in watches for seconds in watch.rest[WARM_UP:])
    costs = []
    for watch in watches:
        size = sum(parameter.numel() for parameter in watch.training.model.parameters())
        costs.append(Cost(rest + min(watch.optimizer[WARM_UP:]), size, state_bytes(watch.training.optimizer)))
    return Costs(*costs)


class _Watch:
    """The times of the steps of a run: of its optimizer, and of the rest."""

    def __init__(self, training: Training, device: str) -> None:
        self.training, self._device = training, device
        self.optimizer: list[float] = []
        self.rest: list[float] = []
        self._begun = 0.0
        training.optimizer.register_step_pre_hook(self._begin)
        training.optimizer.register_step_post_hook(self._end)

    def take_step(self) -> None:
        start = self._now()
        self.training.advance()
        self.rest.append(self._now() - start - self.optimizer[-1])

    def _begin(self, *_: Any) -> None:
        self._begun = self._now()

    def _end(self, *_: Any) -> None:
        self.optimizer.append(self._now() - self._begun)

    def _now(self) -> float:
        if self._device == "cpu":
            return time.process_time()
        torch.cuda.synchronize(self._device)
        return time.perf_counter()
