"""`ademamix reproduce`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ademamix.cli.arguments import Commands, few, writable_folder
from ademamix.cli.run_options import check_device, complaints_of_the_lab
from ademamix.lab.recipes import RECIPES, SCALES, load

DESCRIPTION = """\
Run a result of the paper, print its numbers and draw its figure.

recipes:
{recipes}

Three scales: smoke (seconds: it shows that the recipe works, no more), laptop (minutes to hours on two cores: real
learning), paper (the paper's own sizes, for GPUs). Recipes that need no training are the paper's at every scale.

Figures go to DIR/RECIPE/ as PNG and SVG and replace those of an earlier call. Runs are kept in DIR/runs, each trained
once: a call that was stopped, by Ctrl-C or worse, goes on from there when it is given again, and recipes share runs.
"""

EPILOG = """\
examples:
  ademamix reproduce toy-rosenbrock
  ademamix reproduce lm-comparison --scale laptop --processes 2
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    listed = "\n".join(f"  {name:<17} {recipe.summary}" for name, recipe in RECIPES.items())
    parser = commands.add_parser(
        "reproduce",
        help="reproduce a result of the paper: its numbers and its figure",
        description=DESCRIPTION.format(recipes=listed),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", metavar="RECIPE", choices=list(RECIPES), help=f"one of {', '.join(RECIPES)}")
    parser.add_argument("--scale", choices=SCALES, default="laptop", help="how large (default: laptop)")
    parser.add_argument("--out", type=Path, default="out", metavar="DIR", help="where to write (default: out)")
    parser.add_argument(
        "--processes", type=few, default=2, metavar="N", help="runs at a time, a thread each (default: 2)"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for the recipes that train (default: cpu)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    folder = writable_folder(options.out / options.recipe)
    if not RECIPES[options.recipe].trains:
        with complaints_of_the_lab():
            print(load(options.recipe)(folder, options.scale))
        return 0
    from ademamix.lab.display import Lab
    from ademamix.lab.execution import Options

    check_device(options.device)
    with complaints_of_the_lab():
        lab = Lab(Options(options.out, device=options.device), processes=options.processes)
        print(load(options.recipe)(folder, options.scale, lab))
    return 0
