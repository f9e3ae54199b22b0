"""`ademamix reproduce`."""

from __future__ import annotations

import argparse

from ademamix.cli.arguments import Commands, writable_folder
from ademamix.cli.run_options import add_execution_options, add_processes, lab_errors_explained, laboratory
from ademamix.lab.recipes import RECIPES, SCALES, load

DESCRIPTION = """\
Run a result of the paper, print its numbers and draw its figure.

recipes:
{recipes}

Three scales: smoke (seconds: it shows that the recipe works, no more), laptop (minutes to hours on two cores: real
learning), paper (the paper's own sizes, for GPUs). Recipes that need no training are the paper's at every scale.

Figures go to DIR/RECIPE/SCALE/ as PNG and SVG, with the report beside them in report.txt; they replace those of an
earlier call at the same scale. A recipe with several panels reports each as it is done. Runs are kept in DIR/runs, each
trained once: a call that was stopped, by Ctrl-C or worse, continues from there when it is given again, and recipes
share runs.
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
    from ademamix.lab.runs.atomic import write_atomically

    with lab_errors_explained():
        folder = writable_folder(options.out / options.recipe / options.scale)
        recipe = load(options.recipe)
        found = recipe(folder, options.scale, *([laboratory(options)] if RECIPES[options.recipe].trains else []))
        parts: list[str] = []
        for part in [found] if isinstance(found, str) else found:
            print(("\n" if parts else "") + part, flush=True)
            parts.append(part)
            write_atomically(folder / "report.txt", "\n\n".join(parts) + "\n")
    return 0
