"""Tables made from the lists of the lab: each takes the place of a mark in a page."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, get_args

from ademamix.lab.models import PRESETS
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.probes import Probe
from ademamix.lab.recipes import RECIPES

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from sphinx.application import Sphinx


def recipes() -> str:
    """Return the table of recipes in Markdown."""
    rows = [[f"`{name}`", row.summary, row.origin, row.laptop] for name, row in RECIPES.items()]
    return _table(["recipe", "what it shows", "in the paper, or elsewhere", "at laptop scale"], rows)


def optimizers() -> str:
    """Return the table of optimizers."""
    rows = []
    for name, row in OPTIMIZERS.items():
        start = ", ".join(f"{setting}={value}" for setting, value in {"lr": row.lr, **row.settings}.items())
        rows.append([f"`{name}`", row.display, row.summary, f"`{start}`"])
    return _table(["name", "in reports", "what it is", "starts from"], rows)


def models() -> str:
    """Return the table of models, with a row for each kind."""
    rows = []
    for first in {preset.kind: preset for preset in PRESETS.values()}.values():
        names = [f"`{name}`" for name, preset in PRESETS.items() if preset.kind == first.kind]
        rows.append([", ".join(names), _said(type(first)), _settings(type(first).model_fields)])
    return _table(["names", "what", "settings"], rows)


def probes() -> str:
    """Return the table of probes."""
    kinds = {get_args(probe.model_fields["kind"].annotation)[0]: probe for probe in get_args(get_args(Probe)[0])}
    rows = [[f"`{kind}`", _said(probe), _settings(probe.model_fields)] for kind, probe in kinds.items()]
    return _table(["kind", "what it does", "settings"], rows)


def _said(part: type) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(part) or "").splitlines()[0]


def _settings(fields: dict[str, FieldInfo]) -> str:
    named = {name: field for name, field in fields.items() if name != "kind"}
    return ", ".join(
        f"`{name}`" if field.is_required() else f"`{name}={field.default}`" for name, field in named.items()
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


TABLES = {f"<!-- the table of {table.__name__} -->": table for table in (recipes, optimizers, models, probes)}
"""By the mark that each replaces."""


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Put tables into a page that has their marks."""
    for mark, table in TABLES.items():
        if mark in source[0]:
            source[0] = source[0].replace(mark, table())


def setup(app: Sphinx) -> dict[str, Any]:
    """Register it."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True}
