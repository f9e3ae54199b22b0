"""Commands under torchrun: process 0 carries one out, and the others take part in the training.

Each process parses the command line, but only process 0 speaks, unless another fails alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator

from ademamix.cli.arguments import Parser, UsageError
from ademamix.lab import process_group

EXPLAINED = """\
Started by torchrun, all processes train each run together: every step's batch is divided among them, and the run keeps
its key, its folder and, but for rounding, its numbers. It continues on any other number of processes.
"""

LAUNCH = "torchrun --nproc-per-node 2 -m ademamix"


def add_shard(parser: Parser) -> None:
    """Let a command be carried out by several processes, with the option for models too large for each."""
    parser.add_argument(
        "--shard",
        action="store_true",
        help="under torchrun, divide model and optimizer among the processes (FSDP2), for a model that is too large "
        "for each to have a copy (default: copies, DDP)",
    )


@contextlib.contextmanager
def only_the_first_speaks() -> Iterator[None]:
    """In a block in which all processes would say the same, silence all but the first."""
    if process_group.of_torchrun().is_first:
        yield
        return
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def carry_out(options: argparse.Namespace) -> int:
    """Carry out a command, on all processes if torchrun has started several."""
    if process_group.of_torchrun().count == 1:
        return int(options.run(options))
    import torch

    with process_group.joined() as group:
        if not group.is_first:
            return _assist(options)
        _check(options)
        torch.set_num_threads(options.threads)
        return int(options.run(options))


def _check(options: argparse.Namespace) -> None:
    if not hasattr(options, "shard"):
        raise UsageError(f"`ademamix {options.command}` has no use for several processes: start it without torchrun")
    if getattr(options, "processes", None) is not None:
        raise UsageError(
            "--processes starts processes that each train a run of their own: without it, those of torchrun train one "
            "run after another together"
        )
    if options.device.startswith("cuda:"):
        raise UsageError(
            f"--device {options.device} is one GPU: with --device cuda, each process of torchrun has its own"
        )


def _assist(options: argparse.Namespace) -> int:
    import torch

    from ademamix.cli.run_options import lab_errors_explained
    from ademamix.lab.train import Lost, assist

    with lab_errors_explained(), only_the_first_speaks():
        torch.set_num_threads(getattr(options, "threads", 1))
        try:
            assist()
        except Lost:  # process 0 says so, or has said why it ended
            sys.exit(2)
    return 0
