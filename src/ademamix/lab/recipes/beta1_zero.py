"""AdEMAMix without its fast average: the paper's figures b1_0_bs and b1_0_1300.

The paper does not give alpha for its 110M models; here it is 10, as in its sweep over beta1, to which it refers. The
number of steps is the same for all batches. Batches shrink with that of the scale; at laptop scale there are two of
them. The second panel is that of the 1.3B model, which is the small one there. A run is as unstable as the largest rise
of its training loss, a mean of ten steps, above the lowest before; an instability is a rise that beta1 = 0 makes larger
by 0.1. "Similar" is a difference of at most 0.01.
"""

from __future__ import annotations

from ademamix.lab.config import Run
from ademamix.lab.report.kinds import Curves, EndAgainst
from ademamix.lab.reproduction.claims import (
    SIMILAR,
    SPIKE,
    Claim,
    as_low_as,
    gap,
    largest_rise,
    lower,
    memory,
    ratio,
    within,
)
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, changed

BATCHES = {"smoke": (32, 64), "laptop": (16, 64), "paper": (4, 8, 16, 32, 64, 128)}
PAPER_BATCH = 64


def plan(at: Scale) -> Panels:
    """Yield both beta1 with several batches, and both beside AdamW for the large model."""
    lm = at.lm("110m")
    base = lm.run("ademamix", alpha=10, beta3=lm.beta3(0.9999))
    batches = [base.batch * batch // PAPER_BATCH for batch in BATCHES[at.name]]
    groups = {beta1: [f"batch {batch}, beta1={beta1}" for batch in batches] for beta1 in ("0.9", "0")}
    sized = [changed(base, batch=batch) for batch in batches]
    with_average = dict(zip(groups["0.9"], sized, strict=True))
    without = {name: changed(run, beta1=0) for name, run in zip(groups["0"], sized, strict=True)}
    yield Panel(
        "Batch sizes with beta1 = 0",
        with_average | without,
        show=[Curves(), EndAgainst("batch", [(f"beta1 = {beta1}", names) for beta1, names in groups.items()])],
        claims=_of_batches(groups["0.9"], groups["0"]),
        caption=f"AdEMAMix: alpha = 10, beta3 = {lm.beta3(0.9999):g}.",
    )
    large = at.lm("1.3b")
    runs: dict[str, Run] = {"AdamW": large.run("adamw"), "beta1=0.9": large.run("ademamix")}
    yield Panel(
        f"beta1 = 0: {large.title}",
        runs | {"beta1=0": large.run("ademamix", beta1=0)},
        show=[Curves()],
        claims=[
            Claim(
                "It is possible to converge with beta1 = 0: it ends below AdamW, or within 0.01 of it",
                as_low_as("beta1=0", "AdamW"),
            ),
            Claim("The last loss with beta1 = 0 is slightly better than with 0.9", lower("beta1=0", "beta1=0.9")),
            Claim(
                "With beta1 = 0 the memory complexity is the same as AdamW's: the states differ by at most 1%",
                within(0.01, ratio("the state with beta1 = 0 over AdamW's", memory("beta1=0"), memory("AdamW")), 1.0),
            ),
        ],
        figure="large",
    )


def _of_batches(with_average: list[str], without: list[str]) -> list[Claim]:
    smallest, largest = (
        gap(*(largest_rise(names[place], "loss") for names in (without, with_average))) for place in (0, -1)
    )
    return [
        Claim(
            "beta1 = 0 is less stable with larger batches: it adds more to the largest rise of the loss",
            lower(smallest, largest),
        ),
        Claim("With the largest batch instabilities are observed with beta1 = 0", lower(SPIKE, largest)),
        Claim("With the smallest batch no instabilities are observed", lower(smallest, SPIKE)),
        Claim("With the smallest batch beta1 = 0.9 is slightly better", lower(with_average[0], without[0])),
        Claim("With the largest batch the last losses are similar", within(SIMILAR, with_average[-1], without[-1])),
    ]
