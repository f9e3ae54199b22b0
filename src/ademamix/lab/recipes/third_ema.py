"""AdEMAMix with a third average: the paper's figure aggmo.

The text of the paper does not give the triplets (beta1, beta3, beta4) that were tried; ours are `TRIPLETS`. As in the
paper alpha is 4 for Ad3EMAMix, half of AdEMAMix's, so that the slow averages together weigh the same.
"""

from __future__ import annotations

from ademamix.hyperparameters import BETAS
from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Claim, as_low_as, every
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale

ALPHA = 4
FEWER = ((0.9, 0.999, 0.9999), (0.9, 0.9999, 0.99999))
TRIPLETS = {"smoke": FEWER[:1], "laptop": FEWER, "paper": (*FEWER, (0.9, 0.999, 0.99999), (0.9, 0.99, 0.9999))}


def plan(at: Scale) -> Panels:
    """Yield AdEMAMix, and Ad3EMAMix with each triplet."""
    lm = at.lm("110m")
    ademamix = lm.run("ademamix")
    beta2 = ademamix.optimizer.settings.get("betas", BETAS)[1]
    triplets = {}
    for beta1, *slow in TRIPLETS[at.name]:
        beta3, beta4 = map(lm.beta3, slow)
        run = lm.run("ad3emamix", lr=ademamix.optimizer.lr, betas=[beta1, beta2, beta3, beta4], alpha=ALPHA)
        triplets[f"Ad3EMAMix ({beta1:g}, {beta3:g}, {beta4:g})"] = run
    yield Panel(
        "A third average",
        {"AdEMAMix": ademamix, **triplets},
        show=[Curves()],
        claims=[
            Claim(
                "No model with a third average outperforms AdEMAMix, by 0.01 or more",
                every(*(as_low_as("AdEMAMix", name) for name in triplets)),
            ),
        ],
        caption=f"In brackets beta1, beta3 and beta4. Ad3EMAMix: alpha = {ALPHA}.",
    )
