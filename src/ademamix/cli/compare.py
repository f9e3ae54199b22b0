"""`ademamix compare`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ademamix.cli import run_options
from ademamix.cli.arguments import Commands, UsageError, name_and_settings, rates, run_length, seed, writable_folder
from ademamix.cli.together import EXPLAINED, add_shard

if TYPE_CHECKING:
    from ademamix.lab.comparison.arms import Comparison
    from ademamix.lab.config import Run
    from ademamix.lab.execution.laboratory import Lab
    from ademamix.lab.tuning import Search

DEFAULT_ARMS = ("adamw", "adamw:steps=2x", "ademamix")

SUMMARY = "train a model with AdamW and with AdEMAMix, and show the difference"
INTRODUCTION = (
    """\
Train the same model with AdamW and with AdEMAMix on the same batches, side by side, and show the difference.

Without options: a small transformer on the sources of Python's standard library, with AdEMAMix for 20,000 steps and
with AdamW for as many and for twice as many: about five minutes on two idle cores.

steps=N among an optimizer's settings gives it a length of its own, in steps or as a multiple of --steps (2x). The
warm-up and the interval between validations stay those of --steps.

--tune searches each optimizer's learning rate and beta2 in the same way, on seed 0, with a full run for each choice. It
begins with N rates, a factor of two apart. Then it tries the neighbours of the best until none is better: half and
twice its rate, then the next of 0.9, 0.95, 0.99, 0.999 and 0.9999 on each side of its beta2; if that moves beta2, the
rates again. betas that you state stay.

Results are kept: the same call shows them again at once, and a call that was stopped continues. The report, the picture
and its numbers go to a folder in DIR/compare, one per comparison.

"""
    + EXPLAINED
)

EPILOG = """\
examples:
  ademamix compare
  ademamix compare --seeds 1 2 3 --processes 2
  ademamix compare --data my_texts/ --steps 5k --tune
  ademamix compare --model vit-tiny --batch 64 --steps 3k --tune
  ademamix compare --optimizers adamw ademamix ademamix:state_storage=compact lion:lr=5e-4,weight_decay=0.5
  ademamix compare --optimizers adamw adamw:steps=40k ademamix:steps=1.5x
  torchrun --nproc-per-node 2 -m ademamix compare --steps 5k
"""

REPORT_WIDTH = 100  # columns of report.txt


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser("compare", help=SUMMARY, description=INTRODUCTION, epilog=EPILOG)
    parser.add_argument(
        "--optimizers",
        type=name_and_settings,
        nargs="+",
        metavar="OPTIMIZER",
        default=[name_and_settings(arm) for arm in DEFAULT_ARMS],
        help=f"see above; the others are measured by the first (default: {' '.join(DEFAULT_ARMS)})",
    )
    parser.add_argument(
        "--seeds",
        type=seed,
        nargs="+",
        default=[1],
        metavar="SEED",
        help="train every optimizer with each of these (default: 1)",
    )
    parser.add_argument(
        "--tune",
        type=rates,
        nargs="?",
        const=5,
        metavar="N",
        help="search each optimizer's learning rate and beta2 first, see above; without N it is 5 (default: no search)",
    )
    run_options.add_options_of_several_runs(parser)
    add_shard(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ademamix.lab.comparison import arms, figure, report
    from ademamix.output import tables
    from ademamix.output.atomic import write_atomically

    width = tables.width_of_output()
    search: Search | None = None
    with run_options.lab_errors_explained():
        base, chosen = _chosen_arms(options)
        lab = run_options.laboratory(options)
        writable_folder(options.out / "compare")
        if options.tune:
            search = _searched(chosen, lab, options.tune)
            chosen = list(search.runs.values())
        runs = arms.plan(chosen, options.seeds)
        folder = writable_folder(options.out / "compare" / arms.folder_name(runs))
        if search is not None:
            write_atomically(folder / "sweep.json", json.dumps(search.records(), indent=1) + "\n")
            print(search.report(width) + "\n")
        labelled = arms.labelled(runs)
        kept = lab.kept(labelled)
        results = lab.carry_out(labelled, _title(base, labelled), kept=kept)
        comparison = arms.Comparison(base, arms.read_arms(runs, results, lab.options.runs))
        files = figure.kept_or_drawn(comparison, folder)
        files.append(_write_report(folder / "report.txt", comparison, search))
    print(report.report(comparison, tuned=search is not None, width=width) + "\n")
    if len(kept) == len(labelled):
        note = f"Trained before: this is what {lab.options.runs} keeps of these runs. Other --seeds start new runs."
        print(tables.wrapped(note, width) + "\n")
    print("\n".join(f"{'report' if file.suffix == '.txt' else 'picture'}: {file}" for file in files))
    return 0


def _chosen_arms(options: argparse.Namespace) -> tuple[Run, list[Run]]:
    """Return the run that all arms share, and the arms."""
    from ademamix.lab.comparison.arms import arm_of
    from ademamix.lab.comparison.defaults import DEFAULT

    base = run_options.with_options(DEFAULT, options)
    chosen = []
    for name, settings in options.optimizers:
        length = run_length(str(settings.get("steps", base.steps)), base.steps)
        others = {setting: value for setting, value in settings.items() if setting != "steps"}
        chosen.append(arm_of(base, run_options.chosen_optimizer((name, others), options), length))
    return base, chosen


def _searched(chosen: Sequence[Run], lab: Lab, count: int) -> Search:
    from ademamix.lab import tuning
    from ademamix.lab.comparison import arms

    without_rates = [arms.arm_of(arm, arm.optimizer.model_copy(update={"lr": 1.0})) for arm in chosen]
    for arm in without_rates:
        if without_rates.count(arm) > 1:
            raise UsageError(
                f"{arm.optimizer.name} is named twice, with different learning rates: --tune finds the best one itself"
            )
    bases = {label: of_seed[tuning.SEED] for label, of_seed in arms.plan(chosen, [tuning.SEED]).items()}
    title = f"Learning rates and beta2, on seed {tuning.SEED}, for each of {'; '.join(bases)}."
    return tuning.search(bases, count, lambda runs: lab.carry_out(runs, title), rounds=tuning.ROUNDS)


def _write_report(path: Path, comparison: Comparison, search: Search | None) -> Path:
    from ademamix.lab.comparison import report
    from ademamix.output.atomic import write_atomically

    parts = [report.report(comparison, tuned=search is not None, width=REPORT_WIDTH)]
    if search is not None:
        parts.append(search.report(REPORT_WIDTH))
    write_atomically(path, "\n\n".join(parts) + "\n")
    return path


def _title(base: Run, runs: Mapping[str, Run]) -> str:
    model = base.model
    lengths = sorted({run.steps for run in runs.values()})
    steps = " to ".join(f"{length:,}" for length in dict.fromkeys((lengths[0], lengths[-1])))
    layers = f"{model.layers} layer{'s' if model.layers > 1 else ''}"
    what = f"{model.kind}, width {model.width}, {layers}, on {base.data.source}"
    return f"{len(runs)} runs of {steps} steps: {what}. Ctrl-C stops and saves; the same command continues."
