"""Which beta3 suits the length of a run, and what AdEMAMix gains at each length: a study of ours.

AdamW is tuned at every length, in learning rate and beta2. AdEMAMix has what its constructor chooses, given the length
alone: beta2 0.999, alpha 5, and a slow average that remembers a fixed share of the run. Only its learning rate is
searched. Other shares and other alphas take over that rate, so that they are at a slight disadvantage.

The speed-up is the number of AdamW's steps with the same loss, over the steps of AdEMAMix. It is read off AdamW's runs
of all lengths, between which the loss is taken to fall linearly with the logarithm of the steps, seed by seed. The
learning rate warms up over a hundredth of the run, but over at least 20 steps and at most those of `lm-comparison`.
"""

from __future__ import annotations

from ademamix.hyperparameters import ALPHA
from ademamix.lab.config import Text
from ademamix.lab.reproduction.claims import Claim, as_low_as, every, lower, ordered, part
from ademamix.lab.reproduction.lengths import Arms
from ademamix.lab.reproduction.panel import Panels
from ademamix.lab.reproduction.scale import LARGER, Scale
from ademamix.schedules import HORIZON_FRACTION

LENGTHS = {
    "smoke": (10, 20),
    "laptop": (500, 1000, 2000, 3000, 5000, 10_000, 20_000, 40_000),
    "paper": (32_000, 64_000, 128_000, 256_000),
}
LENGTHS_LARGER = (500, 1000, 2000, 3000, 5000, 7000, 10_000, 20_000)
"""Of the larger model at laptop scale, whose steps take almost three times as long."""
ADAMW_ALONE = {"small-code": (80_000,)}
"""Further lengths by panel, at which only AdamW is trained: they tell what the longest runs of AdEMAMix are worth."""
SHARES = (0.02, HORIZON_FRACTION, 0.125)
"""Of the run, that the slow average remembers: half of our rule, our rule, and that of arXiv 2602.05298."""
ALPHAS = (2.0, float(ALPHA), 10.0)
MOST_STEPS = {"alpha": 10_000, "share": 20_000}
MOST_STEPS_LARGER = {"alpha": 3000, "share": 3000}
MOST_STEPS_PAPER = {"alpha": 64_000, "share": 128_000}
"""Other alphas and other shares are tried in runs of up to this length: twice as long is twice as dear."""
PAYS_FROM = 1000
NO_WORSE = 1.005
MARGIN = 0.005
"""A mean over all lengths that is no further above another is as good."""
LEAST_RANGE = 4
"""A speed-up is compared only where AdamW's longest runs have at least this many times the steps: beyond, too little is
known of it."""


def plan(at: Scale) -> Panels:
    """Yield a panel for each model and text."""
    for figure, arms in _arms(at).items():
        yield arms.panel(
            _claims(arms),
            caption=f"beta3 = 1 - 1/(share T); our rule has the share {HORIZON_FRACTION:g} and alpha {ALPHA:g}.",
            figure=figure,
            warning=at.too_short(arms.lm.base.steps),
        )


def _arms(at: Scale) -> dict[str, Arms]:
    """Return the arms of each panel, by the name of its figure."""
    lm, lengths = at.lm("110m"), LENGTHS[at.name]
    if at.name != "laptop":
        return {"": Arms(lm, lengths, SHARES, ALPHAS, MOST_STEPS_PAPER if at.name == "paper" else MOST_STEPS)}
    prose = Text(kind="text", source="kjv")
    small = (lengths, SHARES, ALPHAS, MOST_STEPS)
    panels = {
        "small-code": (lm.with_base("0.03M parameters, code"), *small),
        "small-prose": (lm.with_base("0.03M parameters, prose", data=prose), *small),
        "larger-code": (LARGER.with_base("0.17M parameters, code"), LENGTHS_LARGER, SHARES, ALPHAS, MOST_STEPS_LARGER),
    }
    return {figure: Arms(*panel, ADAMW_ALONE.get(figure, ())) for figure, panel in panels.items()}


def _claims(arms: Arms) -> list[Claim]:
    long, short = ([steps for steps in arms.lengths if (steps >= PAYS_FROM) == is_long] for is_long in (True, False))
    claims = []
    if long:
        claims.append(
            Claim(
                f"Given a rate and the length alone, AdEMAMix ends below a tuned AdamW from {long[0]:,} steps on",
                every(*(lower(arms.ademamix(steps), arms.adamw(steps)) for steps in long)),
            )
        )
    if short:
        no_worse = [as_low_as(arms.ademamix(steps), part(NO_WORSE, arms.adamw(steps)), margin=0.0) for steps in short]
        claims.append(Claim(f"Below {PAYS_FROM:,} steps it ends at most 0.5% above AdamW", every(*no_worse)))
    other_shares = [share for share in SHARES if share != HORIZON_FRACTION]
    claims += [arms.as_good(f"{share:g} T", "share", MARGIN, share=share) for share in other_shares]
    claims += [arms.as_good(f"alpha {alpha:g}", "alpha", MARGIN, alpha=alpha) for alpha in ALPHAS if alpha != ALPHA]
    told = [steps for steps in arms.lengths if LEAST_RANGE * steps <= max(arms.adamw_lengths)]
    if len(told) > 1:
        longer = ordered(*(arms.least_speed_up(steps) for steps in told))
        claims.append(Claim("The longer the run, the larger is the speed-up", longer))
    return claims
