"""The command line: `ademamix --help`."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ademamix.lab import bench

RECIPES = {"toy-rosenbrock": "ademamix.lab.recipes.toy_rosenbrock"}

REPRODUCE_DESCRIPTION = """\
Run a result of the paper, print its numbers and draw its figure.

recipes:
  toy-rosenbrock   Adam with several beta1 and AdEMAMix with several beta3 on the Rosenbrock function: distance to the
                   minimum and trajectories (figure toy_rosenbrock of the paper; about ten seconds)

Figures go to DIR/RECIPE/ as PNG and SVG and replace those of an earlier call. Recipes need torch and matplotlib:
pip install 'ademamix[lab]'.

example:
  ademamix reproduce toy-rosenbrock --out figures
"""

BENCH_DESCRIPTION = """\
Time an optimizer step, and count the bytes of its state.

Times are ratios, to torch's AdamW of the same kind: 1.30 is a step that takes 30% longer. The optimizers step in
turns in one process, each counts with its fastest step, and the median over several fresh processes is reported.
Other AdEMAMix implementations and low-bit AdamWs are in the table if they are installed (`make bench` does that).

scenarios:
  gpt2     the 148 parameters of GPT-2 124M; needs 12 GB of memory
  large    one tensor of 32M elements
  small    200 tensors of 1k elements, where overhead is what counts
  optax    a jitted step of ours in JAX, to optax.adamw and optax.contrib.ademamix; 36M parameters
  import   `import ademamix`, which must load no framework

All of it takes about an hour on two cores, ours and torch's alone ten minutes. Leave the machine alone meanwhile: a
step with several threads waits for the slowest. The exit code is 0 whether targets are met or not; it is 1 if
something of ours or torch's could not be measured.

examples:
  ademamix bench --only small --no-peers
  ademamix bench --threads 1 --json bench.json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="ademamix",
        description="AdEMAMix: AdamW with a second, slow average of the gradients.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_reproduce(commands)
    _add_bench(commands)
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _add_reproduce(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "reproduce",
        help="reproduce a result of the paper: its numbers and its figure",
        description=REPRODUCE_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", metavar="RECIPE", choices=sorted(RECIPES), help=f"one of {', '.join(RECIPES)}")
    parser.add_argument("--out", type=Path, default="out", metavar="DIR", help="where to write (default: out)")
    parser.set_defaults(run=_reproduce)


def _reproduce(options: argparse.Namespace) -> int:
    try:
        recipe = importlib.import_module(RECIPES[options.recipe])
    except ModuleNotFoundError as error:
        if error.name not in ("matplotlib", "torch"):
            raise
        return _fail(f"{options.recipe} needs {error.name}, which is not installed: pip install 'ademamix[lab]'")
    folder = options.out / options.recipe
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # rather now than after the runs
            pass
        report = recipe.reproduce(folder)
    except OSError as error:
        return _fail(
            f"cannot write to the folder {str(folder)!r}: {error.strerror}. Give one that can be written to: --out DIR"
        )
    print(report)
    return 0


def _fail(message: str) -> int:
    print(f"ademamix: error: {message}", file=sys.stderr)
    return 2


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "bench",
        help="step time and state memory of our paths and of others, as ratios",
        description=BENCH_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="tiny tensors, one process: only to see that it works")
    parser.add_argument("--only", choices=bench.NAMES, metavar="SCENARIO", help=f"one of {', '.join(bench.NAMES)}")
    parser.add_argument("--no-peers", action="store_true", help="measure only ours and torch's")
    parser.add_argument("--processes", type=_positive, metavar="N", help="fresh processes per scenario (default: 5)")
    parser.add_argument("--threads", type=_positive, metavar="N", help="threads (default: what torch chooses)")
    parser.add_argument(
        "--json", type=_file_to_write, metavar="FILE", help="write all figures and the environment there"
    )
    parser.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    return bench.run(
        quick=options.quick,
        processes=options.processes,
        threads=options.threads,
        only=options.only,
        with_peers=not options.no_peers,
        json_file=options.json,
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _file_to_write(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file in a folder that exists, got {text!r}")
    return path
