"""The page in a real browser: no error, values under the pointer, filters, links, a phone, the dark, and paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from ademamix.lab.report import page as report
from ademamix.lab.report.charts import Grid, Lines, Series, plain
from ademamix.lab.report.page.sources import Results
from ademamix.lab.report.page.watch import save
from ademamix.lab.reproduction.claims import FAILS, OPEN
from browser import PHONE, chromium, luminance, watched
from page_samples import NAN, claim, losses, panel, write_panels

pytestmark = pytest.mark.programs


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    write_panels(out)
    wide = {"header": ["", *map(str, range(30))], "rows": [["a row", *["0.123456"] * 30]], "title": "Wide"}
    forgets = [claim("It forgets <less>", FAILS, source="slowly " * 40), claim("A word of " + "length" * 30, OPEN)]
    write_panels(out, "forgetting", panels=[panel(claims=forgets, tables=[wide])])
    report.write(out, "laptop", out / "report.html")
    return out / "report.html"


@pytest.fixture
def opened(browser: Browser, file: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page without a network; a test that leaves an error in the console fails."""
    with watched(browser, file, **getattr(request, "param", {})) as page:
        yield page


def plot(page: Page, number: int) -> Locator:
    found = page.locator(".plot").nth(number)
    found.scroll_into_view_if_needed()
    expect(found.locator("svg")).to_be_visible()
    return found


def tip(page: Page, number: int) -> Locator:
    return page.locator(".tip").nth(number)


def ticks(of: Locator) -> list[str]:
    return of.locator("text[text-anchor=end]").all_text_contents()


def test_the_pointer_shows_values(opened: Page) -> None:
    curve = plot(opened, 0)
    last = curve.locator("path.curve.hollow").last.bounding_box()
    assert last is not None
    opened.mouse.move(last["x"] + last["width"] / 2, last["y"] + last["height"] / 2)
    expect(tip(opened, 0)).to_be_visible()
    expect(tip(opened, 0)).to_contain_text(re.compile(r"1\.\d+ · AdamW: 1\.5500"))
    expect(tip(opened, 0)).to_contain_text(re.compile(r"step: \d+,\d00"))
    opened.mouse.move(1, 1)
    expect(tip(opened, 0)).to_be_hidden()


def test_cells_show_values(opened: Page) -> None:
    grid = plot(opened, 1)
    grid.locator(".cell").nth(1).hover(force=True)
    expect(tip(opened, 1)).to_have_text("1.5alpha: 4beta3: 0.99")
    grid.locator(".cell").nth(2).hover(force=True)
    expect(tip(opened, 1)).to_contain_text("diverged, or not run")
    assert grid.locator(".cell.framed").count() == 1


def test_a_part_is_enlarged_and_all_of_it_comes_back(opened: Page) -> None:
    curve = plot(opened, 0)
    whole = ticks(curve)
    box = curve.bounding_box()
    assert box is not None
    opened.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
    opened.mouse.down()
    opened.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.7)
    assert curve.locator(".selection").count() == 1
    opened.mouse.up()
    assert ticks(curve) != whole
    opened.get_by_role("button", name="Show all of it").first.click()
    assert ticks(curve) == whole


def test_the_keyboard_does_the_same(opened: Page) -> None:
    curve = plot(opened, 0)
    whole = ticks(curve)
    opened.get_by_role("button", name="Show all").last.focus()
    curve.focus()
    opened.keyboard.press("ArrowLeft")
    expect(tip(opened, 0)).to_contain_text("step: 19,500")
    opened.keyboard.press("+")
    assert ticks(curve) != whole
    opened.keyboard.press("0")
    assert ticks(curve) == whole
    opened.keyboard.press("ArrowDown")
    expect(tip(opened, 0)).to_contain_text("AdEMAMix")


def test_a_curve_can_be_hidden(opened: Page) -> None:
    curve = plot(opened, 0)
    before = curve.locator("path.curve").count()
    button = opened.get_by_role("button", name="AdEMAMix").first
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    assert curve.locator("path.curve").count() < before


def shown_rows(page: Page) -> int:
    return page.locator("table.claims tbody tr:visible").count()


def test_claims_are_filtered(opened: Page) -> None:
    assert shown_rows(opened) == 5
    opened.get_by_label("Verdict").select_option("does not hold here")
    assert shown_rows(opened) == 2
    expect(opened.locator("#shown")).to_have_text("2 of 5 claims")
    opened.get_by_label("Recipe").select_option("forgetting")
    assert shown_rows(opened) == 1
    opened.get_by_role("searchbox").fill("nothing like it")
    expect(opened.locator("#none-shown")).to_be_visible()
    opened.get_by_role("button", name="Show all").first.click()
    expect(opened.locator("#shown")).to_have_text("5 claims")
    opened.get_by_role("searchbox").fill("LESS forgets")
    assert shown_rows(opened) == 1
    opened.locator(".tile.holds").click()
    expect(opened.locator("#shown")).to_have_text("1 of 5 claims")


def test_links_lead_to_what_they_name(opened: Page) -> None:
    opened.get_by_role("link", name="It forgets <less>").click()
    expect(opened.locator("#forgetting-claim-1")).to_be_in_viewport()
    opened.get_by_role("link", name="Back to the claims").first.click()
    expect(opened.locator("#claims")).to_be_in_viewport()


@pytest.mark.parametrize("opened", [{"viewport": PHONE, "has_touch": True, "is_mobile": True}], indirect=True)
def test_a_phone_shows_it_without_scrolling_sideways(opened: Page) -> None:
    for details in opened.locator("details").all():
        details.evaluate("part => (part.open = true)")
    for number in range(opened.locator(".plot").count()):
        plot(opened, number)
    assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    curve = plot(opened, 0)
    curve.tap(position={"x": 100, "y": 150})
    expect(curve.locator("svg")).to_be_visible()


@pytest.mark.parametrize(
    ("opened", "dark"), [({"color_scheme": "dark"}, True), ({"color_scheme": "light"}, False)], indirect=["opened"]
)
def test_it_is_dark_where_that_is_wished(opened: Page, dark: bool) -> None:
    plot(opened, 0)
    assert (luminance(opened, "backgroundColor", "body") < luminance(opened, "color", "body")) == dark
    brightness = luminance(opened, "stroke", "path.curve")
    assert abs(brightness - luminance(opened, "backgroundColor", "body")) > 60


@pytest.mark.parametrize("opened", [{"color_scheme": "dark"}], indirect=True)
def test_paper_is_light_and_has_every_figure(opened: Page) -> None:
    drawn, all_of_them = opened.locator(".plot svg"), opened.locator(".plot")
    assert drawn.count() < all_of_them.count()
    opened.pdf()
    assert drawn.count() == all_of_them.count()
    opened.emulate_media(media="print")
    assert luminance(opened, "backgroundColor", "body") > 250
    expect(opened.locator("#filter")).to_be_hidden()
    expect(opened.locator("table.claims")).to_be_visible()


def test_charts_with_nothing_to_draw_do_no_harm(browser: Browser, tmp_path: Path) -> None:
    charts = [
        Lines("None", "x", "y", []),
        Lines("Empty", "x", "y", [Series("a", [], [])]),
        Lines("Not finite", "x", "y", [Series("a", [1.0, 2.0], [NAN, NAN])], logarithmic="xy"),
        Lines("Negative", "x", "y", [Series("a", [-1.0, 2.0], [-3.0, 4.0])], logarithmic="xy", y_range=(-1.0, 1.0)),
        Lines("One point", "x", "y", [Series("a", [1.0], [1.0])], x_range=(2.0, 2.0)),
        Lines("Huge", "x", "y", [Series("a", [1e-300, 1e300], [1e-12, 3e307])], levels={"b": -1e300}),
        Grid("Diverged", "x", "y", [1.0], [1.0], [[NAN]]),
        losses(points=1),
    ]
    write_panels(tmp_path, panels=[panel(charts=[plain(chart) for chart in charts])])
    report.write(tmp_path, "laptop", tmp_path / "report.html")
    with watched(browser, tmp_path / "report.html") as page:
        for number in range(len(charts)):
            drawn = plot(page, number)
            drawn.hover()
            drawn.focus()
            for key in ("ArrowRight", "ArrowDown", "+", "-", "-", "0"):
                page.keyboard.press(key)


def test_a_watched_page_loads_itself_again(browser: Browser, tmp_path: Path) -> None:
    write_panels(tmp_path)
    save(Results(tmp_path, "laptop"), tmp_path / "report.html", reload=1)
    with watched(browser, tmp_path / "report.html") as page:
        expect(page.get_by_text("updated while runs continue")).to_be_visible()
        page.get_by_label("Verdict").select_option("holds")
        write_panels(tmp_path, "forgetting", panels=[panel(claims=[claim("a new claim")])])
        save(Results(tmp_path, "laptop"), tmp_path / "report.html")
        expect(page.get_by_role("link", name="a new claim")).to_be_visible(timeout=60_000)
        expect(page.get_by_text("updated while runs continue")).to_be_hidden()


def test_the_committed_page_opens(browser: Browser) -> None:
    committed = Path(__file__).parents[3] / "docs" / "report" / "index.html"
    with watched(browser, committed) as page:
        expect(page.locator(".tile")).to_have_count(3)
        plot(page, 0)
