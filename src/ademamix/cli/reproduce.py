"""`ademamix reproduce`."""

from __future__ import annotations

import argparse
from typing import Any

from ademamix.cli.arguments import Commands, writable_folder
from ademamix.cli.run_options import add_execution_options, add_processes, lab_errors_explained, laboratory
from ademamix.lab.recipes import RECIPES, SCALES

DESCRIPTION = """\
Run a result of the paper: its numbers, its figure, and for each claim of the paper whether it holds here.

recipes:
{recipes}

Three scales: smoke (seconds: it shows that the recipe works, no more), laptop (minutes to hours on two cores: real
learning), paper (the paper's own sizes, for GPUs). Recipes that need no training are the paper's at every scale.

Figures go to DIR/RECIPE/SCALE/ as PNG and SVG, with the report beside them in report.md, the verdicts in verdict.json
and the numbers of the figures in panels.json; they replace those of an earlier call at the same scale. A recipe with
several panels reports each as it is done. Runs are kept in DIR/runs, each trained once: a call that was stopped, by
Ctrl-C or worse, continues from there when it is given again, and recipes share runs.
"""

EPILOG = """\
examples:
  ademamix reproduce --list
  ademamix reproduce toy-rosenbrock
  ademamix reproduce lm-comparison --scale laptop --processes 2
"""


class _List(argparse.Action):
    """Print the recipes and end."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from ademamix.lab.report import tables

        rows = [[name, ", ".join(recipe.labels), recipe.laptop, recipe.summary] for name, recipe in RECIPES.items()]
        print(tables.in_rows(["recipe", "in the paper", "laptop", "shows"], rows, tables.width_of_output()))
        parser.exit()


def add(commands: Commands) -> None:
    """Describe the command."""
    listed = "\n".join(f"  {name:<17} {recipe.summary}" for name, recipe in RECIPES.items())
    parser = commands.add_parser(
        "reproduce",
        help="reproduce a result of the paper: its numbers, its figure and its claims",
        description=DESCRIPTION.format(recipes=listed),
        epilog=EPILOG,
    )
    parser.add_argument("recipe", metavar="RECIPE", choices=list(RECIPES), help=f"one of {', '.join(RECIPES)}")
    parser.add_argument(
        "--list",
        action=_List,
        nargs=0,
        help="list the recipes with their labels in the paper and their times, and end (default: do not)",
    )
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="laptop",
        metavar="SCALE",
        help="how large: smoke, laptop or paper (default: laptop)",
    )
    add_processes(parser)
    add_execution_options(parser, threads=1)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    with lab_errors_explained():
        folder = writable_folder(options.out / options.recipe / options.scale)
        from ademamix.lab.reproduction.engine import reproduce
        from ademamix.lab.reproduction.scale import SCALES

        lab = laboratory(options)
        for number, part in enumerate(reproduce(options.recipe, SCALES[options.scale], folder, lab)):
            print(("\n" if number else "") + part, flush=True)
    return 0
