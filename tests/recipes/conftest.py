"""Recipes train in many processes, and none is about how these are started."""

from __future__ import annotations

from pathlib import Path

import pytest

from ademamix.lab.runs.execution import Options
from lab_here import LabHere


@pytest.fixture(autouse=True)
def _quick_workers(quick_workers: None) -> None:
    pass


@pytest.fixture(scope="session")
def shared_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose prepared data and finished runs all tests may use."""
    return tmp_path_factory.mktemp("out")


@pytest.fixture
def lab(shared_out: Path) -> LabHere:
    return LabHere(Options(shared_out))
