"""Several runs at once, each in the hands of a worker of a carrier (`carriers`)."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ademamix.lab.config import Run
from ademamix.lab.execution.carriers import Carrier, Events, Worker
from ademamix.lab.execution.interrupt import Interrupted, asked_to_stop
from ademamix.lab.execution.local_processes import LocalProcesses
from ademamix.lab.execution.options import Options, Progress
from ademamix.lab.runs import beginnings, environment
from ademamix.lab.runs.record import Result, RunError, RunFolder

REFRESH = 0.5  # seconds
LOCAL = LocalProcesses()


@dataclass
class Status:
    """One of several runs: how far it is, and how it ended."""

    config: Run
    progress: Progress | None = None
    result: Result | None = None
    failure: str = ""
    """Why it ended without a result."""
    waits: bool = False
    """Another process holds its folder."""
    read: tuple[int, int | None] | None = None
    """While its text is being read: how many tokens were read, and of how many."""
    notices: list[str] = field(default_factory=list)
    """Notices to show about it; whoever shows one removes it."""

    @property
    def ended(self) -> bool:
        """Whether it is finished, or has failed."""
        return self.result is not None or bool(self.failure)

    @property
    def steps_left(self) -> int:
        """The number of steps still to do."""
        return 0 if self.ended else self.config.steps - (self.progress.step if self.progress else 0)


def kept_results(runs: Mapping[str, Run], options: Options) -> dict[str, Result]:
    """Return the results of those runs that are finished, by name."""
    results = {name: RunFolder(options.runs, config).result() for name, config in runs.items()}
    return {name: result for name, result in results.items() if result is not None}


def run_all(
    runs: Mapping[str, Run],
    options: Options,
    *,
    kept: Mapping[str, Result] | None = None,
    carrier: Carrier = LOCAL,
    processes: int | None = None,
    threads: int = 1,
    watch: Callable[[Mapping[str, Status]], None] = lambda statuses: None,
    keep_going: bool = False,
) -> dict[str, Result]:
    """Carry out all runs that are not finished, `processes` at a time, and return the results by name.

    By default the carrier is this machine, with a process for each GPU, or two on a CPU. Optimizers are checked before
    the first run begins; that all runs have the same data is checked as soon as one has begun. `watch(statuses)` is
    called about twice a second. `kept` is the result of :func:`kept_results`, from callers that already have it. With
    `keep_going`, a run that fails does not stop the others: it has no result.
    """
    if kept is None:
        kept = kept_results(runs, options)
    folders = {name: RunFolder(options.runs, config) for name, config in runs.items()}
    statuses = {name: Status(config, result=kept.get(name)) for name, config in runs.items()}
    waiting = [name for name, status in statuses.items() if status.result is None]
    with (
        _told_whether_saved([folders[name] for name in waiting]),
        asked_to_stop() as stop,
        _crew(carrier, options, threads) as crew,
    ):
        # in here, since a Ctrl-C during the import of torch would be lost in it
        _check_optimizers(statuses[name].config for name in waiting)
        environment.check_kept((folders[name] for name in runs if name not in waiting), options.data)
        if waiting:
            crew.find_room(processes)
        if stop.is_set():
            raise _Stopped
        plan = beginnings.Plan(
            {name: statuses[name].config for name in waiting}, beginnings.Beginnings(options.beginnings)
        )
        while waiting or crew.at_work:
            unfinished = [name for name, status in statuses.items() if not status.ended]
            ready = [name for name in waiting if not plan.waits(name, unfinished)]
            for name in ready[: crew.size - crew.at_work]:
                waiting.remove(name)
                crew.begin(name, statuses[name].config, plan.to_keep(name))
            for name, message in crew.heard():
                begun = statuses[name].progress is not None
                ended = _ended(message, statuses[name], name, keep_going=keep_going)
                if statuses[name].notices:
                    watch(statuses)  # at once: an error may come next
                if not begun and statuses[name].progress is not None:
                    environment.check_same_data(folders.values())
                if ended:
                    statuses[name].result = folders[name].result()
                    crew.release(name, message)
                    break  # and give the worker the next one
            watch(statuses)
            if stop.is_set():
                raise _Stopped
        watch(statuses)
    environment.check_same_data(folders.values())
    return {name: status.result for name, status in statuses.items() if status.result is not None}


@dataclass
class _Crew:
    """Workers of a carrier, on its devices in turn; each is started when there is a run for it."""

    carrier: Carrier
    options: Options
    threads: int
    stack: contextlib.ExitStack
    """Its end is the end of the workers."""
    workers: list[Worker]
    """All that were started; those that are idle are also in `idle`."""
    idle: list[Worker] = field(default_factory=list)
    devices: Sequence[str] = ()
    size: int = 0
    """How many may be at work."""
    events: Events = field(default_factory=queue.Queue)

    def find_room(self, processes: int | None) -> None:
        """Find out what devices there are, and how many runs they take at a time unless that is given."""
        self.devices = self.carrier.devices(self.options.device)
        self.size = processes or self.carrier.at_once(self.options.device, self.threads)

    @property
    def at_work(self) -> int:
        """The number of runs that workers carry out."""
        return sum(worker.run is not None for worker in self.workers)

    def begin(self, name: str, config: Run, keep_at: Sequence[int]) -> None:
        """Give a run to a worker."""
        if not self.idle:
            how = replace(self.options, device=self.devices[len(self.workers) % len(self.devices)])
            self.idle.append(self.stack.enter_context(self.carrier.started(how, self.threads, self.events)))
            self.workers.append(self.idle[-1])
        self.idle.pop().begin(name, config, keep_at)

    def heard(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what workers say about their runs until it is time to refresh the display."""
        end = time.monotonic() + REFRESH
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                event = self.events.get(timeout=left)
                if event.worker.run is not None:
                    yield event.worker.run, event.message

    def release(self, name: str, message: dict[str, Any]) -> None:
        """Note that a run has ended with a message; its worker takes another unless it is gone."""
        worker = next(worker for worker in self.workers if worker.run == name)
        worker.run = None
        if "gone" not in message:
            self.idle.append(worker)


@contextlib.contextmanager
def _crew(carrier: Carrier, options: Options, threads: int) -> Iterator[_Crew]:
    """Give a crew; when the block ends, its workers save at the same time, not one after another."""
    with contextlib.ExitStack() as stack:
        crew = _Crew(carrier, options, threads, stack, workers=[])
        try:
            yield crew
        finally:
            for each in crew.workers:
                each.dismiss()


def _check_optimizers(configs: Iterable[Run]) -> None:
    for config in configs:
        from ademamix.lab.optimizers import transitions  # imports torch: showing results does not wait for it

        transitions.check(config)


class _Stopped(Exception):
    """The runs were asked to stop."""


@contextlib.contextmanager
def _told_whether_saved(folders: Sequence[RunFolder]) -> Iterator[None]:
    """When the runs have stopped because they were asked to, say whether any is saved."""
    try:
        yield
    except _Stopped:
        raise Interrupted(saved=any(folder.has_checkpoint for folder in folders)) from None


def _ended(message: Mapping[str, Any], status: Status, name: str, *, keep_going: bool) -> bool:
    """Note what a worker said about its run, and return whether that has ended."""
    if "stopped" in message:
        raise _Stopped
    if "notice" in message:
        status.notices.append(message["notice"])
        return False
    if "failed" in message:
        if not keep_going:
            raise RunError(f"{name}: {message['failed']}")
        status.failure = message["failed"]
        status.notices.append(f"failed: {status.failure}")
    status.waits = "waits" in message
    status.read = message.get("read")
    if "progress" in message:
        status.progress = Progress(**message["progress"])
    return "finished" in message or status.ended
