"""Learning-rate schedules of the paper, as functions of the step."""

from __future__ import annotations

import math

from ademamix.lab.config import ConstantThenLinear, Cosine


def learning_rate(schedule: Cosine | ConstantThenLinear, peak: float, step: int, steps: int) -> float:
    r"""Return the learning rate of a step, counted from 1, in a run of `steps`.

    With W the warm-up, D the decay and T the run's length, all in steps:

    .. math::
        \text{both, } t \le W: \quad & \eta\, t / W \\
        \text{cosine:} \quad & \eta_{end} + (\eta - \eta_{end})\, (1 + \cos(\pi (t - W) / (T - W))) / 2 \\
        \text{constant, } t > T - D: \quad & \eta_{end} + (\eta - \eta_{end})\, (T - t) / D

    >>> cosine = Cosine(kind="cosine", warmup=10, final=0.0)
    >>> [learning_rate(cosine, 1.0, step, 110) for step in (1, 10, 60, 110)]
    [0.1, 1.0, 0.5, 0.0]
    >>> constant = ConstantThenLinear(kind="constant", warmup=10, decay=20)
    >>> [learning_rate(constant, 1.0, step, 110) for step in (1, 10, 90, 100, 110)]
    [0.1, 1.0, 1.0, 0.5, 0.0]

    Reference: sections 4 and B of the paper.
    """
    if step <= schedule.warmup:
        return peak * step / schedule.warmup
    if isinstance(schedule, Cosine):
        share_left = (1 + math.cos(math.pi * (step - schedule.warmup) / (steps - schedule.warmup))) / 2
    else:
        share_left = min(1.0, (steps - step) / schedule.decay) if schedule.decay else 1.0
    return schedule.final + (peak - schedule.final) * share_left
