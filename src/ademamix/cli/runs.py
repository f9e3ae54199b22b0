"""`ademamix runs`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ademamix.cli.arguments import Commands, UsageError
from ademamix.cli.run_options import lab_errors_explained

if TYPE_CHECKING:
    from ademamix.lab.runs.kept import KeptRun

DESCRIPTION = """\
List the runs that are kept in DIR/runs: what they train, how they ended or how far they are, their size, and how long
ago they last changed. The ones that changed last come first.
"""

EPILOG = """\
examples:
  ademamix runs
  ademamix runs --json
  ademamix runs --remove 0123456789abcdef 89ab
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "runs", help="list the runs that are kept, and remove some", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("--out", type=Path, default="out", metavar="DIR", help="where results are kept (default: out)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="print a JSON list, with the whole configs (default: off)")
    what.add_argument(
        "--remove",
        nargs="+",
        metavar="KEY",
        help="remove the runs whose keys begin with these; runs in use are refused (default: remove nothing)",
    )
    parser.add_argument("--yes", action="store_true", help="remove without asking (default: ask)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ademamix.lab.runs import kept
    from ademamix.output import tables

    with lab_errors_explained():
        root = options.out / "runs"
        runs = kept.kept_runs(root)
        if options.remove:
            return _remove(_named(runs, options.remove, root), asks=not options.yes)
    if options.json:
        print(json.dumps([run.as_json() for run in runs], indent=1))
    elif runs:
        total = f"{len(runs)} run{'s' if len(runs) > 1 else ''} in {root}, {kept.size(sum(run.size for run in runs))}"
        print(f"{kept.table(runs, tables.width_of_output())}\n\n{total}")
    else:
        print(f"There are no runs in {root}.")
    return 0


def _named(runs: Sequence[KeptRun], names: Sequence[str], root: Path) -> list[KeptRun]:
    """Return the runs whose keys begin with these names, exactly one for each."""
    found = {}
    for name in names:
        fitting = [run for run in runs if run.key.startswith(name)]
        if len(fitting) != 1:
            how_many = f"are {len(fitting)} runs" if fitting else "is no run"
            raise UsageError(f"there {how_many} in {str(root)!r} whose key begins with {name!r}: see `ademamix runs`")
        found[fitting[0].key] = fitting[0]
    return list(found.values())


def _remove(runs: Sequence[KeptRun], *, asks: bool) -> int:
    from ademamix.lab.runs import kept
    from ademamix.output import tables

    if used := [run.key for run in runs if run.in_use]:
        raise UsageError(f"in use, so nothing is removed: {', '.join(used)}. Stop the process that trains them first")
    freed = kept.size(sum(run.size for run in runs))
    if asks:
        if not sys.stdin.isatty():
            raise UsageError(
                "--remove asks before it removes anything, and nobody is there to answer: give --yes as well"
            )
        print(kept.table(runs, tables.width_of_output()))
        if not _agreed(f"Remove {'this run' if len(runs) == 1 else f'these {len(runs)} runs'}, {freed}? [y/N] "):
            print("Nothing was removed.")
            return 0
    for run in runs:
        kept.remove(run)
    print(f"Removed {', '.join(run.key for run in runs)}: {freed}.")
    return 0


def _agreed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
