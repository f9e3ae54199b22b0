"""A larger beta1 in AdamW in place of a second average: the paper's figure single-ema.

beta1 is here what beta3 is in AdEMAMix, so below paper scale it is shrunk like beta3. There beta1 = 0.99, which would
be the baseline's 0.9, and 0.99999 are left out. The paper had to increase beta2 for a scheduled beta1 = 0.99999 and
does not say how far: here 1 - beta2 is a tenth of AdamW's. All have AdamW's learning rate, as in the paper. An arm
breaks down if it diverges or ends above where AdamW was after a tenth of the steps; a gain below 0.01 is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ademamix.hyperparameters import BETAS
from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Claim, as_low_as, breaks_down, every, gap, lower, ordered, part, trains
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, Setting

BETAS1 = (0.99, 0.999, 0.9999, 0.99999)


def plan(at: Scale) -> Panels:
    """Yield AdamW with larger and larger beta1, constant and scheduled."""
    lm = at.lm("110m")
    betas = large_betas(at)
    constant = {_name(beta1): lm.run("adamw", betas=with_beta1(lm, beta1)) for beta1 in betas}
    scheduled = {
        _scheduled(beta1): lm.run(
            "adamw-scheduled-beta1", betas=with_beta1(lm, beta1, beta2_raised=beta1 == BETAS1[-1])
        )
        for beta1 in betas
    }
    yield Panel(
        "Increasing beta1 in AdamW",
        {"AdamW": lm.run("adamw"), **constant, **scheduled, "AdEMAMix": lm.run("ademamix")},
        show=[Curves(arms=["AdamW", *constant, "AdEMAMix"]), Curves(arms=["AdamW", *scheduled, "AdEMAMix"])],
        claims=list(_claims(betas)),
        caption="(a) A constant beta1; (b) a beta1 that rises like beta3 of AdEMAMix, over the whole run. "
        + in_words(lm, betas),
    )


def _name(beta1: float) -> str:
    return f"beta1 = {beta1:g}"


def _scheduled(beta1: float) -> str:
    return f"scheduled beta1 = {beta1:g}"


def large_betas(at: Scale) -> Sequence[float]:
    """Return the values of beta1 that are tried, as in the paper."""
    return BETAS1 if at.name == "paper" else BETAS1[1:3]


def with_beta1(lm: Setting, beta1: float, *, beta2_raised: bool = False) -> list[float]:
    """Return AdamW's betas with another beta1, shrunk as if it was a beta3, and beta2 as it is or raised."""
    beta2 = lm.adamw.settings.get("betas", BETAS)[1]
    return [lm.beta3(beta1), round(1 - (1 - beta2) / 10, 12) if beta2_raised else beta2]


def in_words(lm: Setting, betas: Sequence[float]) -> str:
    """Return what each beta1 of the paper is at this scale."""
    return ", ".join(f"beta1 = {beta1:g} of the paper is {lm.beta3(beta1):g} here" for beta1 in betas) + "."


def _claims(betas: Sequence[float]) -> Iterator[Claim]:
    constant, scheduled = [*map(_name, betas)], [*map(_scheduled, betas)]
    too_large = [beta1 for beta1 in betas if beta1 > 0.999]
    yield Claim(
        "No larger beta1 improves upon the AdamW baseline, by 0.01 or more",
        every(*(as_low_as("AdamW", arm) for arm in constant)),
    )
    yield Claim(
        "AdamW breaks down for beta1 > 0.999",
        every(*(breaks_down(_name(beta1)) for beta1 in too_large)),
        source="the optimizer is unable to cope with large values of beta1, diverging for beta1 > 0.999",
    )
    yield Claim(
        "A scheduler on beta1 prevents this: no arm with it breaks down, and for beta1 > 0.999 it ends lower",
        every(*map(trains, scheduled), *(lower(_scheduled(beta1), _name(beta1)) for beta1 in too_large)),
        source="While this prevents divergence, the final loss is getting worse as we increase beta1",
    )
    yield Claim(
        "With the scheduler too, no larger beta1 outperforms the baseline, by 0.01 or more",
        every(*(as_low_as("AdamW", arm) for arm in scheduled)),
    )
    yield Claim("With the scheduler the final loss is getting worse as beta1 increases", ordered("AdamW", *scheduled))
    gain = gap("AdamW", "AdEMAMix")
    yield Claim(
        "No larger beta1 in AdamW provides half of AdEMAMix's gain",
        every(
            lower("AdEMAMix", "AdamW"), *(lower(gap("AdamW", arm), part(0.5, gain)) for arm in (*constant, *scheduled))
        ),
        source="simply increasing beta1 in AdamW does not provide nearly the same gains as AdEMAMix",
    )
