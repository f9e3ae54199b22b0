"""How figures look, and how they are saved."""

from __future__ import annotations

import matplotlib
import pytest
from matplotlib.figure import Figure

from ademamix.lab.report import figures


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
