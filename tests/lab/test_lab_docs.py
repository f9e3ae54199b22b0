"""The tables of docs/lab.md against the registries that they describe."""

from __future__ import annotations

from pathlib import Path

from ademamix.lab.presets import PRESETS

LAB = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()


def _table(section: str) -> list[list[str]]:
    """Return the rows of the first table of a section, without its header."""
    lines = LAB.split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines()
    _header, _rule, *rows = (line for line in lines if line.startswith("|"))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_every_kind_of_model_has_a_row_with_its_presets() -> None:
    kinds = dict.fromkeys(preset.kind for preset in PRESETS.values())
    assert [names for names, _ in _table("Models")] == [
        ", ".join(f"`{name}`" for name, preset in PRESETS.items() if preset.kind == kind) for kind in kinds
    ]
