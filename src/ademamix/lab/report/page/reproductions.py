"""The results of `ademamix reproduce` as sections of a page, in the order of the list of recipes."""

from __future__ import annotations

import ast
import importlib.resources
from collections.abc import Sequence
from pathlib import Path

from ademamix.lab.recipes import OF_THE_PAPER, RECIPES, origin
from ademamix.lab.report.page.content import Found, Section, read_found

PANELS = "panels.json"


def files(results: Path, scale: str) -> list[Path]:
    """Return the files that a page of these results is made of."""
    paths = {path.parent.parent.name: path for path in results.glob(f"*/{scale}/{PANELS}")}
    known = [paths.pop(name) for name in RECIPES if name in paths]
    return known + [paths[name] for name in sorted(paths)]  # those of another version, last


def sections(results: Path, scale: str) -> list[Section]:
    """Return what is found under `results` at a scale, a section for each recipe."""
    return [_section(read_found(path)) for path in files(results, scale)]


def missing(found: Sequence[Section]) -> list[str]:
    """Return the recipes of the paper that have no section."""
    names = {section.name for section in found}
    return [name for name in OF_THE_PAPER if name not in names]


def _section(found: Found) -> Section:
    recipe = RECIPES.get(found.recipe)
    return Section(
        name=found.recipe,
        summary=recipe.summary if recipe else "a recipe that this version does not know",
        panels=found.panels,
        commands=[f"ademamix reproduce {found.recipe} --scale {found.scale}"],
        source=found.source,
        origin=origin(found.labels, found.source),
        notes=_notes(found.recipe) if recipe else "",
        version=found.ademamix,
        complete=found.complete,
    )


def _notes(recipe: str) -> str:
    """Return what the module of a recipe says after its first line; it is not imported, since that loads torch."""
    module = importlib.resources.files("ademamix.lab.recipes") / f"{recipe.replace('-', '_')}.py"
    said = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return said.partition("\n")[2].strip()
