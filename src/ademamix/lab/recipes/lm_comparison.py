"""AdamW and AdEMAMix on language models: the paper's figures llm_results and adamw_197b.

AdamW is trained for T steps and longer, AdEMAMix for T. At laptop scale the model is a byte-level transformer of 0.17M
parameters and T is 10,000. The learning rate and beta2 of each, also of AdamW at 2T, are searched alike on seed 0, then
fixed, and everything is trained on three other seeds. beta3 follows the horizon, since the paper's 0.9999 remembers as
many steps as this run has.

There are two panels at this scale. With a constant learning rate, as in the paper's figure constant_lr before the
decay, the slow average is all that takes the noise out of the updates. With a cosine that ends near zero, as in
llm_results, the decay does that for AdamW as well: in 10,000 steps AdEMAMix keeps a part of its lead only.

At paper scale the settings are those of appendix B. The paper does not give the lengths of its 330M runs; here they are
those of the 110M ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ademamix.lab import tuning
from ademamix.lab.comparison import arms, defaults
from ademamix.lab.comparison.arms import Arm
from ademamix.lab.comparison.defaults import WEIGHT_DECAY
from ademamix.lab.comparison.report import doubt, seeds_in_words
from ademamix.lab.config import GPT, Cosine, Optimizer, Run, Text
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.presets import PRESETS
from ademamix.lab.recipes import Scale, report
from ademamix.lab.report import figures, tables
from ademamix.lab.runs.laboratory import Lab


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
    """With how many learning rates the search for each arm begins, around its own, on seed 0; 0: there is none."""
    seeds: tuple[int, ...]
    rounds: int = tuning.ROUNDS
    """Of the search."""


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
        adamw=Optimizer(name="adamw", lr=lr, settings={**WEIGHT_DECAY, "betas": [0.9, 0.999]}),
        ademamix=Optimizer(
            name="ademamix", lr=ademamix_lr, settings={**WEIGHT_DECAY, "betas": [0.9, 0.999, 0.9999], "alpha": alpha}
        ),
        longer=longer,
        rates=0,
        seeds=(1,),
    )


def _laptop() -> list[Setting]:
    """The model and data of `ademamix compare`, and a model that is far from saturated after as many tokens."""
    saturated = Setting(
        title="0.03M parameters, 290 tokens for each",
        base=defaults.DEFAULT,
        adamw=defaults.OPTIMIZERS["adamw"],
        ademamix=defaults.OPTIMIZERS["ademamix"],
        longer=(2 * defaults.STEPS,),
        rates=3,
        seeds=(1, 2, 3),
    )
    larger = {
        "model": PRESETS["gpt-tiny"],
        "schedule": Cosine(kind="cosine", warmup=100),
        "steps": 10_000,
        "validate_every": 200,
    }
    unsaturated = replace(
        saturated,
        title="0.17M parameters, 60 tokens for each",
        base=saturated.base.model_copy(update=larger),
        longer=(20_000,),
    )
    return [saturated, unsaturated]


def _smoke() -> list[Setting]:
    """The cosine of the laptop, for twenty steps of a model that is smaller still."""
    cosine, *_ = _laptop()
    update = {
        "model": GPT(kind="gpt", width=16, layers=1, heads=1, context=16),
        "schedule": Cosine(kind="cosine", warmup=2),
        "steps": 20,
        "batch": 2,
        "validate_every": 10,
        "validation_examples": 4,
    }
    return [
        replace(
            cosine,
            title="smoke",
            base=cosine.base.model_copy(update=update),
            longer=(40,),
            rates=3,
            seeds=(1,),
            rounds=1,
        )
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


def reproduce(folder: Path, scale: Scale, lab: Lab) -> Iterator[str]:
    """Train, and yield the report panel by panel; the figure shows the panels that are done."""
    panels: list[Panel] = []
    for setting in settings(scale):
        runs = _runs(setting)
        if setting.rates:
            runs, found = _tuned(setting, runs, lab)
            yield found
        panels.append(_trained(setting, runs, lab))
        yield _table(panels[-1])
        figure = draw(panels)
        if scale == "smoke":
            yield figures.warn_of_smoke(figure, setting.base.steps)
        files = figures.save(figure, folder, "lm-comparison")
    yield report(figures=files)


def _runs(setting: Setting) -> dict[str, Run]:
    """Return a run of each arm by name: AdamW at T and longer, then AdEMAMix at T."""
    base = setting.base
    lengths = [(setting.adamw, steps) for steps in (base.steps, *setting.longer)]
    return {
        f"{OPTIMIZERS[optimizer.name].display}, {steps:,} steps": base.model_copy(
            update={"optimizer": optimizer, "steps": steps}
        )
        for optimizer, steps in [*lengths, (setting.ademamix, base.steps)]
    }


def _tuned(setting: Setting, runs: dict[str, Run], lab: Lab) -> tuple[dict[str, Run], str]:
    """Return the runs with the best learning rates and beta2, and the table of the search."""
    title = f"{setting.title}: learning rates and beta2."
    sweeps = tuning.tune(runs, setting.rates, lambda tried: lab.carry_out(tried, title), rounds=setting.rounds)
    found = tuning.table(sweeps, tables.width_of_output())
    return (
        {name: tuning.with_choice(runs[name], swept.best) for name, swept in sweeps.items()},
        f"{setting.title}: validation loss by learning rate and beta2, seed 0\n{found}",
    )


def _trained(setting: Setting, runs: dict[str, Run], lab: Lab) -> Panel:
    planned = {
        name: {seed: run.model_copy(update={"seed": seed}) for seed in setting.seeds} for name, run in runs.items()
    }
    results = lab.carry_out(arms.labelled(planned), f"{setting.title}: training.")
    *adamw, ademamix = arms.read_arms(planned, results, lab.options.runs)
    return Panel(setting, adamw, ademamix)


def draw(panels: Sequence[Panel]) -> Figure:
    """Draw the validation losses of each panel, with a line at the end of the longest AdamW run."""
    figure = Figure(figsize=(6.5 * len(panels), 4.5), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, panel)
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    shown = [*panel.adamw, panel.ademamix]
    for arm, look in zip(shown, figures.looks([arm.optimizer.name for arm in shown]), strict=True):
        figures.draw_line(axes, list(arm.curve), list(arm.curve.values()), look, f"{arm.name}: {arm.loss:.3f}")
    longest = panel.adamw[-1].loss
    if math.isfinite(longest):
        axes.axhline(longest, color="0.6", linewidth=0.8)
    figures.show_ends(axes, [arm.curve for arm in shown if math.isfinite(arm.loss)] or [arm.curve for arm in shown])
    axes.set_xlabel("step")
    axes.set_ylabel("validation loss")
    figures.finish(axes, panel.setting.title, "upper right")


def _table(panel: Panel) -> str:
    width = tables.width_of_output()
    rows = [
        [
            arm.name,
            f"{arm.optimizer.lr:g}",
            str(arm.optimizer.settings.get("betas", "default")).replace(" ", ""),
            *(f"{loss:.4f}" for loss in (arm.loss, *arm.losses)),
        ]
        for arm in (*panel.adamw, panel.ademamix)
    ]
    header = ["", "lr", "betas", "mean", *(f"seed {seed}" for seed in panel.setting.seeds)]
    title = f"{panel.setting.title}: validation loss at the end, by seed"
    return "\n".join([title, tables.in_rows(header, rows, width), tables.wrapped(_conclusion(panel), width)])


def _conclusion(panel: Panel) -> str:
    found = arms.difference(panel.ademamix, panel.adamw[-1])
    if found is None:
        return "A run diverged: there is nothing to compare."
    times = max(panel.setting.longer) / panel.setting.base.steps
    ended = (
        f"AdEMAMix at T ended {abs(found.mean):.4f} {'below' if found.mean <= 0 else 'above'} AdamW after {times:.3g} T"
    )
    return f"{ended}{seeds_in_words(found)}.{doubt(found)}"
