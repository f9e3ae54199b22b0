"""Draw the figures of the pages from the library's own functions: python docs/figures/make.py [FOLDER].

The files are SVG that follows the reader's choice of a light or a dark screen, and are the same bytes every time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ademamix import alpha_at, beta3_at, half_life
from ademamix.lab import tuning
from ademamix.lab.config import GPT, Run
from ademamix.lab.recipes import horizon_rule
from ademamix.lab.recipes.formulas.averages import ema_weights
from ademamix.lab.reproduction.engine import FIRST_RATES
from ademamix.lab.reproduction.panel import Panel
from ademamix.lab.reproduction.scale import SCALES
from ademamix.lab.runs.record import Result
from ademamix.published import RUNS
from ademamix.reference import ReferenceAdEMAMix
from ademamix.schedules import HORIZON_FRACTION, beta3_for_horizon

RECORDS = Path(__file__).parents[2] / "benchmarks" / "results" / "laptop"

# Stand-ins for the colours of the style sheet below, which Matplotlib cannot write itself.
INK, PAPER, LINE, MIX, ADAM, OTHER = "#010101", "#020202", "#030303", "#040404", "#050505", "#060606"
COLOURS = {
    INK: ("ink", "#3a4048", "#c8ced6"),
    PAPER: ("paper", "#ffffff", "#131416"),
    LINE: ("line", "#dfe3e8", "#33383e"),
    MIX: ("mix", "#b3480a", "#ff9d5c"),
    ADAM: ("adam", "#1767b1", "#6fb4f5"),
    OTHER: ("other", "#6a737d", "#99a3ad"),
}
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ademamix",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "axes.facecolor": PAPER,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": PAPER,
    "grid.color": LINE,
    "legend.frameon": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 2,
}


def weights(figure: Figure) -> None:
    """Draw how much each past gradient counts, in single averages and in AdEMAMix."""
    axes = figure.subplots()
    ages = np.unique(np.geomspace(1, 10_001, 300).astype(int)) - 1
    fast, slow = ema_weights(0.9), ema_weights(0.9999)
    axes.loglog(ages + 1, fast[ages], "--", color=ADAM, label="AdamW, beta1 = 0.9")
    axes.loglog(ages + 1, ema_weights(0.999)[ages], ":", color=ADAM, label="AdamW, beta1 = 0.999")
    axes.loglog(ages + 1, (fast + 5 * slow)[ages], color=MIX, label="AdEMAMix, beta1 = 0.9, beta3 = 0.9999, alpha = 5")
    axes.set(xlabel="age of the gradient in steps, the newest is 1", ylabel="weight", ylim=(1e-6, 1))
    axes.legend(loc="upper right")


def schedules(figure: Figure) -> None:
    """Draw alpha and the half-life of the slow average over a run, beside that of a linear beta3."""
    left, right = figure.subplots(1, 2)
    T, beta1 = 10_000, 0.9
    beta3 = beta3_for_horizon(T, beta1)
    steps = np.arange(1, T + 1, 25)
    left.plot(steps, [alpha_at(t, 5.0, T) for t in steps], color=MIX)
    left.set(xlabel="step", ylabel="alpha(t)")
    right.plot(steps, [half_life(beta3_at(t, beta3, beta1, T)) for t in steps], color=MIX, label="the paper's schedule")
    linear = [half_life(beta1 + (beta3 - beta1) * t / T) for t in steps]
    right.plot(steps, linear, "--", color=OTHER, label="beta3 rises linearly")
    right.set(xlabel="step", ylabel="half-life in steps")
    right.legend(loc="upper left")


def horizon(figure: Figure) -> None:
    """Draw what the slow averages of published runs remember, and what our rule gives."""
    axes = figure.subplots()
    lengths = np.geomspace(1_000, 4e6, 200)
    rule = [1 / (1 - beta3_for_horizon(int(steps), 0.9)) for steps in lengths]
    axes.loglog(lengths, rule, color=MIX, label=f"total_steps=T: {HORIZON_FRACTION:g} T, at most 10,000")
    axes.loglog(lengths, lengths / 2, "--", color=OTHER, label="half of the run: longer than this warns")
    markers = dict(zip(dict.fromkeys(run.source for run in RUNS), "oPs^Dv", strict=True))
    seen = set()
    for run in RUNS:
        label = run.source.split(",")[0] + (", fine-tuning" if run.phase == "finetune" else "")
        memory = [1 / (1 - beta3) for beta3 in run.beta3]
        axes.loglog(
            run.steps, memory, markers[run.source], color=ADAM, ls="-", lw=1, label="" if label in seen else label
        )
        seen.add(label)
    axes.set(xlabel="optimizer steps of the run", ylabel="memory in steps, 1/(1 - beta3)", ylim=(30, 1e7))
    axes.legend(loc="upper left")


def idle(figure: Figure) -> None:
    """Draw the step of an element whose gradients stop after 3,000 steps."""
    axes = figure.subplots()
    settings = {
        "AdamW": {"alpha": 0.0},
        "AdEMAMix": {"alpha": 8.0},
        "AdEMAMix, slow_clip = 30": {"alpha": 8.0, "slow_clip": 30.0},
    }
    looks = zip(settings.items(), ((ADAM, "--"), (MIX, "-"), (MIX, ":")), strict=True)
    for (name, chosen), (colour, line) in looks:
        element = ReferenceAdEMAMix([0.0], lr=1.0, betas=(0.9, 0.999, 0.9999), weight_decay=0.0, **chosen)
        places = [element.update([1.0 if step < 3_000 else 0.0])[0] for step in range(23_000)]
        sizes = np.abs(np.diff(places, prepend=0.0))
        steps = np.arange(1, 23_001)
        axes.semilogy(steps[::20], sizes[::20], line, color=colour, label=name)
    axes.axvline(3_000, color=OTHER, lw=1)
    axes.set(xlabel="step; gradients stop at 3,000", ylabel="size of a step, in learning rates", ylim=(1e-3, 1e4))
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.1))


def saturation(figure: Figure) -> None:
    """Draw what AdEMAMix gains, in parts of what AdamW gains from twice the steps, by the bytes for each parameter."""
    axes = figure.subplots()
    looks = ((MIX, "o-"), (OTHER, "s--"), (ADAM, "^:"))
    for panel, (colour, look) in zip(horizon_rule.plan(SCALES["laptop"]), looks, strict=True):
        found = _tuned(panel)
        lengths = [steps for name, steps in found if name == "ademamix" and ("adamw", 2 * steps) in found]
        bytes_seen = [steps * _bytes_a_step(panel) / found["ademamix", steps][0].parameters for steps in lengths]
        losses = {key: np.array([result.validation_loss for result in results]) for key, results in found.items()}
        gains = [losses["adamw", steps] - losses["ademamix", steps] for steps in lengths]
        of_twice = [losses["adamw", steps] - losses["adamw", 2 * steps] for steps in lengths]
        by_seed = np.divide(gains, of_twice)
        axes.semilogx(bytes_seen, np.mean(gains, axis=1) / np.mean(of_twice, axis=1), look, color=colour)
        axes.semilogx(bytes_seen, by_seed, look[0], color=colour, markersize=3, markerfacecolor=PAPER)
        axes.plot([], look, color=colour, label=panel.title)
    axes.axhline(1, color=OTHER, lw=1)
    axes.set(xlabel="bytes seen for each parameter", ylabel="gain of AdEMAMix\nover that of twice the steps")
    axes.legend(loc="upper left")


def _tuned(panel: Panel) -> Mapping[tuple[str, int], list[Result]]:
    """Return the results of the arms of `horizon-rule` that are searched, by optimizer and length, at their best."""
    at = SCALES["laptop"]
    arms = {name: panel.arms[name] for name in panel.tune if panel.arms[name].steps in horizon_rule.LENGTHS["laptop"]}
    search = tuning.search(arms, FIRST_RATES, _results, rounds=at.rounds)
    return {
        (run.optimizer.name, run.steps): [*_results({str(seed): run.changed(seed=seed) for seed in at.seeds}).values()]
        for run in search.runs.values()
    }


def _results(runs: Mapping[str, Run]) -> dict[str, Result]:
    texts = {name: (RECORDS / f"{run.key}.json").read_text() for name, run in runs.items()}
    return {name: Result(**json.loads(text)["result"]) for name, text in texts.items()}


def _bytes_a_step(panel: Panel) -> int:
    run = next(iter(panel.arms.values()))
    assert isinstance(run.model, GPT)
    return run.batch * run.model.context


FIGURES: dict[str, tuple[Callable[[Figure], None], tuple[float, float]]] = {
    "weights": (weights, (7.2, 3.8)),
    "schedules": (schedules, (7.2, 3.0)),
    "horizon": (horizon, (7.2, 4.2)),
    "idle": (idle, (7.2, 3.6)),
    "saturation": (saturation, (7.2, 3.8)),
}


def styled(svg: str) -> str:
    """Return a drawing whose colours come from a style sheet that knows light and dark."""
    for stand_in, (name, _, _) in COLOURS.items():
        svg = svg.replace(stand_in, f"var(--{name})")
    light, dark = (";".join(f"--{colour[0]}:{colour[i]}" for colour in COLOURS.values()) for i in (1, 2))
    rules = f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return svg.replace("<defs>", f"<style>{rules}</style>\n <defs>", 1)


def main(folder: Path) -> None:
    """Write every figure into a folder."""
    for name, (draw, size) in FIGURES.items():
        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
            figure = Figure(size, layout="constrained")
            draw(figure)
            path = folder / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None, "Creator": None})
            path.write_text(styled(path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
