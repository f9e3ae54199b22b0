"""The outcome of a comparison as a picture, and the numbers in it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import ademamix
from ademamix.lab.comparison.arms import Arm, Comparison
from ademamix.output.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "compare"


def kept_or_drawn(comparison: Comparison, folder: Path) -> list[Path]:
    """Return the picture's files in `folder`; they are drawn only if they are missing or show other numbers.

    The numbers are beside them in compare.json, which is written last: if they are the same, the picture is current.
    """
    files = [folder / f"{NAME}.{kind}" for kind in ("png", "svg")]
    numbers = folder / f"{NAME}.json"
    content = json.dumps(_numbers(comparison), indent=1) + "\n"
    if not all(map(Path.exists, [*files, numbers])) or numbers.read_text(errors="replace") != content:
        from ademamix.lab.report import figures

        files = figures.save(draw(comparison), folder, NAME)
        write_atomically(numbers, content)
    return files


def _numbers(comparison: Comparison) -> dict[str, object]:
    return {
        "ademamix": ademamix.__version__,
        "optimizers": {
            arm.name: {
                "losses": [loss if math.isfinite(loss) else None for loss in arm.losses],
                "validation_loss_by_step": {
                    step: loss if math.isfinite(loss) else None for step, loss in arm.curve.items()
                },
            }
            for arm in comparison.arms
        },
    }


def draw(comparison: Comparison) -> Figure:
    """Draw the validation losses."""
    from matplotlib.figure import Figure

    from ademamix.lab.report.losses import LossCurve, loss_chart

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.subplots()
    curves = [LossCurve(arm.name, arm.optimizer.name, arm.curve, arm.loss) for arm in comparison.arms]
    longer = comparison.longer_baselines
    levels = {arm.name: arm.loss for arm in longer}
    if not longer and comparison.level is not None:
        levels = {comparison.first.name: comparison.level}
    seeds = f"mean of {comparison.seeds} seeds" if comparison.seeds > 1 else "one seed"
    loss_chart(f"Same model, same batches, {seeds}", curves, levels, "validation loss").draw(axes)
    saving = [arm for arm in comparison.arms[1:] if (comparison.saved(arm) or 0) > 0]
    if len(saving) == 1 and not longer:  # several arrows would cross; the report has the steps
        _mark_saving(axes, comparison, saving[0])
    return figure


def _mark_saving(axes: Axes, comparison: Comparison, arm: Arm) -> None:
    step, level = comparison.step_at_level(arm), comparison.level
    assert step is not None
    assert level is not None
    axes.annotate(
        f"smoothed, reaches {comparison.first.name}'s last loss\nat step {step:,}: {comparison.saved(arm):.0%} fewer",
        (step, level),
        xytext=(0.03, 0.06),
        textcoords="axes fraction",
        arrowprops={"arrowstyle": "->"},
    )
