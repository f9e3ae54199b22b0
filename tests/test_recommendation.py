"""Recommended settings: they construct, they are those of the constructor, and they stand beside what is published."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ademamix import AdEMAMix, published, recommend
from ademamix.lab.recipes.horizon_rule import LENGTHS, SHARES
from ademamix.published import APERTUS_SFT, EPFL, LOG_TIME, PAPER
from ademamix.recommendation import OTHER_SHARES, SHORTEST_RUN, WEIGHT_DECAY
from ademamix.schedules import HORIZON_FRACTION

# Where a recommendation is not what a run had, and why.
DIFFERENT = {
    (PAPER, 168_000_000, "beta3"): "0.9999 remembers 16% of its 64,000 steps; the paper finds 0.999 better there",
    (PAPER, 168_000_000, "clip"): "Mamba, which a number of parameters does not tell",
    (EPFL, 124_000_000, "beta3"): "0.999 was not compared with other values; the paper finds 0.9999 best at 256,000",
    (EPFL, 210_000_000, "beta3"): "the same",
    (EPFL, 720_000_000, "beta3"): "the same",
    (EPFL, 520_000_000, "beta3"): "the same",
    (EPFL, 520_000_000, "clip"): "a mixture of experts, of which a part is active",
    (EPFL, 124_000_000, "lr"): "the scripts have AdamW's; our searches and later fits, of both optimizers, give less",
    (EPFL, 210_000_000, "lr"): "the same",
    (EPFL, 720_000_000, "lr"): "the same",
    (EPFL, 520_000_000, "lr"): "the same",
    (PAPER, 110_000_000, "lr"): "the paper did not tune it for AdEMAMix; later fits give less",
    (PAPER, 330_000_000, "lr"): "the same",
    (PAPER, 168_000_000, "lr"): "the same",
    (LOG_TIME, 45_700_000, "beta3"): "remembers an eighth of the run, for a baseline; longer than the paper's best",
    (LOG_TIME, 2_620_000_000, "beta3"): "the same",
    (LOG_TIME, 45_700_000, "alpha"): "T^0.15 is between the paper's 4 and 10, as ours is",
    (LOG_TIME, 2_620_000_000, "alpha"): "the same; ours is the paper's at 1.3B",
    (LOG_TIME, 2_620_000_000, "clip"): "all models of the ladder were clipped alike",
    (LOG_TIME, 45_700_000, "weight_decay"): "4/(lr T) for AdamW and AdEMAMix, each with its own learning rate",
    (LOG_TIME, 2_620_000_000, "weight_decay"): "the same",
}
DIFFERENT_AFTER_A_SWITCH = {(PAPER, 1_300_000_000, "alpha"): "the default is the paper's at 110M"}
REMEMBERED = (0.0038, 0.125)  # of a published run, what the slow average would remember as we recommend


@pytest.mark.parametrize(("total_steps", "beta1"), [("open", 0.99995), (10_000, 0.9999), (100, 0.9)])
def test_a_slow_average_that_is_no_slower_than_the_fast_one_is_said_to_be(total_steps, beta1):
    reason = recommend(total_steps, betas=(beta1, 0.999)).reasons[0]
    assert reason.setting == "beta3"
    assert "no more than m1" in reason.why


@pytest.mark.parametrize("total_steps", [1, 10, 5_000, 10**7, "open"])
def test_recommendations_construct_without_a_warning(total_steps):
    plan = recommend(total_steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stated = AdEMAMix([torch.ones(2)], **plan.arguments()).param_groups[0]
        left_out = AdEMAMix([torch.ones(2)], total_steps=total_steps).param_groups[0]
    for name in ("betas", "alpha_warmup", "beta3_warmup"):
        assert stated[name] == left_out[name] == getattr(plan, name)
    settings = ["beta3", "alpha", "warm-ups", "lr", "clip", "weight_decay", "betas", "storage"]
    assert [reason.setting for reason in plan.reasons] == settings


@pytest.mark.parametrize("total_steps", [0, -1, 2.5, None, math.inf, True, "long", 2**53 + 1])
def test_a_horizon_is_needed(total_steps):
    with pytest.raises(ValueError, match=r"^total_steps must be an integer from 1 to [\d,]+ or 'open', got "):
        recommend(total_steps)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"phase": "sft"}, "phase must be one of pretrain, finetune, got 'sft'"),
        ({"schedule": "step"}, "schedule must be one of cosine, linear, wsd, constant, got 'step'"),
        (
            {"total_steps": "open", "schedule": "cosine"},
            "has no end to decay to: schedule must be wsd or constant, got 'co",
        ),
        (
            {"total_steps": "open", "schedule": "linear"},
            "has no end to decay to: schedule must be wsd or constant, got 'li",
        ),
        ({"betas": (0.9, 0.999, 0.9999)}, r"betas must be \(beta1, beta2\), got .*: beta3 is recommended"),
        ({"betas": (0.9, 1.0)}, r"beta2 must be a number in \[0, 1\), got 1.0"),
        ({"parameters": 0}, "parameters must be a number >= 1 or None, got 0"),
    ],
)
def test_bad_input_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        recommend(**{"total_steps": 1000, **settings})


def test_runs_shorter_than_those_of_the_study_stay_with_adamw():
    assert min(LENGTHS["laptop"]) == SHORTEST_RUN
    assert not recommend(SHORTEST_RUN - 1).pays
    assert recommend(SHORTEST_RUN).pays
    assert recommend("open").pays


def test_reasons_cite_the_study():
    less, rule, more = SHARES
    assert set(re.findall(r"([\d.]+)%", OTHER_SHARES)) == {f"{100 * share:g}" for share in (more, less, 2 * rule)}
    page = (Path(__file__).parents[1] / "docs" / "settings.md").read_text()
    (means,) = re.findall(r"^\| mean from 2,000 on \| (.*) \|$", page, flags=re.MULTILINE)
    lower = sorted(-float(cell.strip("* ").split("*")[0].split(" ")[0]) for cell in means.split(" | ")[1::2])
    assert f"ended {lower[0]:.3f} to {lower[-1]:.3f} lower" in OTHER_SHARES
    beta3, alpha, _, lr, *_ = recommend(10_000).reasons
    assert f"{HORIZON_FRACTION:.0%} of the run" in beta3.why
    for reason in (beta3, alpha, lr):
        assert published.OURS in reason.source


def test_the_reason_says_why_beta3_is_not_that_of_epfl():
    """In pre-training as long as theirs; in shorter runs and in fine-tuning there is nothing to explain."""
    shortest = min(run.steps[0] for run in published.RUNS if run.source == EPFL)
    for steps in (shortest, 128_000, 249_999):
        reason = recommend(steps).reasons[0]
        assert "EPFL's 0.999 was not compared with other values" in reason.why
        assert PAPER in reason.source
        assert EPFL in reason.source
    for plan in (recommend(shortest - 1), recommend(128_000, phase="finetune")):
        assert "EPFL" not in str(plan.reasons[0])


def test_fine_tuning_claims_no_more_of_a_source_than_it_says():
    """No published run compares learning rates of fine-tuning, but there is one of 70B."""
    (run,) = [run for run in published.RUNS if run.phase == "finetune"]
    lr = recommend(run.steps[0], phase="finetune").reasons[3]
    assert lr.why.startswith("our assumption")
    assert f"{run.lr:.0e}".replace("e-0", "e-") in lr.why
    assert lr.source == f"the two rates: {APERTUS_SFT}"


def test_the_bytes_of_each_storage_are_those_of_the_documentation():
    page = (Path(__file__).parents[1] / "docs" / "storage.md").read_text()
    measured = dict(re.findall(r'^\| `"(\w+)"` \|.*\| ([\d.]+) \| [\d.]+ \|$', page, flags=re.MULTILINE))
    storage = recommend(10_000).reasons[-1]
    stated = re.findall(
        r"([\d.]+) bytes per parameter, where AdamW has ([\d.]+); bf16 takes ([\d.]+) and compact ([\d.]+):",
        storage.why,
    )
    assert [list(map(float, row)) for row in stated] == [
        [float(measured["fp32"]), 8.0, float(measured["bf16"]), float(measured["compact"])]
    ]
    loss, interval = re.search(r"^\| compact \| [\d.]+ \| (-[\d.]+) ± ([\d.]+) \|$", page, flags=re.MULTILINE).groups()
    assert f"within {float(interval) - float(loss):.4f} nats per byte" in storage.why
    assert "docs/storage.md" in storage.source


def test_linear_is_as_cosine_and_wsd_halves_a_rate_of_a_cosine():
    for steps, parameters in ((1000, None), (100_000, 8 * 10**9)):
        linear, cosine, wsd = (
            recommend(steps, parameters=parameters, schedule=schedule) for schedule in ("linear", "cosine", "wsd")
        )
        assert replace(linear, schedule="cosine") == cosine == recommend(steps, parameters=parameters)
        assert "halve it once more" in wsd.reasons[3].why
        assert "second hand" in wsd.reasons[3].source


@pytest.mark.parametrize(
    "run", [run for run in published.RUNS if run.schedule == "wsd"], ids=lambda run: run.parameters
)
def test_an_open_end_is_that_of_the_published_runs_that_had_one(run):
    plan = recommend("open", parameters=run.parameters)
    assert plan == recommend("open", parameters=run.parameters, schedule="wsd")
    assert (plan.alpha, plan.betas[2], plan.alpha_warmup, plan.clip) == (
        run.alpha[0],
        run.beta3[0],
        run.warmup,
        run.clip,
    )
    assert "halve it once more" in plan.reasons[3].why


def test_betas_are_those_of_published_runs_and_a_small_beta2_is_warned_of():
    def why(*betas):
        (reason,) = [reason for reason in recommend(10_000, betas=betas).reasons if reason.setting == "betas"]
        assert reason.value == f"{betas[0]:g} and {betas[1]:g}"
        return reason.why

    assert why(0.9, 0.999) == "as in all published runs and in ours, whatever AdamW had"
    assert why(0.95, 0.99) == "as stated; all published runs and ours had 0.9 and 0.999, whatever AdamW had"
    assert "try beta2 = 0.999, or set slow_clip=30" in why(0.9, 0.95)
    growth = {beta2: math.log(0.9999) - math.log(beta2) / 2 for beta2 in (0.95, 0.999)}
    assert round(growth[0.95] / growth[0.999], -1) == 60
    assert "with 0.95 sixty times as fast" in why(0.9, 0.95)


def test_the_learning_rate_names_whoever_kept_that_of_adamw():
    """Of the runs that are compared with AdamW; and weight decay is said to follow the rate."""
    lr, decay = (recommend(10_000).reasons[number] for number in (3, 5))
    kept = {run.source for run in published.RUNS if run.adamw_lr == run.lr}
    assert kept == {PAPER, EPFL}
    assert all(source in lr.source for source in kept)
    assert "EPFL's scripts have 1 from 124M to 720M" in lr.why
    assert "half of AdamW's rate halves as well" in decay.why


def test_beta1_and_beta2_stay_those_of_adamw():
    plan = recommend(300, betas=(0.95, 0.98))
    assert plan.betas == (0.95, 0.98, 0.95)
    assert "no more than m1" in plan.reasons[0].why
    assert recommend(10_000, betas=(0.95, 0.98)).betas == (0.95, 0.98, 0.9975)


def name_of(run):
    return f"{run.source.split()[0]} {run.parameters:.0e} {run.phase}"


@pytest.mark.parametrize("run", [run for run in published.RUNS if run.phase != "switch"], ids=name_of)
def test_published_runs_are_within_what_is_recommended(run):
    """Each setting is the published one, or the difference has a reason; so has each reason a difference."""
    differences = set()
    for steps in run.steps:
        plan = recommend(
            steps,
            parameters=run.parameters,
            phase=run.phase,
            schedule=run.schedule,
        )
        least, most = run.beta3
        if not least <= plan.betas[2] <= most:
            differences.add("beta3")
        assert REMEMBERED[0] <= 1 / (1 - plan.betas[2]) / steps <= REMEMBERED[1]
        if not run.alpha[0] <= plan.alpha <= run.alpha[1]:
            differences.add("alpha")
        assert plan.alpha_warmup == (run.warmup or steps)
        if run.clip is not None and plan.clip != run.clip:
            differences.add("clip")
        if run.adamw_lr is not None and not 0.8 <= run.lr / run.adamw_lr / plan.lr_factor <= 1.25:
            differences.add("lr")
        if run.weight_decay is not None and run.weight_decay != WEIGHT_DECAY:
            differences.add("weight_decay")
        assert (f"{WEIGHT_DECAY:g} in most" in plan.reasons[5].why) == (run.phase == "pretrain")
    assert {(run.source, run.parameters, name) for name in differences} == {
        key for key in DIFFERENT if key[:2] == (run.source, run.parameters)
    }


@pytest.mark.parametrize("run", [run for run in published.RUNS if run.phase == "switch"], ids=name_of)
def test_published_switches_are_what_a_switch_does(run):
    adamw = torch.optim.AdamW([torch.ones(2, requires_grad=True)], lr=run.lr, weight_decay=run.weight_decay)
    group = AdEMAMix.from_adamw(adamw, total_steps=run.steps[0]).param_groups[0]
    assert (group["lr"], group["betas"][2], group["weight_decay"]) == (run.lr, run.beta3[0], run.weight_decay)
    assert group["alpha_warmup"] == group["beta3_warmup"] == run.warmup
    differs = {(run.source, run.parameters, "alpha")} if group["alpha"] not in run.alpha else set()
    assert differs == {key for key in DIFFERENT_AFTER_A_SWITCH if key[:2] == (run.source, run.parameters)}


def test_fine_tuning_is_held_against_its_only_published_run():
    (run,) = [run for run in published.RUNS if run.phase == "finetune"]
    assert run.source == APERTUS_SFT
    assert recommend(run.steps[0], phase="finetune").betas[2] == pytest.approx(0.9944, abs=1e-4)
