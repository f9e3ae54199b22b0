"""A verdict is data: what each check concludes from which numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import (
    FAILS,
    HOLDS,
    OPEN,
    as_low_as,
    at_step,
    breaks_down,
    every,
    gap,
    largest_rise,
    last,
    lower,
    lowest,
    lowest_ever,
    measured,
    ordered,
    overall,
    part,
    ratio,
    roughness,
    smoothed,
    some,
    trains,
    within,
)
from ademamix.lab.reproduction.finished import arms_table
from ademamix.lab.reproduction.outcome import Outcome, TrainedArm
from ademamix.lab.reproduction.panel import Panel
from ademamix.lab.runs.record import RunFolder
from lab_runs import TINY, result

INF = math.inf


def outcome(**arms: Sequence[float]) -> Outcome:
    trained = {name: TrainedArm(name, TINY, [*map(result, losses)], []) for name, losses in arms.items()}
    seeds = len(next(iter(arms.values())))
    return Outcome(trained, tuple(range(1, seeds + 1)))


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([1.0, 1.1, 1.2], [1.1, 1.21, 1.29], HOLDS),
        ([1.1, 1.21, 1.29], [1.0, 1.1, 1.2], FAILS),
        ([1.0, 1.1, 1.2], [1.1, 1.05, 1.2], OPEN),  # it may be chance
        ([1.0], [2.0], OPEN),  # one seed
        ([1.0, 1.0], [INF, INF], HOLDS),
        ([INF, INF], [1.0, 1.0], FAILS),
        ([INF, INF], [INF, INF], FAILS),
        ([INF, 1.0], [1.0, 1.1], OPEN),
        ([1.0], [INF], OPEN),
    ],
)
def test_lower_is_paired_over_seeds(ours: list[float], theirs: list[float], verdict: str) -> None:
    decision = lower("a", "b")(outcome(a=ours, b=theirs))
    assert decision.verdict == verdict
    assert decision.numbers == {"a": ours, "b": theirs}
    assert list(decision.seeds) == list(range(1, len(ours) + 1))


def test_reasons_have_the_numbers() -> None:
    found = outcome(a=[1.0, 1.1, 1.2], b=[1.1, 1.21, 1.29], c=[INF, 1.0, 1.0])
    assert lower("a", "b")(found).reason == (
        "a is 0.1000 below b in the mean of 3 seeds, and lower on 3 of them; the differences have a standard deviation "
        "of 0.0100."
    )
    assert "this may be chance" in lower("a", measured("limit", 1.15))(found).reason
    assert lower("a", "c")(found).reason == "c diverged at step 100; a is below c on 1 of 3 seeds."
    assert "on one seed, which decides nothing" in lower("a", "b")(outcome(a=[1.0], b=[2.0])).reason


def test_numbers_that_no_seed_changes_decide_at_once() -> None:
    found = outcome(a=[1.0])
    for check, verdict, reason in [
        (lower(measured("weight", 0.2), 0.5), HOLDS, "Weight is 0.2, below 0.5."),
        (lower(0.5, measured("weight", 0.2)), FAILS, "Weight is 0.2, below 0.5."),
        (lower(measured("one", 1.0), measured("other", 2.0)), HOLDS, "One is 1, below the 2 of other."),
        (lower(measured("one", 1.0), 1.0), FAILS, "One is 1, equal to 1."),
    ]:
        decision = check(found)
        assert (decision.verdict, decision.reason, decision.seeds) == (verdict, reason, ())


def test_an_arm_against_a_number() -> None:
    assert lower("a", 1.5)(outcome(a=[1.0, 1.01, 0.99])).verdict == HOLDS
    assert lower(1.5, "a")(outcome(a=[1.0, 1.01, 0.99])).verdict == FAILS


@pytest.mark.parametrize(
    ("other", "verdict"),
    [([1.001, 1.002, 1.0], HOLDS), ([1.1, 1.11, 1.1], FAILS), ([1.0, 1.03, 0.99], OPEN), ([INF] * 3, FAILS)],
)
def test_within_has_the_uncertainty_to_spare(other: list[float], verdict: str) -> None:
    assert within(0.01, "a", "b")(outcome(a=[1.0, 1.0, 1.0], b=other)).verdict == verdict


def test_within_of_one_seed_and_of_exact_numbers() -> None:
    assert within(0.01, "a", "b")(outcome(a=[1.0], b=[1.0])).verdict == OPEN
    assert within(0.01, measured("x", 1.0), 1.005)(outcome(a=[1.0])).verdict == HOLDS
    assert within(0.01, measured("x", 1.0), 1.05)(outcome(a=[1.0])).verdict == FAILS


def test_as_low_as_is_below_or_close() -> None:
    for losses, verdict in (
        ([0.5, 0.51, 0.5], HOLDS),
        ([1.001, 1.0, 1.002], HOLDS),
        ([1.015, 1.0, 1.01], OPEN),
        ([1.5, 1.51, 1.5], FAILS),
        ([INF, INF, INF], FAILS),
    ):
        assert as_low_as("a", "b")(outcome(a=losses, b=[1.0, 1.0, 1.001])).verdict == verdict


FOUND = outcome(low=[1.0, 1.01], middle=[2.0, 2.01], high=[3.0, 3.01], noisy=[1.0, 5.0], gone=[INF, INF])


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        (every(lower("low", "middle"), lower("middle", "high")), HOLDS),
        (every(lower("low", "middle"), lower("high", "middle")), FAILS),
        (every(lower("low", "middle"), lower("noisy", "middle")), OPEN),
        (every(lower("high", "middle"), lower("noisy", "middle")), FAILS),
        (some(lower("high", "middle"), lower("low", "middle")), HOLDS),
        (some(lower("high", "middle"), lower("noisy", "middle")), OPEN),
        (some(lower("high", "middle"), lower("high", "low")), FAILS),
        (ordered("low", "middle", "high", "gone"), HOLDS),
        (ordered("low", "high", "middle"), FAILS),
        (lowest("low", ["low", "middle", "high", "gone"]), HOLDS),
        (lowest("middle", ["low", "middle", "high"]), FAILS),
        (every(lower("noisy", "high"), lower("low", "middle")), OPEN),
    ],
)
def test_combinations(check, verdict) -> None:
    decision = check(FOUND)
    assert decision.verdict == verdict
    assert decision.reason
    assert list(decision.seeds) == [1, 2]


def test_an_order_is_decided_by_its_ends_unless_neighbours_contradict() -> None:
    found = outcome(a=[1.0, 1.1, 1.2], b=[1.2, 1.0, 1.25], c=[1.5, 1.6, 1.71], d=[1.4, 1.5, 1.6])
    assert lower("a", "b")(found).verdict == OPEN
    decision = ordered("a", "b", "c")(found)
    assert (decision.verdict, set(decision.numbers)) == (HOLDS, {"a", "b", "c"})
    assert decision.reason.startswith("a is 0.5033 below c")
    assert ordered("b", "a")(found).verdict == OPEN
    contradicted = ordered("a", "c", "d")(found)
    assert contradicted.verdict == FAILS
    assert contradicted.reason.startswith("d is 0.1033 below c")


def test_two_that_diverged_do_not_contradict_an_order() -> None:
    found = outcome(a=[1.0, 1.1], b=[INF, INF], c=[INF, INF])
    assert ordered("a", "b", "c")(found).verdict == HOLDS
    assert ordered("b", "c")(found).verdict == FAILS


def test_few_seeds_need_more_standard_errors() -> None:
    lower_by_two_and_a_half_standard_errors = [1 - 0.1443 - noise for noise in (-0.1, 0.1, 0.0)]
    for times, verdict in (1, OPEN), (3, HOLDS):
        found = outcome(a=lower_by_two_and_a_half_standard_errors * times, b=[1.0] * 3 * times)
        assert lower("a", "b")(found).verdict == verdict


def test_margins_say_how_far_the_mean_may_be_off() -> None:
    reason = within(0.01, "a", "b")(outcome(a=[1.0, 1.0, 1.0], b=[1.001, 1.002, 1.0])).reason
    assert reason.endswith(
        "the differences have a standard deviation of 0.0010, so that the mean may be off by 0.0017."
    )


def test_gaps_are_quantities() -> None:
    found = outcome(a=[1.0, 2.0], b=[1.1, 2.1], c=[1.5, 2.5])
    decision = lower(gap("b", "a"), gap("c", "a"))(found)
    assert decision.verdict == HOLDS
    assert decision.numbers["c over a"] == [0.5, 0.5]


def test_ratios_are_quantities() -> None:
    found = outcome(a=[1.0, 2.0], b=[3.0, 0.0])
    assert ratio("share", "b", "a").values(found) == [3.0, 0.0]
    assert ratio("share", overall("mean", statistics.fmean, ["a", "b"]), 2.0).values(found) == [1.0, 0.5]
    by_zero = lower(ratio("share", "a", "b"), 1.0)(found)
    assert (by_zero.verdict, by_zero.reason) == (OPEN, "There are no numbers to compare share and 1 by.")
    assert overall("mean", statistics.fmean, [1.0, 2.0]).exact
    assert not ratio("share", "a", 2.0).exact
    assert part(0.5, "b").values(found) == [1.5, 0.0]
    assert part(0.1, measured("whole", 2.0)).exact


def test_statistics_of_several_are_quantities() -> None:
    found = outcome(a=[1.0, 4.0], b=[2.0, 2.5], c=[6.0, INF])
    assert overall("best", min, ["a", "b", "c"]).values(found) == [1.0, 2.5]
    assert overall("mean", statistics.fmean, ["a", "b", "c"]).values(found) == [3.0, INF]
    assert overall("middle", statistics.median, ["a", "b", gap("c", "a")]).values(found) == [2.0, 4.0]
    assert lower(overall("best", min, ["a", "b"]), "c")(found).numbers == {"best": [1.0, 2.5], "c": [6.0, INF]}


def test_metrics_at_a_step(tmp_path: Path) -> None:
    folders = [RunFolder(tmp_path, TINY.model_copy(update={"seed": seed})) for seed in (1, 2)]
    for number, folder in enumerate(folders):
        with folder.locked(), folder.open_metrics() as append:
            for step, norm in ((10, 5.0), (20, 7.0), (30, 6.0)):
                append({"step": step, "norm": norm + number})
    found = Outcome({"a": TrainedArm("a", TINY, [result(1.0), result(INF)], folders)}, (1, 2))
    assert last("a", "norm").values(found) == [6.0, INF]
    assert at_step("a", 25, "norm").values(found) == [7.0, 8.0]
    assert at_step("a", 40, "norm").values(found) == [6.0, INF]
    assert math.isnan(at_step("a", 5, "norm").values(found)[0])
    assert lowest_ever("a", "norm").values(found) == [5.0, INF]
    assert largest_rise("a", "norm").values(found) == [2.0, INF]
    assert largest_rise("a", "norm", between=(20, 30)).values(found) == [0.0, INF]
    assert math.isnan(largest_rise("a", "unknown").values(found)[0])
    assert roughness("a", "norm").values(found) == [1.5, INF]
    assert smoothed("a", 20, 20, "norm").values(found) == [6.0, 7.0]
    assert smoothed("a", 45, 20, "norm").values(found) == [6.0, INF]
    assert math.isnan(smoothed("a", 5, 5, "norm").values(found)[0])
    assert math.isnan(roughness("a", "unknown").values(found)[0])
    unknown = lower(last("a", "unknown"), "a")(found)
    assert (unknown.verdict, unknown.reason) == (OPEN, "There are no numbers to compare a, unknown and a by.")
    assert within(1.0, last("a", "unknown"), "a")(found).verdict == OPEN
    assert found.arms["a"].curve("norm") == {10: 5.5, 20: 7.5, 30: 6.5}


def test_an_arm_that_never_recovers_breaks_down(tmp_path: Path) -> None:
    tenth = TINY.steps // 10
    curves = {"AdamW": 1.0, "spoilt": 2.5, "fine": 1.5, "between": 2.0}
    arms = {}
    for number, (name, end) in enumerate(curves.items()):
        folders = [RunFolder(tmp_path, TINY.model_copy(update={"seed": 10 * number + seed})) for seed in (1, 2)]
        for folder in folders:
            with folder.locked(), folder.open_metrics() as append:
                append({"step": tenth, "validation_loss": 2.0})
                append({"step": TINY.steps, "validation_loss": end})
        arms[name] = TrainedArm(name, TINY, [result(end), result(end)], folders)
    arms["gone"] = TrainedArm("gone", TINY, [result(INF), result(INF)], [])
    panel = Panel("Broken", baseline="AdamW")
    found = panel.judged(Outcome(arms, (1, 2)))
    verdicts = {name: (breaks_down(name)(found).verdict, trains(name)(found).verdict) for name in list(arms)[1:]}
    broken, sound, undecided = (HOLDS, FAILS), (FAILS, HOLDS), (OPEN, OPEN)
    assert verdicts == {"spoilt": broken, "fine": sound, "between": undecided, "gone": broken}
    marked = {row[0]: row[-2:] for row in arms_table(panel, found).rows}
    assert marked["spoilt"] == ["2.5000 (broke down)"] * 2
    assert marked["fine"] == ["1.5000"] * 2
    assert marked["gone"] == ["diverged at step 100"] * 2


def test_a_metric_that_two_charts_show_has_one_column(tmp_path: Path) -> None:
    found = Outcome({"a": TrainedArm("a", TINY, [result(1.0)], [RunFolder(tmp_path, TINY)])}, (1,))
    panel = Panel("Twice", baseline="a", show=[Curves("norm"), Curves("norm"), Curves("angle")])
    header = arms_table(panel, found).header
    assert list(header[-2:]) == ["norm", "angle"]
    assert len(header) == len(set(header))


def test_an_arm_that_overfits_has_not_broken_down(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, TINY)
    with folder.locked(), folder.open_metrics() as append:
        for share, loss in ((10, 2.0), (2, 1.0), (1, 3.0)):
            append({"step": TINY.steps // share, "validation_loss": loss})
    found = Outcome({"a": TrainedArm("a", TINY, [result(3.0)], [folder])}, (1,))
    assert Panel("by the last loss", baseline="a").judged(found).broke_down("a") == [True]
    assert Panel("by the lowest loss", baseline="a", early_stopping=True).judged(found).broke_down("a") == [False]


def test_where_runs_broke_down_all_seeds_must_agree() -> None:
    losses = {"base": [1.0, 1.0, 1.0], "worse": [2.21, 1.43, 1.48], "mixed": [2.5, 2.4, 0.9]}
    calm, found = outcome(**losses), outcome(**losses)
    found = replace(found, broken={"worse": [True, False, False], "mixed": [True, True, False]})
    for check, verdict in (
        (lower("base", "worse"), HOLDS),
        (lower("worse", "base"), FAILS),
        (as_low_as("base", "worse"), HOLDS),
        (as_low_as("worse", "base"), FAILS),
        (within(0.01, "base", "worse"), FAILS),
        (lower(gap("base", "base"), gap("worse", "base")), HOLDS),
        (lower(overall("best", min, ["base", "worse"]), overall("worst", max, ["base", "worse"])), HOLDS),
        (lower("base", part(0.9, "worse")), HOLDS),
        (lower("base", "mixed"), OPEN),
    ):
        assert check(found).verdict == verdict
    assert lower("base", "worse")(calm).verdict == OPEN
    reason = lower("base", "worse")(found).reason
    assert reason == "worse broke down on 1 of 3 seeds; base is below worse on 3 of 3 seeds."


def test_a_breakdown_is_an_infinite_rise(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, TINY)
    with folder.locked(), folder.open_metrics() as append:
        append({"step": 1, "loss": 2.0})
        append({"step": 2, "loss": 2.5})
    found = Outcome({"a": TrainedArm("a", TINY, [result(2.5)], [folder])}, (1,))
    assert largest_rise("a", "loss").values(found) == [0.5]
    assert largest_rise("a", "loss").values(replace(found, broken={"a": [True]})) == [INF]
