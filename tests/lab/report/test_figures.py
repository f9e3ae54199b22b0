"""How figures look, and how they are saved."""

from __future__ import annotations

import math

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from ademamix.lab.report import figures
from ademamix.lab.report.charts import Grid, Lines, Series
from ademamix.lab.report.losses import LossCurve, loss_chart


def test_series_differ_in_black_and_white():
    for looks in (figures.ADAM + figures.ADEMAMIX, figures.SERIES):
        assert len({(str(look.line), look.marker, look.hollow) for look in looks}) == len(looks)


def test_figure_that_cannot_be_drawn_leaves_the_old_files(tmp_path):
    figures.save(Figure(), tmp_path, "figure")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(before) == {"figure.png", "figure.svg"}
    broken = Figure()
    broken.text(0, 0, "$\\frac$")
    with pytest.raises(ValueError, match="frac"):
        figures.save(broken, tmp_path, "figure")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_saving_leaves_matplotlib_as_it_was(tmp_path):
    before = dict(matplotlib.rcParams)
    figures.save(Figure(), tmp_path, "figure")
    assert dict(matplotlib.rcParams) == before


def test_shifted_markers_stay_on_the_line():
    axes = Figure().subplots()
    for shift in (0.0, 0.5, 0.99):
        figures.draw_line(axes, range(101), range(101), figures.SERIES[0], "line", shift=shift)
    assert [line.get_markevery() for line in axes.lines] == [(10, 10), (5, 10), (1, 10)]
    figures.draw_line(axes, [0, 1], [0, 1], figures.SERIES[0], "short")
    assert axes.lines[-1].get_markevery() == (1, 1)


@pytest.mark.parametrize(("panels", "grid"), [(1, (1, 1)), (4, (1, 4)), (5, (2, 3)), (8, (2, 4))])
def test_panels_stand_side_by_side(panels, grid):
    figure, places = figures.side_by_side(panels, "a caption", "a warning")
    assert len(places) == panels
    assert places[0].get_subplotspec().get_gridspec().get_geometry() == grid
    assert figure.get_suptitle() == "a warning"
    assert figure.get_supxlabel() == "a caption"
    assert [axes.axison for axes in figure.axes].count(True) == panels


def test_losses_show_their_ends():
    calm = LossCurve("calm", "adamw", {0: 5.0, 100: 1.0}, 1.0)
    wild = LossCurve("wild", "ademamix", {0: 9.0, 100: math.nan}, math.inf)
    chart = loss_chart("title", [calm, wild], {"calm": 1.0}, "loss")
    assert [series.label for series in chart.series] == ["calm: 1.0000", "wild: diverged"]
    assert chart.y_range == (0.97, 1.6)  # that of the one that ended
    axes = Figure().subplots()
    chart.draw(axes)
    assert axes.get_ylim() == chart.y_range
    assert axes.lines[0].get_color() == figures.ADAM[0].colour


def test_points_are_not_joined():
    axes = Figure().subplots()
    Lines("title", "x", "y", [Series("points", [1, 2], [3, 4])], joined=False, logarithmic="xy").draw(axes)
    assert axes.lines[0].get_linestyle() == "None"
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_grid_frames_what_is_as_low_as_the_level():
    axes = Figure().subplots()
    Grid("title", "x", "y", [1, 2], [3, 4], [[1.0, 2.0], [math.nan, 1.5]], level=1.5).draw(axes)
    assert [(patch.get_x(), patch.get_y()) for patch in axes.patches] == [(-0.47, -0.47), (0.53, 0.53)]
    assert [text.get_text() for text in axes.texts] == ["1.000", "2.000", "diverged", "1.500"]
    assert np.isnan(axes.images[0].get_array().filled(np.nan)[1, 0])
