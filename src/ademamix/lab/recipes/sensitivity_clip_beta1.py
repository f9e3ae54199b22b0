"""How much gradient clipping and beta1 matter: the paper's figure clip_b1_hyp.

The text of the paper does not give the limits of the norm that were tried; ours are those of its table 110_hyper. At
laptop scale there are fewer, and fewer beta1. A curve is as rough as its validation losses are far from midway between
their neighbours. It has spikes if the largest rise of the training loss, a mean of ten steps, above the lowest before
exceeds that with beta1 = 0.9 by 0.1. "Little impact" on the last loss is a difference of at most 0.01.
"""

from __future__ import annotations

from ademamix.lab.report.kinds import Curves, EndAgainst
from ademamix.lab.reproduction.claims import (
    SIMILAR,
    SPIKE,
    Claim,
    every,
    gap,
    largest_rise,
    lower,
    ordered,
    roughness,
    within,
)
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, grid

CLIPS = {"smoke": (None, 1.0), "laptop": (None, 1.0), "paper": (None, 5.0, 1.0, 0.5)}
BETA1S = {"smoke": (0, 0.3), "laptop": (0, 0.3), "paper": (0, 0.1, 0.3, 0.5, 0.7, 0.99)}
"""Beside 0.9."""


def plan(at: Scale) -> Panels:
    """Yield the sweep over the limit of the gradient's norm and the sweep over beta1."""
    lm = at.lm("110m")
    base = lm.run("ademamix", alpha=10, beta3=lm.beta3(0.9999))
    caption = f"AdEMAMix: alpha = 10, beta3 = {lm.beta3(0.9999):g}, warm-ups of {base.steps:,} steps."
    clips = grid(base, clip=CLIPS[at.name])
    unclipped, *_, clipped = clips
    yield Panel(
        "Sensitivity to gradient clipping",
        clips,
        show=[Curves()],
        claims=[
            Claim("Gradient clipping smooths the curves", lower(roughness(clipped), roughness(unclipped))),
            Claim("Gradient clipping improves the last loss", lower(clipped, unclipped)),
            Claim("Gradient clipping has little impact on the last loss", within(SIMILAR, clipped, unclipped)),
        ],
        caption=caption,
        figure="clip",
    )
    beta1s = {**grid(base, beta1=BETA1S[at.name]), "beta1=0.9": base}
    smaller = [*(f"beta1={beta1}" for beta1 in BETA1S[at.name] if beta1 < 0.9), "beta1=0.9"]
    yield Panel(
        "Sensitivity to beta1",
        beta1s,
        baseline="beta1=0.9",
        show=[Curves(), EndAgainst("beta1")],
        claims=[
            Claim("Smaller beta1 give noisier curves", ordered(*(roughness(name) for name in reversed(smaller)))),
            Claim(
                "The smallest beta1 gives loss spikes",
                lower(SPIKE, gap(*(largest_rise(name, "loss") for name in (smaller[0], smaller[-1])))),
                source="smaller beta1 values yield noisier curves, with multiple loss spikes",
            ),
            Claim(
                "The last loss is relatively unaffected by a smaller beta1",
                every(*(within(SIMILAR, name, "beta1=0.9") for name in smaller[:-1])),
            ),
            Claim(
                "Slightly better losses can be obtained with smaller beta1, such as 0.3",
                lower("beta1=0.3", "beta1=0.9"),
            ),
        ],
        caption=caption,
        figure="beta1",
    )
