"""The recipes of sweeps: at paper scale they train what the paper says, and below it they share their runs."""

from __future__ import annotations

import pytest

from ademamix.lab.config import Run
from ademamix.lab.recipes import load
from ademamix.lab.report.kinds import setting_of
from ademamix.lab.reproduction.scale import SCALES

SWEEPS = (
    "sensitivity-alpha-beta3",
    "sensitivity-warmup",
    "no-alpha-schedule",
    "sensitivity-clip-beta1",
    "fewer-iterations",
    "convex-mix",
    "third-ema",
    "beta1-zero",
)


def runs(recipe: str, scale: str = "paper") -> list[dict[str, Run]]:
    """The arms of each panel; none of these recipes looks at an outcome."""
    return [dict(panel.arms) for panel in load(recipe)(SCALES[scale])]


def values(arms: dict[str, Run], setting: str, optimizer: str = "ademamix") -> list[object]:
    found = {setting_of(run, setting) for run in arms.values() if run.optimizer.name == optimizer}
    return sorted(found, key=lambda value: (value is not None, value))


def test_alpha_and_beta3() -> None:
    alphas, beta3s = runs("sensitivity-alpha-beta3")
    assert values(alphas, "alpha") == [2, 6, 10, 15, 20, 30, 40]
    assert values(beta3s, "beta3") == [0.99, 0.999, 0.9999, 0.99999, 0.999995]
    for run in (alphas | beta3s).values():
        assert (run.steps, run.batch, run.clip, run.optimizer.lr) == (256_000, 64, 0.5, 1e-3)
        assert run.optimizer.settings["weight_decay"] == 0.1


def test_warmups() -> None:
    tied, alone = runs("sensitivity-warmup")
    for arms in (tied, alone):
        assert (values(arms, "alpha"), values(arms, "beta3")) == ([10], [0.9999])
        assert None in values(arms, "alpha_warmup")  # which is T
        assert 0 in values(arms, "alpha_warmup")
    assert values(tied, "alpha_warmup") == values(tied, "beta3_warmup")
    assert values(alone, "beta3_warmup") == [None]


def test_without_the_schedule_of_alpha() -> None:
    small, large = runs("no-alpha-schedule")
    assert values(small, "alpha_warmup") == [None, 0]
    described = [(run.optimizer.settings["alpha"], run.optimizer.settings["alpha_warmup"]) for run in large.values()]
    assert described == [(5, 256_000), (1, 0), (5, 0)]
    assert {(run.steps, run.optimizer.lr) for run in large.values()} == {(770_000, 3e-4)}


def test_clipping_and_beta1() -> None:
    clips, beta1s = runs("sensitivity-clip-beta1")
    assert values(clips, "clip") == [None, 0.5, 1.0, 5.0]
    assert values(beta1s, "beta1") == [0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99]
    assert values(clips | beta1s, "alpha") == [10]


def test_fewer_iterations_see_the_same_tokens() -> None:
    for scale in SCALES:
        for arms in runs("fewer-iterations", scale):
            assert len({run.steps * run.batch for run in arms.values()}) == 1
    _, arms = runs("fewer-iterations")
    assert values(arms, "steps") == [32_000, 64_000, 128_000, 256_000]
    assert values(arms, "batch", "adamw") == [64, 128, 256, 512]
    assert values(arms, "beta3") == [0.999, 0.9999]


def test_convex_mix() -> None:
    (arms,) = runs("convex-mix")
    rates = [4e-4, 6e-4, 8e-4, 1e-3, 1.2e-3, 1.4e-3, 1.6e-3]
    for optimizer in ("adamw", "ademamix", "convex-mix"):
        assert values(arms, "lr", optimizer) == rates
    assert values(arms, "alpha") == [2, 4, 6, 8, 10, 12, 14]
    assert values(arms, "alpha", "convex-mix") == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert len(arms) == 7 + 2 * 49
    assert {run.model.layers for run in arms.values()} == {6}


def test_lion_has_the_best_of_its_table() -> None:
    (panel,) = load("lion")(SCALES["paper"])
    _, lion, slow_lion = panel.arms.values()
    assert lion.optimizer.lr == 4e-4
    assert lion.optimizer.settings == {"weight_decay": 0.25, "alpha": 0.9, "beta": 0.99}
    assert slow_lion.optimizer.settings["beta"] == 0.9999
    assert lion.clip == 0.5


def test_third_average() -> None:
    (arms,) = runs("third-ema")
    assert values(arms, "alpha") == [8]
    assert values(arms, "alpha", "ad3emamix") == [4]
    assert [0.9, 0.999, 0.999, 0.9999] in [run.optimizer.settings["betas"] for run in arms.values()]


def test_beta1_of_zero() -> None:
    batches, large = runs("beta1-zero")
    assert values(batches, "batch") == [4, 8, 16, 32, 64, 128]
    assert values(batches, "beta1") == values(large, "beta1") == [0, 0.9]
    assert values(batches, "steps") == [256_000]


def test_mamba() -> None:
    (panel,) = load("mamba")(SCALES["paper"])
    assert [run.steps for run in panel.arms.values()] == [64_000, 128_000] * 2
    for run in panel.arms.values():
        assert (run.batch, run.clip, run.schedule.warmup, run.schedule.final) == (120, 1.0, 3000, 1e-5)
        assert (run.optimizer.lr, run.optimizer.settings["weight_decay"]) == (6e-4, 0.1)
        assert run.data.tokenizer == "hub:EleutherAI/gpt-neox-20b"
    last = [*panel.arms.values()][-1]
    assert last.optimizer.settings == {"weight_decay": 0.1, "betas": [0.9, 0.999, 0.9999], "alpha": 8}


@pytest.mark.parametrize("recipe", SWEEPS)
def test_baselines_are_those_of_all_recipes(recipe: str) -> None:
    for scale in ("smoke", "laptop"):
        lm = SCALES[scale].lm("110m")
        shared = {lm.run("adamw").key, lm.run("ademamix").key, _sensitivity_base(scale).key}
        assert shared & {run.key for arms in runs(recipe, scale) for run in arms.values()}


def _sensitivity_base(scale: str) -> Run:
    lm = SCALES[scale].lm("110m")
    return lm.run("ademamix", alpha=10, beta3=lm.beta3(0.9999))
