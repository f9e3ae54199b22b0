"""Where and how runs are carried out, with their progress shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ademamix.lab.config import Run
from ademamix.lab.distribution import process_group
from ademamix.lab.execution.carriers import Carrier
from ademamix.lab.execution.display import Display
from ademamix.lab.execution.options import Options
from ademamix.lab.execution.runner import LOCAL, Status, kept_results, run_all
from ademamix.lab.runs.archive import Archive
from ademamix.lab.runs.environment import CurrentData
from ademamix.lab.runs.record import Result, RunError, RunFolder


@dataclass(frozen=True)
class Lab:
    """Where and how runs are carried out, with their progress shown."""

    options: Options
    processes: int | None = None
    threads: int = 1
    archive: Archive | None = None
    """Where small records are read from, and written to as runs finish."""
    trains: bool = True
    """Whether a run that is not finished may be trained."""
    carrier: Carrier = LOCAL
    """What carries them out: processes of this machine, or tasks of a cluster."""

    @property
    def at_once(self) -> int:
        """How many runs are carried out at a time."""
        return self.processes or self.carrier.at_once(self.options.device, self.threads)

    def kept(self, runs: Mapping[str, Run]) -> dict[str, Result]:
        """Return the results of those runs that are finished, by name."""
        if self.archive is None:
            return kept_results(runs, self.options)
        current = CurrentData(self.options.data) if self.trains else None
        return self.archive.restore(runs, self.options.runs, current)

    def carry_out(
        self,
        runs: Mapping[str, Run],
        title: str,
        *,
        kept: Mapping[str, Result] | None = None,
        keep_going: bool = False,
    ) -> dict[str, Result]:
        """Carry out the runs that are not finished, and return the results of all by name.

        `kept` is the result of :meth:`kept`, from callers that already have it. With `keep_going`, a run that fails
        does not stop the others: it has no result.
        """
        if kept is None:
            kept = self.kept(runs)
        self._archive(runs, kept)
        if not self.trains:
            return self._all_kept(runs, kept)
        if len(kept) == len(runs):
            return run_all(runs, self.options, kept=kept)
        if kept:
            title += f"\nTrained before, and not again: {'; '.join(kept)}."
        at_once = self.at_once
        with Display(title, at_once) as display:
            watch = self._archiving(runs, display)
            if process_group.current().count > 1:
                from ademamix.lab.execution.in_turn import (
                    run_in_turn,  # imports torch: showing results does not wait for it
                )

                return run_in_turn(runs, self.options, kept=kept, watch=watch, keep_going=keep_going)
            return run_all(
                runs,
                self.options,
                kept=kept,
                carrier=self.carrier,
                processes=at_once,
                threads=self.threads,
                watch=watch,
                keep_going=keep_going,
            )

    def _all_kept(self, runs: Mapping[str, Run], kept: Mapping[str, Result]) -> dict[str, Result]:
        if missing := [name for name in runs if name not in kept]:
            raise RunError(
                f"{len(missing)} of {len(runs)} runs are not finished, the first of them {missing[0]!r}, and nothing "
                "is to be trained: without --no-training they are"
            )
        return dict(kept)

    def _archiving(self, runs: Mapping[str, Run], display: Display) -> Callable[[Mapping[str, Status]], None]:
        archived: set[str] = set()

        def watch(statuses: Mapping[str, Status]) -> None:
            display(statuses)
            results = {name: status.result for name, status in statuses.items() if status.result is not None}
            self._archive(runs, {name: results[name] for name in results.keys() - archived})
            archived.update(results)

        return watch

    def _archive(self, runs: Mapping[str, Run], results: Mapping[str, Result]) -> None:
        if self.archive is not None:
            for name, result in results.items():
                self.archive.add(RunFolder(self.options.runs, runs[name]), result)
