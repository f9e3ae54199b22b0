"""Live progress of several runs: bars on a terminal; elsewhere a line for each, every few seconds."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from ademamix.lab.execution.options import Progress
from ademamix.lab.execution.runner import Status

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from typing_extensions import Self

LINE_EVERY = 15.0  # seconds between lines where there is no terminal
DRAW_EVERY = 0.1  # seconds between redraws of a terminal; a small model reports more often
BAR = 12  # columns


class Display:
    """Shows the runs of :func:`ademamix.lab.execution.runner.run_all`, `processes` at a time; written to stderr."""

    def __init__(self, title: str, processes: int = 1) -> None:
        from rich.live import Live

        self._console = _console()
        self._title = title
        self._processes = processes
        self._live = Live(console=self._console, auto_refresh=False)
        self._finished: set[str] | None = None
        self._told = float("-inf")

    def __enter__(self) -> Self:
        self._print(self._title)
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, statuses: Mapping[str, Status]) -> None:
        """Show how far the runs are: a line that stays for each finished one, and those in progress below."""
        for name, status in statuses.items():
            while status.notices:
                self._print(f"{name}: {status.notices.pop(0)}")
        finished = {name for name, status in statuses.items() if status.ended}
        if self._finished is None:  # runs that had finished before are no news, unless there are no others
            self._finished = finished if len(finished) < len(statuses) else set()
        new = [name for name in statuses if name in finished - self._finished]
        self._finished |= finished
        active = {name: status for name, status in statuses.items() if name not in finished and _begun(status)}
        if self._console.is_terminal:
            self._draw(statuses, new, active)
        else:
            self._tell(statuses, new, active)

    def _draw(self, statuses: Mapping[str, Status], new: list[str], active: Mapping[str, Status]) -> None:
        from rich.console import Group
        from rich.text import Text

        if not new and time.monotonic() - self._told < DRAW_EVERY:
            return
        self._told = time.monotonic()
        names = max(map(len, statuses))
        rows = [_row(name, status, names, self._console.width) for name, status in active.items()]
        if len(statuses) > 1:
            rows.append(Text(total(statuses, self._processes)))
        self._live.update(Group(*rows))
        for name in new:  # above the others, which are drawn again below
            self._console.print(_row(name, statuses[name], names, self._console.width), highlight=False)
        self._live.refresh()

    def _tell(self, statuses: Mapping[str, Status], new: list[str], active: Mapping[str, Status]) -> None:
        for name in new:
            self._print(f"{name}: {describe(statuses[name])}")
        if time.monotonic() - self._told < LINE_EVERY:
            return
        for name, status in active.items():
            done = status.config.steps - status.steps_left
            self._print(f"{name}: step {done:,} of {status.config.steps:,}, {describe(status)}")
        if len(statuses) > 1 and active:
            self._print(total(statuses, self._processes))
        self._told = time.monotonic()

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=not self._console.is_terminal)


def _console() -> Console:
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            """Go quiet: nobody is watching any more, but that is no reason to end the runs, as rich would."""
            self.quiet = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # for output that is flushed at the end

    return Quiet(stderr=True)


def _begun(status: Status) -> bool:
    return bool(status.progress or status.waits or status.read)


def _row(name: str, status: Status, names: int, width: int) -> RenderableType:
    """Lay out a run in one line with a bar or, if that does not fit, in several without."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    steps, details = status.config.steps, describe(status)
    done = steps - status.steps_left
    count = f"{done}/{steps}"
    if names + BAR + 2 * len(str(steps)) + len(details) + 4 > width:
        return Group(Text(name), Padding(Text(f"{count}, {details}"), (0, 0, 0, 2)))
    row = Table.grid(padding=(0, 1))
    row.add_row(Text(name.ljust(names)), ProgressBar(steps, done, width=BAR), Text(count), Text(details))
    return row


def describe(status: Status) -> str:
    """Say how far a run is, in a few words.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> from ademamix.lab.execution.options import Progress
    >>> progress = Progress(step=9_200, loss=2.5, validation_loss=2.6, steps_a_second=10.0, seconds_left=90.0)
    >>> describe(Status(DEFAULT, progress))
    'loss 2.500, validation 2.600, 10 steps/s, 1:30 left'
    >>> describe(Status(DEFAULT, read=(1_200_000, 33_000_000)))
    'reads its text: 1,200,000 tokens of 33,000,000'
    """
    if status.result is not None:
        end = "diverged" if status.result.diverged else f"validation {status.result.validation_loss:.4f}"
        return f"finished, {end}"
    if status.failure:
        return "failed"
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


def total(statuses: Mapping[str, Status], processes: int) -> str:
    """Say how many runs are done, and about how long the others will take.

    A run that has not begun is assumed to be as fast as those that have.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> from ademamix.lab.execution.options import Progress
    >>> half = Progress(step=10_000, loss=2.5, validation_loss=2.6, steps_a_second=60.0, seconds_left=100.0)
    >>> runs = {"AdamW": Status(DEFAULT, half), "AdEMAMix": Status(DEFAULT, half), "Lion": Status(DEFAULT)}
    >>> total(runs, processes=2)
    '0 of 3 runs done, about 3:20 left in all'
    """
    done = sum(status.ended for status in statuses.values())
    count = f"{done} of {len(statuses)} runs done"
    begun = [_seconds_per_step(status, status.progress) for status in statuses.values() if status.progress is not None]
    if not begun or done == len(statuses):
        return count
    usual = statistics.fmean(begun)
    left = [
        status.progress.seconds_left if status.progress is not None else status.steps_left * usual
        for status in statuses.values()
        if not status.ended
    ]
    return f"{count}, about {clock(max(max(left), sum(left) / processes))} left in all"


def _seconds_per_step(status: Status, progress: Progress) -> float:
    """Return the time per step with its share of validations and checkpoints, as far as that is known."""
    return progress.seconds_left / status.steps_left if status.steps_left else 1 / progress.steps_a_second


def clock(seconds: float) -> str:
    """Write a duration.

    >>> clock(80), clock(3725)
    ('1:20', '1:02:05')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
