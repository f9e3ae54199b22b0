"""One HTML page for results of the paper or for any runs: `ademamix report`."""

from __future__ import annotations

from pathlib import Path

from ademamix.lab.report.page.sources import Results
from ademamix.lab.report.page.watch import save


def write(results: Path, scale: str, destination: Path) -> None:
    """Write the page of what `ademamix reproduce` left in the folder `results` at a scale.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:  # doctest: +ELLIPSIS
    ...     write(Path(out), "laptop", Path(out) / "report.html")
    Traceback (most recent call last):
    ademamix.lab.runs.record.RunError: there are no results at laptop scale in ...
    """
    save(Results(results, scale), destination)
