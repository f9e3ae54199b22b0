"""How long runs will take, from short ones that are timed."""

from __future__ import annotations

import shutil
import statistics
from dataclasses import replace

from ademamix.lab.config import VALIDATION_COST, ConfigError, Cosine, Run
from ademamix.lab.data.hub import is_of_the_hub
from ademamix.lab.execution.laboratory import Lab
from ademamix.lab.runs.record import RunFolder

PROBE_STEPS = 100
LARGEST_ON_CPU = 50e6  # parameters of the layers; a step of a larger model would take too long to time
OVERHEAD = 1.05
"""For checkpoints and for the beginning of a run."""


def seconds_per_step(run: Run, lab: Lab) -> float:
    """Return how long a step of a run takes while as many run beside it as later will; nothing of this is kept."""
    if is_of_the_hub(run.data.source):
        raise ConfigError(f"its data, {run.data.source}, would have to be downloaded first")
    if lab.options.device == "cpu" and 12 * run.model.width**2 * run.model.layers > LARGEST_ON_CPU:
        raise ConfigError("a step of so large a model on a CPU takes too long to be timed")
    probe = run.changed(
        steps=PROBE_STEPS, validate_every=PROBE_STEPS, schedule=Cosine(kind="cosine"), phases=(), probes=()
    )
    probes = {f"timing, {number}": probe.changed(seed=number) for number in range(lab.at_once)}
    folders = [RunFolder(lab.options.runs, each).path for each in probes.values()]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # the times of another day
    results = replace(lab, archive=None).carry_out(probes, "Timing short runs.")
    for folder in folders:
        shutil.rmtree(folder)
    return statistics.fmean(result.seconds_per_step for result in results.values())


def seconds_of(run: Run, per_step: float, steps: int | None = None) -> float:
    """Return how long so many steps of a run take with their validations, or all of it.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> round(seconds_of(DEFAULT, per_step=0.006))
    132
    """
    validations = VALIDATION_COST * run.validation_examples / run.batch / run.validate_every
    return OVERHEAD * (run.steps if steps is None else steps) * (1 + validations) * per_step
