"""Several runs at once, each in a process of its own.

The process is `ademamix train`. It gets the run's config on its input, and tells on its output, a JSON line at a time,
how far it is. When its input ends, which happens also when the process that started it is killed, it saves and stops.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO

from ademamix.lab.config import Run
from ademamix.lab.interrupt import Interrupted, asked_to_stop
from ademamix.lab.record import Result, RunError, RunFolder
from ademamix.lab.train import Options, Progress

REFRESH = 0.5  # seconds
INTERRUPTED = 130  # the exit code of a run that was asked to stop and is saved


@dataclass
class Status:
    """One of several runs: how far it is, and how it ended."""

    config: Run
    progress: Progress | None = None
    result: Result | None = None
    waits: bool = False
    """Another process holds its folder."""

    @property
    def steps_left(self) -> int:
        """The number of steps still to do."""
        return 0 if self.result else self.config.steps - (self.progress.step if self.progress else 0)


@dataclass(frozen=True)
class _Process:
    """The process of a run, and the file that it complains to."""

    popen: subprocess.Popen[str]
    complaints: IO[str]


@dataclass(frozen=True)
class _Event:
    """A line that a run's process wrote, or None after its last."""

    name: str
    line: str | None


def run_all(
    runs: Mapping[str, Run],
    options: Options,
    *,
    processes: int = 2,
    threads: int = 1,
    watch: Callable[[Mapping[str, Status]], None] = lambda statuses: None,
) -> dict[str, Result]:
    """Carry out all runs that are not finished, `processes` at a time, and return the results by name.

    `watch(statuses)` is called about twice a second.
    """
    statuses = {name: Status(config, result=RunFolder(options.runs, config).result()) for name, config in runs.items()}
    waiting = [name for name, status in statuses.items() if status.result is None]
    events: queue.Queue[_Event] = queue.Queue()
    with asked_to_stop() as stop, contextlib.ExitStack() as stack:
        running: dict[str, _Process] = {}
        while waiting or running:
            while waiting and len(running) < processes:
                name = waiting.pop(0)
                running[name] = stack.enter_context(_process(statuses[name].config, options, threads))
                threading.Thread(target=_forward, args=(name, running[name].popen.stdout, events), daemon=True).start()
            for event in _arrived(events):
                if event.line is not None:
                    _note(statuses[event.name], json.loads(event.line))
                else:
                    _end(event.name, running.pop(event.name), statuses[event.name], options)
            watch(statuses)
            if stop.is_set():
                raise Interrupted
        watch(statuses)
    return {name: status.result for name, status in statuses.items() if status.result is not None}


@contextlib.contextmanager
def _process(config: Run, options: Options, threads: int) -> Iterator[_Process]:
    command = [sys.executable, "-m", "ademamix", "train", "--config", "-", "--json", "--out", str(options.out)]
    command += ["--threads", str(threads), "--device", options.device, "--save-every", str(options.save_every)]
    if options.wandb is not None:
        command += ["--wandb", options.wandb]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as complaints,  # a pipe that nobody reads would fill up and block the process
        subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=complaints, text=True, start_new_session=True
        ) as process,  # in a session of its own, so that Ctrl-C reaches it once, by way of its input
    ):
        assert process.stdin is not None
        process.stdin.write(config.model_dump_json() + "\n")
        process.stdin.flush()
        try:
            yield _Process(process, complaints)
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()  # before its output is closed, which a thread still reads


def _forward(name: str, output: IO[str], events: queue.Queue[_Event]) -> None:
    for line in output:
        events.put(_Event(name, line))
    events.put(_Event(name, None))


def _arrived(events: queue.Queue[_Event]) -> Iterator[_Event]:
    """Yield what arrives until it is time to refresh what is shown."""
    end = time.monotonic() + REFRESH
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            event = events.get(timeout=left)
            yield event
            if event.line is None:
                return


def _note(status: Status, message: dict[str, object]) -> None:
    status.waits = "waits" in message
    if not status.waits:
        status.progress = Progress(**message)  # type: ignore[arg-type]


def _end(name: str, process: _Process, status: Status, options: Options) -> None:
    code = process.popen.wait()
    if code == INTERRUPTED:
        raise Interrupted
    status.result = RunFolder(options.runs, status.config).result()
    if status.result is None:
        process.complaints.seek(0)
        _, _, complaint = process.complaints.read().rpartition("ademamix: error: ")
        if code < 0:
            complaint = f"its process was killed by signal {-code}. The same command goes on from its last checkpoint"
        raise RunError(f"{name}: {complaint.strip() or f'its process ended with code {code} and said nothing'}")
