"""The time of a step with AdEMAMix and with AdamW: the paper's figure time_resume_time.

In the time in which AdEMAMix takes T steps, AdamW takes more: the report has how many more, and what they would gain.
A step is a whole training step of the lab, with its data, both passes and clipping. torch's AdamW and one AdEMAMix take
turns in one process with one thread, on each seed. Of the passes, which are the same, the fastest of either counts for
both, and for each the fastest step of its optimizer; on a CPU in processor time. Both optimizers are fused, or both
foreach. fp32, bf16 and compact are storages of AdEMAMix's state.

The paper calls 2,379 and 5,421 more steps in 256,000 negligible, 0.9% and 2.1%; so negligible here is at most 2.1%. For
the loss of AdamW after them there is no run: it is read off a line over the logarithm of the steps, through the ends of
AdamW after T and after about 2T. The paper's batches have 65,000 and 131,000 tokens, those at laptop scale 512 and
1,024: the fewer they are, the larger is the share of the optimizer. At paper scale the models are timed on a GPU, if
there is one, on the standard library's text with the paper's vocabulary; what is read does not change the time.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from ademamix.lab.bench.runs_in_turns import Costs, measure
from ademamix.lab.config import Run, Text
from ademamix.lab.presets import PRESETS
from ademamix.lab.report.charts import Lines, Series
from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Claim, Quantity, every, lower
from ademamix.lab.reproduction.outcome import Outcome
from ademamix.lab.reproduction.panel import Panel, Panels, Table
from ademamix.lab.reproduction.scale import Scale

ROUNDS = {"smoke": 2, "laptop": 30, "paper": 30}
NEGLIGIBLE = 5421 / 256_000
OURS, FOREACH = "AdEMAMix fp32", {"foreach": True}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    OURS: ({}, {}),
    "AdEMAMix bf16": ({}, {"state_storage": "bf16"}),
    "AdEMAMix compact": ({}, {"state_storage": "compact"}),
    "AdEMAMix fp32, beta1 = 0": ({}, {"beta1": 0.0}),
    "AdEMAMix fp32, foreach": (FOREACH, FOREACH),
}
"""Settings of AdamW and of AdEMAMix."""

Measured = dict[tuple[str, str], list[Costs]]
"""By the model and the variant, for each seed."""


def plan(at: Scale) -> Panels:
    """Yield the runs whose gap the additional steps would have to close, then the times."""
    lm = at.lm("110m")
    steps, more_steps = lm.base.steps, 500_000 if at.name == "paper" else 2 * lm.base.steps
    adamw, longer, ademamix = f"AdamW, {steps:,} steps", f"AdamW, {more_steps:,} steps", f"AdEMAMix, {steps:,} steps"
    ended = yield Panel(
        "The gap",
        {adamw: lm.run("adamw"), longer: lm.run("adamw", steps=more_steps), ademamix: lm.run("ademamix")},
        show=[Curves(level=ademamix)],
        claims=[Claim(f"AdEMAMix ends below AdamW after the same {steps:,} steps", lower(ademamix, adamw))],
        figure="gap",
    )
    found = measured(at)
    added = {model: _added(model, costs) for (model, variant), costs in found.items() if variant == OURS}

    def in_equal_time(outcome: Outcome) -> list[float]:
        ways = [math.log1p(share) / math.log(more_steps / steps) for share in added[lm.title].values(outcome)]
        ends = zip(ended.arms[adamw].losses, ended.arms[longer].losses, ways, strict=True)
        return [short + way * (long - short) for short, long, way in ends]

    yield Panel(
        "The time of a step",
        charts=[_chart(found)],
        tables=[_table(found, steps)],
        claims=[
            Claim(
                "The additional average makes AdEMAMix slower than AdamW",
                every(*(lower(0.0, share) for share in added.values())),
            ),
            *(
                Claim(
                    f"Its impact on the training speed is negligible, at most {NEGLIGIBLE:.1%}: {model}",
                    lower(share, NEGLIGIBLE),
                    source="the impact of using an additional EMA on the training speed is negligible",
                )
                for model, share in added.items()
            ),
            Claim(
                "Trained longer, for as long a time as AdEMAMix, AdamW would not close the gap",
                lower(
                    Quantity(ademamix, lambda outcome: ended.arms[ademamix].losses),
                    Quantity("AdamW in the same time", in_equal_time),
                ),
                source="Those additional iterations would not be sufficient to close the gap",
            ),
        ],
        caption=f"Each time is the fastest in {ROUNDS[at.name]} steps; over several seeds the mean is shown.",
        warning=at.too_short(ROUNDS[at.name]),
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


def measured(at: Scale) -> Measured:
    """Time all of them, on each seed."""
    device = "cuda" if at.name == "paper" and torch.cuda.is_available() else "cpu"

    def costs(adamw: Run, ademamix: Run, seed: int) -> Costs:
        return measure(adamw.changed(seed=seed), ademamix.changed(seed=seed), ROUNDS[at.name], Path(cache), device)

    with tempfile.TemporaryDirectory() as cache:
        return {label: [costs(*pair, seed) for seed in at.seeds] for label, pair in timed(at).items()}


def _added(model: str, by_seed: list[Costs]) -> Quantity:
    return Quantity(f"the share of time added to {model}", lambda outcome: [costs.added for costs in by_seed])


def _chart(found: Measured) -> Lines:
    series = []
    for variant in VARIANTS:
        points = [by_seed for (_, name), by_seed in found.items() if name == variant]
        sizes = [by_seed[0].first.parameters for by_seed in points]
        series.append(Series.of(variant, sizes, [1 + _mean(by_seed) for by_seed in points]))
    heights = [1.0, *(ratio for each in series for ratio in each.y)]
    low, high = min(heights), max(heights)
    return Lines(
        "The time of a step",
        "parameters",
        "AdamW = 1",
        series,
        joined=False,
        logarithmic="x",
        y_range=(low - 0.1 * (high - low), high + 0.8 * (high - low)),  # with room for the legend
        levels={"AdamW": 1.0},
    )


def _table(found: Measured, steps: int) -> Table:
    rows = []
    for (model, variant), by_seed in found.items():
        mean, ours = _mean(by_seed), by_seed[0].second
        rows.append(
            [
                f"{model}: {variant}",
                f"{1e3 * min(costs.first.seconds for costs in by_seed):.3g}",
                f"{1e3 * min(costs.second.seconds for costs in by_seed):.3g}",
                f"{mean:+.1%}",
                ", ".join(f"{costs.added:+.1%}" for costs in by_seed),
                f"{mean * steps:+,.0f}",
                f"{ours.state_bytes / ours.parameters:.2f}",
            ]
        )
    header = ["", "AdamW, ms", "AdEMAMix, ms", "time added", "on each seed", f"AdamW steps more in {steps:,}"]
    return Table([*header, "state, bytes per parameter"], rows, "The time of a step")


def _mean(by_seed: list[Costs]) -> float:
    return statistics.fmean(costs.added for costs in by_seed)
