"""What step-time concludes from times that are given; no test asserts a time."""

from __future__ import annotations

import pytest

from ademamix.lab.bench.runs_in_turns import Cost, Costs
from ademamix.lab.recipes import step_time
from ademamix.lab.reproduction.claims import FAILS, HOLDS, Decision
from ademamix.lab.reproduction.outcome import Outcome, TrainedArm
from ademamix.lab.reproduction.panel import Panel
from ademamix.lab.reproduction.scale import SCALES
from lab_runs import TINY, result

LAPTOP = SCALES["laptop"]


def panel_of_times(monkeypatch: pytest.MonkeyPatch, added: float, ademamix: float) -> Panel:
    """The second panel, if every variant took so much longer; AdamW ends at 2 after T steps and at 1 after 2T."""
    costs = [Costs(Cost(1.0, 1000, 8000), Cost(1 + added + seed / 1e6, 1000, 12_000)) for seed in LAPTOP.seeds]
    monkeypatch.setattr(step_time, "measured", lambda at: dict.fromkeys(step_time.timed(at), costs))
    panels = step_time.plan(LAPTOP)
    losses = zip(next(panels).arms, [2.0, 1.0, ademamix], strict=True)
    noise = [seed / 1e4 for seed in LAPTOP.seeds]
    arms = {name: TrainedArm(name, TINY, [result(loss + each) for each in noise], []) for name, loss in losses}
    return panels.send(Outcome(arms, LAPTOP.seeds))


def decided(panel: Panel) -> list[Decision]:
    return [claim.decide(Outcome({}, LAPTOP.seeds)) for claim in panel.claims]


def test_a_little_slower_is_slower_and_negligible(monkeypatch: pytest.MonkeyPatch) -> None:
    slower, *negligible, gap = decided(panel_of_times(monkeypatch, added=0.01, ademamix=1.5))
    assert (slower.verdict, gap.verdict) == (HOLDS, HOLDS)
    assert [each.verdict for each in negligible] == [HOLDS] * 3  # a claim for each model


def test_much_slower_is_not_negligible_and_may_close_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    slower, *negligible, gap = decided(panel_of_times(monkeypatch, added=0.5, ademamix=1.5))
    assert (slower.verdict, gap.verdict) == (HOLDS, FAILS)
    assert [each.verdict for each in negligible] == [FAILS] * 3
    assert gap.numbers["AdamW in the same time"] == pytest.approx([2 - 0.585] * 3, abs=1e-3)  # log2(1.5)
    assert gap.seeds == LAPTOP.seeds


def test_as_long_as_twice_the_steps_ends_where_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, gap = decided(panel_of_times(monkeypatch, added=1.0, ademamix=1.5))
    assert gap.numbers["AdamW in the same time"] == pytest.approx([1.0] * 3, abs=1e-3)


def test_the_table_has_the_steps_that_the_time_would_buy(monkeypatch: pytest.MonkeyPatch) -> None:
    (table,) = panel_of_times(monkeypatch, added=0.02, ademamix=1.5).tables
    assert len(table.rows) == 3 * len(step_time.VARIANTS)
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert row["AdamW steps more in 20,000"] == "+400"
    assert row["time added"] == "+2.0%"
    assert row["state, bytes per parameter"] == "12.00"


def test_runs_that_take_turns_differ_in_the_optimizer_alone() -> None:
    for scale in SCALES.values():
        for adamw, ademamix in step_time.timed(scale).values():
            assert adamw.changed(optimizer=ademamix.optimizer) == ademamix
            assert adamw.optimizer.settings.get("foreach") == ademamix.optimizer.settings.get("foreach")
    storages = {ademamix.optimizer.settings.get("state_storage") for _, ademamix in step_time.timed(LAPTOP).values()}
    assert storages == {None, "bf16", "compact"}


def test_the_gap_is_that_of_lm_comparison() -> None:
    for name, scale in SCALES.items():
        lm = scale.lm("110m")
        adamw, longer, ademamix = next(step_time.plan(scale)).arms.values()
        assert (adamw, ademamix) == (lm.run("adamw"), lm.run("ademamix"))
        assert longer == lm.run("adamw", steps=500_000 if name == "paper" else 2 * lm.base.steps)
