"""AdEMAMix with and without the schedule of alpha: the paper's figure small_alpha_no_sc.

The text of the paper does not give alpha for its 110M models; ours are `ALPHAS`. beta3 has its schedule everywhere.
"An alpha-scheduler over 256k steps", of the 1.3B model, is read as a warm-up of alpha over that many of its 770k steps.
At laptop scale there is one model, so the panel of the 1.3B model is left out there. A run is as unstable as the
largest rise of its training loss, a mean of ten steps, above the lowest before, which counts as infinite where the run
breaks down, since it then stays high without a spike. To diverge is to break down: to end
above where the run with the schedule was after a tenth of the steps, or not to be finite.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import (
    SPIKE,
    Claim,
    Quantity,
    as_low_as,
    breaks_down,
    gap,
    largest_rise,
    lower,
    overall,
    trains,
)
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, Setting, changed, grid

ALPHAS = {"smoke": (2, 10), "laptop": (2, 10), "paper": (2, 4, 6, 8, 10)}


def plan(at: Scale) -> Panels:
    """Yield the panel of the 110M model and, except at laptop scale, that of the 1.3B model."""
    yield _small(at.lm("110m"), ALPHAS[at.name])
    if at.name != "laptop":
        yield _large(at.lm("1.3b"))


def _small(lm: Setting, alphas: tuple[int, ...]) -> Panel:
    sweep = grid(lm.run("ademamix", beta3=lm.beta3(0.9999)), alpha=alphas)
    scheduled = {f"{name}, schedule": run for name, run in sweep.items()}
    unscheduled = {f"{name}, no schedule": changed(run, alpha_warmup=0) for name, run in sweep.items()}
    smallest = next(iter(unscheduled))
    return Panel(
        f"No schedule of alpha: {lm.title}",
        {"AdamW": lm.run("adamw"), **scheduled, **unscheduled},
        show=[Curves()],
        claims=[
            Claim(
                "Runs with the schedule of alpha are more stable: without it the largest rise of the loss is larger by "
                f"{SPIKE:g} on average",
                lower(SPIKE, gap(_mean_rise("no schedule", unscheduled), _mean_rise("schedule", scheduled))),
                source="The experiments with alpha-scheduler are more stable",
            ),
            Claim(
                "The schedule reduces the sensitivity to alpha: the last losses are closer together",
                lower(
                    overall("the range with the schedule", _range, scheduled), overall("without", _range, unscheduled)
                ),
            ),
            Claim(
                f"A small alpha converges without the schedule: {smallest} ends below AdamW, or within 0.01 of it",
                as_low_as(smallest, "AdamW"),
            ),
            Claim(
                "It is easier to reach good losses with the schedule: the mean of the last losses is lower",
                lower(
                    overall("the mean with the schedule", statistics.fmean, scheduled),
                    overall("the mean without", statistics.fmean, unscheduled),
                ),
            ),
        ],
    )


def _large(lm: Setting) -> Panel:
    base = lm.run("ademamix", alpha=5)
    scheduled, stable, unstable = "alpha=5, schedule", "alpha=1, no schedule", "alpha=5, no schedule"
    arms = {
        scheduled: changed(base, alpha_warmup=lm.steps(256_000)),
        stable: changed(base, alpha=1, alpha_warmup=0),
        unstable: changed(base, alpha_warmup=0),
    }
    return Panel(
        f"No schedule of alpha: {lm.title}",
        arms,
        show=[Curves()],
        claims=[
            Claim("Without the schedule alpha = 5 diverges", breaks_down(unstable, scheduled)),
            Claim("Without the schedule alpha = 1 converges", trains(stable, scheduled)),
            Claim("Without the schedule alpha = 1 ends slightly worse than AdEMAMix with it", lower(scheduled, stable)),
        ],
    )


def _mean_rise(label: str, arms: Iterable[str]) -> Quantity:
    return overall(f"mean rise, {label}", statistics.fmean, [largest_rise(arm, "loss") for arm in arms])


def _range(losses: Sequence[float]) -> float:
    return max(losses) - min(losses)
