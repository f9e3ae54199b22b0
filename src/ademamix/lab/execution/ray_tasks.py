"""Runs as tasks of a Ray cluster: each has a process of its node carry out one run, and passes on what that says.

The folder of results is shared by all nodes, and holds what a run needs to continue elsewhere: checkpoints, records,
prepared data, and the lock that keeps two processes from training one run. Nothing but messages is sent through Ray, so
that a checkpoint of many gigabytes is written once, and outlives the node, the task and the command.

When a node dies, its runs begin again as new tasks. Ray's own retries are off: it takes a repeated task to yield what
it yielded before, but a run continues from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ademamix.lab.config import Run
from ademamix.lab.execution.carriers import ENDS, Event, Events
from ademamix.lab.execution.interrupt import asked_to_stop
from ademamix.lab.execution.local_processes import LocalProcesses
from ademamix.lab.execution.options import Options
from ademamix.lab.runs.record import RunError, RunFolder

if TYPE_CHECKING:
    from ray import ObjectRefGenerator

ATTEMPTS = 10  # of a run whose nodes are lost
POLL = 0.5  # seconds between looks whether a task is to stop
PATIENCE = 120.0  # seconds until a file of another node is seen here: file systems remember what was not there

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # what nodes complain of would stand between the lines of a report
    "RAY_NUM_REDIS_GET_RETRIES": "1",  # these four: an address that nobody answers is given up after 15 seconds
    "RAY_gcs_rpc_server_connect_timeout_s": "2",
    "RAY_py_gcs_connect_timeout_s": "10",
    "RAY_GCS_SERVER_REQUEST_TIMEOUT_SECONDS": "10",
}
"""The environment that Ray finds when it is loaded, unless the user has set another."""


@dataclass(frozen=True)
class RayTasks:
    """Carries out runs as tasks of the cluster that :func:`connect` has connected this process to."""

    address: str

    def at_once(self, device: str, threads: int) -> int:
        """Return how many runs the nodes have room for: of a run's cores, and a GPU if it needs one."""
        import ray

        wanted = {"CPU": threads, **({"GPU": 1} if device != "cpu" else {})}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(min(int(node.get(kind, 0) // count) for kind, count in wanted.items()) for node in nodes)
        if not room:
            most = max(int(node.get("CPU", 0)) for node in nodes)
            needs = f"{threads} core{'s' * (threads > 1)} (--threads)" + " and a GPU (--device)" * ("GPU" in wanted)
            raise RunError(
                f"no node of the Ray cluster {self.address} has room for a run, which needs {needs}; the most cores of "
                f"a node are {most}. Ask for less or, if nodes are to join, state --processes"
            )
        return room

    def devices(self, device: str) -> list[str]:
        """Return the device: a task sees no other GPU than the one that Ray has given it."""
        return [device]

    @contextlib.contextmanager
    def started(self, options: Options, threads: int, events: Events) -> Iterator[_Task]:
        """Give a place for one task at a time."""
        out = options.out.absolute()
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=out, prefix=".seen-by-nodes-") as sign:
            task = _Task(Order(replace(options, out=out), threads, Path(sign.name), Path.cwd()), events)
            try:
                yield task
            finally:
                task.end()


def connect(address: str) -> RayTasks:
    """Connect this process to the Ray cluster at an address, HOST:PORT, or `auto` for the one of this machine."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import ray

    try:
        with _quiet():
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError) as error:
        reason = re.split(r"\. |\n", str(error))[0].rstrip(".:")
        raise RunError(
            f"cannot connect to a Ray cluster at {address!r} ({reason}): this machine has to be one of its nodes "
            "(`ray start --address=HOST:PORT`), and --ray its address or auto"
        ) from None
    return RayTasks(address)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what is written to stderr, by C++ as well."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@dataclass(frozen=True)
class Order:
    """What a node is told beside the run."""

    options: Options
    threads: int
    sign: Path
    """A file in the shared folder, by which a node sees that it has the folder, and not another of that name."""
    working_directory: Path
    """Of the command: data may be named relative to it."""


class _Task:
    """A place for one task at a time; a thread passes on what that says, and repeats it if its node dies."""

    def __init__(self, order: Order, events: Events) -> None:
        self.run: str | None = None
        self._order, self._events = order, events
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._dismissed = False
        self._current: ObjectRefGenerator | None = None

    def begin(self, name: str, config: Run, keep_at: Sequence[int]) -> None:
        """Hand the run to Ray, which begins it once a node has room."""
        self.run = name
        self._thread = threading.Thread(target=self._follow, args=(config, keep_at))
        self._thread.start()

    def dismiss(self) -> None:
        """Cancel the task: it saves its run, and ends."""
        with self._lock:
            if not self._dismissed:
                self._dismissed = True
                self._cancel()

    def end(self) -> None:
        """Dismiss it, and wait until it has ended."""
        self.dismiss()
        if self._thread is None:
            return
        try:
            self._thread.join()
        except KeyboardInterrupt:  # the second one: whoever asks twice does not want to wait
            self._cancel(force=True)
            self._thread.join()
            raise

    def _cancel(self, *, force: bool = False) -> None:
        import ray

        if self._current is not None:
            ray.cancel(self._current, force=force)

    def _follow(self, config: Run, keep_at: Sequence[int]) -> None:
        """Pass on what the run has to say, to its end."""
        from ray.exceptions import RayError, RayTaskError, TaskCancelledError

        for _ in range(ATTEMPTS):
            try:
                if self._followed(config, keep_at):
                    return
            except TaskCancelledError:
                self._tell({"stopped": True})
                return
            except (RayTaskError, RunError, OSError) as error:
                self._tell({"failed": f"its node could not carry it out: {_last_line(error)}"})
                return
            except RayError:  # its node has died, or Ray's process there
                if self._dismissed:
                    return
            except Exception as error:  # in a thread of its own: nobody else would hear of it
                self._tell({"failed": f"it could not be followed: {_last_line(error)}"})
                return
            self._tell({"notice": "its node is lost: it continues from its last checkpoint once another has room"})
        self._tell(
            {"failed": f"its node was lost {ATTEMPTS} times. The same command continues from its last checkpoint"}
        )

    def _followed(self, config: Run, keep_at: Sequence[int]) -> bool:
        """Submit a task and pass on what it has to say; return whether the run has ended, and not its node."""
        import ray

        options = self._order.options
        resources: dict[str, Any] = {"num_cpus": self._order.threads, "num_gpus": int(options.device != "cpu")}
        task = ray.remote(num_returns="streaming", max_retries=0, **resources)(carry_out)
        with self._lock:
            if self._dismissed:
                return True
            self._current = cast("ObjectRefGenerator", task.remote(config, keep_at, self._order))
        for reference in self._current:
            message = ray.get(reference)
            if "stopped" in message:
                return self._dismissed  # if not by us, its node is being shut down
            self._tell(_seen(RunFolder(options.runs, config)) if "finished" in message else message)
            if message.keys() & ENDS:
                return True  # at once: this place may have the next run by now, and the node may die
        return self._dismissed

    def _tell(self, message: dict[str, Any]) -> None:
        self._events.put(Event(self, message))


def _seen(folder: RunFolder) -> dict[str, Any]:
    """Wait until the result of a run that another node has written is seen here."""
    end = time.monotonic() + PATIENCE
    while folder.result() is None:
        if time.monotonic() > end:
            return {"failed": f"it has finished, but its result is not seen in {str(folder.path)!r} of this machine"}
        with contextlib.suppress(OSError):
            os.listdir(folder.path)  # has NFS ask its server
        time.sleep(POLL)
    return {"finished": True}


def carry_out(config: Run, keep_at: Sequence[int], order: Order) -> Iterator[dict[str, Any]]:
    """Have a process of this node carry out a run, and yield what that says; the body of a task."""
    if not order.sign.exists():
        yield {
            "failed": f"the node {socket.gethostname()!r} does not see the folder {str(order.options.out)!r} of the "
            "machine that the command was given on: --out must be a folder that all nodes share, under the same path"
        }
        return
    folder = order.working_directory if order.working_directory.is_dir() else order.options.out
    events: Events = queue.Queue()
    with (
        asked_to_stop() as stop,  # Ray cancels a task by a Ctrl-C, which could come anywhere
        LocalProcesses(folder).started(order.options, order.threads, events) as process,
    ):
        process.begin(config.key, config, keep_at)
        message: dict[str, Any] = {}
        while not message.keys() & ENDS:
            if stop.is_set():
                process.dismiss()
            with contextlib.suppress(queue.Empty):
                message = events.get(timeout=POLL).message
                yield message


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [repr(error)])[-1]
