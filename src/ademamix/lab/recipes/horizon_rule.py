"""Which beta3 suits the length of a run, and what AdEMAMix gains at each length: a study of ours.

AdamW is tuned at every length, in learning rate and beta2. AdEMAMix has what its constructor chooses, given the length
alone: beta2 0.999, alpha 5, and a slow average that remembers a fixed share of the run. Only its learning rate is
searched. Other shares and other alphas take over that rate, so that they are at a slight disadvantage.

The speed-up is the number of AdamW's steps with the same loss, over the steps of AdEMAMix. It is read off AdamW's runs
of all lengths, between which the loss is taken to fall linearly with the logarithm of the steps, seed by seed. The
learning rate warms up over a hundredth of the run, but over at least 20 steps and at most those of `lm-comparison`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ademamix.hyperparameters import ALPHA, BETAS
from ademamix.lab.comparison.worth import SpeedUp, speed_up
from ademamix.lab.config import Run, Text, validation_interval
from ademamix.lab.report.charts import Lines, Series
from ademamix.lab.report.kinds import EndAgainst
from ademamix.lab.reproduction.claims import Claim, Quantity, as_low_as, every, lower, ordered, overall, part
from ademamix.lab.reproduction.outcome import Outcome
from ademamix.lab.reproduction.panel import Panel, Panels, Table
from ademamix.lab.reproduction.scale import LARGER, Scale, Setting
from ademamix.schedules import HORIZON_FRACTION

LENGTHS = {
    "smoke": (10, 20),
    "laptop": (500, 1000, 2000, 3000, 5000, 10_000, 20_000, 40_000),
    "paper": (32_000, 64_000, 128_000, 256_000),
}
LENGTHS_LARGER = (500, 1000, 2000, 3000, 5000, 7000, 10_000, 20_000)
"""Of the larger model at laptop scale, whose steps take almost three times as long."""
ADAMW_ALONE = {"small-code": (80_000,)}
"""Further lengths by panel, at which only AdamW is trained: they tell what the longest runs of AdEMAMix are worth."""
SHARES = (0.02, HORIZON_FRACTION, 0.125)
"""Of the run, that the slow average remembers: half of our rule, our rule, and that of arXiv 2602.05298."""
ALPHAS = (2.0, float(ALPHA), 10.0)
MOST_STEPS = {"alpha": 10_000, "share": 20_000}
MOST_STEPS_LARGER = {"alpha": 3000, "share": 3000}
MOST_STEPS_PAPER = {"alpha": 64_000, "share": 128_000}
"""Other alphas and other shares are tried in runs of up to this length: twice as long is twice as dear."""
PAYS_FROM = 1000
NO_WORSE = 1.005
MARGIN = 0.005
"""A mean over all lengths that is no further above another is as good."""
LEAST_RANGE = 4
"""A speed-up is compared only where AdamW's longest runs have at least this many times the steps: beyond, too little is
known of it."""


@dataclass(frozen=True)
class Arms:
    """The arms of one setting, by their length."""

    lm: Setting
    lengths: Sequence[int]
    most_steps: Mapping[str, int]
    adamw_alone: Sequence[int] = ()

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
            pairs += [(share, float(ALPHA)) for share in SHARES if share != HORIZON_FRACTION]
        if steps <= self.most_steps["alpha"]:
            pairs += [(HORIZON_FRACTION, alpha) for alpha in ALPHAS if alpha != ALPHA]
        return {self.ademamix(steps, share, alpha): (share, alpha) for share, alpha in pairs}

    def runs(self) -> dict[str, Run]:
        """Return the runs by name, the shortest first."""
        found = {}
        for steps in self.adamw_lengths:
            fields = self._fields(steps)
            found[self.adamw(steps)] = self.lm.run("adamw", **fields)
            if steps in self.adamw_alone:
                continue
            for name, (share, alpha) in self.variants(steps).items():
                betas = [*BETAS, max(BETAS[0], round(1 - 1 / (share * steps), 12))]
                found[name] = self.lm.run("ademamix", **fields, betas=betas, alpha=alpha)
        return found

    def _fields(self, steps: int) -> dict[str, Any]:
        base = self.lm.base
        warmup = min(base.schedule.warmup, max(20, steps // 100))
        interval = min(base.validate_every, validation_interval(steps, base.batch))
        return {"steps": steps, "warmup": warmup, "validate_every": interval}

    def speed_up(self, steps: int, found: Outcome) -> SpeedUp:
        """Return what AdEMAMix by our rule gains at a length."""
        adamw = {length: found.arms[self.adamw(length)].losses for length in self.adamw_lengths}
        return speed_up(steps, found.arms[self.ademamix(steps)].losses, adamw)


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


def plan(at: Scale) -> Panels:
    """Yield a panel for each model and text."""
    for figure, arms in _arms(at).items():
        lm = arms.lm
        runs, rules = arms.runs(), [arms.ademamix(steps) for steps in arms.lengths]
        yield Panel(
            lm.title,
            runs,
            baseline={name: arms.adamw(run.steps) for name, run in runs.items()},
            tune=[name for name in runs if name in rules or name.startswith("AdamW")],
            follow={name: arms.ademamix(run.steps) for name, run in runs.items() if _is_variant(name, rules)},
            show=[EndAgainst("steps", _groups(arms), logarithmic=True), SpeedUps(arms)],
            tables=[partial(_table, arms)],
            claims=_claims(arms),
            caption=f"beta3 = 1 - 1/(share T); our rule has the share {HORIZON_FRACTION:g} and alpha {ALPHA:g}.",
            figure=figure,
            warning=at.too_short(lm.base.steps),
        )


def _arms(at: Scale) -> dict[str, Arms]:
    """Return the arms of each panel, by the name of its figure."""
    lm, lengths = at.lm("110m"), LENGTHS[at.name]
    if at.name != "laptop":
        return {"": Arms(lm, lengths, MOST_STEPS_PAPER if at.name == "paper" else MOST_STEPS)}
    prose = Text(kind="text", source="kjv")
    small = (LENGTHS["laptop"], MOST_STEPS)
    panels = {
        "small-code": (lm.with_base("0.03M parameters, code"), *small),
        "small-prose": (lm.with_base("0.03M parameters, prose", data=prose), *small),
        "larger-code": (LARGER.with_base("0.17M parameters, code"), LENGTHS_LARGER, MOST_STEPS_LARGER),
    }
    return {figure: Arms(*panel, ADAMW_ALONE.get(figure, ())) for figure, panel in panels.items()}


def _is_variant(name: str, rules: Iterable[str]) -> bool:
    return not name.startswith("AdamW") and name not in rules


def _groups(arms: Arms) -> list[tuple[str, list[str]]]:
    def shared(most: int) -> list[int]:
        return [steps for steps in arms.lengths if steps <= most]

    groups = [("AdamW", [arms.adamw(steps) for steps in arms.adamw_lengths])]
    for share in SHARES:
        lengths = arms.lengths if share == HORIZON_FRACTION else shared(arms.most_steps["share"])
        groups.append((f"AdEMAMix, {share:.3g} T", [arms.ademamix(steps, share) for steps in lengths]))
    for alpha in ALPHAS:
        if alpha != ALPHA:
            names = [arms.ademamix(steps, alpha=alpha) for steps in shared(arms.most_steps["alpha"])]
            groups.append((f"AdEMAMix, alpha {alpha:g}", names))
    return [(label, names) for label, names in groups if names]


def _table(arms: Arms, found: Outcome) -> Table:
    rows = []
    for steps in arms.lengths:
        adamw, ademamix = found.arms[arms.adamw(steps)], found.arms[arms.ademamix(steps)]
        gained = f"{100 * (1 - ademamix.loss / adamw.loss):.2f}%"
        best = found.lowest([arms.adamw(steps), *arms.variants(steps)]).name
        rates = [f"{arm.run.optimizer.lr:g}" for arm in (adamw, ademamix)]
        rows.append([f"{steps:,}", *rates, gained, str(arms.speed_up(steps, found)), best])
    header = ["steps", "AdamW's rate", "AdEMAMix's rate", "gain", "speed-up", "lowest mean"]
    return Table(header, rows, "What AdEMAMix by our rule gains over AdamW")


def _claims(arms: Arms) -> list[Claim]:
    long, short = ([steps for steps in arms.lengths if (steps >= PAYS_FROM) == is_long] for is_long in (True, False))
    claims = []
    if long:
        claims.append(
            Claim(
                f"Given a rate and the length alone, AdEMAMix ends below a tuned AdamW from {long[0]:,} steps on",
                every(*(lower(arms.ademamix(steps), arms.adamw(steps)) for steps in long)),
            )
        )
    if short:
        no_worse = [as_low_as(arms.ademamix(steps), part(NO_WORSE, arms.adamw(steps)), margin=0.0) for steps in short]
        claims.append(Claim(f"Below {PAYS_FROM:,} steps it ends at most 0.5% above AdamW", every(*no_worse)))
    claims += [_as_good(arms, f"{share:g} T", "share", share=share) for share in SHARES if share != HORIZON_FRACTION]
    claims += [_as_good(arms, f"alpha {alpha:g}", "alpha", alpha=alpha) for alpha in ALPHAS if alpha != ALPHA]
    told = [steps for steps in arms.lengths if LEAST_RANGE * steps <= max(arms.adamw_lengths)]
    if len(told) > 1:
        longer = ordered(*(_speed_up(arms, steps) for steps in told))
        claims.append(Claim("The longer the run, the larger is the speed-up", longer))
    return claims


def _as_good(arms: Arms, label: str, kind: str, **other: float) -> Claim:
    """Claim that no other share or alpha does better over all lengths that it was tried at."""
    lengths = [steps for steps in arms.lengths if steps <= arms.most_steps[kind]]
    ours = overall("our rule", statistics.fmean, [arms.ademamix(steps) for steps in lengths])
    theirs = overall(label, statistics.fmean, [arms.ademamix(steps, **other) for steps in lengths])
    return Claim(f"Our rule is as good as {label}, on average over the lengths", as_low_as(ours, theirs, MARGIN))


def _speed_up(arms: Arms, steps: int) -> Quantity:
    return Quantity(f"the least speed-up at {steps:,}", lambda found: arms.speed_up(steps, found).at_least)
