"""`ademamix sweep`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ademamix.cli.arguments import Commands, UsageError, name_and_settings, positive, seed, small_count, writable_folder
from ademamix.cli.run_options import (
    RUN_OPTIONS,
    add_options_of_several_runs,
    chosen_optimizer,
    lab_errors_explained,
    laboratory,
    with_options,
)

if TYPE_CHECKING:
    from ademamix.lab.config import Run
    from ademamix.lab.execution.laboratory import Lab
    from ademamix.lab.sweep.space import Space
    from ademamix.lab.sweep.study import Plan

SUMMARY = "try many settings of an optimizer: a grid or an adaptive search, on any number of machines"
INTRODUCTION = """\
Try many settings of an optimizer, each with a full run, and show which are best and which of them matter.

Give each setting a list of values or a range:
  alpha=2,4,8            these values
  lr=1e-3..16e-3         anything between: lr by its logarithm, beta1 to beta3 by that of 1 - beta, others evenly
  lr=1e-3..16e-3:5       five values, spread in the same way: 0.001, 0.002, 0.004, 0.008 and 0.016
  weight_decay=1e-3..1:log    by the logarithm; ...:even evenly, ...:memory by that of 1 - value
A setting is lr, an argument of the optimizer's constructor (see below), beta1, beta2, beta3, batch, clip, warmup, or
schedule=cosine,constant. The value none is None: clip=none,1,0.5.

Lists alone make a grid, with a trial for every combination. If there is a range, or --trials, the search is adaptive:
Optuna's TPE, which draws the next trial from what the others have shown. It also prunes: a trial that is worse than the
median of the others at the same step, from a third of its steps on, is stopped and kept apart.

Trials are ordinary runs on seed 0, kept in DIR/runs: one that is there is read and not trained. They are written down
in DIR/sweep/studies.db or, with --storage, in a database that any number of machines can share: the same command on
each of them joins in, and takes the next trial. Nothing is lost when a worker is killed: after --patience another one
takes its trial over. The report, its numbers and a picture go to DIR/sweep/STUDY.
"""

EPILOG = """\
examples:
  ademamix sweep ademamix lr=1e-3..16e-3 alpha=2,4,8 beta3=0.99..0.9999 --trials 30 --steps 5k
  ademamix sweep adamw lr=4e-3,8e-3,16e-3 beta2=0.95,0.99,0.999 --steps 5k --processes 2
  ademamix sweep ademamix:alpha=8 lr=1e-3..16e-3:5 --storage postgresql://user@host/database --study rates
  ademamix sweep --preset paper-110m --dry-run
  ademamix sweep adamw --preset paper-330m --model gpt-nano --data stdlib --steps 5k
"""

TRIALS = 30
"""Of an adaptive search, unless another number is stated."""


class _ListPresets(argparse.Action):
    """Print the presets and end."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from ademamix.lab.sweep.presets import PRESETS
        from ademamix.lab.sweep.space import space
        from ademamix.output import tables

        rows = [
            [name, optimizer, str(len(space(grid.space))), " ".join(grid.space), preset.summary]
            for name, preset in PRESETS.items()
            for optimizer, grid in preset.grids.items()
        ]
        print(tables.in_rows(["preset", "optimizer", "trials", "grid", "of"], rows, tables.width_of_output()))
        parser.exit()


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser("sweep", help=SUMMARY, description=INTRODUCTION, epilog=EPILOG)
    parser.add_argument(
        "what",
        nargs="*",
        metavar="OPTIMIZER|SETTING=VALUES",
        help="the optimizer (NAME or NAME:SETTING=VALUE,...) and what to try; with --preset both can be left out",
    )
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help="a grid of the paper, see --list-presets; settings replace its own (default: none)",
    )
    parser.add_argument(
        "--list-presets", action=_ListPresets, nargs=0, help="list the paper's grids, and end (default: off)"
    )
    parser.add_argument(
        "--search", choices=("grid", "tpe"), help="every combination, or adaptive (default: grid for lists, else tpe)"
    )
    parser.add_argument(
        "--trials", type=positive, metavar="N", help=f"length of an adaptive search, of all workers (default: {TRIALS})"
    )
    parser.add_argument(
        "--prune", choices=("median", "none"), help="stop bad trials early (default: median for tpe, none for a grid)"
    )
    parser.add_argument("--seed", type=seed, metavar="SEED", help="of all trials (default: 0)")
    parser.add_argument("--storage", metavar="URL", help="a database to share (default: DIR/sweep/studies.db)")
    parser.add_argument("--study", metavar="NAME", help="its name there (default: made from what is swept)")
    parser.add_argument(
        "--patience",
        type=small_count,
        metavar="SECONDS",
        help="take over the trial of a worker that has been silent for so long (default: 60)",
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="try failed trials of the study again (default: leave them)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say how many trials there are and how long they take (default: train)"
    )
    add_options_of_several_runs(parser)
    parser.intermixed = True
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    with lab_errors_explained():
        import optuna
        from sqlalchemy import URL

        from ademamix.lab.sweep import crew, report, study
        from ademamix.output import tables

        plan = _plan(options)
        plan.space.check(plan.base)
        lab = laboratory(options)
        if options.dry_run:
            print(tables.wrapped(_forecast(plan, lab), tables.width_of_output()))
            return 0
        name = options.study or plan.name
        folder = writable_folder(options.out / "sweep")
        url = options.storage or URL.create("sqlite", database=str(folder / "studies.db")).render_as_string()
        prunes = (options.prune or ("median" if plan.search == "tpe" else "none")) == "median"
        pruner = crew.median_pruner(plan.base) if prunes else optuna.pruners.NopPruner()
        book = study.open_book(plan, url, name, pruner=pruner, patience=options.patience or study.PATIENCE)
        with study.storage_explained(book.address):
            book.fill()
            if options.retry_failed:
                book.retry_failed()
        crew.carry_out(book, lab, _title(plan, name, book.address))
        with study.storage_explained(book.address):
            files = report.write(book, writable_folder(folder / name))
            print(report.text(book, tables.width_of_output()) + "\n")
    print("\n".join(f"{'picture' if file.suffix in ('.png', '.svg') else 'report'}: {file}" for file in files))
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    optimizers = [text for text in options.what if "=" not in text.partition(":")[0]]
    settings = [text for text in options.what if text not in optimizers]
    if len(optimizers) > 1:
        raise UsageError(f"a sweep is of one optimizer, got {', '.join(optimizers)}: give each a sweep of its own")
    chosen = _named(optimizers[0]) if optimizers else None
    base, texts = _preset(options, chosen) if options.preset else _own(options, chosen)
    if options.seed is not None:
        base = base.changed(seed=options.seed)
    own = {text.partition("=")[0] for text in settings}
    return _searched(options, base, [*(text for text in texts if text.partition("=")[0] not in own), *settings])


def _named(text: str) -> tuple[str, dict[str, Any]]:
    try:
        return name_and_settings(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"the optimizer {error}") from None


def _preset(options: argparse.Namespace, chosen: tuple[str, dict[str, Any]] | None) -> tuple[Run, tuple[str, ...]]:
    """Return the run and the grid of a preset; options that are given change the run."""
    from ademamix.lab.settings import changed
    from ademamix.lab.sweep.presets import preset

    name, settings = chosen or (None, {})
    grid = preset(options.preset).grid(options.preset, name)
    base = grid.base
    if any(getattr(options, option) is not None for option in RUN_OPTIONS):
        base = with_options(base, options)
    return changed(base, **({"lr": options.lr} if options.lr else {}), **settings), grid.space


def _own(options: argparse.Namespace, chosen: tuple[str, dict[str, Any]] | None) -> tuple[Run, tuple[str, ...]]:
    from ademamix.lab.comparison.defaults import DEFAULT
    from ademamix.lab.tuning import SEED

    if chosen is None:
        raise UsageError("no optimizer is named: give one, e.g. ademamix sweep ademamix lr=1e-3..16e-3, or a --preset")
    optimizer = chosen_optimizer(chosen, options)
    return with_options(DEFAULT, options).changed(optimizer=optimizer, seed=SEED), ()


def _searched(options: argparse.Namespace, base: Run, texts: Sequence[str]) -> Plan:
    from ademamix.lab.sweep.space import space
    from ademamix.lab.sweep.study import Plan

    if not texts:
        raise UsageError("nothing is swept: give settings with lists or ranges, e.g. lr=1e-3..16e-3 alpha=2,4,8")
    found: Space = space(texts, finite=options.search == "grid")
    grid = options.search == "grid" or (options.search is None and found.finite and options.trials is None)
    if grid and options.trials is not None:
        raise UsageError(
            f"a grid has a trial for each of its {len(found)} combinations: --trials goes with --search tpe"
        )
    return Plan(base, found, "grid" if grid else "tpe", len(found) if grid else options.trials or TRIALS)


def _title(plan: Plan, name: str, address: str) -> str:
    trials = "1 trial" if plan.trials == 1 else f"{plan.trials} trials"
    what = f"{trials} of {plan.base.optimizer.name}, {plan.search}: {plan.space}"
    return f"{what}.\nStudy {name} in {address}. Ctrl-C stops and saves; the same command continues, or joins in."


def _forecast(plan: Plan, lab: Lab) -> str:
    """Say how many trials there are, and how long they would take."""
    from ademamix.lab.config import ConfigError
    from ademamix.lab.execution.display import clock
    from ademamix.lab.execution.timing import seconds_of, seconds_per_step
    from ademamix.lab.runs.record import RunError
    from ademamix.lab.settings import changed

    said = f"{plan.trials} trials of {plan.base.steps:,} steps, {plan.search}: {plan.space}.\n"
    said += f"Around it: {plan.base.optimizer.described}, clip={plan.base.clip}, seed {plan.base.seed}.\n"
    left = plan.trials
    if plan.search == "grid":
        points = map(plan.space.point, plan.space.grid())
        runs = {str(number): changed(plan.base, **point) for number, point in enumerate(points)}
        if kept := len(lab.kept(runs)):
            left -= kept
            said += f"{kept} of them are kept in {lab.options.runs}, and would be read.\n"
    try:
        seconds = seconds_of(plan.base, seconds_per_step(plan.base, lab))
    except (ConfigError, RunError) as reason:
        return said + f"How long a trial takes is not known: {reason}."
    whole = f"all of them, {lab.at_once} at a time, about {clock(seconds * left / lab.at_once)}"
    return said + f"A trial takes about {clock(seconds)}; {whole}, or less if some are pruned."
