"""How long alpha and beta3 have to warm up: the paper's figure a_b3_warmup_hyp.

The text of the paper does not give the warm-ups that were tried; ours are `WARMUPS`, and fewer at laptop scale. In the
lab a run counts as diverged only once its loss is not finite. Clipping mostly prevents that, so claims about divergence
ask whether a run breaks down: whether it diverges or ends above where AdamW was after a tenth of the steps.
"""

from __future__ import annotations

from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Claim, as_low_as, breaks_down, lower
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, changed, named

WARMUPS = {"smoke": (0, 64_000), "laptop": (0, 64_000), "paper": (0, 8000, 32_000, 64_000, 128_000)}
"""Beside T, in steps of the paper."""
TITLES = {
    ("alpha_warmup", "beta3_warmup"): "Sensitivity to the warm-up of alpha and beta3",
    ("alpha_warmup",): "Sensitivity to the warm-up of alpha alone",
}


def plan(at: Scale) -> Panels:
    """Yield a panel with both warm-ups tied, and one in which beta3 always warms up over the whole run."""
    lm = at.lm("110m")
    whole = lm.run("ademamix", alpha=10, beta3=lm.beta3(0.9999))
    none, enough, full = "no warm-up", named("warm-up", lm.steps(64_000), 64_000), f"warm-up={whole.steps:,}"
    for settings, title in TITLES.items():
        tied = len(settings) > 1
        warmups = {
            named("warm-up", lm.steps(steps), steps) if steps else none: changed(
                whole, **dict.fromkeys(settings, lm.steps(steps) if steps else 0)
            )
            for steps in WARMUPS[at.name]
        }
        what = "alpha and beta3" if tied else "alpha"
        yield Panel(
            title,
            {"AdamW": lm.run("adamw"), **warmups, full: whole},
            show=[Curves()],
            claims=[
                Claim(
                    "With no warm-up of alpha and beta3, training diverges or converges to a worse loss",
                    lower(full, none),
                    source="when not enough warmup steps are used, the iterates either diverge or converge to slightly "
                    "worse loss values",
                )
                if tied
                else Claim(
                    "A warm-up of alpha is necessary: without one, training breaks down",
                    breaks_down(none),
                    source="T_alpha needs to be large enough to avoid divergence",
                ),
                Claim(
                    f"The warm-up of {what} needs only to be large enough: with a quarter of the run the loss ends "
                    "below that with the whole run, or within 0.01 of it",
                    as_low_as(enough, full),
                    source="T_alpha and T_beta3 should only be large enough to prevent instabilities early during "
                    "training",
                ),
            ],
            caption=f"AdEMAMix: alpha = 10, beta3 = {lm.beta3(0.9999):g}.",
        )
