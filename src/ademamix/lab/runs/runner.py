"""Several runs at once, in processes that each carry out one after another (`worker`)."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

from ademamix.lab.config import Run
from ademamix.lab.runs import beginnings, environment, worker
from ademamix.lab.runs.execution import Options, Progress, devices_of, processes_on
from ademamix.lab.runs.interrupt import EXIT_CODE, Interrupted, asked_to_stop
from ademamix.lab.runs.record import Result, RunError, RunFolder

REFRESH = 0.5  # seconds


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


@dataclass(eq=False)
class _Worker:
    """A process, the file for its stderr, and the name of the run that it carries out."""

    process: subprocess.Popen[str]
    complaints: IO[str]
    run: str | None = None

    def begin(self, name: str, config: Run, keep_at: Sequence[int]) -> None:
        assert self.process.stdin is not None
        self.run = name
        with contextlib.suppress(BrokenPipeError):  # it has died: the end of its output says so
            task = {"run": config.model_dump(mode="json"), "keep_at": keep_at}
            self.process.stdin.write(json.dumps(task) + "\n")  # ASCII, for any locale
            self.process.stdin.flush()

    def dismiss(self) -> None:
        """End its input: it saves its run, and ends."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def explain_death(self) -> str:
        code = self.process.wait()
        self.complaints.seek(0)
        said = self.complaints.read().strip()
        end = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        last = f" It said:\n{said}" if said else ""
        return f"its process {end}. The same command continues from its last checkpoint.{last}"


@dataclass(frozen=True)
class _Event:
    """A line that a process wrote, or None after its last."""

    worker: _Worker
    line: str | None


def kept_results(runs: Mapping[str, Run], options: Options) -> dict[str, Result]:
    """Return the results of those runs that are finished, by name."""
    results = {name: RunFolder(options.runs, config).result() for name, config in runs.items()}
    return {name: result for name, result in results.items() if result is not None}


def run_all(
    runs: Mapping[str, Run],
    options: Options,
    *,
    kept: Mapping[str, Result] | None = None,
    processes: int | None = None,
    threads: int = 1,
    watch: Callable[[Mapping[str, Status]], None] = lambda statuses: None,
    keep_going: bool = False,
) -> dict[str, Result]:
    """Carry out all runs that are not finished, `processes` at a time, and return the results by name.

    By default there is a process for each GPU, or two on a CPU. Optimizers are checked before the first run begins;
    that all runs have the same data is checked as soon as one has begun. `watch(statuses)` is called about twice a
    second. `kept` is the result of :func:`kept_results`, from callers that already have it. With `keep_going`, a run
    that fails does not stop the others: it has no result.
    """
    if kept is None:
        kept = kept_results(runs, options)
    folders = {name: RunFolder(options.runs, config) for name, config in runs.items()}
    statuses = {name: Status(config, result=kept.get(name)) for name, config in runs.items()}
    waiting = [name for name, status in statuses.items() if status.result is None]
    events: queue.Queue[_Event] = queue.Queue()
    with (
        _told_whether_saved([folders[name] for name in waiting]),
        asked_to_stop() as stop,
        contextlib.ExitStack() as stack,
        _dismissed_together() as workers,
    ):
        # in here, since a Ctrl-C during the import of torch would be lost in it
        _check_optimizers(statuses[name].config for name in waiting)
        environment.check_kept((folders[name] for name in runs if name not in waiting), options.data)
        devices = devices_of(options.device) if waiting else []
        at_once = processes or processes_on(options.device) if waiting else 0
        if stop.is_set():
            raise _Stopped
        plan = beginnings.Plan(
            {name: statuses[name].config for name in waiting}, beginnings.Beginnings(options.beginnings)
        )
        idle: list[_Worker] = []
        running = 0
        while waiting or running:
            unfinished = [name for name, status in statuses.items() if not status.ended]
            ready = [name for name in waiting if not plan.waits(name, unfinished)]
            while ready and running < at_once:
                if not idle:
                    how = replace(options, device=devices[len(workers) % len(devices)])
                    idle.append(stack.enter_context(_started(how, threads, events)))
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
                    if event.line is not None:
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
def _dismissed_together() -> Iterator[list[_Worker]]:
    """Give a list of workers; when the block ends, they save at the same time, not one after another."""
    workers: list[_Worker] = []
    try:
        yield workers
    finally:
        for each in workers:
            each.dismiss()


@contextlib.contextmanager
def _started(options: Options, threads: int, events: queue.Queue[_Event]) -> Iterator[_Worker]:
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as complaints,  # a pipe that nobody reads would fill up and block the process
        subprocess.Popen(
            worker.command(options, threads=threads),
            stdin=pipe,
            stdout=pipe,
            stderr=complaints,
            text=True,
            start_new_session=True,  # so that Ctrl-C reaches it once, through its input
        ) as process,
    ):
        started = _Worker(process, complaints)
        reader = threading.Thread(target=_forward, args=(started, events))
        reader.start()
        try:
            yield started
        finally:
            started.dismiss()
            try:
                reader.join()  # before its output is closed, which would wait for the reader and ignore signals
            except KeyboardInterrupt:  # the second one: whoever asks twice does not want to wait
                process.kill()
                reader.join()
                raise


def _forward(started: _Worker, events: queue.Queue[_Event]) -> None:
    assert started.process.stdout is not None
    for line in started.process.stdout:
        if line.endswith("\n"):  # else it was killed while writing this
            events.put(_Event(started, line))
    events.put(_Event(started, None))


def _arrived(events: queue.Queue[_Event]) -> Iterator[_Event]:
    """Yield the events that arrive until it is time to refresh the display."""
    end = time.monotonic() + REFRESH
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            yield events.get(timeout=left)


def _ended(event: _Event, status: Status, name: str, *, keep_going: bool) -> bool:
    """Note what a process said about its run, and return whether that has ended."""
    if event.line is None and event.worker.process.wait() == EXIT_CODE:
        raise _Stopped
    message: dict[str, Any] = {"failed": event.worker.explain_death()} if event.line is None else json.loads(event.line)
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
