"""A panel that is done: its table, its claims decided, its charts as data, and all that in words."""

from __future__ import annotations

import math
import statistics
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ademamix.lab.comparison.arms import Difference
from ademamix.lab.report import tables
from ademamix.lab.report.charts import Chart, jsonable, plain
from ademamix.lab.report.kinds import Curves
from ademamix.lab.report.losses import ending
from ademamix.lab.reproduction.claims import OPEN, Claim, Decision
from ademamix.lab.reproduction.outcome import VALIDATION_LOSS, Outcome, TrainedArm
from ademamix.lab.reproduction.panel import Panel, Table
from ademamix.lab.runs import environment
from ademamix.lab.runs.record import Result


@dataclass(frozen=True)
class FinishedPanel:
    """A panel and what came of it."""

    panel: Panel
    outcome: Outcome
    charts: Sequence[Chart]
    tables: Sequence[Table]
    decisions: Sequence[tuple[Claim, Decision]]
    warning: str
    searched: Mapping[str, Any]
    """The losses that the search for learning rates found, if there was one."""

    @classmethod
    def of(cls, panel: Panel, outcome: Outcome, warning: str, searched: Mapping[str, Any]) -> FinishedPanel:
        """Decide the claims and turn everything into data."""
        return cls(
            panel,
            outcome,
            charts=[*_shown(panel, outcome), *panel.charts],
            tables=[*_arms_tables(panel, outcome), *_tabulated(panel, outcome)],
            decisions=[(claim, _decided(claim, outcome, warning)) for claim in panel.claims],
            warning=warning,
            searched=searched,
        )

    def verdicts(self) -> dict[str, Any]:
        """Return the claims and their verdicts for a JSON file."""
        claims = [
            {"claim": claim.text, "source": claim.source, "ours": claim.ours, **jsonable(decision)}
            for claim, decision in self.decisions
        ]
        return {"title": self.panel.title, "warning": self.warning, "claims": claims}

    def data(self) -> dict[str, Any]:
        """Return all that a page needs to show the panel, for a JSON file."""
        return {
            **self.verdicts(),
            "caption": self.panel.caption,
            "figure": self.panel.figure,
            "charts": [plain(chart) for chart in self.charts],
            "tables": jsonable(list(self.tables)),
            "arms": {name: _arm(arm, self.outcome.seeds) for name, arm in self.outcome.arms.items()},
            "searched": self.searched,
            "environment": self._environment(),
        }

    def _environment(self) -> Mapping[str, Any]:
        """Return where its numbers were measured, or computed; runs have environments of their own."""
        if self.panel.measure is not None:
            measured = self.outcome.measured
            processor = measured.get("processor", "") if isinstance(measured, Mapping) else ""
            return {"processor": processor} if processor else {}
        return {} if self.outcome.arms else environment.here()

    def text(self, width: int) -> str:
        """Lay the panel out for a terminal."""
        parts = [tables.wrapped(f"{self.panel.title}\n{self.panel.caption}", width)]
        for table in self.tables:
            laid_out = tables.in_rows(table.header, table.rows, width)
            parts.append(f"{table.title}\n{laid_out}" if table.title else laid_out)
        parts.append(tables.wrapped("\n".join(_claim_lines(self.decisions)), width, indent="  "))
        return "\n\n".join(filter(None, [*parts, self.warning]))

    def markdown(self, pictures: Sequence[str]) -> str:
        """Lay the panel out for a page, with the pictures that begin with it."""
        parts = [f"## {self.panel.title}", self.warning, self.panel.caption]
        parts += [f"![{self.panel.title}]({picture})" for picture in pictures]
        for table in self.tables:
            rows = [table.header, ["---"] * len(table.header), *table.rows]
            lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
            parts.append(f"{table.title}\n\n{lines}" if table.title else lines)
        parts.append("\n".join(f"- {line}" for line in _claim_lines(self.decisions, mark="**")))
        return "\n\n".join(filter(None, parts))


def _shown(panel: Panel, outcome: Outcome) -> list[Chart]:
    """Return what a panel shows of its arms, under its title; several get letters."""
    letters = [f"({letter}) " for letter in string.ascii_lowercase] if len(panel.show) > 1 else [""]
    return [show.chart(f"{letter}{panel.title}", outcome) for letter, show in zip(letters, panel.show, strict=False)]


def _arms_tables(panel: Panel, outcome: Outcome) -> Iterator[Table]:
    if outcome.arms:
        yield arms_table(panel, outcome)
    if panel.scores:
        rows = [
            [metric.replace("_", " "), *(_mean(arm.values(metric)) for arm in outcome.arms.values())]
            for metric in panel.scores
        ]
        yield Table(["", *outcome.arms], rows, "Mean over the seeds at the end")


def _tabulated(panel: Panel, outcome: Outcome) -> list[Table]:
    return [table(outcome) if callable(table) else table for table in panel.tables]


def arms_table(panel: Panel, outcome: Outcome) -> Table:
    """Return how the arms ended: the mean, the paired difference to the baseline and its spread, and each seed.

    The cells of seeds say where a run diverged or broke down.
    """
    baselines = {name: outcome.arms[panel.baseline_of(name)] for name in outcome.arms}
    same = len({baseline.name for baseline in baselines.values()}) == 1
    elsewhere = {VALIDATION_LOSS, *panel.scores}
    curves = [show.metric for show in panel.show if isinstance(show, Curves)]
    metrics = [metric for metric in dict.fromkeys(curves) if metric not in elsewhere]
    shared = _shared_settings(outcome)
    several = len(outcome.seeds) > 1
    measure = f"to {next(iter(baselines.values())).name}" if same else "to its baseline"
    header = ["", "learning rate", "settings", "mean", measure, *(["spread"] if several else [])]
    rows = []
    for arm in outcome.arms.values():
        baseline = baselines[arm.name]
        settings = {name: value for name, value in arm.run.optimizer.settings.items() if name not in shared}
        words = " ".join(f"{name}={value}".replace(" ", "") for name, value in settings.items())
        rows.append([arm.name, f"{arm.run.optimizer.lr:g}", words, ending(arm.loss), *_differences(arm, baseline)])
        by_seed = zip(arm.results, outcome.broke_down(arm.name), strict=True)
        rows[-1] += [_end(result, broke_down=broke) for result, broke in by_seed]
        rows[-1] += [_mean(arm.values(metric)) for metric in metrics]
    header += [*(f"seed {seed}" for seed in outcome.seeds), *(metric.replace("_", " ") for metric in metrics)]
    return Table(header, rows, "Validation loss at the end")


def _end(result: Result, *, broke_down: bool) -> str:
    if result.diverged:
        return f"diverged at step {result.steps:,}"
    return ending(result.validation_loss) + (" (broke down)" if broke_down else "")


def _mean(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    return "" if math.isnan(mean) else f"{mean:.4g}" if math.isfinite(mean) else "diverged"


def _differences(arm: TrainedArm, baseline: TrainedArm) -> list[str]:
    several = len(arm.losses) > 1
    by_seed = [ours - theirs for ours, theirs in zip(arm.losses, baseline.losses, strict=True)]
    if arm is baseline or not all(map(math.isfinite, by_seed)):
        return [""] * (1 + several)
    difference = Difference(by_seed)
    return [f"{difference.mean:+.4f}", *([] if difference.spread is None else [f"{difference.spread:.4f}"])]


def _shared_settings(outcome: Outcome) -> set[str]:
    settings = [arm.run.optimizer.settings for arm in outcome.arms.values()]
    return {name for name in settings[0] if all(each.get(name) == settings[0][name] for each in settings)}


def _decided(claim: Claim, outcome: Outcome, warning: str) -> Decision:
    decision = claim.decide(outcome)
    return Decision(OPEN, warning, decision.numbers, decision.seeds) if warning else decision


def _claim_lines(decisions: Sequence[tuple[Claim, Decision]], mark: str = "") -> list[str]:
    return [
        f"{mark}{decision.verdict}{mark}: {claim.text}{' (ours)' if claim.ours else ''}. {decision.reason}".rstrip()
        for claim, decision in decisions
    ]


def _arm(arm: TrainedArm, seeds: Sequence[int]) -> dict[str, Any]:
    keys = {str(seed): folder.path.name for seed, folder in zip(seeds, arm.folders, strict=True)}
    return {"run": arm.run.model_dump(mode="json", exclude_defaults=True), "keys": keys, "losses": jsonable(arm.losses)}
