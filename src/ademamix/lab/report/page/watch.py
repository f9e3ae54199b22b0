"""A page that is written again whenever its source changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ademamix.lab.execution.interrupt import asked_to_stop
from ademamix.lab.report.page.layout import html
from ademamix.lab.report.page.sources import Source
from ademamix.output.atomic import write_atomically

SECONDS = 5
"""Between two looks at the source, and between two reloads of the page."""


def save(source: Source, destination: Path, reload: int = 0) -> None:
    """Write the page; it appears whole or not at all."""
    write_atomically(destination, html(source.page(), reload))


def watch(source: Source, destination: Path, on_write: Callable[[], None]) -> None:
    """Write the page whenever the source has changed, until Ctrl-C; then once more, as a page that stays as it is."""
    before: dict[Path, int] = {}
    with asked_to_stop() as stop:
        while not stop.is_set():
            now = {path: path.stat().st_mtime_ns for path in source.files() if path.exists()}
            if now and now != before:
                save(source, destination, reload=SECONDS)
                on_write()
                before = now
            stop.wait(SECONDS)
    if before and source.files():
        save(source, destination)
