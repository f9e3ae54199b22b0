"""`ademamix compare`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ademamix.cli.arguments import Commands, Complaint, name_and_settings, rates, seed, writable_folder
from ademamix.cli.run_options import (
    DESCRIPTION,
    add_execution_options,
    add_processes,
    add_run_options,
    changed,
    complaints_of_the_lab,
    laboratory,
    optimizer,
)

if TYPE_CHECKING:
    from ademamix.lab.comparison.arms import Comparison
    from ademamix.lab.config import Optimizer, Run
    from ademamix.lab.runs.laboratory import Lab
    from ademamix.lab.tuning import Sweep

INTRODUCTION = """\
Train the same model with AdamW and with AdEMAMix on the same batches, side by side, and show the difference.

Without options: a small transformer on the sources of Python's standard library, about six minutes on two cores. Each
optimizer has the learning rate that was best for it in a sweep at this length.

--tune searches each optimizer's learning rate and beta2 in the same way, on seed 0, with a full run for each choice:
N rates, a factor of two apart; then the neighbours of the best until none is better, of which the next beta2 of 0.9,
0.95, 0.99, 0.999 and 0.9999 on each side is one, and where beta2 moves, the rates again. betas that you state stay.

Results are kept: the same call again shows them at once. A call that was stopped continues where it was. The report,
the picture and its numbers go to a folder of their own in DIR/compare for each comparison.
"""

EPILOG = """\
examples:
  ademamix compare
  ademamix compare --seeds 1 2 3 --processes 2
  ademamix compare --data my_texts/ --steps 5k --tune
  ademamix compare --model vit-tiny --batch 64 --steps 3k --tune
  ademamix compare --optimizers adamw ademamix ademamix:state_storage=compact lion:lr=5e-4,weight_decay=0.5
"""

REPORT_WIDTH = 100  # columns of report.txt


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
        type=rates,
        nargs="?",
        const=5,
        metavar="N",
        help="search each optimizer's learning rate and beta2 first, see above; without N, 5 (default: no search)",
    )
    add_processes(parser)
    add_run_options(parser)
    add_execution_options(parser, threads=1)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ademamix.lab.comparison import arms, figure, report
    from ademamix.lab.report import tables
    from ademamix.lab.runs.record import RunFolder

    width = tables.width_of_output()
    with complaints_of_the_lab():
        base, optimizers = _what(options)
        lab = laboratory(options)
        writable_folder(options.out / "compare")
        sweeps: dict[str, Sweep] = {}
        if options.tune:
            bases = _bases(base, optimizers)
            sweeps = _searched(bases, lab, options.tune)
            optimizers = _chosen(bases, sweeps)
        runs = arms.plan(base, optimizers, options.seeds)
        folder = writable_folder(options.out / "compare" / arms.folder_name(runs))
        if sweeps:
            _write_sweep(folder / "sweep.json", bases, sweeps)
            print(_found(sweeps, width) + "\n")
        labelled = arms.labelled(runs)
        if all(RunFolder(lab.options.runs, run).result() for run in labelled.values()):
            kept = f"Trained before: this is what {lab.options.runs} keeps of these runs. Other --seeds train anew."
            print(tables.wrapped(kept, width) + "\n")
        lab.carry_out(labelled, _title(base, labelled))
        comparison = arms.Comparison(base, arms.read_arms(runs, lab.options.runs))
        files = figure.kept_or_drawn(comparison, folder)
        files.append(_write_report(folder / "report.txt", comparison, sweeps))
    print(report.report(comparison, tuned=bool(sweeps), width=width))
    print("\n" + "\n".join(f"{'report' if file.suffix == '.txt' else 'picture'}: {file}" for file in files))
    return 0


def _what(options: argparse.Namespace) -> tuple[Run, list[Optimizer]]:
    from ademamix.lab.comparison.defaults import DEFAULT, OPTIMIZERS

    base = changed(DEFAULT, options)
    specs = options.optimizers or [(name, {}) for name in OPTIMIZERS]
    return base, [optimizer(spec, options) for spec in specs]


def _bases(base: Run, optimizers: list[Optimizer]) -> dict[str, Run]:
    """Return the run that each search starts from."""
    from ademamix.lab.comparison import arms

    without_rate = [arm.model_copy(update={"lr": 1.0}) for arm in optimizers]
    for arm in without_rate:
        if without_rate.count(arm) > 1:
            raise Complaint(f"{arm.name} is named twice, with other learning rates: --tune finds the best one itself")
    return {name: of_seed[0] for name, of_seed in arms.plan(base, optimizers, [0]).items()}


def _searched(bases: dict[str, Run], lab: Lab, count: int) -> dict[str, Sweep]:
    from ademamix.lab import tuning

    title = f"Learning rates and beta2, on seed 0, for each of {', '.join(bases)}."
    return tuning.tune(bases, count, lambda runs: lab.carry_out(runs, title), rounds=tuning.ROUNDS)


def _chosen(bases: dict[str, Run], sweeps: Mapping[str, Sweep]) -> list[Optimizer]:
    from ademamix.lab import tuning

    return [tuning.with_choice(bases[name], found.best).optimizer for name, found in sweeps.items()]


def _write_sweep(path: Path, bases: dict[str, Run], sweeps: Mapping[str, Sweep]) -> None:
    from ademamix.lab import tuning
    from ademamix.lab.runs.atomic import write_atomically

    write_atomically(path, json.dumps(tuning.records(bases, sweeps), indent=1) + "\n")


def _write_report(path: Path, comparison: Comparison, sweeps: Mapping[str, Sweep]) -> Path:
    from ademamix.lab.comparison import report
    from ademamix.lab.runs.atomic import write_atomically

    parts = [_found(sweeps, REPORT_WIDTH)] if sweeps else []
    parts.append(report.report(comparison, tuned=bool(sweeps), width=REPORT_WIDTH))
    write_atomically(path, "\n\n".join(parts) + "\n")
    return path


def _found(sweeps: Mapping[str, Sweep], width: int) -> str:
    from ademamix.lab import tuning

    return f"Validation loss by learning rate and beta2, seed 0:\n{tuning.table(sweeps, width)}"


def _title(base: Run, runs: dict[str, Run]) -> str:
    model = base.model
    layers = f"{model.layers} layer{'s' if model.layers > 1 else ''}"
    what = f"{model.kind}, width {model.width}, {layers}, on {base.data.source}"
    return f"{len(runs)} runs of {base.steps:,} steps: {what}. Ctrl-C stops and saves; the same command continues."
