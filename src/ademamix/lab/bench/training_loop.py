"""`ademamix bench --lab`: the time that the lab's training loop adds to a bare loop of forward, backward and step.

Both loops train the same model on the same batches in one process, ten steps of one and ten of the other in turns;
each counts with its fastest ten. The lab's steps include its data, schedule, clipping, records and progress; the bare
loop has its batches in memory. The cost of a checkpoint every thirty seconds is not in the figure.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ademamix.lab.comparison.defaults import DEFAULT, OPTIMIZERS
from ademamix.lab.data import Batch, load
from ademamix.lab.models import networks
from ademamix.lab.optimizers import construction
from ademamix.lab.train import Options, Progress, train

STEPS, QUICK_STEPS = 1000, 40
TARGET = 1.05  # the lab's time over the bare loop's should be at most this
RUN = DEFAULT.model_copy(update={"batch": 6, "optimizer": OPTIMIZERS["ademamix"], "validation_examples": 1})


def run(*, quick: bool) -> dict[str, float]:
    """Return the time of a step in both loops, in seconds, and their ratio."""
    steps = QUICK_STEPS if quick else STEPS
    config = RUN.model_copy(update={"steps": steps, "validate_every": steps})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            options = Options(Path(folder), save_every=float("inf"))
            data = load(
                config.data, model=config.model, batch=config.batch, seed=config.seed, cache=Path(folder) / "data"
            )
            bare = _bare_loop(config, data.outputs, [data.batch(step) for step in range(config.record_every)])
            fastest = {"lab": float("inf"), "bare": float("inf")}
            since = time.perf_counter()

            def take_turns(progress: Progress) -> None:
                nonlocal since
                fastest["lab"] = min(fastest["lab"], time.perf_counter() - since)
                since = time.perf_counter()
                bare()
                fastest["bare"] = min(fastest["bare"], time.perf_counter() - since)
                since = time.perf_counter()

            train(config, options, report=take_turns)
    finally:
        torch.set_num_threads(threads)
    seconds = {name: value / config.record_every for name, value in fastest.items()}
    return {**seconds, "ratio": seconds["lab"] / seconds["bare"]}


def _bare_loop(config: Any, outputs: int, batches: list[Batch]) -> Callable[[], None]:
    torch.manual_seed(config.seed)
    model = networks.build_model(config.model, outputs)
    optimizer = construction.build(config.optimizer, networks.parameter_groups(model), total_steps=config.steps)

    def steps() -> None:
        for batch in batches:
            networks.cross_entropy(networks.logits(model, batch.inputs), batch.targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    return steps


def table(report: dict[str, float]) -> list[str]:
    """Lay out a report."""
    met = "met" if report["ratio"] <= TARGET else "not met"
    return [
        f"lab: a step is {1e3 * report['lab']:.3g} ms, bare forward, backward and step {1e3 * report['bare']:.3g} ms",
        f"  ratio {report['ratio']:.3f} (at most {TARGET}: {met})",
        "",
    ]
