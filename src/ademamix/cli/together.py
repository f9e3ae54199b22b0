"""Commands under torchrun: process 0 carries one out, and the others take part in the training.

Process 0 alone reads the command line, writes and speaks; another speaks only if it fails alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from ademamix.cli.arguments import UsageError
from ademamix.lab.distribution import process_group

EXPLAINED = """\
Started by torchrun, all processes train each run together: every step's batch is divided among them, and the run keeps
its key, its folder and, but for rounding, its numbers. It continues on any other number of processes.
"""

LAUNCH = "torchrun --nproc-per-node 2 -m ademamix"


def add_shard(parser: argparse.ArgumentParser) -> None:
    """Let a command be carried out by several processes, with the option for models too large for each."""
    parser.add_argument(
        "--shard",
        action="store_true",
        help="under torchrun, divide model and optimizer among the processes (FSDP2), for a model that is too large "
        "for each to have a copy (default: copies, DDP)",
    )


def carry_out(command: Callable[[], int]) -> NoReturn:
    """Call a function that returns an exit code on process 0, while the others take part; end all with their codes."""
    try:
        with process_group.joined() as group:
            if code := command() if group.is_first else _assist():
                sys.exit(code)  # the others may be in the midst of a run, and must not be let go as at the end of all
    except SystemExit as end:
        process_group.leave(int(end.code or 0))
    process_group.leave(0)


def _assist() -> int:
    """Take part in the training, silently unless this process fails alone."""
    from ademamix.cli.run_options import lab_errors_explained
    from ademamix.lab.train import Lost, assist

    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), lab_errors_explained():
            try:
                assist()
            except (Lost, KeyboardInterrupt):  # process 0 says so, or has said why it ended
                return 2
    except UsageError as error:
        print(f"ademamix: error: {error}", file=sys.stderr)
        return 2
    return 0


def check(options: argparse.Namespace) -> None:
    """Refuse what several processes cannot do; prepare what they can."""
    if process_group.current().count == 1:
        return
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
    import torch

    torch.set_num_threads(options.threads)
