"""`ademamix reproduce`."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ademamix.cli.arguments import Commands, UsageError, add_flag, seed, writable_folder
from ademamix.cli.run_options import (
    add_execution_options,
    add_processes,
    add_scale,
    lab_errors_explained,
    laboratory,
)
from ademamix.cli.together import EXPLAINED, add_shard
from ademamix.lab.recipes import OF_THE_PAPER, RECIPES

if TYPE_CHECKING:
    from ademamix.lab.execution.laboratory import Lab
    from ademamix.lab.reproduction.scale import Scale

ALL = "all"

DESCRIPTION = (
    """\
Reproduce results of the paper: their numbers, their figures, and for each claim of the paper whether it holds here.

recipes:
{recipes}
  {all} every one of these, and none of those below

recipes that decide claims of other sources:
{others}

Three scales: smoke (seconds: it shows that a recipe works, no more), laptop (minutes to hours on two cores: real
learning), paper (the paper's own sizes, for GPUs). Recipes that need no training are the paper's at every scale.

Figures go to DIR/RECIPE/SCALE/ as PNG and SVG, with the report beside them in report.md, the verdicts in verdict.json
and the numbers of the figures in panels.json; they replace those of an earlier call at the same scale. A recipe with
several panels reports each as it is done. Runs are kept in DIR/runs, each trained once: a call that was stopped, by
Ctrl-C or worse, continues from there when it is given again, and recipes share runs.

Of several recipes, the runs come first, then each recipe, then a page (see `ademamix report`) and a table of what
holds. A run that diverges is a result; one that fails leaves its recipe out, and the others continue. --archive keeps
a small record of each run, which can be committed, and takes runs from there in place of training them.

"""
    + EXPLAINED
)

EPILOG = """\
examples:
  ademamix reproduce --list
  ademamix reproduce toy-rosenbrock
  ademamix reproduce lm-comparison --scale laptop --processes 2
  ademamix reproduce all --dry-run
  ademamix reproduce all --processes 2 --archive benchmarks/results/laptop
  ademamix reproduce all --no-training --archive benchmarks/results/laptop
  ademamix reproduce third-ema --scale paper --seeds 1 2 3 --dry-run
  torchrun --nproc-per-node 8 -m ademamix reproduce lm-comparison --scale paper --device cuda
"""


class _List(argparse.Action):
    """Print the recipes and end."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from ademamix.output import tables

        rows = [[name, recipe.origin, recipe.laptop, recipe.summary] for name, recipe in RECIPES.items()]
        print(tables.in_rows(["recipe", "reproduces", "laptop", "shows"], rows, tables.width_of_output()))
        parser.exit()


def add(commands: Commands) -> None:
    """Describe the command."""
    width = max(map(len, RECIPES))
    listed = "\n".join(f"  {name:<{width}} {RECIPES[name].summary}" for name in OF_THE_PAPER)
    others = "\n".join(
        f"  {name:<{width}} {recipe.summary} ({recipe.origin})"
        for name, recipe in RECIPES.items()
        if name not in OF_THE_PAPER
    )
    parser = commands.add_parser(
        "reproduce",
        help="reproduce results of the paper: their numbers, their figures and their claims",
        description=DESCRIPTION.format(recipes=listed, all=f"{ALL:<{width}}", others=others),
        epilog=EPILOG,
    )
    parser.add_argument("recipes", metavar="RECIPE", nargs="+", help=f"some of the above, or {ALL}")
    parser.add_argument(
        "--list",
        action=_List,
        nargs=0,
        help="list the recipes with their sources and times, and end (default: off)",
    )
    add_scale(parser)
    parser.add_argument(
        "--seeds",
        type=seed,
        nargs="+",
        metavar="SEED",
        help="train each run with these, of which one alone decides nothing (default: 1 2 3 at laptop scale, else 1)",
    )
    ahead = "say how many runs it takes and how long, after timing a few steps of each kind, and end (default: off)"
    add_flag(parser, "--dry-run", ahead)
    add_flag(parser, "--changed", "only recipes that are incomplete or have changed (default: all named)")
    parser.add_argument(
        "--archive", type=Path, metavar="FOLDER", help="read and write small records of runs, see above (default: none)"
    )
    add_flag(
        parser,
        "--no-training",
        "show what kept and archived runs give, and train nothing (default: train what is missing)",
    )
    add_processes(parser)
    add_execution_options(parser, threads=1)
    add_shard(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    with lab_errors_explained():
        from ademamix.lab.reproduction import engine, several
        from ademamix.lab.reproduction.scale import SCALES

        at = SCALES[options.scale]
        if options.seeds:
            at = replace(at, seeds=tuple(dict.fromkeys(options.seeds)))
        names = _chosen(options, at)
        for name in names:
            writable_folder(several.folder_of(name, at.name, options.out))
        lab = _lab(options)
        if not names:
            print("All of these are up to date.")
        elif options.dry_run or (len(names) > 1 and lab.trains):
            print(_forecast(names, at, lab), flush=True)
        if not names or options.dry_run:
            return 0
        if len(names) == 1:
            (name,) = names
            parts = engine.reproduce(name, at, several.folder_of(name, at.name, options.out), lab)
        else:
            parts = several.reproduce_several(names, at, options.out, lab)
        for number, part in enumerate(parts):
            print(("\n" if number or len(names) > 1 else "") + part, flush=True)
    return 0


def _chosen(options: argparse.Namespace, at: Scale) -> list[str]:
    from ademamix.lab.reproduction.several import is_up_to_date

    for name in options.recipes:
        _check(name)
    chosen = [name for given in options.recipes for name in (OF_THE_PAPER if given == ALL else [given])]
    names = list(dict.fromkeys(chosen))
    if not options.changed:
        return names
    return [name for name in names if not is_up_to_date(name, at, options.out)]


def _check(name: str) -> None:
    """Refuse a recipe that does not exist."""
    if name not in (*RECIPES, ALL):
        close = difflib.get_close_matches(name, [*RECIPES, ALL], n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ":"
        raise UsageError(f"there is no recipe {name!r}{meant} `ademamix reproduce --list` lists them")


def _lab(options: argparse.Namespace) -> Lab:
    from ademamix.lab.runs.archive import Archive

    archive = None
    if options.archive is not None:
        if not options.no_training:
            writable_folder(options.archive, "--archive")
        elif not options.archive.is_dir():
            raise UsageError(f"--archive must be a folder of records, and there is none at {str(options.archive)!r}")
        archive = Archive(options.archive)
    return replace(laboratory(options), archive=archive, trains=not options.no_training)


def _forecast(names: Sequence[str], at: Scale, lab: Lab) -> str:
    from ademamix.lab.reproduction.forecast import forecast
    from ademamix.output import tables

    ahead = forecast(names, at, lab)
    seconds = ahead.seconds(lab) if at.name == "laptop" and (ahead.missing or ahead.searching) else None
    words = ahead.words(seconds)
    if len(at.seeds) == 1 and ahead.asked:
        words += "\nOne seed decides no claim about a run that is trained: --seeds 1 2 3 trains each three times."
    return tables.wrapped(words, tables.width_of_output())
