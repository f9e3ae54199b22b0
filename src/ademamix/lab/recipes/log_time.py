"""Log-time schedules for AdEMAMix (arXiv 2602.05298), and Simplified-AdEMAMix (arXiv 2502.02431).

Log-time schedules let what is remembered grow with the step: beta3(t) = 1 - 8/(8 + t), alpha(t) = (1 + t)^0.15, and a
weight decay in proportion to 1/t. The constants 8 and 0.15 are those of the paper that proposes them. Its own code
gives AdEMAMix a beta3 that ends at 1 - 8/T on AdEMAMix's schedule, which is nearly the same beta3(t), and an alpha that
rises linearly to T^0.15. Here beta3 and alpha follow the two equations, and AdEMAMix without them has the schedules and
the alpha of its own paper, and a beta3 for the horizon.

Weight decay 1/t is lambda T / (T/10 + t), as in that paper's code, where it is lambda if constant: ten times lambda at
first, and hardly less than lambda at the end. There the learning rate is no factor of it beyond its schedule; here it
is, for all arms.

The authors of Simplified-AdEMAMix give a rule for its first learning rate, which is followed. Weight decay is raised by
as much as that lowers the rate, so that their product is AdamW's. Its beta1 is AdEMAMix's beta3 and its beta2 AdamW's.
Its alpha depends on the batch: theirs is about 100 for 32k tokens, and half of that for twice as many, which is the
batch at paper scale. At laptop scale 20 was the best of 0, 5, 10, 20, 50 and 100, on seed 0 at the first rate.

At laptop scale a run has 10,000 steps, half of those of the other recipes: with twice as many the model is nearly
saturated. The learning rate of every arm is searched on seed 0, and beta2 of all but Simplified-AdEMAMix. At paper
scale nothing is searched, and arms with log-time schedules have the learning rates of those without.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ademamix.hyperparameters import BETAS
from ademamix.lab.config import Run
from ademamix.lab.optimizers import WEIGHT_DECAY
from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Claim, as_low_as, every, lower
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, Setting
from ademamix.schedules import beta3_for_horizon

LAPTOP_STEPS = 10_000
EARLY = 10
"""Weight decay of 1/t begins at so many times the constant one, and falls from a tenth of the run on."""
GRADIENT_WEIGHTS = {"smoke": 20.0, "laptop": 20.0, "paper": 50.0}
"""The alpha of Simplified-AdEMAMix."""

ADAMW, ADEMAMIX, SIMPLIFIED = "AdamW", "AdEMAMix", "Simplified-AdEMAMix"
ADAMW_DECAY = "AdamW, weight decay 1/t"
LOG_TIME = "AdEMAMix, log-time"
LOG_TIME_DECAY = "AdEMAMix, log-time, weight decay 1/t"


def plan(at: Scale) -> Panels:
    """Yield AdamW and AdEMAMix with and without log-time schedules, and Simplified-AdEMAMix."""
    lm = _setting(at)
    decay = {"weight_decay": EARLY * WEIGHT_DECAY, "decay_time": lm.base.steps / EARLY}
    arms = {
        ADAMW: lm.run("adamw"),
        ADAMW_DECAY: lm.run("log-time-ademamix", alpha=0.0, kappa=None, **decay),
        ADEMAMIX: lm.run("ademamix"),
        LOG_TIME: lm.run("log-time-ademamix", lr=lm.ademamix.lr),
        LOG_TIME_DECAY: lm.run("log-time-ademamix", lr=lm.ademamix.lr, **decay),
        SIMPLIFIED: _simplified(lm, GRADIENT_WEIGHTS[at.name]),
    }
    yield Panel(
        "Log-time schedules",
        arms,
        tune=list(arms),
        show=[Curves(arms=[*arms][:5]), Curves(arms=[ADAMW, ADEMAMIX, SIMPLIFIED])],
        claims=list(_claims()),
        caption="(a) Log-time schedules and weight decay; (b) Simplified-AdEMAMix, "
        f"alpha = {GRADIENT_WEIGHTS[at.name]:g}.",
    )


def _setting(at: Scale) -> Setting:
    lm = at.lm("110m")
    return lm.of_steps(lm.title, LAPTOP_STEPS) if at.name == "laptop" else lm


def _simplified(lm: Setting, alpha: float) -> Run:
    beta1 = beta3_for_horizon(lm.base.steps, BETAS[0])
    rate = math.sqrt((1 - BETAS[0]) * (1 - beta1))
    return lm.run(
        "simplified-ademamix",
        lr=float(f"{lm.adamw.lr * rate:.2g}"),
        weight_decay=float(f"{WEIGHT_DECAY / rate:.2g}"),
        betas=[beta1, lm.adamw.settings.get("betas", BETAS)[1]],
        alpha=alpha,
    )


def _claims() -> Iterator[Claim]:
    yield Claim(
        "Log-time schedules of beta3 and alpha improve AdEMAMix",
        lower(LOG_TIME, ADEMAMIX),
        source="We further show that similar benefits arise when applying logarithmic-time scheduling to AdEMAMix",
    )
    yield Claim(
        "With all log-time schedules, weight decay among them, AdEMAMix ends below tuned AdamW and tuned AdEMAMix",
        every(lower(LOG_TIME_DECAY, ADAMW), lower(LOG_TIME_DECAY, ADEMAMIX)),
    )
    yield Claim(
        "Log-time weight decay alone improves AdamW",
        lower(ADAMW_DECAY, ADAMW),
        source="logarithmic-time weight-decay alone can yield significant improvements",
    )
    yield Claim("Log-time weight decay improves AdEMAMix with log-time schedules", lower(LOG_TIME_DECAY, LOG_TIME))
    yield Claim(
        "Simplified-AdEMAMix ends as low as AdEMAMix, or within 0.01 of it (arXiv 2502.02431)",
        as_low_as(SIMPLIFIED, ADEMAMIX),
        source="maintains the same performance as AdEMAMix across both large and small batch-size settings while "
        "eliminating the need for two different momentum terms",
    )
    yield Claim("Simplified-AdEMAMix ends below AdamW (arXiv 2502.02431)", lower(SIMPLIFIED, ADAMW))
