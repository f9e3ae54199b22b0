"""The explorer and the calculator in a real browser: the library's numbers, the keyboard, a phone, the dark."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from ademamix import recommend
from ademamix.cli import plan as command
from ademamix.cli.plan_settings import as_json
from ademamix.lab.recipes.formulas import rosenbrock, steep_and_flat
from ademamix.recommendation import CLIPS_TIGHTLY, DECAYING, LARGE_MODEL, LONG_RUN, PHASES, SCHEDULES, SHORTEST_RUN
from ademamix.reference import ReferenceAdEMAMix
from browser import PHONE, chromium, luminance, watched

pytestmark = pytest.mark.programs


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def opened(browser: Browser, site: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The explorer from disk, without a network; a test that leaves an error in the console fails."""
    with watched(browser, site / "explorer.html", **getattr(request, "param", {})) as page:
        yield page


# The functions as rows: where a descent begins, and its gradient.
PROBLEMS = {
    "rosenbrock": (rosenbrock.START, rosenbrock.gradient),
    "steepAndFlat": (steep_and_flat.START, lambda point: steep_and_flat.gradient(point[None])[0]),
}
DESCENTS = [
    ("rosenbrock", {"lr": 0.05, "beta1": 0.9, "beta3": 0.99, "alpha": 9, "T": 0}),
    ("rosenbrock", {"lr": 0.02, "beta1": 0.8, "beta3": 0.999, "alpha": 5, "T": 500}),
    ("rosenbrock", {"lr": 0.05, "beta1": 0.0, "beta3": 0.995, "alpha": 3, "T": 300}),
    ("rosenbrock", {"lr": 0.2, "beta1": 0.9, "beta3": 0.5, "alpha": 0, "T": 100}),
    *(
        ("steepAndFlat", {"lr": 0.01, "beta1": 0.9, "beta3": 0.999, "alpha": 5, "T": 200, "momentum": momentum})
        for momentum in steep_and_flat.MOMENTA.values()
    ),
]
STEPS = 400
ROUNDING = 1e-10  # of the distance moved, after all steps


@pytest.mark.parametrize(("problem", "settings"), DESCENTS)
def test_descents_are_those_of_the_oracle(opened: Page, problem: str, settings: dict[str, Any]) -> None:
    start, gradient = PROBLEMS[problem]
    oracle = ReferenceAdEMAMix(
        np.array(start),
        lr=settings["lr"],
        betas=(settings["beta1"], 0.999, settings["beta3"]),
        alpha=settings["alpha"],
        T_alpha=settings["T"],
        T_beta3=settings["T"],
        weight_decay=0.0,
    )
    momentum = np.array(settings.get("momentum", (0.0, 0.0)))
    oracle.m1, oracle.m2 = momentum, momentum
    expected = [oracle.theta, *(oracle.update(gradient(oracle.theta)) for _ in range(STEPS))]
    found = opened.evaluate(
        "([name, settings, steps]) => ademamix.descend(ademamix.problems[name], settings, steps)",
        [problem, settings, STEPS],
    )
    assert np.abs(np.array(found) - expected).max() < ROUNDING * np.linalg.norm(expected[-1] - expected[0])


@pytest.mark.parametrize("settings", [settings for _, settings in DESCENTS[:3]])
def test_weights_are_those_of_the_oracle(opened: Page, settings: dict[str, Any]) -> None:
    """An element for each step, with a gradient of 1 at that step alone, ends with its weight."""
    t = 250
    betas = (settings["beta1"], 0.999, settings["beta3"])
    oracle = ReferenceAdEMAMix(np.zeros(t), betas=betas, T_beta3=settings["T"])
    for gradient in np.eye(t):
        oracle.update(gradient)
    alpha = settings["alpha"] * (min(t / settings["T"], 1) if settings["T"] else 1)
    found = opened.evaluate("([t, settings]) => ademamix.weightsAt(t, settings)", [t, settings])
    np.testing.assert_allclose(found["fast"], oracle.m1[::-1] / (1 - betas[0] ** t), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(found["slow"], alpha * oracle.m2[::-1], rtol=1e-12)


LENGTHS = (1, 2, 10, 250, 251, SHORTEST_RUN - 1, SHORTEST_RUN, 4_462, 10_000, LONG_RUN - 1, LONG_RUN)
LONG = (123_457, 249_999, 250_000, 2_600_000, 10**9, "open")
SIZES = (None, 1, 30_000, CLIPS_TIGHTLY - 1, CLIPS_TIGHTLY, LARGE_MODEL - 1, LARGE_MODEL, 70 * 10**9)
ADAMW = ({}, {"lr": 1e-3, "weight_decay": 0.1}, {"lr": 3.33e-5, "weight_decay": 0.0}, {"lr": 0.123456})


def test_the_calculator_says_what_recommend_says(opened: Page) -> None:
    cases = itertools.product((*LENGTHS, *LONG), SIZES, PHASES, SCHEDULES, ADAMW)
    grid = [case for case in cases if case[0] != "open" or case[3] not in DECAYING]
    found = opened.evaluate(
        """grid => grid.map(([steps, parameters, phase, schedule, { lr = null, weight_decay = null }]) => {
            const plan = ademamix.recommend(steps, { parameters, phase, schedule });
            const reasons = plan.reasons.map((row) => `${row.setting} = ${row.value}: ${row.why} (${row.source})`);
            return { ...plan, reasons, calls: ademamix.calls(plan, { lr, weightDecay: weight_decay }) };
        })""",
        grid,
    )
    for (steps, parameters, phase, schedule, adamw), shown in zip(grid, found, strict=True):
        plan = recommend(steps, parameters=parameters, phase=phase, schedule=schedule)
        assert shown == {
            "steps": steps,
            "schedule": schedule,
            "betas": list(plan.betas),
            "alpha": plan.alpha,
            "warmup": plan.alpha_warmup,
            "lrFactor": plan.lr_factor,
            "clip": plan.clip,
            "pays": plan.pays,
            "reasons": [str(reason) for reason in plan.reasons],
            "calls": as_json(plan, adamw)["calls"],
        }
        assert plan.alpha_warmup == plan.beta3_warmup


def test_the_form_of_the_calculator(opened: Page) -> None:
    opened.get_by_label("Optimizer steps").fill("256k")
    opened.get_by_label("Parameters, if known").fill("110M")
    opened.get_by_label("Learning rate of your AdamW").fill("1e-3")
    opened.get_by_label("Its weight decay").fill("0.1")
    plan = recommend(256_000, parameters=110_000_000)
    rows = opened.locator("#reasons tr")
    expect(rows).to_have_count(len(plan.reasons))
    for number, reason in enumerate(plan.reasons):
        expect(rows.nth(number)).to_contain_text(f"{reason.value}{reason.why} ({reason.source})")
    calls = as_json(plan, {"lr": 1e-3, "weight_decay": 0.1})["calls"]
    assert opened.locator("[data-call]").all_text_contents() == list(calls.values())
    expect(opened.get_by_text("Stay with AdamW")).to_be_hidden()
    opened.get_by_label("Optimizer steps").fill(str(SHORTEST_RUN - 1))
    expect(opened.get_by_text(f"not tried AdEMAMix in runs of fewer than {SHORTEST_RUN:,} steps")).to_be_visible()
    opened.get_by_label("the end is open").check()
    expect(opened.locator("[data-call=PyTorch]")).to_contain_text("total_steps='open'")
    expect(opened.get_by_label("Optimizer steps")).to_be_disabled()


def test_an_open_end_has_no_schedule_that_decays_to_it(opened: Page) -> None:
    assert opened.evaluate("ademamix.recommend('open').schedule") == recommend("open").schedule
    opened.get_by_label("Parameters, if known").fill("8B")
    opened.get_by_label("the end is open").check()
    expect(opened.get_by_label("Learning-rate schedule")).to_have_value("wsd")
    expect(opened.locator("#reasons")).to_contain_text("halve it once more")
    expect(opened.locator("[data-call=PyTorch]")).to_contain_text("alpha=8, total_steps='open'")
    for name in DECAYING:
        expect(opened.locator(f"#schedule option[value={name}]")).to_be_disabled()
    opened.get_by_label("the end is open").uncheck()
    opened.get_by_label("Learning-rate schedule").select_option("cosine")


WRITTEN = ("10k", "10K", "7b", "2m", "1.5M", "10,000", "1e4", "2.5E3", ".5k", "1B", "1T", "700")
MISWRITTEN = ("0", "1.5", "1,5", "1,0000", "1e6k", "1e-3", "e4", "M", "", "1.2.3M", "1e99")


@pytest.mark.parametrize("text", [*WRITTEN, *MISWRITTEN])
def test_numbers_are_read_as_on_the_command_line(opened: Page, text: str) -> None:
    found = opened.evaluate("text => { const read = ademamix.count(text); return isNaN(read) ? null : read; }", text)
    try:
        expected = command.parameters(text)
    except argparse.ArgumentTypeError:
        expected = None
    assert found == expected
    assert (found is None) == (text in MISWRITTEN)


@pytest.mark.parametrize(
    ("label", "text", "sentence"),
    [
        ("Optimizer steps", "many", "Steps must be a whole number of at least 1"),
        ("Optimizer steps", "0", "Steps must be a whole number of at least 1"),
        ("Optimizer steps", "", "Steps must be a whole number of at least 1"),
        ("Parameters, if known", "-5", "Parameters must be a whole number of at least 1"),
        ("Learning rate of your AdamW", "fast", "AdamW's learning rate must be a number above 0"),
        ("Learning rate of your AdamW", "0", "AdamW's learning rate must be a number above 0"),
        ("Its weight decay", "-1", "AdamW's weight decay must be a number of at least 0"),
    ],
)
def test_mistakes_are_named(opened: Page, label: str, text: str, sentence: str) -> None:
    field = opened.get_by_label(label)
    field.fill(text)
    expect(opened.get_by_role("alert")).to_contain_text(sentence)
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(opened.locator("#recommended")).to_be_hidden()
    field.fill("10k" if label == "Optimizer steps" else "")
    expect(opened.locator("#recommended")).to_be_visible()
    expect(opened.get_by_role("alert")).to_be_empty()


LEFT, RIGHT = "ArrowLeft", "ArrowRight"
SLIDERS = {
    "mix-beta1": LEFT,
    "mix-beta3": RIGHT,
    "mix-alpha": LEFT,
    "mix-T": RIGHT,
    "mix-lr": LEFT,
    "adam-beta1": RIGHT,
    "adam-lr": LEFT,
    "step": "PageDown",
}


def drawing(page: Page) -> list[str | None]:
    return [curve.get_attribute("d") for curve in page.locator("#descents path.curve").all()]


def slider(page: Page, name: str) -> Locator:
    return page.locator(f"#{name}")


@pytest.mark.parametrize("name", SLIDERS)
def test_the_keyboard_moves_sliders_and_the_drawing_follows(opened: Page, name: str) -> None:
    before, label = drawing(opened), opened.locator("#distances").get_attribute("aria-label")
    assert len(before) == 6
    slider(opened, name).focus()
    value = slider(opened, name).get_attribute("aria-valuetext")
    opened.keyboard.press(SLIDERS[name])
    assert slider(opened, name).get_attribute("aria-valuetext") != value
    assert drawing(opened) != before
    assert opened.locator("#distances").get_attribute("aria-label") != label
    assert opened.evaluate(f"getComputedStyle(document.getElementById('{name}')).outlineStyle") == "solid"


def test_everything_is_labelled(opened: Page) -> None:
    for control in opened.locator("#descents input, #descents select, #calculator input, #calculator select").all():
        assert control.evaluate("control => control.labels.length") == 1
    for figure in opened.locator("#descents svg").all():
        assert figure.get_attribute("role") == "img"
        assert len(figure.get_attribute("aria-label") or "") > 40


def test_examples_and_functions(opened: Page) -> None:
    begun = drawing(opened)
    opened.get_by_role("button", name="A momentum that leads astray").click()
    assert drawing(opened) != begun
    expect(opened.get_by_label("Averages begin at")).to_be_visible()
    before = drawing(opened)
    opened.get_by_label("Averages begin at").select_option("(-0.8, -3)")
    assert drawing(opened) != before
    opened.locator("#problem").select_option("Rosenbrock")
    expect(opened.get_by_label("Averages begin at")).to_be_hidden()
    assert drawing(opened) == begun


def test_the_page_states_the_numbers_of_its_first_example(opened: Page) -> None:
    """Its text says after how many steps each comes within 1 of the minimum."""
    found = opened.evaluate(
        """() => [{ lr: 0.05, beta1: 0.9, beta3: 0.99, alpha: 9 }, { lr: 0.2, beta1: 0.9 }].map((settings) =>
            ademamix.descend(ademamix.problems.rosenbrock, settings, 3000)
                .findIndex(([x, y]) => Math.hypot(x - 1, y - 1) < 1))"""
    )
    expect(opened.get_by_text("comes within 1 of the minimum")).to_contain_text(
        f"after {found[0]:,} steps, and Adam after {found[1]:,}"
    )


def test_play_moves_the_step(opened: Page) -> None:
    opened.get_by_role("button", name="Play").click()
    expect(opened.get_by_role("button", name="Pause")).to_be_visible()
    opened.get_by_role("button", name="Pause").click()
    expect(opened.get_by_role("button", name="Play")).to_be_visible()
    assert 0 < int(slider(opened, "step").input_value()) < 3000


@pytest.mark.parametrize("opened", [{"reduced_motion": "reduce"}], indirect=True)
def test_less_motion_is_no_motion(opened: Page) -> None:
    slider(opened, "step").fill("10")
    opened.get_by_role("button", name="Play").click()
    assert slider(opened, "step").input_value() == "3000"
    expect(opened.get_by_role("button", name="Play")).to_be_visible()


@pytest.mark.parametrize(
    ("opened", "dark"), [({"color_scheme": "dark"}, True), ({"color_scheme": "light"}, False)], indirect=["opened"]
)
def test_curves_are_seen_in_both_themes(opened: Page, dark: bool) -> None:
    for theme in ("auto", "light", "dark"):
        opened.evaluate(f"document.body.dataset.theme = '{theme}'")
        paper = luminance(opened, "backgroundColor", "body")
        assert (paper < 128) == (theme == "dark" or (theme == "auto" and dark))
        for curve in ("mix", "adam"):
            assert abs(luminance(opened, "stroke", f".curve.{curve}") - paper) > 60


def test_no_page_complains_or_scrolls_sideways_on_a_phone(browser: Browser, site: Path) -> None:
    files = sorted(site.glob("*.html"))
    assert len(files) > 20
    for file in files:
        with watched(browser, file, viewport=PHONE, is_mobile=True) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], file.name


@pytest.mark.parametrize("opened", [{"viewport": PHONE, "is_mobile": True, "has_touch": True}], indirect=True)
def test_on_a_phone_the_map_stays_in_sight_of_the_sliders(opened: Page) -> None:
    for name in SLIDERS:
        slider(opened, name).scroll_into_view_if_needed()
        expect(opened.locator("#landscape")).to_be_in_viewport(ratio=0.9)


def test_the_calculator_is_beside_the_settings_too(browser: Browser, site: Path) -> None:
    with watched(browser, site / "settings.html") as page:
        expect(page.locator("[data-call=Optax]")).to_contain_text("ademamix(0.5 * adamw_lr")


def test_the_page_of_results_opens_from_the_site(browser: Browser, site: Path) -> None:
    with watched(browser, site / "index.html") as page:
        page.get_by_role("link", name="the page of results").click()
        expect(page.get_by_role("heading", name="what its paper claims")).to_be_visible()
