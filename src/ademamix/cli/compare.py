"""`ademamix compare`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ademamix.cli.arguments import Commands, Complaint, few, name_and_settings, seed, writable_folder
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
    from ademamix.lab.config import Optimizer, Run
    from ademamix.lab.display import Lab

INTRODUCTION = """\
Train the same model with AdamW and with AdEMAMix on the same batches, side by side, and show the difference.

Without options: a small transformer on the sources of Python's standard library, about six minutes on two cores. Each
optimizer has the learning rate that was best for it in a sweep at this length.

Results are kept: the same call again shows them at once. A call that was stopped goes on where it was.
"""

EPILOG = """\
examples:
  ademamix compare
  ademamix compare --seeds 1 2 3 --processes 2
  ademamix compare --data my_texts/ --steps 5k --tune
  ademamix compare --model vit-tiny --batch 64 --steps 3k --tune
  ademamix compare --optimizers adamw ademamix ademamix:state_storage=compact lion:lr=5e-4,weight_decay=0.5
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "compare",
        help="train a model with AdamW and with AdEMAMix, and show the difference",
        description=f"{INTRODUCTION}\n{DESCRIPTION}",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--optimizers",
        type=name_and_settings,
        nargs="+",
        metavar="OPTIMIZER",
        help="see above; the others are measured by the first (default: adamw ademamix)",
    )
    parser.add_argument(
        "--seeds",
        type=seed,
        nargs="+",
        default=[1],
        metavar="SEED",
        help="a run of each optimizer for each of these (default: 1)",
    )
    parser.add_argument(
        "--tune",
        type=few,
        nargs="?",
        const=5,
        metavar="N",
        help="first find each optimizer's best learning rate of N (default: 5), on seed 0, with a full run for each",
    )
    parser.add_argument("--processes", type=few, default=2, metavar="N", help="runs at a time (default: 2)")
    add_run_options(parser)
    add_execution_options(parser, threads=1)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ademamix.lab import compare
    from ademamix.lab.display import Lab
    from ademamix.lab.record import RunFolder

    with complaints_of_the_lab():
        base, arms = _what(options)
        how, folder = execution(options), writable_folder(options.out / "compare")
        lab = Lab(how, options.processes, options.threads)
        if options.tune:
            arms = _tuned(base, arms, lab, folder, options)
        runs = compare.plan(base, arms, options.seeds)
        labelled = compare.labelled(runs)
        if all(RunFolder(how.runs, run).result() for run in labelled.values()):
            print(f"Trained before: this is what {how.runs} keeps of these runs. Other --seeds train anew.\n")
        lab.carry_out(labelled, _title(base, labelled))
        read = compare.read_arms(runs, how.runs)
        parts = [
            compare.table(base, read),
            compare.conclusion(base, read),
            compare.reasons(base, read, tuned=bool(options.tune)),
        ]
        files = compare.draw(read, base, folder)
    print("\n\n".join(parts))
    print("\n" + "\n".join(f"picture: {file}" for file in files))
    return 0


def _what(options: argparse.Namespace) -> tuple[Run, list[Optimizer]]:
    from ademamix.lab.compare import DEFAULT, OPTIMIZERS

    base = changed(DEFAULT, options)
    specs = options.optimizers or [(name, {}) for name in OPTIMIZERS]
    return base, [optimizer(spec, options) for spec in specs]


def _tuned(base: Run, arms: list[Optimizer], lab: Lab, folder: Path, options: argparse.Namespace) -> list[Optimizer]:
    from ademamix.lab import compare, sweep
    from ademamix.lab.atomic import write_atomically

    without_rate = [arm.model_copy(update={"lr": 1.0}) for arm in arms]
    for arm in without_rate:
        if without_rate.count(arm) > 1:
            raise Complaint(f"{arm.name} is named twice, with other learning rates: --tune finds the best one itself")
    bases = {name: of_seed[0] for name, of_seed in compare.plan(base, arms, [0]).items()}
    title = f"Learning rates, on seed 0, for each of {', '.join(bases)}"
    sweeps = sweep.tune(bases, options.tune, lambda runs: lab.carry_out(runs, title))
    write_atomically(folder / "sweep.json", json.dumps(sweep.records(bases, sweeps), indent=1) + "\n")
    print("validation loss by learning rate, seed 0:")
    print(sweep.table(sweeps) + "\n")
    return [arm.model_copy(update={"lr": found.best}) for arm, found in zip(arms, sweeps.values(), strict=True)]


def _title(base: Run, runs: dict[str, Run]) -> str:
    model = base.model
    what = f"{model.kind}, width {model.width}, {model.layers} layers, on {base.data.source}"
    return f"{len(runs)} runs of {base.steps:,} steps: {what}. Ctrl-C stops and saves; the same command goes on."
