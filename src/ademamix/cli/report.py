"""`ademamix report`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ademamix.cli.arguments import Commands, UsageError, file_to_write
from ademamix.cli.run_options import add_scale, lab_errors_explained

if TYPE_CHECKING:
    from ademamix.lab.report.page.sources import Source

SUMMARY = "write a page to read in a browser: the paper's claims and what was found, or any runs"
DESCRIPTION = """\
Write one HTML page with all results that `ademamix reproduce` left in DIR at a scale: what the paper claims, what was
found here, and for each result its figures, claims, numbers, settings and command. The file needs no network and no
other file. Where there are no results but runs, the page has the curves of all runs.
"""

EPILOG = """\
examples:
  ademamix report
  ademamix report --scale smoke --file smoke.html
  ademamix report --watch
  ademamix report --runs 0123456789abcdef 89ab
  ademamix report --runs out/compare/*
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser("report", help=SUMMARY, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--out", type=Path, default="out", metavar="DIR", help="where results are kept (default: out)")
    add_scale(parser)
    parser.add_argument(
        "--runs",
        nargs="*",
        metavar="RUN",
        help="show runs in place of results: keys, or their beginnings, or folders of runs or of comparisons; without "
        "any, all runs (default: results)",
    )
    parser.add_argument(
        "--file", type=file_to_write, metavar="FILE", help="the page to write (default: DIR/report.html)"
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="write the page again whenever results or runs change, until Ctrl-C; the page reloads itself "
        "(default: write it once)",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if not options.out.is_dir():
        raise UsageError(f"there is no folder {str(options.out)!r}: --out says where results are kept")
    destination = options.file or file_to_write(str(options.out / "report.html"))
    with lab_errors_explained():
        from ademamix.lab.report.page.watch import save, watch

        source = _source(options)
        if not options.watch:
            save(source, destination)
            print(f"page: {destination}")
            return 0
        print(f"Watching {options.out}; Ctrl-C ends this. page: {destination}", flush=True)
        watch(source, destination, lambda: print("The page is up to date.", flush=True))
    return 0


def _source(options: argparse.Namespace) -> Source:
    from ademamix.lab.report.page.sources import Results, Trained, folders_of_runs

    if options.runs is not None:
        return Trained(options.out, options.runs)
    results = Results(options.out, options.scale, live=options.watch)
    if not options.watch and not results.files() and folders_of_runs(options.out):
        return Trained(options.out)
    return results
