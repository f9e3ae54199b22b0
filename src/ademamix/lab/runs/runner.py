"""Several runs at once, each in the hands of a worker of a carrier (`carriers`)."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ademamix.lab.config import Run
from ademamix.lab.runs import beginnings, environment
from ademamix.lab.runs.carriers import Carrier, Event, Events, Worker
from ademamix.lab.runs.execution import Options, Progress
from ademamix.lab.runs.interrupt import Interrupted, asked_to_stop
from ademamix.lab.runs.local_processes import LocalProcesses
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
    events: Events = queue.Queue()
    with (
        _told_whether_saved([folders[name] for name in waiting]),
        asked_to_stop() as stop,
        contextlib.ExitStack() as stack,
        _dismissed_together() as workers,
    ):
        # in here, since a Ctrl-C during the import of torch would be lost in it
        _check_optimizers(statuses[name].config for name in waiting)
        environment.check_kept((folders[name] for name in runs if name not in waiting), options.data)
        devices = carrier.devices(options.device) if waiting else []
        at_once = processes or carrier.at_once(options.device, threads) if waiting else 0
        if stop.is_set():
            raise _Stopped
        plan = beginnings.Plan(
            {name: statuses[name].config for name in waiting}, beginnings.Beginnings(options.beginnings)
        )
        idle: list[Worker] = []
        running = 0
        while waiting or running:
            unfinished = [name for name, status in statuses.items() if not status.ended]
            ready = [name for name in waiting if not plan.waits(name, unfinished)]
            while ready and running < at_once:
                if not idle:
                    how = replace(options, device=devices[len(workers) % len(devices)])
                    idle.append(stack.enter_context(carrier.started(how, threads, events)))
                    workers.append(idle[-1])
                next_one = ready.pop(0)
                waiting.remove(next_one)
                idle.pop().begin(next_one, statuses[next_one].config, plan.to_keep(next_one))
                running += 1
            for event in _arrived(events):
                name = event.worker.run
                if name is None:
                    continue
                begun = statuses[name].progress is not None
                ended = _ended(event, statuses[name], name, keep_going=keep_going)
                if statuses[name].notices:
                    watch(statuses)  # at once: an error may come next
                if not begun and statuses[name].progress is not None:
                    environment.check_same_data(folders.values())
                if ended:
                    statuses[name].result = folders[name].result()
                    event.worker.run = None
                    if "gone" not in event.message:
                        idle.append(event.worker)
                    running -= 1
                    break  # and give it the next one
            watch(statuses)
            if stop.is_set():
                raise _Stopped
        watch(statuses)
    environment.check_same_data(folders.values())
    return {name: status.result for name, status in statuses.items() if status.result is not None}


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


@contextlib.contextmanager
def _dismissed_together() -> Iterator[list[Worker]]:
    """Give a list of workers; when the block ends, they save at the same time, not one after another."""
    workers: list[Worker] = []
    try:
        yield workers
    finally:
        for each in workers:
            each.dismiss()


def _arrived(events: Events) -> Iterator[Event]:
    """Yield the events that arrive until it is time to refresh the display."""
    end = time.monotonic() + REFRESH
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            yield events.get(timeout=left)


def _ended(event: Event, status: Status, name: str, *, keep_going: bool) -> bool:
    """Note what a worker said about its run, and return whether that has ended."""
    message = event.message
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
