from __future__ import annotations

from pathlib import Path

import pytest
from lab_here import LabHere

from ademamix.lab.runs.execution import Options


@pytest.fixture(scope="session")
def shared_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose prepared data and finished runs all tests may use."""
    return tmp_path_factory.mktemp("out")


@pytest.fixture
def lab(shared_out: Path) -> LabHere:
    return LabHere(Options(shared_out))
