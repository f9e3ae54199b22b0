"""AdamW and AdEMAMix on language models: the paper's figures llm_results and adamw_197b.

AdamW is trained for T steps and longer, AdEMAMix for T. At laptop scale there are two models: one that has seen so many
bytes for each of its parameters that it is nearly saturated, and a larger one that is far from it. The learning rate
and beta2 of each arm, also of AdamW at 2T, are searched alike on seed 0, then fixed, and everything is trained on three
other seeds. beta3 follows the horizon, since the paper's 0.9999 remembers as many steps as such a run has.

At paper scale the settings are those of appendix B. The paper does not give the lengths of its 330M runs; here they are
those of the 110M ones.
"""

from __future__ import annotations

from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Claim, as_low_as, lower
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import LARGER, Scale, Setting

LONGER = {"110m": (400_000, 500_000), "330m": (400_000, 500_000), "1.3b": (1_500_000,)}
"""For how many steps the paper trains AdamW besides T."""


def plan(at: Scale) -> Panels:
    """Yield a panel for each model."""
    for lm, longer in _models(at):
        adamw = {f"AdamW, {steps:,} steps": lm.run("adamw", steps=steps) for steps in (lm.base.steps, *longer)}
        first, *_, longest = adamw
        ademamix = f"AdEMAMix, {lm.base.steps:,} steps"
        arms = adamw | {ademamix: lm.run("ademamix")}
        yield Panel(
            lm.title,
            arms,
            baseline=longest,
            tune=list(arms),
            show=[Curves(level=longest)],
            claims=[
                Claim(f"AdEMAMix ends below AdamW after the same {lm.base.steps:,} steps", lower(ademamix, first)),
                Claim(
                    f"AdEMAMix ends below AdamW after {longer[-1] / lm.base.steps:.3g} times as many steps, or within "
                    "0.01 of it",
                    as_low_as(ademamix, longest, margin=0.01),
                    source="our method reaches a similar loss as an AdamW model trained on nearly twice the number of "
                    "tokens (llm_results)",
                ),
            ],
        )


def _models(at: Scale) -> list[tuple[Setting, tuple[int, ...]]]:
    if at.name == "paper":
        return [(at.lm(size), longer) for size, longer in LONGER.items()]
    lm = at.lm("110m")
    models = [lm]
    if at.name == "laptop":
        models.append(LARGER)
    return [(model, (2 * model.base.steps,)) for model in models]
