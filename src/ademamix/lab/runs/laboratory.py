"""Where and how runs are carried out, with their progress shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ademamix.lab.config import Run
from ademamix.lab.runs.display import Display
from ademamix.lab.runs.execution import Options, processes_on
from ademamix.lab.runs.record import Result, RunFolder
from ademamix.lab.runs.runner import run_all


@dataclass(frozen=True)
class Lab:
    """Where and how runs are carried out, with their progress shown."""

    options: Options
    processes: int | None = None
    threads: int = 1

    def carry_out(self, runs: Mapping[str, Run], title: str) -> dict[str, Result]:
        """Carry out the runs that are not finished, and return the results of all by name."""
        finished = [name for name, run in runs.items() if RunFolder(self.options.runs, run).result() is not None]
        if len(finished) == len(runs):
            return run_all(runs, self.options)
        if finished:
            title += f"\nTrained before, and not again: {'; '.join(finished)}."
        with Display(title, self.processes or processes_on(self.options.device)) as display:
            return run_all(runs, self.options, processes=self.processes, threads=self.threads, watch=display)
