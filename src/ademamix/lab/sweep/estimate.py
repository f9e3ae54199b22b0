"""How long a run would take, from a few of its steps."""

from __future__ import annotations

import time

import torch

from ademamix.lab import data
from ademamix.lab.config import ConfigError, Run
from ademamix.lab.data.hub import is_of_the_hub
from ademamix.lab.runs.execution import Options
from ademamix.lab.runs.pace import Pace
from ademamix.lab.train import Training

PROBE = 2.0  # seconds of steps
LARGEST_ON_CPU = 50e6  # parameters of the layers; a step of a larger model would take too long to time


def seconds_of(run: Run, options: Options, *, threads: int) -> float:
    """Time some steps and a validation of a run, and return how long all of it would take."""
    if is_of_the_hub(run.data.source):
        raise ConfigError(f"its data, {run.data.source}, would have to be downloaded first")
    if options.device == "cpu" and 12 * run.model.width**2 * run.model.layers > LARGEST_ON_CPU:
        raise ConfigError("a step of so large a model on a CPU takes too long to be timed")
    torch.set_num_threads(threads)
    dataset = data.load(run.data, model=run.model, batch=run.batch, seed=run.seed, cache=options.data)
    training, pace = Training(run, dataset, options.device, options.logits_bytes), Pace(run)
    training.advance()  # the first takes longer
    end = time.monotonic() + PROBE
    while True:
        with pace.measured("step"):
            training.advance()
        if time.monotonic() > end:
            break
    with pace.measured("validation"):
        training.validate()
    return pace.seconds_left(0)
