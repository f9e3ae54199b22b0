"""Results that nobody trained, and a reader of pages, for the tests of the report."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from ademamix.lab.report.charts import Grid, Lines, Series, plain
from ademamix.lab.report.landscape import Landscape
from ademamix.lab.reproduction.claims import FAILS, HOLDS, OPEN, Verdict

NAN = float("nan")


def claim(text: str, verdict: Verdict = HOLDS, **fields: Any) -> dict[str, Any]:
    numbers = {"AdEMAMix": [1.51, 1.52, None], "AdamW": [1.55, 1.56, 1.57], "0.5": [0.5]}
    return {
        "claim": text,
        "source": "",
        "verdict": verdict,
        "reason": "AdEMAMix is 0.0400 below AdamW.",
        "numbers": numbers,
        "seeds": [1, 2, 3],
        **fields,
    }


def losses(title: str = "Losses", points: int = 40, lowest: float = 1.5) -> Lines:
    """A chart of two runs, of which the second diverged halfway."""
    steps = [500.0 * (step + 1) for step in range(points)]
    falling = [lowest + 2 / (step + 1) for step in range(points)]
    diverged = [loss if step < points // 2 else NAN for step, loss in enumerate(falling)]
    series = [Series("AdamW: 1.5500", steps, falling, "adamw"), Series("AdEMAMix", steps, diverged, "ademamix")]
    return Lines(title, "step", "validation loss", series, y_range=(1.4, 2.6), levels={"AdamW": 1.55})


GRID = Grid("A grid", "alpha", "beta3", [2.0, 4.0], [0.99, 0.999], [[1.6, 1.5], [NAN, 1.55]], level=1.52)
POINTS = Lines("Points", "x", r"$\beta_3$", [Series("all", [1.0, 10.0], [1e-6, 1.0])], joined=False, logarithmic="xy")
PATH = Landscape(
    title="A path",
    x_label="$x_1$",
    y_label="$x_2$",
    series=[Series("Adam", [0.0, 0.5, 1.0], [0.0, 0.5, 1.0], "adamw")],
    function=lambda x, y: x + y,
    start=(0.0, 0.0),
    minimum=(1.0, 1.0),
    x_range=(-1.0, 2.0),
    y_range=(-1.0, 2.0),
)


TRIED = [
    {"lr": 0.01, "beta2": 0.99, "validation_loss": None},
    {"lr": 0.02, "beta2": None, "validation_loss": 1.6},
    {"lr": 0.04, "beta2": None, "validation_loss": 1.55},
]


def panel(**fields: Any) -> dict[str, Any]:
    run = {"model": {"kind": "gpt", "width": 32}, "optimizer": {"name": "adamw", "lr": 0.01}, "steps": 20_000}
    other = {**run, "optimizer": {"name": "ademamix", "lr": 0.004}}
    return {
        "title": "A panel",
        "warning": "",
        "claims": [claim("It is lower", source="a sentence of the paper"), claim("It is not", FAILS), claim("?", OPEN)],
        "caption": "Settings in words.",
        "charts": [plain(chart) for chart in (losses(), GRID, POINTS, PATH)],
        "tables": [{"header": ["", "loss"], "rows": [["AdamW", "1.55"]] * 3, "title": "A table"}],
        "arms": {"AdamW": {"run": run, "keys": {"1": "a" * 16}}, "AdEMAMix": {"run": other, "keys": {"1": "b" * 16}}},
        "searched": {"AdamW": {"losses": TRIED, "settled": True}},
        **fields,
    }


def write_panels(out: Path, recipe: str = "lm-comparison", scale: str = "laptop", **fields: Any) -> Path:
    """Write what a recipe would leave; return the file."""
    about = {"recipe": recipe, "scale": scale, "labels": ["llm_results"], "ademamix": "0.1.0", "complete": True}
    path = out / recipe / scale / "panels.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**about, "panels": [panel()], **fields}, allow_nan=False))
    return path


@dataclass
class Read(HTMLParser):
    """A page as a test sees it: its elements, its text, and the data of its figures."""

    html: str
    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    text: str = ""
    data: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self._inside: list[str] = []
        self.feed(self.html)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self.text += " "
        if tag in ("script", "style"):
            self._inside.append(dict(attrs).get("id") or tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.text += data
        elif self._inside[-1] == "drawings":
            self.data += data

    def all(self, tag: str = "", css_class: str = "") -> list[dict[str, str]]:
        """Return the attributes of the elements of a kind."""
        return [
            attributes
            for name, attributes in self.elements
            if name == (tag or name) and (not css_class or css_class in attributes.get("class", "").split())
        ]

    @property
    def drawings(self) -> dict[str, Any]:
        return json.loads(self.data)
