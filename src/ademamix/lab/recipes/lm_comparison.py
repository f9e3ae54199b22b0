"""AdamW and AdEMAMix on language models: the paper's figures llm_results and adamw_197b.

AdamW is trained for T steps and longer, AdEMAMix for T. At laptop scale the model is a byte-level transformer of 0.17M
parameters and T is 10,000; the learning rates of both are tuned at T on seed 0, then fixed, and everything is trained
on three other seeds. beta3 follows the horizon, since the paper's 0.9999 remembers as many steps as this run has.

There are two panels at this scale. With a constant learning rate, as in the paper's figure constant_lr before the
decay, the slow average is all that takes the noise out of the updates. With a cosine that ends near zero, as in
llm_results, the decay does that for AdamW, too: in 10,000 steps AdEMAMix keeps a part of its lead only.

At paper scale the settings are those of appendix B. The paper does not give the lengths of its 330M runs; here they are
those of the 110M ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ademamix.lab import compare, figures, sweep
from ademamix.lab.compare import Arm
from ademamix.lab.config import GPT, ConstantThenLinear, Cosine, Optimizer, Run, Text
from ademamix.lab.display import Lab
from ademamix.lab.presets import PRESETS
from ademamix.lab.recipes import Scale, report

DECAY = {"weight_decay": 0.1}


@dataclass(frozen=True)
class Setting:
    """One panel of the figure: a model, what trains it and for how long."""

    title: str
    base: Run
    """Its `steps` are T."""
    adamw: Optimizer
    ademamix: Optimizer
    longer: tuple[int, ...]
    """For how many steps AdamW is trained besides T."""
    rates: int
    """How many learning rates to choose from, at T, on seed 0, around those of the optimizers; 0: they are used."""
    seeds: tuple[int, ...]


def _paper(model: str, title: str, batch: int, clip: float, steps: int, longer: tuple[int, ...], lr: float) -> Setting:
    """The settings of appendix B; those that differ between the sizes are arguments."""
    tokens = batch * 1024 * max(longer)
    alpha, ademamix_lr = (5.0, 3e-4) if model == "gpt-1.3b" else (8.0, lr)
    return Setting(
        title=title,
        base=Run(
            model=PRESETS[model],
            data=Text(kind="text", source="hub:redpajama-v2", tokenizer="sentencepiece:32000", tokens=tokens),
            optimizer=Optimizer(name="adamw", lr=lr),
            schedule=Cosine(kind="cosine", warmup=3000),
            steps=steps,
            batch=batch,
            clip=clip,
            autocast=True,
            validate_every=2000,
        ),
        adamw=Optimizer(name="adamw", lr=lr, settings={**DECAY, "betas": [0.9, 0.999]}),
        ademamix=Optimizer(
            name="ademamix", lr=ademamix_lr, settings={**DECAY, "betas": [0.9, 0.999, 0.9999], "alpha": alpha}
        ),
        longer=longer,
        rates=0,
        seeds=(1,),
    )


def _laptop() -> list[Setting]:
    """The model and data of `ademamix compare`, with two learning-rate schedules."""
    cosine = Setting(
        title="0.17M parameters, cosine",
        base=compare.DEFAULT,
        adamw=compare.OPTIMIZERS["adamw"],
        ademamix=compare.OPTIMIZERS["ademamix"],
        longer=(20_000,),
        rates=3,
        seeds=(1, 2, 3),
    )
    constant = replace(
        cosine,
        title="0.17M parameters, constant learning rate",
        base=cosine.base.model_copy(update={"schedule": ConstantThenLinear(kind="constant", warmup=200)}),
        adamw=cosine.adamw.model_copy(update={"lr": 1e-3}),
        ademamix=cosine.ademamix.model_copy(update={"lr": 5e-4}),
    )
    return [constant, cosine]


def _smoke() -> list[Setting]:
    """The cosine of the laptop, for twenty steps of a model that is smaller still."""
    *_, cosine = _laptop()
    update = {
        "model": GPT(kind="gpt", width=16, layers=1, heads=1, context=16),
        "schedule": Cosine(kind="cosine", warmup=2),
        "steps": 20,
        "batch": 2,
        "validate_every": 10,
        "validation_examples": 4,
    }
    return [
        replace(cosine, title="smoke", base=cosine.base.model_copy(update=update), longer=(40,), rates=1, seeds=(1,))
    ]


def settings(scale: Scale) -> list[Setting]:
    """Return the panels at a scale."""
    if scale == "paper":
        return [
            _paper("gpt-110m", "110M parameters", 64, 0.5, 256_000, (400_000, 500_000), 1e-3),
            _paper("gpt-330m", "330M parameters", 96, 0.1, 256_000, (400_000, 500_000), 5e-4),
            _paper("gpt-1.3b", "1.3B parameters", 128, 0.1, 770_000, (1_500_000,), 5e-4),
        ]
    return _laptop() if scale == "laptop" else _smoke()


@dataclass(frozen=True)
class Panel:
    """What was found for a setting: AdamW at T and longer, then AdEMAMix at T."""

    setting: Setting
    adamw: Sequence[Arm]
    ademamix: Arm


def reproduce(folder: Path, scale: Scale, lab: Lab) -> str:
    """Train, draw the figure and return the report."""
    panels, tables = [], []
    for setting in settings(scale):
        adamw, ademamix = setting.adamw, setting.ademamix
        if setting.rates:
            adamw, ademamix, table = _tuned(setting, lab)
            tables.append(table)
        panels.append(_trained(setting, adamw, ademamix, lab))
    figure = draw(panels)
    warning = [figures.warn_of_smoke(figure, panels[0].setting.base.steps)] if scale == "smoke" else []
    return report(
        *warning, *tables, *(_table(panel) for panel in panels), figures=figures.save(figure, folder, "lm-comparison")
    )


def _tuned(setting: Setting, lab: Lab) -> tuple[Optimizer, Optimizer, str]:
    runs = compare.plan(setting.base, [setting.adamw, setting.ademamix], [0])
    bases = {name: of_seed[0] for name, of_seed in runs.items()}
    sweeps = sweep.tune(bases, setting.rates, lambda runs: lab.carry_out(runs, f"{setting.title}: learning rates"))
    adamw, ademamix = (
        optimizer.model_copy(update={"lr": found.best})
        for optimizer, found in zip((setting.adamw, setting.ademamix), sweeps.values(), strict=True)
    )
    return (
        adamw,
        ademamix,
        f"{setting.title}: validation loss by learning rate, T = {setting.base.steps:,}, seed 0\n{sweep.table(sweeps)}",
    )


def _trained(setting: Setting, adamw: Optimizer, ademamix: Optimizer, lab: Lab) -> Panel:
    base = setting.base
    planned = []
    for optimizer, steps in [(ademamix, base.steps), *((adamw, steps) for steps in (base.steps, *setting.longer))]:
        as_often = base.validate_every * steps // base.steps
        longer = base.model_copy(update={"steps": steps, "validate_every": as_often})
        part = compare.plan(longer, [optimizer], setting.seeds)
        planned.append({f"{name}, {steps:,} steps": of_seed for name, of_seed in part.items()})
    lab.carry_out(
        {label: run for part in planned for label, run in compare.labelled(part).items()}, f"{setting.title}: training"
    )
    arms = [arm for part in planned for arm in compare.read_arms(part, lab.options.runs)]
    return Panel(setting, adamw=arms[1:], ademamix=arms[0])


def draw(panels: Sequence[Panel]) -> Figure:
    """Draw the validation losses of each panel, with a line at the end of the longest AdamW run."""
    figure = Figure(figsize=(6.5 * len(panels), 4.5), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, panel)
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for arm, look in zip(panel.adamw, figures.ADAM, strict=False):
        figures.draw_line(axes, list(arm.curve), list(arm.curve.values()), look, f"{arm.name}: {arm.loss:.3f}")
    arm = panel.ademamix
    figures.draw_line(
        axes, list(arm.curve), list(arm.curve.values()), figures.ADEMAMIX[0], f"{arm.name}: {arm.loss:.3f}"
    )
    longest = panel.adamw[-1].loss
    ends = [loss for loss in (arm.loss, longest) if math.isfinite(loss)]
    if math.isfinite(longest):
        axes.axhline(longest, color="0.6", linewidth=0.8)
    if ends:
        axes.set_ylim(min(ends) - 0.05, min(ends) + 0.7)
    axes.set_xlabel("step")
    axes.set_ylabel("validation loss")
    figures.finish(axes, panel.setting.title, "upper right")


def _table(panel: Panel) -> str:
    arms = [*panel.adamw, panel.ademamix]
    rows = [f"{panel.setting.title}: validation loss at the end, by seed"]
    for arm in arms:
        cells = "  ".join(f"{loss:.4f}" for loss in arm.losses)
        rows.append(f"  {arm.name:<26} lr {arm.optimizer.lr:<7g} mean {arm.loss:.4f}   {cells}")
    ours, theirs = panel.ademamix.loss, panel.adamw[-1].loss
    if math.isfinite(ours) and math.isfinite(theirs):
        times = max(panel.setting.longer) / panel.setting.base.steps
        rows.append(f"  AdEMAMix at T is {'at or below' if ours <= theirs else 'above'} AdamW after {times:.3g} T.")
    else:
        rows.append("  A run diverged: there is nothing to compare.")
    return "\n".join(rows)
