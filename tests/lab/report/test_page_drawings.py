"""Charts as a page draws them: few points, the same shape, and every list once."""

from __future__ import annotations

import math

from ademamix.lab.report.charts import plain
from ademamix.lab.report.page.content import Panel, Series
from ademamix.lab.report.page.drawings import MOST_POINTS, Drawings, thinned
from page_samples import GRID, PATH, losses


def test_a_long_curve_keeps_its_shape() -> None:
    steps = [float(step) for step in range(5000)]
    curve = [math.exp(-step / 1000) for step in steps]
    curve[1234], curve[4321] = 3.0, -2.0
    x, y = thinned(Series(label="a", x=steps, y=curve))
    assert len(x) == len(y) == MOST_POINTS
    assert (x[0], x[-1]) == (0.0, 4999.0)
    assert dict(zip(x, y, strict=True))[1234.0] == 3.0
    assert dict(zip(x, y, strict=True))[4321.0] == -2.0
    assert set(zip(x, y, strict=True)) <= set(zip(steps, curve, strict=True))


def test_a_short_curve_is_left_alone() -> None:
    series = Series(label="a", x=[1.0, 2.0, 3.0], y=[1.0, None, 2.0])
    assert thinned(series) == (series.x, series.y)


def test_a_long_curve_that_diverged_ends_there() -> None:
    x, y = thinned(Series(label="a", x=[float(step) for step in range(1000)], y=[1.0] * 400 + [None] * 600), "y")
    assert (x[-1], None in y) == (399.0, False)
    assert thinned(Series(label="a", x=[0.0] * 1000, y=[None] * 1000)) == ([], [])


def test_lists_of_numbers_are_shared() -> None:
    panel = Panel.model_validate({"title": "", "charts": [plain(losses()), plain(losses()), plain(PATH), plain(GRID)]})
    drawings = Drawings()
    assert [drawings.add(chart).number for chart in panel.charts] == [0, 1, 2, 3]
    content = drawings.as_json()
    assert content["charts"][0]["series"] == content["charts"][1]["series"]
    assert len(content["lists"]) == 4  # the steps, two curves, and the path, whose x and y are equal
    steps, losses_of_adamw = (content["lists"][content["charts"][0]["series"][0][axis]] for axis in "xy")
    assert steps[:2] == (500, 1000)
    assert losses_of_adamw[2] == 2.1667  # no more digits than can be seen
    assert content["charts"][2]["marks"] == [["start", 0.0, 0.0], ["minimum", 1.0, 1.0]]
    assert content["charts"][3]["values"] == [[1.6, 1.5], [None, 1.55]]


def test_no_two_series_of_a_chart_look_alike() -> None:
    many = {**plain(losses()), "series": [{"label": str(n), "x": [1], "y": [n], "family": "adamw"} for n in range(20)]}
    drawings = Drawings()
    for chart in Panel.model_validate({"title": "", "charts": [many]}).charts:
        drawings.add(chart)
    looks = [series["look"] for series in drawings.charts[0]["series"]]
    assert len(set(looks)) == 20
    assert max(looks) < len(drawings.as_json()["looks"])
