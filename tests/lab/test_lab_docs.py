"""The tables that pages take from the lists of the lab."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import get_args

from ademamix.lab.config_mistakes import KINDS
from ademamix.lab.models import PRESETS
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.probes import Probe
from ademamix.lab.recipes import RECIPES

DOCS = Path(__file__).parents[2] / "docs"


def _extension() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", DOCS / "extensions" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLES: dict[str, Callable[[], str]] = _extension().TABLES


def _rows(name: str) -> list[list[str]]:
    """Return the cells of a table, without its header."""
    _header, _rule, *rows = TABLES[f"<!-- the table of {name} -->"]().splitlines()
    return [[cell.strip(" `") for cell in row.strip("|").split(" | ")] for row in rows]


def test_each_table_stands_on_one_page() -> None:
    pages = [page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")]
    for mark in TABLES:
        assert sum(page.count(f"\n{mark}\n") for page in pages) == 1


def test_all_that_a_config_or_a_command_can_name_has_a_row() -> None:
    assert [row[0] for row in _rows("recipes")] == list(RECIPES)
    assert [row[0] for row in _rows("optimizers")] == list(OPTIMIZERS)
    assert [name.strip("`") for row in _rows("models") for name in row[0].split(", ")] == list(PRESETS)
    assert [KINDS[row[0]] for row in _rows("probes")] == list(get_args(get_args(Probe)[0]))


def test_rows_are_whole_and_say_what_a_part_takes() -> None:
    for name in ("recipes", "optimizers", "models", "probes"):
        rows = _rows(name)
        assert len({len(row) for row in rows}) == 1
        assert all(cell for row in rows for cell in row)
    settings = {kind: said for kind, _, said in _rows("probes")}
    assert settings["follow-training-batch"] == "step`, `every=1`, `until=None"
