"""AdamW and AdEMAMix on Mamba language models: the paper's figure mamba.

At paper scale the settings are those of appendix B. That the gain is "consistent" with that on Transformers is read as
their main result: AdEMAMix ends as low as AdamW after twice the steps.

At laptop scale there is one length, 3,000 steps of `mamba-tiny` with 0.1M parameters: a step takes about as long as
seven of the small GPT, so a run takes as long as its 20,000. The gain is therefore compared at equal length alone. The
learning rate and beta2 of both are searched alike on seed 0. beta3 follows the horizon.
"""

from __future__ import annotations

from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Claim, as_low_as, lower
from ademamix.lab.reproduction.mambas import STEPS, mamba
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale

LENGTHS = {"smoke": (10, 20), "laptop": (3000,), "paper": (STEPS // 2, STEPS)}


def plan(at: Scale) -> Panels:
    """Yield both optimizers at each length."""
    lengths = LENGTHS[at.name]
    lm = mamba(at, lengths[-1])
    adamw = {steps: f"AdamW, {steps:,} steps" for steps in lengths}
    ademamix = {steps: f"AdEMAMix, {steps:,} steps" for steps in lengths}
    arms = {name: lm.run("adamw", steps=steps) for steps, name in adamw.items()}
    arms |= {name: lm.run("ademamix", steps=steps) for steps, name in ademamix.items()}
    claims = [
        Claim(f"AdEMAMix ends below AdamW after the same {steps:,} steps", lower(ademamix[steps], adamw[steps]))
        for steps in lengths
    ]
    if len(lengths) > 1:
        short, long = lengths
        consistent = Claim(
            f"As on Transformers, AdEMAMix after {short:,} steps ends below AdamW after {long:,}, or within 0.01 of it",
            as_low_as(ademamix[short], adamw[long]),
            source="the improvement using AdEMAMix is consistent with our experiments on Transformer models",
        )
        claims.append(consistent)
    yield Panel(lm.title, arms, tune=list(arms), show=[Curves()], claims=claims)
