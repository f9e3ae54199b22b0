"""What a comparison says of its numbers, and how it is laid out."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb

from ademamix.lab import tuning
from ademamix.lab.comparison import arms, defaults, figure, report
from ademamix.lab.comparison.arms import Arm, Comparison, Difference, arm_of
from ademamix.lab.config import Optimizer, Run
from ademamix.lab.report import figures
from ademamix.output import tables
from lab_runs import TINY, changed, result

BASE = changed(TINY, steps=100, validate_every=25)


def _arm(name: str, curves: list[dict[int, float]], optimizer: str = "adamw", steps: int = 100) -> Arm:
    results = [result(list(curve.values())[-1]) for curve in curves]
    return Arm(name, arm_of(BASE, Optimizer(name=optimizer, lr=1e-3), steps), results, curves)


ADAMW = _arm("AdamW", [{50: 2.0, 75: 1.5, 100: 1.0}, {50: 2.2, 75: 1.7, 100: 1.2}])
ADEMAMIX = _arm("AdEMAMix", [{50: 2.1, 75: 1.0, 100: 0.8}, {50: 2.1, 75: 1.1, 100: 0.9}], "ademamix")
DIVERGED = Arm("Lion", arm_of(BASE, Optimizer(name="lion", lr=1.0)), 2 * [result(math.nan)], 2 * [{}])
LONGER = _arm("AdamW in 200 steps", [{100: 1.1, 200: 0.9}, {100: 1.3, 200: 1.0}], steps=200)
BOTH = Comparison(BASE, [ADAMW, ADEMAMIX])
WIDE = 200


def test_the_comparison_counts_what_it_says() -> None:
    assert ADAMW.loss == pytest.approx(1.1)
    assert ADEMAMIX.curve == pytest.approx({50: 2.1, 75: 1.05, 100: 0.85})
    assert BOTH.level == pytest.approx(1.1)
    assert [BOTH.step_at_level(arm) for arm in BOTH.arms] == [100, 75]
    table = report.table(BOTH, WIDE)
    assert "1.1000" in table
    assert "75 (25% fewer)" in table
    assert "-0.2500 ± 0.0707 (2 of 2 lower)" in table
    assert report.result(BOTH) == (
        "AdEMAMix ended 0.2500 below AdamW (0.8500 against 1.1000) on average over 2 seeds, lower on 2 of them; the "
        "differences have a standard deviation of 0.0707. It was as low after 75 steps, 25% fewer, with both curves "
        "smoothed over a tenth of the run. The seeds differ so much that this may be chance: more of them would tell."
    )
    assert report.details(BOTH) == ""


THREE = Comparison(BASE, [ADAMW, LONGER, ADEMAMIX])


def test_a_longer_run_of_the_baseline_is_the_measure_of_the_result() -> None:
    said = report.report(THREE, tuned=False, width=1000).splitlines()
    assert said[0] == (
        "AdEMAMix ended 0.1000 below AdamW in 200 steps (0.8500 against 0.9500) on average over 2 seeds, lower on 2 of "
        "them; the differences have a standard deviation of 0.0000."
    )
    below, above = report.details(THREE).splitlines()
    assert below.startswith("AdEMAMix ended 0.2500 below AdamW (0.8500 against 1.1000)")
    assert "25% fewer" in below
    assert above.startswith("AdamW in 200 steps ended 0.1500 below AdamW (0.9500 against 1.1000)")
    assert "fewer" not in above
    assert report.result(Comparison(BASE, [ADAMW, LONGER])) == above
    assert report.result(Comparison(BASE, [ADAMW])) == "AdamW ended at 1.1000."


def test_curves_are_crossed_only_with_those_of_the_same_length() -> None:
    assert THREE.smoothed(LONGER) == pytest.approx({100: 1.2, 200: 0.95})
    assert THREE.step_at_level(LONGER) is None
    assert THREE.saved(ADEMAMIX) == 0.25
    rows = {line[:39].strip(): line[39:].split("  ") for line in report.table(THREE, WIDE).splitlines()}
    cells = {label: [cell.strip() for cell in row if cell.strip()] for label, row in rows.items()}
    assert cells["validation loss at the end"] == ["1.1000", "0.9500", "0.8500"]
    assert cells["difference to AdamW in 200 steps, ± SD"] == ["-0.1000 ± 0.0000 (2 of 2 lower)"]
    assert len(cells["difference to AdamW, ± SD"]) == 2
    assert cells["steps to the loss of AdamW, smoothed"] == ["100", "75 (25% fewer)"]


def test_settings_that_all_arms_share_are_stated_once() -> None:
    optimizers = [defaults.STARTING_POINTS[name] for name in ("adamw", "ademamix")]
    shown = [Arm(one.name, arm_of(BASE, one), ADAMW.results, ADAMW.curves) for one in optimizers]
    table = report.table(Comparison(BASE, shown), WIDE)
    assert table.endswith("\nall with weight_decay=0.1")
    assert table.count("weight_decay") == 1
    assert next(line for line in table.splitlines() if line.startswith("settings")).split() == [
        "settings",
        "lr=0.016",
        "betas=[0.9,0.99]",
        "lr=0.004",
        "alpha=8",
    ]


def test_six_optimizers_are_rows_of_a_narrow_terminal() -> None:
    names = ("adamw", "ademamix", "convex-mix", "ad3emamix", "aggmo", "lion")
    runs = [arm_of(BASE, defaults.STARTING_POINTS[name]) for name in names]
    shown = [Arm(name, of_seed[1], ADAMW.results, ADAMW.curves) for name, of_seed in arms.plan(runs, [1]).items()]
    lines = report.table(Comparison(BASE, shown), width=90).splitlines()
    assert max(map(len, lines)) <= 90
    for arm in shown:
        (row,) = (line for line in lines if line.startswith(f"{arm.name.split()[0]} "))
        assert "1.1000" in row


def test_a_longer_run_of_another_optimizer_is_no_baseline() -> None:
    long_lion = _arm("Lion", [{100: 1.1, 200: 0.9}], "lion", steps=200)
    one_seed = _arm("AdamW", [{100: 1.0}])
    comparison = Comparison(BASE, [one_seed, long_lion])
    assert comparison.longer_baselines == []
    assert report.result(comparison).startswith("Lion ended 0.1000 below AdamW (0.9000 against 1.0000).")


def _noisy(seed: int, noise: float) -> dict[int, float]:
    draw = random.Random(seed)
    return {step: 3 - 2 * step / 10_000 + draw.gauss(0, noise) for step in range(200, 10_001, 200)}


def test_noise_alone_saves_no_steps() -> None:
    base = changed(TINY, steps=10_000, validate_every=200)
    savings = []
    for seed in range(200):
        pairs = [_arm("one", [_noisy(2 * seed, 0.1)]), _arm("other", [_noisy(2 * seed + 1, 0.1)])]
        for pair in (pairs, pairs[::-1]):  # either may be the one that the other is measured by
            saved = Comparison(base, pair).saved(pair[1])
            savings.append(0.0 if saved is None else saved)
    # the first crossing of the raw curve, over the length of the run, would save 3.7%
    assert abs(sum(savings) / len(savings)) < 0.01


def test_one_seed_is_called_one_seed() -> None:
    one = Comparison(BASE, [_arm(arm.name, [dict(arm.curves[0])], arm.optimizer.name) for arm in BOTH.arms])
    said = report.report(one, tuned=False, width=WIDE)
    assert said.startswith("AdEMAMix ended 0.2000 below AdamW (0.8000 against 1.0000).")
    assert "This is one seed, and seeds differ" in said
    assert "seeds" not in report.table(one, WIDE)


def test_seeds_that_disagree_are_not_a_win() -> None:
    disagree = Difference([-0.082, 0.006, -0.019])
    assert disagree.lower == 2
    assert disagree.may_be_chance
    ours = _arm("AdEMAMix", [{100: 1.0 + difference} for difference in disagree.by_seed])
    said = report.result(Comparison(BASE, [_arm("AdamW", 3 * [{100: 1.0}]), ours]))
    assert "lower on 2 of them" in said
    assert "may be chance" in said
    agree = _arm("AdEMAMix", [{100: 0.95}, {100: 0.96}, {100: 0.94}])
    assert "chance" not in report.result(Comparison(BASE, [_arm("AdamW", 3 * [{100: 1.0}]), agree]))


def test_a_loss_is_called_a_loss() -> None:
    said = report.result(Comparison(BASE, [ADEMAMIX, ADAMW]))
    assert said.startswith("AdamW ended 0.2500 above AdEMAMix (1.1000 against 0.8500)")
    assert "Lion diverged" in report.result(Comparison(BASE, [ADAMW, DIVERGED]))
    table = report.table(Comparison(BASE, [ADAMW, DIVERGED]), WIDE)
    assert "not reached" in table
    assert "diverged on 2 of 2 seeds" in table
    assert "nothing to measure" in report.result(Comparison(BASE, [DIVERGED, ADAMW]))
    assert "fewer" not in report.table(Comparison(BASE, [DIVERGED, ADAMW]), WIDE)


def test_reasons_are_given_only_where_they_hold() -> None:
    ours, theirs = defaults.OPTIMIZERS["ademamix"], defaults.OPTIMIZERS["adamw"]

    def reasons(base: Run, optimizers: list[Optimizer], *, tuned: bool = False) -> str:
        shown = [Arm(one.name, arm_of(base, one), ADAMW.results, ADAMW.curves) for one in optimizers]
        return report.reasons(Comparison(base, shown), tuned=tuned)

    def with_settings(**settings: object) -> Optimizer:
        return Optimizer(name="ademamix", lr=1e-3, settings=settings)

    longer = changed(TINY, steps=2500)
    assert "beta3 = 0.99 is the rule for 2,500 steps" in reasons(longer, [theirs, ours])
    assert "rule for" not in reasons(changed(TINY, steps=20), [theirs, ours])
    assert "best of a search" in reasons(defaults.DEFAULT, [theirs, ours])
    assert "were not tuned" in reasons(defaults.DEFAULT, [ADAMW.optimizer, ours])
    assert "rule for" not in reasons(longer, [with_settings(total_steps=10**6)])
    assert "rule for" not in reasons(longer, [with_settings(betas=[0.9, 0.99, 0.999])])
    assert "rule for" in reasons(longer, [with_settings(betas=[0.9, 0.99])])
    assert "best of the search" in reasons(BASE, [theirs, ours], tuned=True)


def test_arms_are_told_apart_by_what_differs() -> None:
    adamw, ademamix = defaults.OPTIMIZERS["adamw"], defaults.OPTIMIZERS["ademamix"]
    compact = Optimizer(name="ademamix", lr=ademamix.lr, settings={**ademamix.settings, "state_storage": "compact"})

    def labels(*runs: Run) -> list[str]:
        return list(arms.plan(runs, [1]))

    alike = labels(*(arm_of(BASE, optimizer) for optimizer in (adamw, ademamix, compact)))
    assert alike == ["AdamW", "AdEMAMix", "AdEMAMix state_storage=compact"]
    alphas = [Optimizer(name="ademamix", lr=ademamix.lr, settings={"weight_decay": 0.1, "alpha": a}) for a in (2, 4)]
    stated = labels(*(arm_of(BASE, optimizer) for optimizer in (ademamix, compact, *alphas)))
    assert stated == ["AdEMAMix", "AdEMAMix state_storage=compact", "AdEMAMix alpha=2", "AdEMAMix alpha=4"]
    bare = Optimizer(name="ademamix", lr=ademamix.lr)  # alpha is then the library's own default
    assert labels(arm_of(BASE, bare), arm_of(BASE, ademamix)) == ["AdEMAMix", "AdEMAMix weight_decay=0.1 alpha=8"]
    tuned = Optimizer(name="adamw", lr=1.0, settings=adamw.settings)
    assert labels(arm_of(BASE, adamw), arm_of(BASE, tuned, 200), arm_of(BASE, ademamix)) == [
        "AdamW in 100 steps",
        "AdamW in 200 steps",
        "AdEMAMix in 100 steps",
    ]
    rates = [1e-3, 1.0000001e-3]  # that look alike
    runs = arms.plan([arm_of(BASE, Optimizer(name="adamw", lr=rate)) for rate in rates], [1])
    assert [of_seed[1].optimizer.lr for of_seed in runs.values()] == rates


def test_a_longer_arm_keeps_all_but_the_length_and_shares_its_run_with_recipes() -> None:
    adamw, steps = defaults.OPTIMIZERS["adamw"], 2 * defaults.STEPS
    run = arm_of(defaults.DEFAULT, adamw, steps)
    assert run.key == defaults.DEFAULT.model_copy(update={"optimizer": adamw, "steps": steps}).key
    with pytest.raises(ValueError, match="warm-up and decay must fit into the 2 steps"):
        arm_of(BASE, adamw, 2)


def test_comparisons_have_folders_of_their_own() -> None:
    both = list(defaults.OPTIMIZERS.values())

    def folder(base: Run, optimizers: list[Optimizer], seeds: list[int]) -> str:
        return arms.folder_name(arms.plan([arm_of(base, optimizer) for optimizer in optimizers], seeds))

    names = {
        folder(base, optimizers, seeds)
        for base in (BASE, changed(BASE, steps=200), changed(BASE, batch=4))
        for optimizers in (both, both[::-1], both[:1])
        for seeds in ([1], [1, 2])
    }
    assert len(names) == 18
    odd = changed(BASE, data={"kind": "text", "source": "/tmp/Meine Bücher: 1/.."})
    assert "/" not in folder(odd, both, [1])


@pytest.mark.parametrize("width", [200, 120, 80, 60, 40, 20])
def test_a_report_fits_its_width_and_nothing_is_cut(width: int) -> None:
    settings = {"weight_decay": 0.1, "alpha": 8, "state_storage": "compact"}
    optimizer = Optimizer(name="ademamix", lr=4e-3, settings=settings)
    compact = Arm("AdEMAMix compact", arm_of(BASE, optimizer), ADEMAMIX.results, ADEMAMIX.curves)
    text = report.report(Comparison(BASE, [*THREE.arms, compact, DIVERGED]), tuned=False, width=width)
    longest = max(map(len, ["weight_decay=0.1", "state_storage=compact"])) + len("    ")
    assert max(map(len, text.splitlines())) <= max(width, longest)
    words = set(text.split())
    assert {"AdamW", "compact", "state_storage=compact", "1.1000", "75", "(25%", "reached", "lr=0.004"} <= words


@pytest.mark.parametrize("width", [80, 100, 140])
def test_six_optimizers_with_settings_fit_a_terminal_as_rows(width: int) -> None:
    ademamix = defaults.OPTIMIZERS["ademamix"]
    changes = [{}, {"state_storage": "compact"}, {"alpha": 2}]
    ours = [Optimizer(name="ademamix", lr=ademamix.lr, settings={**ademamix.settings, **change}) for change in changes]
    others = [defaults.STARTING_POINTS[name] for name in ("lion", "ad3emamix")]
    runs = [arm_of(BASE, one) for one in (defaults.OPTIMIZERS["adamw"], *ours, *others)]
    shown = [
        Arm(name, of_seed[1], ADAMW.results[:1], ADAMW.curves[:1]) for name, of_seed in arms.plan(runs, [1]).items()
    ]
    lines = report.table(Comparison(BASE, shown), width).splitlines()
    assert max(map(len, lines)) <= width
    assert sum("1.0000" in line for line in lines) == len(runs)
    assert len(lines) <= 18


def test_tables_turn_when_they_do_not_fit() -> None:
    columns = [(f"optimizer-{number}", ["1.0000", "2"]) for number in range(8)]
    upright, turned = (tables.laid_out(["loss", "time"], columns, width).splitlines() for width in (120, 60))
    assert [len(upright), len(turned)] == [3, 9]


def test_a_few_columns_wrap_before_they_turn() -> None:
    columns = [("AdamW", ["1.0000", "2", "a setting"]), ("AdEMAMix", ["0.9000", "3", "another one"])]
    header, *rows = tables.laid_out(["validation loss", "time", "settings"], columns, width=36).splitlines()
    assert header.split() == ["AdamW", "AdEMAMix"]
    assert len(rows) == 4


class TestPicture:
    def test_every_arm_is_in_it(self) -> None:
        high = _arm("high", [{25: 9.0, 50: 5.0, 75: 4.0, 100: 3.0}])
        low = _arm("low", [{25: 9.0, 50: 2.0, 75: 1.5, 100: 1.0}])
        (axes,) = figure.draw(Comparison(BASE, [low, high])).axes
        bottom, top = axes.get_ylim()
        assert bottom < 1.0
        assert 3.0 < top < 9.0

    def test_diverged_arms_leave_the_others_readable(self) -> None:
        for shown in ([ADAMW, DIVERGED], [DIVERGED, ADAMW], [DIVERGED]):
            (axes,) = figure.draw(Comparison(BASE, shown)).axes
            labels = [text.get_text() for text in axes.get_legend().get_texts()]
            assert "Lion: diverged" in labels

    def test_one_validation_is_a_visible_point(self) -> None:
        (axes,) = figure.draw(Comparison(BASE, [_arm("AdamW", [{100: 1.0}])])).axes
        assert axes.lines[0].get_markevery() == (0, 1)

    def test_no_two_arms_look_alike(self) -> None:
        names = ["adamw"] * 5 + ["ademamix"] * 5 + ["lion"] * 10
        looks = figures.looks(names)
        assert len({(look.colour, str(look.line), look.marker, look.hollow) for look in looks}) == len(names)
        assert looks[0] == figures.ADAM[0]
        assert looks[5] == figures.ADEMAMIX[0]
        first_ones = figures.looks(["adamw"] * 3 + ["ademamix"] * 3 + ["lion"] * 6)
        assert len({to_rgb(look.colour) for look in first_ones}) == 12

    def test_it_is_drawn_again_only_for_other_numbers(self, tmp_path: Path) -> None:
        files = figure.kept_or_drawn(BOTH, tmp_path)
        before = {file: file.stat().st_mtime_ns for file in files}
        assert figure.kept_or_drawn(BOTH, tmp_path) == files
        assert {file: file.stat().st_mtime_ns for file in files} == before
        numbers = json.loads((tmp_path / "compare.json").read_text())
        assert numbers["optimizers"]["AdamW"]["losses"] == [1.0, 1.2]
        figure.kept_or_drawn(Comparison(BASE, [ADEMAMIX, ADAMW]), tmp_path)
        assert all(file.stat().st_mtime_ns != before[file] for file in files)
        files[0].unlink()
        figure.kept_or_drawn(Comparison(BASE, [ADEMAMIX, ADAMW]), tmp_path)
        assert files[0].exists()


def test_the_default_is_the_best_of_the_committed_sweep() -> None:
    records = json.loads((Path(__file__).parents[3] / "benchmarks" / "results" / "compare_sweep.json").read_text())
    adamw, ademamix = defaults.OPTIMIZERS.values()
    lengths = [(adamw, defaults.STEPS), (adamw, 2 * defaults.STEPS), (ademamix, defaults.STEPS)]
    runs = [arm_of(defaults.DEFAULT, optimizer, steps) for optimizer, steps in lengths]
    assert [record["run"] for record in records.values()] == [
        run.model_dump(mode="json", exclude_defaults=True) for run in runs
    ]
    for record, run in zip(records.values(), runs, strict=True):
        found = tuning.SearchedLosses(
            {tuning.Choice(row["lr"], row["beta2"]): row["validation_loss"] for row in record["losses"]}
        )
        assert found.settled
        assert tuning.with_choice(run, found.best) == run
