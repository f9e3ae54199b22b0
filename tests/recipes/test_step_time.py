"""What step-time concludes from times that are given; no test asserts a time."""

from __future__ import annotations

import pytest

from ademamix.lab.recipes import step_time
from ademamix.lab.report.step_times import times_table
from ademamix.lab.reproduction.claims import FAILS, HOLDS, Decision
from ademamix.lab.reproduction.outcome import Outcome, TrainedArm
from ademamix.lab.reproduction.scale import SCALES
from lab_runs import TINY, result

LAPTOP = SCALES["laptop"]


def outcome(added: float, ademamix: float) -> Outcome:
    """What is found if every variant took so much longer; AdamW ends at 2 after T steps and at 1 after 2T."""
    slower = [1 + added + seed / 1e6 for seed in LAPTOP.seeds]
    costs = {"parameters": 1000, "state_bytes": 12_000, "adamw": [1.0] * len(slower), "ademamix": slower}
    times = [{"model": model, "variant": variant, **costs} for model, variant in step_time.timed(LAPTOP)]
    (panel,) = step_time.plan(LAPTOP)
    noise = [seed / 1e4 for seed in LAPTOP.seeds]
    arms = {
        name: TrainedArm(name, TINY, [result(loss + each) for each in noise], [])
        for name, loss in zip(panel.arms, [2.0, 1.0, ademamix], strict=True)
    }
    return Outcome(arms, LAPTOP.seeds, {"processor": "a processor", "times": times})


def decided(found: Outcome) -> list[Decision]:
    """The decisions on the times, and whether the gap would be closed."""
    (panel,) = step_time.plan(LAPTOP)
    return [claim.decide(found) for claim in panel.claims]


def test_a_little_slower_is_slower_and_negligible() -> None:
    slower, *negligible, gap = decided(outcome(added=0.01, ademamix=1.5))
    assert (slower.verdict, gap.verdict) == (HOLDS, HOLDS)
    assert [each.verdict for each in negligible] == [HOLDS] * len(step_time.VARIANTS)


def test_much_slower_is_not_negligible_and_may_close_the_gap() -> None:
    slower, *negligible, gap = decided(outcome(added=0.5, ademamix=1.5))
    assert (slower.verdict, gap.verdict) == (HOLDS, FAILS)
    assert [each.verdict for each in negligible] == [FAILS] * len(step_time.VARIANTS)
    assert gap.numbers["AdamW in the same time"] == pytest.approx([2 - 0.585] * 3, abs=1e-3)  # log2(1.5)
    assert gap.seeds == LAPTOP.seeds


def test_a_storage_that_is_slower_on_one_model_is_not_negligible() -> None:
    found = outcome(added=0.01, ademamix=1.5)
    slow = next(times for times in found.measured["times"] if times["variant"] == "AdEMAMix bf16")
    slow["ademamix"] = [2 * seconds for seconds in slow["ademamix"]]
    (panel,) = step_time.plan(LAPTOP)
    verdicts = {claim.text.rpartition(": ")[2]: claim.decide(found).verdict for claim in panel.claims if claim.source}
    assert [name for name, verdict in verdicts.items() if verdict == FAILS] == ["AdEMAMix bf16"]
    assert [claim.text.rpartition(": ")[2] for claim in panel.claims if claim.ours] == list(step_time.VARIANTS)[1:]


def test_as_long_as_twice_the_steps_ends_where_they_end() -> None:
    *_, gap = decided(outcome(added=1.0, ademamix=1.5))
    assert gap.numbers["AdamW in the same time"] == pytest.approx([1.0] * 3, abs=1e-3)


def test_the_table_has_the_steps_that_the_time_would_buy() -> None:
    table = times_table(outcome(added=0.02, ademamix=1.5), 20_000)
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
