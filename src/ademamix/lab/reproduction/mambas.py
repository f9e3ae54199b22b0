"""The Mamba language model of each scale."""

from __future__ import annotations

from dataclasses import replace

from ademamix.lab.comparison.defaults import OPTIMIZERS, WEIGHT_DECAY
from ademamix.lab.config import Cosine, Mamba, Optimizer, Run, Text
from ademamix.lab.models import PRESETS
from ademamix.lab.reproduction.scale import VALIDATE_EVERY, WARMUP, Scale, Setting

ALPHA = 8
RATE, BATCH, STEPS = 6e-4, 120, 128_000
"""The paper's, of appendix B."""
TOKENS = 16_000_000_000
"""More than the longest run at paper scale reads, so that none is read twice."""


def mamba(at: Scale, steps: int) -> Setting:
    """Return the model of a scale, whose longest run has so many steps; at paper scale they are the paper's."""
    if at.name == "paper":
        return PAPER
    tiny = Mamba(kind="mamba", width=16, layers=1, state=4, context=16)
    return replace(
        at.lm("110m").of_steps("A small Mamba", steps, model=tiny if at.name == "smoke" else PRESETS["mamba-tiny"]),
        adamw=Optimizer(name="adamw", lr=OPTIMIZERS["adamw"].lr, settings=WEIGHT_DECAY),
        ademamix=Optimizer(name="ademamix", lr=OPTIMIZERS["ademamix"].lr, settings={**WEIGHT_DECAY, "alpha": ALPHA}),
    )


def _paper() -> Setting:
    adamw = Optimizer(name="adamw", lr=RATE, settings={**WEIGHT_DECAY, "betas": [0.9, 0.999]})
    betas = {"betas": [0.9, 0.999, 0.9999], "alpha": ALPHA}
    return Setting(
        "Mamba, 168M parameters",
        Run(
            model=PRESETS["mamba-168m"],
            data=Text(kind="text", source="hub:fineweb", tokenizer="hub:EleutherAI/gpt-neox-20b", tokens=TOKENS),
            optimizer=adamw,
            schedule=Cosine(kind="cosine", warmup=WARMUP),
            steps=STEPS,
            batch=BATCH,
            clip=1.0,
            autocast=True,
            validate_every=VALIDATE_EVERY,
        ),
        adamw=adamw,
        ademamix=Optimizer(name="ademamix", lr=RATE, settings={**WEIGHT_DECAY, **betas}),
        paper_steps=STEPS,
    )


PAPER = _paper()
"""The settings of appendix B, in bf16 like the paper's other language models."""
