"""`ademamix train`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ademamix.cli.arguments import Commands, Complaint, name_and_settings, not_negative
from ademamix.cli.run_options import (
    DESCRIPTION,
    add_execution_options,
    add_run_options,
    changed,
    complaints_of_the_lab,
    execution,
    optimizer,
)

if TYPE_CHECKING:
    from ademamix.lab.config import Run
    from ademamix.lab.train import Options, Progress

INTRODUCTION = """\
Train one model.

A run is kept in DIR/runs/KEY, where KEY is the hash of all that decides its numbers: config.json, metrics.jsonl,
environment.json, tensorboard/, checkpoints/ while it goes on, at its end result.json and model/, a Hugging Face
checkpoint. Stopped at any moment, by Ctrl-C or kill -9, the same command goes on from the last checkpoint and ends
with the same bits.
"""

EPILOG = """\
examples:
  ademamix train --optimizer ademamix:alpha=8 --steps 5k
  ademamix train --model vit-tiny --optimizer adamw:lr=1e-3 --steps 2k --batch 64
  ademamix train --config out/runs/0123456789abcdef/config.json
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "train",
        help="one training run: resumable, recorded",
        description=f"{INTRODUCTION}\n{DESCRIPTION}",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", metavar="FILE", help="a run's config.json, in place of the options below; - reads it from the input"
    )
    parser.add_argument(
        "--optimizer",
        type=name_and_settings,
        default=("ademamix", {}),
        metavar="OPTIMIZER",
        help="see above (default: ademamix)",
    )
    parser.add_argument(
        "--seed", type=not_negative, default=0, help="of parameters, order of the data and dropout (default: 0)"
    )
    parser.add_argument("--json", action="store_true", help="tell progress as JSON lines on the output")
    add_run_options(parser)
    add_execution_options(parser, threads=os.cpu_count() or 1)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    import torch

    from ademamix.lab import train
    from ademamix.lab.display import Display
    from ademamix.lab.record import RunFolder
    from ademamix.lab.runner import Status

    torch.set_num_threads(options.threads)
    with complaints_of_the_lab():
        config = _config(options)
        how = execution(options)
        if options.json:
            _train_for_another_process(config, how, watch_input=options.config == "-")
            return 0
        status, name = Status(config), config.optimizer.name
        before = " (it was trained before)" if RunFolder(how.runs, config).result() is not None else ""
        with Display(f"Run {config.key} in {how.runs}: {config.steps:,} steps") as display:

            def report(progress: Progress) -> None:
                status.progress, status.waits = progress, False
                display({name: status})

            def on_wait() -> None:
                status.waits = True
                display({name: status})

            status.result = train.train(config, how, report=report, on_wait=on_wait)
            display({name: status})
    result = status.result
    end = "diverged" if result.diverged else f"validation loss {result.validation_loss:.4f}"
    accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy:.1%}"
    print(f"{end}{accuracy} after {result.steps:,} steps; kept in {how.runs / config.key}{before}")
    return 0


def _config(options: argparse.Namespace) -> Run:
    from ademamix.lab.compare import DEFAULT
    from ademamix.lab.config import Run, read

    if options.config is None:
        base = changed(DEFAULT, options)
        return base.model_copy(update={"optimizer": optimizer(options.optimizer, options), "seed": options.seed})
    if options.config == "-":
        return read(Run, sys.stdin.readline())
    try:
        return read(Run, Path(options.config).read_text())
    except OSError as error:
        raise Complaint(f"cannot read {options.config!r}: {error.strerror}") from None


def _train_for_another_process(config: Run, how: Options, *, watch_input: bool) -> None:
    """Tell progress as JSON; when the other process is gone, which ends the input, save and stop."""
    from ademamix.lab.train import train

    def tell(message: dict[str, object]) -> None:
        try:
            print(json.dumps(message), flush=True)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def stop_at_end_of_input() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGINT)

    if watch_input:
        threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    train(config, how, report=lambda progress: tell(progress._asdict()), on_wait=lambda: tell({"waits": True}))
