"""What carries out runs: processes of this machine (`local_processes`) or tasks of a cluster (`ray_tasks`)."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ademamix.lab.config import Run
from ademamix.lab.execution.options import Options


class Worker(Protocol):
    """Carries out runs, one after another, and tells how far it is by events."""

    run: str | None
    """The name of the run that it carries out; whoever takes note that the run has ended sets it to None."""

    def begin(self, name: str, config: Run, keep_at: Sequence[int]) -> None:
        """Begin or continue a run, and keep its state after the steps `keep_at` for others."""

    def dismiss(self) -> None:
        """Have it save its run and end; to be called any number of times."""


@dataclass(frozen=True)
class Event:
    """What a worker has to say about its run.

    A message is one of these: `progress`, `waits`, `read` and `notice` say how far it is, as in `Status`; `finished`,
    `failed` (with the reason) and `stopped` (it was asked to, from outside) that it has ended. After a message with
    `gone` the worker takes no other run.
    """

    worker: Worker
    message: dict[str, Any]


ENDS = frozenset({"finished", "failed", "stopped"})
"""The messages after which a worker has nothing more to say about a run."""


Events: TypeAlias = "queue.Queue[Event]"


class Carrier(Protocol):
    """A way to carry out runs; nothing about it changes their numbers or their records."""

    def at_once(self, device: str, threads: int) -> int:
        """Return how many runs to carry out at a time, unless the user says."""

    def devices(self, device: str) -> list[str]:
        """Return the devices to spread workers over."""

    def started(self, options: Options, threads: int, events: Events) -> AbstractContextManager[Worker]:
        """Give a worker that puts what it has to say into `events`; at the end of the block its run is saved."""
