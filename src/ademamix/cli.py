"""The command line: `ademamix --help`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

RECIPES = {"toy-rosenbrock": "ademamix.lab.recipes.toy_rosenbrock"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="ademamix",
        description="AdEMAMix: AdamW with a second, slow average of the gradients.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    reproduce = commands.add_parser("reproduce", help="reproduce a result of the paper")
    reproduce.add_argument("recipe", choices=sorted(RECIPES), help="which result")
    reproduce.set_defaults(run=_reproduce)
    bench = commands.add_parser("bench", help="step time and state memory of our paths and of others, as ratios")
    bench.set_defaults(run=_bench)
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _reproduce(options: argparse.Namespace) -> int:
    importlib.import_module(RECIPES[options.recipe]).reproduce()
    return 0


def _bench(options: argparse.Namespace) -> int:
    importlib.import_module("ademamix.lab.bench").run()
    return 0
