"""The one rule that makes the paper's numbers those of a scale."""

from __future__ import annotations

import pytest

from ademamix.lab.comparison.defaults import DEFAULT, OPTIMIZERS
from ademamix.lab.config import ConstantThenLinear
from ademamix.lab.reproduction.scale import SCALES, changed, grid


def test_paper_scale_is_the_papers() -> None:
    at = SCALES["paper"]
    models = [at.lm(size) for size in ("110m", "330m", "1.3b")]
    assert [lm.base.model.width for lm in models] == [768, 1024, 2048]
    assert [lm.base.batch for lm in models] == [64, 96, 128]
    assert [lm.base.clip for lm in models] == [0.5, 0.1, 0.1]
    assert [lm.base.steps for lm in models] == [256_000, 256_000, 770_000]
    assert [lm.adamw.lr for lm in models] == [1e-3, 5e-4, 5e-4]
    assert [lm.ademamix.lr for lm in models] == [1e-3, 5e-4, 3e-4]
    assert [lm.ademamix.settings["alpha"] for lm in models] == [8.0, 8.0, 5.0]
    assert all(lm.base.schedule.warmup == 3000 and lm.base.schedule.final == 1e-5 for lm in models)
    assert [lm.title for lm in models] == ["110M parameters", "330M parameters", "1.3B parameters"]
    assert (at.seeds, at.rounds) == ((1,), 0)


def test_laptop_scale_shares_the_base_of_compare() -> None:
    at = SCALES["laptop"]
    for size in ("110m", "330m", "1.3b"):
        assert at.lm(size).base == DEFAULT
        assert at.lm(size).run("adamw") == DEFAULT
        assert at.lm(size).run("ademamix").optimizer == OPTIMIZERS["ademamix"]
    assert at.seeds == (1, 2, 3)  # 0 is that of the search


def test_steps_keep_their_share_of_the_papers_length() -> None:
    laptop, paper, smoke = (SCALES[name] for name in ("laptop", "paper", "smoke"))
    assert laptop.lm("110m").steps(128_000) == 10_000
    assert laptop.lm("1.3b").steps(385_000) == 10_000
    assert laptop.lm("110m").steps(90_000) == 7000  # 7,031, to two digits
    assert smoke.lm("110m").steps(128_000) == 10
    assert smoke.lm("110m").steps(3000) == 1
    assert paper.lm("110m").steps(2379) == 2379


def test_a_run_stands_for_one_of_another_length() -> None:
    laptop, paper = (SCALES[name].lm("110m").of_length(500_000) for name in ("laptop", "paper"))
    assert laptop.run("adamw") == DEFAULT
    assert (laptop.steps(300_000), laptop.beta3(0.9999)) == (12_000, 0.9975)
    assert paper.run("adamw") == SCALES["paper"].lm("110m").run("adamw", steps=500_000)
    assert (paper.steps(300_000), paper.beta3(0.9999)) == (300_000, 0.9999)


def test_beta3_keeps_the_number_of_memories_in_a_run() -> None:
    laptop = SCALES["laptop"].lm("110m")
    for beta3 in (0.999, 0.9999, 0.99999):
        assert (1 - laptop.beta3(beta3)) * 20_000 == pytest.approx((1 - beta3) * 256_000, rel=2e-3)
    assert laptop.beta3(0.99) == 0.9  # not below beta1
    assert SCALES["paper"].lm("110m").beta3(0.99999) == 0.99999


def test_a_run_takes_fields_and_settings() -> None:
    lm = SCALES["laptop"].lm("110m")
    schedule = ConstantThenLinear(kind="constant", warmup=200, decay=500)
    run = lm.run("ademamix", schedule=schedule, batch=4, lr=1e-3, alpha=2.0, beta3=0.99)
    assert (run.schedule, run.batch, run.steps) == (schedule, 4, 20_000)
    assert run.optimizer.described == "ademamix lr=0.001 weight_decay=0.1 alpha=2 beta3=0.99"
    assert lm.run("lion", lr=1e-4).optimizer.described == "lion lr=0.0001 weight_decay=0.1"
    with pytest.raises(ValueError, match="warm-up and decay must fit"):
        lm.run("adamw", steps=100)


def test_a_single_beta_takes_the_place_of_the_papers() -> None:
    run = SCALES["paper"].lm("110m").run("ademamix", beta1=0.3, beta3=0.999)
    assert run.optimizer.settings == {"weight_decay": 0.1, "betas": [0.3, 0.999, 0.999], "alpha": 8}
    sweep = grid(SCALES["laptop"].lm("110m").run("ademamix", beta3=0.99), beta1=[0, 0.5])
    assert {label: run.optimizer.settings["betas"] for label, run in sweep.items()} == {
        "beta1=0": [0, 0.999],
        "beta1=0.5": [0.5, 0.999],
    }


def test_grids_are_labelled_by_what_differs() -> None:
    runs = grid(DEFAULT, lr=[1e-3, 2e-3], steps=[400, 500])
    assert list(runs) == ["lr=0.001 steps=400", "lr=0.001 steps=500", "lr=0.002 steps=400", "lr=0.002 steps=500"]
    assert runs["lr=0.002 steps=500"] == changed(DEFAULT, lr=2e-3, steps=500)
