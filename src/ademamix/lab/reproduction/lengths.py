"""A study of lengths: tuned AdamW and AdEMAMix by our rule at each of them, with other shares and other alphas."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ademamix.hyperparameters import ALPHA, BETAS
from ademamix.lab.comparison.worth import SpeedUp, speed_up
from ademamix.lab.config import Run
from ademamix.lab.report.charts import Lines, Series
from ademamix.lab.report.kinds import EndAgainst
from ademamix.lab.reproduction.claims import Claim, Quantity, as_low_as, overall
from ademamix.lab.reproduction.outcome import Outcome
from ademamix.lab.reproduction.panel import Panel, Table
from ademamix.lab.reproduction.scale import Setting
from ademamix.schedules import HORIZON_FRACTION


@dataclass(frozen=True)
class Arms:
    """The arms of one setting, by their length."""

    lm: Setting
    lengths: Sequence[int]
    shares: Sequence[float]
    """Of the run, that the slow average remembers; that of our rule is among them."""
    alphas: Sequence[float]
    most_steps: Mapping[str, int]
    """Up to which length other shares ("share") and other alphas ("alpha") are tried."""
    adamw_alone: Sequence[int] = ()
    """Further lengths, at which only AdamW is trained."""

    @property
    def adamw_lengths(self) -> tuple[int, ...]:
        """The lengths of AdamW's runs."""
        return *self.lengths, *self.adamw_alone

    def adamw(self, steps: int) -> str:
        """Return the name of AdamW's arm of a length."""
        return f"AdamW, {steps:,}"

    def ademamix(self, steps: int, share: float = HORIZON_FRACTION, alpha: float = ALPHA) -> str:
        """Return the name of an arm of AdEMAMix."""
        other = f", alpha {alpha:g}" if alpha != ALPHA else ""
        return f"AdEMAMix, {share:.3g} T{other}, {steps:,}"

    def variants(self, steps: int) -> dict[str, tuple[float, float]]:
        """Return share and alpha of the arms of a length, by name, that of our rule first."""
        pairs = [(HORIZON_FRACTION, float(ALPHA))]
        if steps <= self.most_steps["share"]:
            pairs += [(share, float(ALPHA)) for share in self.shares if share != HORIZON_FRACTION]
        if steps <= self.most_steps["alpha"]:
            pairs += [(HORIZON_FRACTION, alpha) for alpha in self.alphas if alpha != ALPHA]
        return {self.ademamix(steps, share, alpha): (share, alpha) for share, alpha in pairs}

    def runs(self) -> dict[str, Run]:
        """Return the runs by name, the shortest first."""
        found = {}
        for steps in self.adamw_lengths:
            fields = self.lm.lengths(steps)
            found[self.adamw(steps)] = self.lm.run("adamw", **fields)
            if steps in self.adamw_alone:
                continue
            for name, (share, alpha) in self.variants(steps).items():
                betas = [*BETAS, max(BETAS[0], round(1 - 1 / (share * steps), 12))]
                found[name] = self.lm.run("ademamix", **fields, betas=betas, alpha=alpha)
        return found

    def panel(self, claims: Sequence[Claim], **fields: Any) -> Panel:
        """Return the panel of all runs: those of AdamW and of our rule are searched, and others follow our rule."""
        runs, rules = self.runs(), [self.ademamix(steps) for steps in self.lengths]
        searched = [name for name in runs if name in rules or name.startswith("AdamW")]
        return Panel(
            self.lm.title,
            runs,
            baseline={name: self.adamw(run.steps) for name, run in runs.items()},
            tune=searched,
            follow={name: self.ademamix(run.steps) for name, run in runs.items() if name not in searched},
            show=[EndAgainst("steps", self._groups(), logarithmic=True), SpeedUps(self)],
            tables=[self.table],
            claims=claims,
            **fields,
        )

    def _groups(self) -> list[tuple[str, list[str]]]:
        groups = [("AdamW", [self.adamw(steps) for steps in self.adamw_lengths])]
        for share in self.shares:
            lengths = self.lengths if share == HORIZON_FRACTION else self.tried("share")
            groups.append((f"AdEMAMix, {share:.3g} T", [self.ademamix(steps, share) for steps in lengths]))
        for alpha in self.alphas:
            if alpha != ALPHA:
                names = [self.ademamix(steps, alpha=alpha) for steps in self.tried("alpha")]
                groups.append((f"AdEMAMix, alpha {alpha:g}", names))
        return [(label, names) for label, names in groups if names]

    def tried(self, kind: str) -> list[int]:
        """Return the lengths at which other shares, or other alphas, are tried."""
        return [steps for steps in self.lengths if steps <= self.most_steps[kind]]

    def speed_up(self, steps: int, found: Outcome) -> SpeedUp:
        """Return what AdEMAMix by our rule gains at a length."""
        adamw = {length: found.arms[self.adamw(length)].losses for length in self.adamw_lengths}
        return speed_up(steps, found.arms[self.ademamix(steps)].losses, adamw)

    def least_speed_up(self, steps: int) -> Quantity:
        """Return the speed-up at a length, or what it is at least."""
        return Quantity(f"the least speed-up at {steps:,}", lambda found: self.speed_up(steps, found).at_least)

    def as_good(self, label: str, kind: str, margin: float, **other: float) -> Claim:
        """Claim that no other share or alpha does better by more than a margin over all lengths it was tried at."""
        ours = overall("our rule", statistics.fmean, [self.ademamix(steps) for steps in self.tried(kind)])
        theirs = overall(label, statistics.fmean, [self.ademamix(steps, **other) for steps in self.tried(kind)])
        return Claim(f"Our rule is as good as {label}, on average over the lengths", as_low_as(ours, theirs, margin))

    def table(self, found: Outcome) -> Table:
        """Return the gain, the speed-up and the best arm of each length."""
        rows = []
        for steps in self.lengths:
            adamw, ademamix = found.arms[self.adamw(steps)], found.arms[self.ademamix(steps)]
            gained = f"{100 * (1 - ademamix.loss / adamw.loss):.2f}%"
            best = found.lowest([self.adamw(steps), *self.variants(steps)]).name
            rates = [f"{arm.run.optimizer.lr:g}" for arm in (adamw, ademamix)]
            rows.append([f"{steps:,}", *rates, gained, str(self.speed_up(steps, found)), best])
        header = ["steps", "AdamW's rate", "AdEMAMix's rate", "gain", "speed-up", "lowest mean"]
        return Table(header, rows, "What AdEMAMix by our rule gains over AdamW")


@dataclass(frozen=True)
class SpeedUps:
    """The speed-up by length, with its interval."""

    arms: Arms

    def chart(self, title: str, found: Outcome) -> Lines:
        """Return three lines; where AdamW's runs are too short to tell, there is only what it is at least."""
        lengths = self.arms.lengths
        each = [self.arms.speed_up(steps, found) for steps in lengths]
        lines = {
            "speed-up": [one.mean for one in each],
            "at least": [one.least for one in each],
            "at most": [one.interval[1] for one in each],
        }
        series = [Series.of(label, lengths, values) for label, values in lines.items()]
        return Lines(title, "steps", "speed-up over AdamW", series, logarithmic="x", levels={"1": 1.0, "2": 2.0})
