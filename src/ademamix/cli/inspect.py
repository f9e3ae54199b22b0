"""`ademamix inspect`."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ademamix.cli.arguments import Commands, file_to_write
from ademamix.cli.convert import add_settings, add_unsafe_pickle, checkpoint_errors_explained
from ademamix.hyperparameters import ALPHA, BETAS
from ademamix.output.tables import width_of_output

PICTURES = (".png", ".svg")

DESCRIPTION = """\
Say what an optimizer checkpoint holds: whose state it is, where in its schedule it is, alpha(t) and beta3(t), how much
of the slow average is filled, the bytes and the norms of each moment. Signs of trouble are warned of: NaN, a slow
average that its storage has frozen, elements without gradients whose updates are about to grow, and a beta3 that
remembers more than the run has steps.

FILE is anything that `ademamix convert` reads. Files are read without running code that they name. A state of Optax has
no settings in it, so that all but bytes, norms and NaN is said only if you state them: one of the settings below is
enough.

examples:
  ademamix inspect out/checkpoint-5000
  ademamix inspect optimizer.pt --picture norms.png
  ademamix inspect optimizer.pt --json
  ademamix inspect orbax/5000 --total-steps 50k --alpha 8
"""


DEFAULTS = {
    "total_steps": "none",
    "alpha": f"{ALPHA:g}",
    "beta1": f"{BETAS[0]:g}, or 0 if the state has no m1",
    "beta2": f"{BETAS[1]:g}",
    "beta3": "chosen for --total-steps",
    "alpha_warmup": "--total-steps",
    "beta3_warmup": "--total-steps",
    "slow_clip": "none",
    "eps": "1e-8",
}
"""What `ademamix.optax` takes for settings that are not stated."""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser("inspect", help="say what an optimizer checkpoint holds", description=DESCRIPTION)
    parser.add_argument("file", type=Path, metavar="FILE", help="a file or folder")
    parser.add_argument(
        "--json", action="store_true", help="print JSON; non-finite numbers become null (default: a table)"
    )
    parser.add_argument(
        "--picture", type=_picture, metavar="FILE", help="also draw the norms into FILE.png or FILE.svg (default: none)"
    )
    add_unsafe_pickle(parser)
    add_settings(parser.add_argument_group("settings of a run with Optax"), DEFAULTS)
    parser.set_defaults(run=_run)


def _picture(text: str) -> Path:
    if not text.endswith(PICTURES):
        raise argparse.ArgumentTypeError(f"must end with {' or '.join(PICTURES)}, got {text!r}")
    if Path(text).exists():
        raise argparse.ArgumentTypeError(f"exists, and is not written over: name something new, got {text!r}")
    return file_to_write(text)


def _run(options: argparse.Namespace) -> int:
    with checkpoint_errors_explained():
        from ademamix.checkpoints import inspect

        settings = {name: getattr(options, name) for name in DEFAULTS}
        found = inspect(options.file, unsafe_pickle=options.unsafe_pickle, **settings)
    from ademamix.lab.report import checkpoint

    if options.json:
        print(json.dumps(_plain(asdict(found)), indent=2))
    else:
        print(checkpoint.text(found, width_of_output()))
    if options.picture is not None:
        checkpoint.picture(found, options.picture)
        if not options.json:
            print(f"\npicture: {options.picture}")
    return 0


def _plain(value: Any) -> Any:
    """Return data that JSON has: it knows neither paths nor NaN."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
