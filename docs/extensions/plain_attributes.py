"""Docstrings of attributes as they are; of the first line, Napoleon would take what precedes a colon for a type."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def begin_with_a_comment(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Give Napoleon a first line without a colon, which shows nothing."""
    if what in ("attribute", "property", "data"):
        lines[:0] = ["..", ""]


def setup(app: Sphinx) -> dict[str, bool]:
    """Come before Napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", begin_with_a_comment, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
