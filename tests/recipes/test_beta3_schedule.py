"""The recipe beta3-schedule: the paper's claims held to its numbers (caption of beta_scheduler, and section 3)."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from ademamix import beta3_at, half_life
from ademamix.lab.recipes import beta3_schedule


def test_it_is_the_schedule_of_the_optimizer():
    assert beta3_schedule.paper_schedule(250, 0.9999) == beta3_at(250, beta3=0.9999, start=0.9, T=1000)


@pytest.mark.parametrize("end", beta3_schedule.ENDS)
def test_both_schedules_end_where_they_should(end):
    for name in beta3_schedule.SCHEDULES:
        betas = beta3_schedule.betas(name, end)
        assert len(betas) == beta3_schedule.STEPS
        assert 0.9 < betas[0] < 0.951
        assert betas[-1] == pytest.approx(end, rel=1e-15)
        assert (np.diff(betas) > 0).all()


@pytest.mark.parametrize("end", beta3_schedule.ENDS)
def test_half_life_grows_linearly_under_the_paper_only(end):
    rises = {name: np.diff(beta3_schedule.half_lives(name, end)) for name in beta3_schedule.SCHEDULES}
    assert_allclose(rises["AdEMAMix"], (half_life(end) - half_life(0.9)) / 1000, rtol=1e-6)
    assert rises["linear"].max() > 1000 * rises["linear"].min()


@pytest.mark.parametrize("end", beta3_schedule.ENDS)
def test_it_increases_fast_for_small_betas_and_slowly_for_large_ones(end):
    rises = np.diff(beta3_schedule.betas("AdEMAMix", end))
    assert (np.diff(rises) < 0).all()
    linear = (end - 0.9) / 1000
    assert rises[0] > 5 * linear
    assert rises[-1] < linear / 50


def test_the_linear_schedules_look_the_same_and_the_others_do_not():
    apart = {
        name: abs(beta3_schedule.betas(name, 0.9999) - beta3_schedule.betas(name, 0.999)).max()
        for name in beta3_schedule.SCHEDULES
    }
    assert apart["linear"] < 0.00091
    assert apart["AdEMAMix"] > 0.05


def test_same_increment_has_another_effect_on_another_beta():
    assert half_life(0.9001) - half_life(0.9) < 0.01
    assert round(half_life(0.9991) - half_life(0.999)) == 77


def test_table_says_so():
    rows = [line.split() for line in beta3_schedule.table().splitlines()[2:]]
    assert [row[:2] + row[6:] for row in rows] == [
        ["AdEMAMix", "0.999", "177.1", "348.7", "520.2", "691.8"],
        ["linear", "0.999", "7.9", "12.4", "25.6", "691.8"],
        ["AdEMAMix", "0.9999", "1,736.7", "3,467.9", "5,199.0", "6,930.1"],
        ["linear", "0.9999", "7.9", "12.5", "26.3", "6,930.1"],
    ]
    reading = beta3_schedule.reading()
    assert "adds 0.007 steps at 0.9, and 77 at 0.999" in reading
    assert "never more than 0.0009 apart" in reading
