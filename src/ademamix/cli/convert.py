"""`ademamix convert`."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ademamix.checkpoints.wish import AFTER_ADAMW, SETTINGS, TARGETS
from ademamix.cli.arguments import (
    Commands,
    Options,
    UsageError,
    add_value,
    beta,
    horizon,
    rate,
    rate_or_zero,
    steps_or_zero,
)
from ademamix.hyperparameters import STATE_STORAGES
from ademamix.output.tables import in_rows, width_of_output, wrapped

if TYPE_CHECKING:
    from ademamix.checkpoints.conversion import Report
    from ademamix.checkpoints.explanation import Change

DESCRIPTION = """\
Convert the optimizer state of a checkpoint, so that a run continues with another optimizer.

From AdamW to AdEMAMix and back, and to ours from other implementations of AdEMAMix: those of the paper's authors,
bitsandbytes (32 and 8 bits), pytorch_optimizer, HeavyBall and optax.contrib. After AdamW the slow average begins empty;
from another AdEMAMix everything continues.

SRC is a file of torch.save, with the state alone or under any key, also Lightning's; a folder of the Hugging Face
Trainer or of Accelerate; a folder of torch.distributed.checkpoint; or a folder of Orbax. Everything else stays as it
is. DST must not exist: it appears when it is whole, and has been read again and compared.

Files are read without running code that they name. `ademamix inspect` shows what a checkpoint holds.

examples:
  ademamix convert adamw.pt ademamix.pt --total-steps 50k
  ademamix convert out/checkpoint-5000 out/checkpoint-5000-ademamix --total-steps 50k --explain
  ademamix convert ademamix.pt adamw.pt --to adamw
  ademamix convert bitsandbytes-8bit.pt ours.pt --state-storage compact
"""


OF_A_RUN: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "total_steps": (horizon, "T", "steps of the run, or open"),
    "alpha": (rate_or_zero, "A", "weight of the slow average"),
    "beta1": (beta, "B", "decay of the fast average"),
    "beta2": (beta, "B", "decay of the second moment"),
    "beta3": (beta, "B", "decay of the slow average"),
    "alpha_warmup": (steps_or_zero, "N", "steps over which alpha rises"),
    "beta3_warmup": (steps_or_zero, "N", "steps over which beta3 rises"),
    "slow_clip": (rate, "C", "bound on the slow part of an update"),
    "eps": (rate_or_zero, "E", "what is added to the root of the second moment"),
}
"""Settings of a run as options: how they are read, what stands for the value, and what they are."""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "convert", help="carry an optimizer checkpoint over to AdEMAMix, or back to AdamW", description=DESCRIPTION
    )
    parser.add_argument("source", type=Path, metavar="SRC", help="the checkpoint, which stays as it is")
    parser.add_argument("destination", type=Path, metavar="DST", help="the file or folder to write, which is new")
    parser.add_argument(
        "--to", choices=TARGETS, default="ademamix", metavar="OPTIMIZER", help="ademamix or adamw (default: ademamix)"
    )
    own = "the checkpoint's own"
    defaults = {
        "total_steps": f"{own}; after AdamW none: give those still to come",
        "alpha": f"{own}; after AdamW {AFTER_ADAMW['alpha']:g}",
        "beta3": f"{own}; after AdamW chosen for --total-steps",
        "alpha_warmup": f"{own}; after AdamW 0",
        "beta3_warmup": f"{own}; after AdamW 0",
        "slow_clip": f"{own}, or none",
    }
    add_settings(parser, defaults)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PLACE",
        help="convert the state at this place, such as optimizers[0], and leave others as they are; may be repeated "
        "(default: all)",
    )
    parser.add_argument(
        "--state-storage",
        choices=STATE_STORAGES,
        metavar="KIND",
        help=f"{', '.join(STATE_STORAGES)} (default: {own}, or fp32)",
    )
    parser.add_argument(
        "--explain", action="store_true", help="say what became of each tensor and setting (default: a summary)"
    )
    add_unsafe_pickle(parser)
    parser.set_defaults(run=_run)


def add_settings(options: Options, defaults: Mapping[str, str]) -> None:
    """Add an option for each setting that has a default here; what the default is, is said in words."""
    for name, default in defaults.items():
        kind, metavar, what = OF_A_RUN[name]
        add_value(options, f"--{name.replace('_', '-')}", kind, metavar, f"{what} (default: {default})")


def add_unsafe_pickle(parser: argparse.ArgumentParser) -> None:
    """Add the option to read files that name code."""
    parser.add_argument(
        "--unsafe-pickle",
        action="store_true",
        help="also read files that name code to run, if you trust their author (default: refuse them)",
    )


@contextlib.contextmanager
def checkpoint_errors_explained() -> Iterator[None]:
    """Turn what is wrong with a checkpoint into a usage error."""
    from ademamix.checkpoints.errors import CheckpointError

    try:
        yield
    except CheckpointError as error:
        raise UsageError(str(error)) from None


def _run(options: argparse.Namespace) -> int:
    settings = {name: getattr(options, name) for name in SETTINGS if getattr(options, name) is not None}
    with checkpoint_errors_explained():
        from ademamix.checkpoints import convert

        reports = convert(
            options.source,
            options.destination,
            options.to,
            only=options.only,
            unsafe_pickle=options.unsafe_pickle,
            progress=_progress,
            **settings,
        )
    width = width_of_output()
    for report in reports:
        print(wrapped(_summary(report, options.to), width))
        if options.explain and report.changes:
            print(f"\n{_table(report.changes, width)}\n")
        for note in report.notes:
            print(wrapped(f"note: {note}", width, indent="  "))
    print(wrapped(f"written, and read again to compare: {options.destination}", width))
    return 0


def _progress(stage: str) -> None:
    """Tell someone who waits what is being done."""
    if sys.stderr.isatty():
        print(f"{stage} ...", file=sys.stderr, flush=True)


def _summary(report: Report, to: str) -> str:
    if not report.origin:
        return f"{report.label}: left as it is."
    parameters = {change.subject for change in report.changes if not change.subject.startswith("group ")} - {"all"}
    whose = {"AdamW": "AdamW", "ademamix": "AdEMAMix"}.get(report.origin, f"the AdEMAMix of {report.origin}")
    if to == "adamw":
        becomes = "AdamW: the slow average is dropped, the rest continues"
    elif report.origin == "AdamW":
        becomes = "AdEMAMix: the slow average begins empty, the rest continues"
    else:
        becomes = "AdEMAMix: everything continues"
    return f"{report.label}: {whose}, {len(parameters)} parameters, becomes {becomes}."


def _table(changes: list[Change], width: int) -> str:
    rows = [[change.subject, change.entry or "-", change.source or "-", change.what] for change in changes]
    parts = itertools.groupby(rows, key=lambda row: row[0].startswith("group "))
    headers = {False: ["parameter", "entry", "from", "what it is now"], True: ["group", "setting", "was", "is now"]}
    return "\n\n".join(in_rows(headers[is_group], list(part), width) for is_group, part in parts)
