"""Lion against AdamW: the paper's figure lion and table 110_hyper_lion.

At paper scale Lion has the best settings of the table. Below, its learning rate is searched on seed 0, with each beta
of its own; the search starts where the paper's ratio to AdamW's rate leads, and weight decay is the best of the table.
The large beta keeps the number of memories in a run; 0.99, Lion's own, stays what it is. In the lab a run counts as
diverged only once its loss is not finite, which clipping mostly prevents, so to break down is to end above where AdamW
was after a tenth of the steps. That the large beta has a learning rate of its own makes both claims about it harder.
"""

from __future__ import annotations

from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Claim, as_low_as, breaks_down
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, changed, named

RATE = 0.4
"""In units of AdamW's: 4e-4 against 1e-3 in the paper."""
WEIGHT_DECAY, ALPHA, BETA, LARGE_BETA = 0.25, 0.9, 0.99, 0.9999


def plan(at: Scale) -> Panels:
    """Yield AdamW, Lion, and Lion with a larger beta."""
    lm = at.lm("110m")
    large = lm.beta3(LARGE_BETA)
    lion, slow_lion = named("Lion, beta", BETA, BETA), named("Lion, beta", large, LARGE_BETA)
    best = lm.run("lion", lr=RATE * lm.adamw.lr, weight_decay=WEIGHT_DECAY, alpha=ALPHA)
    yield Panel(
        "Lion",
        {"AdamW": lm.run("adamw"), lion: changed(best, beta=BETA), slow_lion: changed(best, beta=large)},
        tune=[lion, slow_lion],
        show=[Curves()],
        claims=[
            Claim("Lion does not outperform AdamW, by 0.01 or more", as_low_as("AdamW", lion)),
            Claim(
                "Increasing Lion's beta beyond 0.99 is not successful",
                as_low_as(lion, slow_lion),
                source="no attempt to increase beta beyond 0.99 was successful, as those models mostly diverged",
            ),
            Claim("With a larger beta, Lion diverges or breaks down", breaks_down(slow_lion)),
        ],
        caption=f"Lion: weight decay {WEIGHT_DECAY:g}, alpha = {ALPHA:g}.",
    )
