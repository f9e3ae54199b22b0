"""Where and how runs are carried out, with their progress shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ademamix.lab.config import Run
from ademamix.lab.runs.display import Display
from ademamix.lab.runs.execution import Options, processes_on
from ademamix.lab.runs.record import Result
from ademamix.lab.runs.runner import kept_results, run_all


@dataclass(frozen=True)
class Lab:
    """Where and how runs are carried out, with their progress shown."""

    options: Options
    processes: int | None = None
    threads: int = 1

    def kept(self, runs: Mapping[str, Run]) -> dict[str, Result]:
        """Return the results of those runs that are finished, by name."""
        return kept_results(runs, self.options)

    def carry_out(
        self, runs: Mapping[str, Run], title: str, *, kept: Mapping[str, Result] | None = None
    ) -> dict[str, Result]:
        """Carry out the runs that are not finished, and return the results of all by name.

        `kept` is the result of :meth:`kept`, from callers that already have it.
        """
        if kept is None:
            kept = self.kept(runs)
        if len(kept) == len(runs):
            return run_all(runs, self.options, kept=kept)
        if kept:
            title += f"\nTrained before, and not again: {'; '.join(kept)}."
        with Display(title, self.processes or processes_on(self.options.device)) as display:
            return run_all(runs, self.options, kept=kept, processes=self.processes, threads=self.threads, watch=display)
