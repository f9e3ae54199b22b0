"""AdamW and AdEMAMix on Mamba language models: the paper's figure mamba.

At paper scale the settings are those of appendix B. That the gain is "consistent" with that on Transformers is read as
their main result: AdEMAMix ends as low as AdamW after twice the steps.

At laptop scale there is one length, 3,000 steps of `mamba-tiny` with 0.1M parameters: a step takes about as long as
seven of the small GPT, so a run takes as long as its 20,000. The gain is therefore compared at equal length alone. The
learning rate and beta2 of both are searched alike on seed 0. beta3 follows the horizon.
"""

from __future__ import annotations

from dataclasses import replace

from ademamix.lab.comparison.defaults import OPTIMIZERS, WEIGHT_DECAY, warmup
from ademamix.lab.config import Cosine, Mamba, Optimizer, Run, Text, validation_interval
from ademamix.lab.presets import PRESETS
from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Claim, as_low_as, lower
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import WARMUP, Scale, Setting

LENGTHS = {"smoke": (10, 20), "laptop": (3000,), "paper": (64_000, 128_000)}
ALPHA = 8
RATE, BATCH = 6e-4, 120
"""The paper's."""
TOKENS = 16_000_000_000
"""More than the longest run at paper scale reads, so that none is read twice."""


def plan(at: Scale) -> Panels:
    """Yield both optimizers at each length."""
    lm, lengths = _model(at), LENGTHS[at.name]
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


def _model(at: Scale) -> Setting:
    if at.name == "paper":
        return PAPER
    lm, steps = at.lm("110m"), LENGTHS[at.name][-1]
    small = (
        Mamba(kind="mamba", width=16, layers=1, state=4, context=16) if at.name == "smoke" else PRESETS["mamba-tiny"]
    )
    return replace(
        lm.with_base(
            "A small Mamba",
            model=small,
            schedule=Cosine(kind="cosine", warmup=warmup(steps)),
            steps=steps,
            validate_every=validation_interval(steps, lm.base.batch),
        ),
        adamw=Optimizer(name="adamw", lr=OPTIMIZERS["adamw"].lr, settings=WEIGHT_DECAY),
        ademamix=Optimizer(name="ademamix", lr=OPTIMIZERS["ademamix"].lr, settings={**WEIGHT_DECAY, "alpha": ALPHA}),
    )


def _paper() -> Setting:
    longest = LENGTHS["paper"][-1]
    adamw = Optimizer(name="adamw", lr=RATE, settings={**WEIGHT_DECAY, "betas": [0.9, 0.999]})
    betas = {"betas": [0.9, 0.999, 0.9999], "alpha": ALPHA}
    return Setting(
        "Mamba, 168M parameters",
        Run(
            model=PRESETS["mamba-168m"],
            data=Text(kind="text", source="hub:fineweb", tokenizer="hub:EleutherAI/gpt-neox-20b", tokens=TOKENS),
            optimizer=adamw,
            schedule=Cosine(kind="cosine", warmup=WARMUP),
            steps=longest,
            batch=BATCH,
            clip=1.0,
            autocast=True,
            validate_every=2000,
        ),
        adamw=adamw,
        ademamix=Optimizer(name="ademamix", lr=RATE, settings={**WEIGHT_DECAY, **betas}),
        paper_steps=longest,
    )


PAPER = _paper()
"""The settings of appendix B, in bf16 like the paper's other language models."""
