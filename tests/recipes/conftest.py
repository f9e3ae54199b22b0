"""Recipes train in many processes, and none is about how these are started."""

from __future__ import annotations

import pytest

import lab_here

lab, shared_out = lab_here.lab, lab_here.shared_out


@pytest.fixture(autouse=True)
def _quick_workers(quick_workers: None) -> None:
    pass
