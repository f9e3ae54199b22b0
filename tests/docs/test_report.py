"""The committed page of results: its size, and the counts that other pages repeat."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "report" / "index.html"
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
VERDICTS = ("holds", "fails", "open")


def test_it_is_small_enough_to_send() -> None:
    assert PAGE.stat().st_size < 5_000_000


def test_counts_are_those_of_its_claims() -> None:
    """Of the paper's claims; the list has those of other sources and ours as well."""
    page = PAGE.read_text(encoding="utf-8")
    tiles = {verdict: int(count) for verdict, count in re.findall(r'class="tile (\w+)".*?<b>(\d+)</b>', page)}
    assert tuple(tiles) == VERDICTS
    listed = Counter(re.findall(r'<tr data-verdict="(\w+)"', page))
    assert all(0 < tiles[verdict] <= listed[verdict] for verdict in VERDICTS)
    total = sum(tiles.values())
    assert f"{total} of its claims were checked" in page
    holds, fails, undecided = tiles.values()
    said = f"checks {total} claims of the paper by the numbers: {holds} hold, {fails} do not hold here, {undecided} are"
    assert f"{said} not conclusive." in README
