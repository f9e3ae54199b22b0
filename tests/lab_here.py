"""A lab without processes, for tests of recipes and of what carries them out; those that use its fixtures name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from ademamix.lab.config import Run
from ademamix.lab.execution.laboratory import Lab
from ademamix.lab.execution.options import Options
from ademamix.lab.runs.record import Result, RunFolder
from ademamix.lab.train import train


@dataclass(frozen=True)
class LabHere(Lab):
    """Carries out runs in this process, where torch is loaded already, and remembers what it had to train."""

    trained: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)

    def carry_out(self, runs: Mapping[str, Run], title: str, *, keep_going: bool = False) -> dict[str, Result]:
        self.titles.append(title)
        self.trained.extend(name for name, run in runs.items() if RunFolder(self.options.runs, run).result() is None)
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)  # several would wait for each other longer than such runs take
        try:
            return {name: train(run, self.options) for name, run in runs.items()}
        finally:
            torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shared_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose prepared data and finished runs all tests may use."""
    return tmp_path_factory.mktemp("out")


@pytest.fixture
def lab(shared_out: Path) -> LabHere:
    return LabHere(Options(shared_out))
