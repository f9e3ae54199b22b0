"""The processes that carry out a run together, as torchrun starts them: who is who, what each does, how they agree.

Process 0 is the one that decides, writes and speaks. The others wait until it begins a run, take their part in each
step of it, and wait for the next. With one process all of this does nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:  # the command line asks how many processes there are before it loads torch
    from ademamix.lab.data import Batch

Found = TypeVar("Found")

PATIENCE = datetime.timedelta(days=7)
"""For how long others wait for process 0, which may wait for another command's run, or read a large text."""

LOST = "connection (closed|reset|refused)|broken pipe|connectFullMesh|socket|NCCL|timed out"
"""What the errors say with which gloo and NCCL report that a process is gone."""


class FailedTogether(Exception):
    """A run has failed on all processes in the same way: process 0 has the reason."""


@dataclass(frozen=True)
class Group:
    """The number of this process, and how many there are.

    >>> Group().mean(2.5), Group().any(False, True), Group().gathered("result")
    (2.5, [False, True], ['result'])
    """

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which decides, writes and speaks."""
        return self.rank == 0

    def own(self, batch: Batch) -> Batch:
        """Return the part of a batch that is this process's: all have equal parts.

        >>> import torch
        >>> from ademamix.lab.data import Batch
        >>> Group(rank=1, count=2).own(Batch(torch.arange(6), torch.arange(6))).inputs
        tensor([3, 4, 5])
        """
        size = len(batch.inputs) // self.count
        mine = slice(self.rank * size, (self.rank + 1) * size)
        return type(batch)(batch.inputs[mine], batch.targets[mine])

    def taken_in_turns(self, batches: Iterable[Found]) -> Iterator[tuple[Found, bool]]:
        """Yield every `count`-th of the batches, and whether it is this process's.

        All processes yield equally many, for those of a sharded model must compute at the same time. One that is left
        without a batch in the last round yields the first of that round, which belongs to another.

        >>> list(Group(rank=1, count=2).taken_in_turns("abc"))
        [('b', True), ('c', False)]
        """
        rest = iter(batches)
        while found := list(itertools.islice(rest, self.count)):
            yield (found[self.rank], True) if self.rank < len(found) else (found[0], False)

    def mean(self, value: Any) -> Any:
        """Return the mean over all processes of a number or a tensor, whose place it takes; all get the same bits."""
        if self.count == 1:
            return value
        import torch

        mean = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)
        torch.distributed.all_reduce(mean)
        mean /= self.count
        return mean if mean is value else mean.item()

    def any(self, *flags: bool) -> list[bool]:
        """Return for each flag whether it is set on any of the processes."""
        if self.count == 1:
            return list(flags)
        import torch

        found = torch.tensor(flags, dtype=torch.uint8)
        torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.MAX)
        return [bool(flag) for flag in found.tolist()]

    def gathered(self, value: Found) -> list[Found]:
        """Return the values of all processes, by number."""
        if self.count == 1:
            return [value]
        from torch import distributed

        values: list[Any] = [None] * self.count
        distributed.all_gather_object(values, value)
        return values

    def agreed(self, deed: Callable[[], Found], *errors: type[Exception]) -> Found:
        """Return what a deed returns; if it fails on any process with one of `errors`, it fails on all."""
        if self.count == 1:
            return deed()
        found: list[Found] = []
        error: Exception | None = None
        try:
            found.append(deed())
        except errors as raised:
            error = raised
        failure = next((each for each in self.gathered(error) if each is not None), None)
        if failure is not None:
            raise failure if self.is_first else FailedTogether
        return found[0]

    def in_turn(self, deed: Callable[[], Found], *errors: type[Exception]) -> Found:
        """The same, with process 0 first: it prepares files that the others then find."""
        if not self.is_first:
            self.agreed(lambda: None, *errors)
        found = self.agreed(deed, *errors)
        if self.is_first:
            self.agreed(lambda: None, *errors)
        return found

    def announce(self, task: Any) -> None:
        """Have the others return `task` from :meth:`awaited`."""
        if self.count > 1:
            self._broadcast(task)

    def awaited(self) -> Any:
        """Wait for what process 0 announces."""
        return self._broadcast(None)

    def _broadcast(self, task: Any) -> Any:
        import torch

        tasks = [task]
        torch.distributed.broadcast_object_list(tasks, src=0, device=torch.device("cpu"))
        return tasks[0]


ALONE = Group()


def current() -> Group:
    """Return the group that this process is in.

    >>> current()
    Group(rank=0, count=1)
    """
    distributed = sys.modules.get("torch.distributed")  # whoever is in a group has imported it
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ALONE
    return Group(distributed.get_rank(), distributed.get_world_size())


def of_torchrun() -> Group:
    """Return the group in which torchrun has started this process, before it has joined; alone without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ALONE
    return Group(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def processes_here() -> int:
    """Return how many processes torchrun has started on this machine; 1 without torchrun."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if of_torchrun().count > 1 else 1


def device_of(device: str) -> str:
    """Return the device of this process: of several that are to use GPUs, each has its own."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and current().count > 1 else device


@contextlib.contextmanager
def joined() -> Iterator[Group]:
    """Join the group of torchrun; at the end of the block, or an exit with code 0, process 0 lets the others go.

    If the block raises, they may be in the midst of a run, and find that process 0 is gone.
    """
    import torch
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, rank, count = next(rendezvous("env://", timeout=PATIENCE))
    # torchrun may keep the store when it starts the processes again: addresses of those before must not be found
    fresh = PrefixStore(f"restart {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    torch.distributed.init_process_group(backend, timeout=PATIENCE, store=fresh, rank=rank, world_size=count)
    group, end = current(), None
    try:
        yield group
    except SystemExit as exit_:
        if exit_.code:
            raise
        end = exit_
    if group.is_first:
        try:
            group.announce(None)
        except RuntimeError as error:
            if not is_loss(error):  # whoever is gone need not be let go
                raise
    torch.distributed.destroy_process_group()
    if end is not None:
        raise end


def leave(code: int) -> NoReturn:
    """End this process with an exit code, but not the interpreter first.

    gloo's threads need the interpreter to release the tensors of finished collectives, and torch does not wait for
    these threads. Before Python 3.14, one that comes after the end of the interpreter aborts the process.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def is_loss(error: RuntimeError | MemoryError) -> bool:
    """Tell whether an error says that another process of the group is gone.

    >>> is_loss(RuntimeError("pair.cc:553] Connection closed by peer [127.0.0.1]:1234")), is_loss(RuntimeError("shape"))
    (True, False)
    """
    return re.search(LOST, str(error), re.IGNORECASE) is not None
