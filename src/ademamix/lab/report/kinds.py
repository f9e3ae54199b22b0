"""The kinds of chart that a panel of trained runs can show: each turns an outcome into data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ademamix.hyperparameters import BETAS
from ademamix.lab.config import Run
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.report.charts import Grid, Lines, Series
from ademamix.lab.report.losses import LossCurve, loss_chart

if TYPE_CHECKING:
    from ademamix.lab.reproduction.outcome import Outcome, TrainedArm

VALIDATION_LOSS = "validation_loss"
LOSS = "validation loss"


@dataclass(frozen=True)
class Curves:
    """A metric over the steps, a curve for each arm, the mean over the seeds."""

    metric: str = VALIDATION_LOSS
    arms: Sequence[str] = ()
    """The arms to show; by default all."""
    level: str = ""
    """An arm whose last loss is marked by a horizontal line."""
    about: str = ""
    """What tells it from the other charts of the panel, for its title."""

    def chart(self, title: str, found: Outcome) -> Lines:
        """Return the curves; those of the validation loss are limited to the range that matters."""
        title = _titled(title, self.about)
        arms = [found.arms[name] for name in self.arms or found.arms]
        levels = {self.level: found.arms[self.level].loss} if self.level else {}
        if self.metric == VALIDATION_LOSS:
            curves = [LossCurve(arm.name, arm.run.optimizer.name, arm.curve(), arm.loss) for arm in arms]
            return loss_chart(title, curves, levels, LOSS)
        series = [_series(arm, arm.curve(self.metric)) for arm in arms]
        return Lines(title, "step", self.metric.replace("_", " "), series, levels=levels)


@dataclass(frozen=True)
class Gap:
    """How far one arm's loss is above another's, over the steps that both have; a pair of names for each curve."""

    pairs: Sequence[tuple[str, str]]
    metric: str = VALIDATION_LOSS
    about: str = ""
    """What tells it from the other charts of the panel, for its title."""

    def chart(self, title: str, found: Outcome) -> Lines:
        """Return the differences."""
        title = _titled(title, self.about)
        series = []
        for above, below in self.pairs:
            first, second = found.arms[above].curve(self.metric), found.arms[below].curve(self.metric)
            shared = {step: first[step] - second[step] for step in first if step in second}
            series.append(_series(found.arms[below], shared, f"{above} over {below}"))
        return Lines(title, "step", f"difference in {self.metric.replace('_', ' ')}", series, levels={"0": 0.0})


@dataclass(frozen=True)
class Forgetting:
    """The losses of an arm on batches that it trained on, each from just before its step on.

    They are normalised to 0 before that step and to -1 a few steps after it. A batch whose loss had not fallen by then
    is left out.
    """

    arm: str
    batches: Sequence[int]
    """The steps that trained on them, each followed by a probe."""
    after: int
    """How many steps after its own the loss on a batch is -1."""

    def chart(self, title: str, found: Outcome) -> Lines:
        """Return a curve for each batch, over the steps since its own."""
        arm, series = found.arms[self.arm], []
        for step in self.batches:
            losses = arm.curve(f"loss_on_training_batch_{step}")
            before, reached = losses[min(losses)], max(at for at in losses if at <= step + self.after)
            if (fall := before - losses[reached]) > 0:
                normalised = {at - step: (loss - before) / fall for at, loss in losses.items()}
                series.append(_series(arm, normalised, f"trained on at step {step:,}"))
        return Lines(f"{title}: {self.arm}", "steps since", "normalised loss", series, levels={"-1": -1.0})


@dataclass(frozen=True)
class EndAgainst:
    """The last loss against a setting; arms that lack the setting are horizontal lines."""

    setting: str
    """"lr", a setting of the optimizer (or "beta1" to "beta3"), or a field of the run ("batch", "steps", "clip")."""
    groups: Sequence[tuple[str, Sequence[str]]] = ()
    """The arms of each line, by its label; by default one line for each optimizer."""
    logarithmic: bool = False

    def chart(self, title: str, found: Outcome) -> Lines:
        """Return a line for each group, over the setting."""
        having = {name: arm for name, arm in found.arms.items() if setting_of(arm.run, self.setting) is not None}
        series = []
        for label, names in self.groups or _by_optimizer(having.values()):
            points = sorted((float(setting_of(having[name].run, self.setting)), having[name].loss) for name in names)
            family = having[names[0]].run.optimizer.name
            series.append(Series.of(label, [x for x, _ in points], [_or_nan(y) for _, y in points], family))
        levels = {name: arm.loss for name, arm in found.arms.items() if name not in having}
        return Lines(title, self.setting, LOSS, series, logarithmic="x" if self.logarithmic else "", levels=levels)


@dataclass(frozen=True)
class HeatMap:
    """The last loss of a grid of two settings, framed where it is as low as the lowest of some other arms."""

    x: str
    y: str
    arms: Sequence[str]
    levels: Sequence[str] = ()

    def chart(self, title: str, found: Outcome) -> Grid:
        """Return the grid; a pair that was not trained is empty."""
        cells = {}
        for name in self.arms:
            run = found.arms[name].run
            cells[float(setting_of(run, self.x)), float(setting_of(run, self.y))] = _or_nan(found.arms[name].loss)
        x, y = (sorted({pair[axis] for pair in cells}) for axis in (0, 1))
        values = [[cells.get((column, row), math.nan) for column in x] for row in y]
        level = min((found.arms[name].loss for name in self.levels), default=math.nan)
        return Grid(title, self.x, self.y, x, y, values, level)


@dataclass(frozen=True)
class Scatter:
    """One metric against another at the end of the runs, a point for each arm, in groups of one look."""

    x: str
    y: str
    groups: Sequence[tuple[str, Sequence[str]]]

    def chart(self, title: str, found: Outcome) -> Lines:
        """Return the points."""
        series = []
        for label, names in self.groups:
            arms = [found.arms[name] for name in names]
            x, y = ([_or_nan(statistics.fmean(arm.values(metric))) for arm in arms] for metric in (self.x, self.y))
            series.append(Series.of(label, x, y, arms[0].run.optimizer.name))
        return Lines(title, self.x.replace("_", " "), self.y.replace("_", " "), series, joined=False)


def setting_of(run: Run, name: str) -> Any:
    """Return a setting of a run or of its optimizer by name, or None.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> [setting_of(DEFAULT, name) for name in ("lr", "batch", "beta1", "alpha")]
    [0.016, 8, 0.9, None]
    """
    if name == "lr":
        return run.optimizer.lr
    if name in Run.model_fields:
        return getattr(run, name)
    settings = run.optimizer.settings
    betas = {f"beta{number}": beta for number, beta in enumerate(settings.get("betas", BETAS), start=1)}
    return (betas | settings).get(name)


def _titled(title: str, about: str) -> str:
    return f"{title}: {about}" if about else title


def _series(arm: TrainedArm, by_step: dict[int, float], label: str = "") -> Series:
    return Series.of(label or arm.name, list(by_step), list(by_step.values()), arm.run.optimizer.name)


def _by_optimizer(arms: Iterable[TrainedArm]) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for arm in arms:
        groups.setdefault(arm.run.optimizer.name, []).append(arm.name)
    return [(OPTIMIZERS[name].display, names) for name, names in groups.items()]


def _or_nan(value: float) -> float:
    return value if math.isfinite(value) else math.nan
