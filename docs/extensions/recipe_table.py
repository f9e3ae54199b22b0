"""The table of recipes, made from the list of them: it takes the place of a mark in a page."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from ademamix.lab.recipes import RECIPES

MARK = "<!-- the table of recipes -->"


def table() -> str:
    """Return it in Markdown."""
    header = "| recipe | what it shows | in the paper, or elsewhere | at laptop scale |\n|---|---|---|---|"
    rows = [f"| `{name}` | {row.summary} | {row.origin} | {row.laptop} |" for name, row in RECIPES.items()]
    return "\n".join([header, *rows])


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Put it into a page that has the mark."""
    source[0] = source[0].replace(MARK, table())


def setup(app: Sphinx) -> dict[str, Any]:
    """Register it."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True}
