"""The time of a step with AdEMAMix and with AdamW: the paper's figure time_resume_time.

In the time in which AdEMAMix takes T steps, AdamW takes more: the report has how many more, and what they would gain.
A step is a whole training step of the lab, with its data, both passes and clipping. torch's AdamW and one AdEMAMix take
turns in one process with one thread, on each seed. Of the passes, which are the same, the fastest of either counts for
both, and for each the fastest step of its optimizer; on a CPU in processor time. Both optimizers are fused, or both
foreach. fp32, bf16 and compact are storages of AdEMAMix's state.

The paper calls 2,379 and 5,421 more steps in 256,000 negligible, 0.9% and 2.1%; so negligible here is at most 2.1%, for
every model. Its state is fp32; what AdEMAMix adds with other storages, or foreach, is decided in claims of ours. For
the loss of AdamW after them there is no run: it is read off a line over the logarithm of the steps, through the ends of
AdamW after T and after about 2T. The paper's batches have 65,000 and 131,000 tokens, those at laptop scale 512 and
1,024: the fewer they are, the larger is the share of the optimizer. At paper scale the models are timed on a GPU, if
there is one, on the standard library's text with the paper's vocabulary; what is read does not change the time. Each
time is the fastest in 30 steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ademamix.lab.bench.runs_in_turns import measure_all
from ademamix.lab.config import Run, Text
from ademamix.lab.models import PRESETS
from ademamix.lab.report.kinds import Curves
from ademamix.lab.report.step_times import TimesAgainstSize, times_of, times_table
from ademamix.lab.reproduction.claims import Claim, Quantity, every, lower
from ademamix.lab.reproduction.outcome import Outcome
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale

ROUNDS = {"smoke": 2, "laptop": 30, "paper": 30}
NEGLIGIBLE = 5421 / 256_000
FP32, FOREACH = "AdEMAMix fp32", {"foreach": True}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    FP32: ({}, {}),
    "AdEMAMix bf16": ({}, {"state_storage": "bf16"}),
    "AdEMAMix compact": ({}, {"state_storage": "compact"}),
    "AdEMAMix fp32, beta1 = 0": ({}, {"beta1": 0.0}),
    "AdEMAMix fp32, foreach": (FOREACH, FOREACH),
}
"""Settings of AdamW and of AdEMAMix."""


def plan(at: Scale) -> Panels:
    """Yield the times, with the runs whose gap the additional steps would have to close."""
    lm = at.lm("110m")
    steps, more_steps = lm.base.steps, 500_000 if at.name == "paper" else 2 * lm.base.steps
    adamw, longer, ademamix = f"AdamW, {steps:,} steps", f"AdamW, {more_steps:,} steps", f"AdEMAMix, {steps:,} steps"

    def in_equal_time(found: Outcome) -> list[float]:
        ways = [math.log1p(share) / math.log(more_steps / steps) for share in _added(FP32, lm.title).values(found)]
        ends = zip(found.arms[adamw].losses, found.arms[longer].losses, ways, strict=True)
        return [short + way * (long - short) for short, long, way in ends]

    yield Panel(
        "The time of a step",
        {adamw: lm.run("adamw"), longer: lm.run("adamw", steps=more_steps), ademamix: lm.run("ademamix")},
        measure=lambda: measure_all(timed(at), ROUNDS[at.name], at.seeds, on_gpu=at.name == "paper"),
        show=[TimesAgainstSize(), Curves(level=ademamix)],
        tables=[lambda found: times_table(found, steps)],
        claims=[
            *_claims_on_speed(at),
            Claim(
                "Trained longer, for as long a time as AdEMAMix, AdamW would not close the gap",
                lower(ademamix, Quantity("AdamW in the same time", in_equal_time)),
                source="Those additional iterations would not be sufficient to close the gap",
            ),
        ],
    )


def timed(at: Scale) -> dict[tuple[str, str], tuple[Run, Run]]:
    """Return the runs that take turns, AdamW and AdEMAMix, by the model and the variant of AdEMAMix."""
    models = {at.lm("110m").title: at.lm("110m")}
    if at.name == "laptop":
        larger = {"0.17M parameters": "gpt-tiny", "0.83M parameters": "gpt-mini"}
        models |= {title: at.lm("110m").with_base(title, model=PRESETS[name]) for title, name in larger.items()}
    elif at.name == "paper":
        text = Text(kind="text", tokenizer="sentencepiece:32000")
        models = {at.lm(size).title: at.lm(size).with_base("", data=text) for size in ("110m", "1.3b")}
    return {
        (title, variant): (lm.run("adamw", **theirs), lm.run("ademamix", **ours))
        for title, lm in models.items()
        for variant, (theirs, ours) in VARIANTS.items()
    }


def _claims_on_speed(at: Scale) -> Iterator[Claim]:
    models = list(dict.fromkeys(model for model, _ in timed(at)))
    slower = every(*(lower(0.0, _added(FP32, model)) for model in models))
    yield Claim("The additional average makes AdEMAMix slower than AdamW", slower)
    for variant in VARIANTS:
        yield Claim(
            f"Its impact on the training speed is negligible, at most {NEGLIGIBLE:.1%}: {variant}",
            every(*(lower(_added(variant, model), NEGLIGIBLE) for model in models)),
            source="the impact of using an additional EMA on the training speed is negligible",
            ours=variant != FP32,
        )


def _added(variant: str, model: str) -> Quantity:
    def of(found: Outcome) -> list[float]:
        return next(each.added for each in times_of(found) if (each.model, each.variant) == (model, variant))

    return Quantity(f"the share of time that {variant} adds to {model}", of)
