"""Live progress of several runs: bars on a terminal, a line for each every few seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from ademamix.lab.config import Run
from ademamix.lab.execution import Options
from ademamix.lab.record import Result, RunFolder
from ademamix.lab.runner import Status, run_all

if TYPE_CHECKING:
    from typing_extensions import Self

LINE_EVERY = 15.0  # seconds between lines where there is no terminal


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Go quiet: who watched the runs does so no longer, which is no reason to end them, as rich would."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # for what is left to flush when Python ends


class Display:
    """Shows what :func:`ademamix.lab.runner.run_all` watches; written to stderr."""

    def __init__(self, title: str) -> None:
        self._console = _Console(stderr=True)
        self._title = title
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[details]}", markup=False),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._told = float("-inf")

    def __enter__(self) -> Self:
        self._console.print(self._title, highlight=False, markup=False, soft_wrap=True)
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, statuses: Mapping[str, Status]) -> None:
        """Show how far the runs are."""
        tell = time.monotonic() - self._told >= LINE_EVERY and not self._console.is_terminal
        for name, status in statuses.items():
            while status.notices:
                self._console.print(f"{name}: {status.notices.pop(0)}", highlight=False, markup=False, soft_wrap=True)
            done, details = status.config.steps - status.steps_left, describe(status)
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=status.config.steps, details="")
            self._bars.update(self._tasks[name], completed=done, details=details)
            if tell and not status.result and (status.progress or status.waits or status.read):
                line = f"{name}: step {done:,} of {status.config.steps:,}, {details}"
                self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        if tell:
            self._told = time.monotonic()


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
        with Display(title) as display:
            return run_all(runs, self.options, processes=self.processes, threads=self.threads, watch=display)


def describe(status: Status) -> str:
    """Say how far a run is, in a few words.

    >>> from ademamix.lab.config import GPT, Cosine, Optimizer, Run, Text
    >>> from ademamix.lab.execution import Progress
    >>> config = Run(
    ...     model=GPT(kind="gpt", width=64, layers=2, heads=2, context=64), data=Text(kind="text"),
    ...     optimizer=Optimizer(name="adamw", lr=1e-3), schedule=Cosine(kind="cosine"),
    ...     steps=1000, batch=8, validate_every=100,
    ... )
    >>> progress = Progress(step=200, loss=2.5, validation_loss=2.6, steps_a_second=10.0, seconds_left=90.0)
    >>> describe(Status(config, progress))
    'loss 2.500, validation 2.600, 10 steps/s, 1:30 left'
    >>> describe(Status(config, read=(1_200_000, 33_000_000)))
    'reads its text: 1,200,000 tokens of 33,000,000'
    """
    if status.result is not None:
        end = "diverged" if status.result.diverged else f"validation {status.result.validation_loss:.4f}"
        return f"finished, {end}"
    if status.waits:
        return "waits for another process that trains it"
    if status.read is not None:
        count, wanted = status.read
        return f"reads its text: {count:,} tokens" + (f" of {wanted:,}" if wanted else "")
    if status.progress is None:
        return "not yet begun"
    progress, parts = status.progress, []
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3f}")
    if progress.validation_loss is not None:
        parts.append(f"validation {progress.validation_loss:.3f}")
    return ", ".join([*parts, f"{progress.steps_a_second:.3g} steps/s", f"{clock(progress.seconds_left)} left"])


def clock(seconds: float) -> str:
    """Write a duration.

    >>> clock(80), clock(3725)
    ('1:20', '1:02:05')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
