"""The recipe lm-comparison: what it trains at each scale, and what it says and draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from ademamix.cli import main
from ademamix.lab.recipes.lm_comparison import plan
from ademamix.lab.reproduction.engine import reproduce
from ademamix.lab.reproduction.panel import Panel
from ademamix.lab.reproduction.scale import SCALES
from lab_here import LabHere

KEYS = {
    "smoke": {
        "AdamW, 20 steps": "86d6ea026d1d14da",
        "AdamW, 40 steps": "2511cf078f74981a",
        "AdEMAMix, 20 steps": "8fa822a6d7bdb3d7",
    },
    "laptop": {
        "AdamW, 20,000 steps": "61e0d12054fefbf5",
        "AdamW, 40,000 steps": "bbf7a2b0fbb1303c",
        "AdEMAMix, 20,000 steps": "2ef27f4334033c45",
        "AdamW, 10,000 steps": "bf92119973a7e168",
        "AdamW, 20,000 steps (second panel)": "f2a4d3dace7e110d",
        "AdEMAMix, 10,000 steps": "30bcfa237d622c18",
    },
}
"""Of seed 1, before the search: days of training are kept under such keys."""


def panels(scale: str) -> list[Panel]:
    return list(plan(SCALES[scale]))  # it uses no outcome


@pytest.mark.parametrize("scale", KEYS)
def test_runs_have_the_keys_that_they_always_had(scale: str) -> None:
    found = {}
    for panel in panels(scale):
        for name, run in panel.arms.items():
            label = f"{name} (second panel)" if name in found else name
            found[label] = run.model_copy(update={"seed": 1}).key
    assert found == KEYS[scale]


def test_adamw_is_tuned_at_every_length() -> None:
    for scale in ("smoke", "laptop"):
        for panel in panels(scale):
            assert list(panel.tune) == list(panel.arms)
            adamw, longer, ademamix = panel.arms.values()
            assert longer.steps == 2 * adamw.steps == 2 * ademamix.steps
            assert panel.baseline == list(panel.arms)[1]


def test_paper_scale_has_the_papers_lengths() -> None:
    lengths = [[run.steps for run in panel.arms.values()] for panel in panels("paper")]
    assert lengths == [[256_000, 400_000, 500_000, 256_000]] * 2 + [[770_000, 1_500_000, 770_000]]


def test_command_finds_the_runs_that_are_there(
    lab: LabHere, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    list(reproduce("lm-comparison", SCALES["smoke"], tmp_path, lab))
    assert main(["reproduce", "lm-comparison", "--scale", "smoke", "--out", str(lab.options.out)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""  # nothing is trained, so there is no progress to show
    for part in ("they show nothing", "AdamW, 20 steps", "AdamW, 40 steps", "AdEMAMix, 20 steps", "best: lr="):
        assert part in shown.out
    folder = lab.options.out / "lm-comparison" / "smoke"
    for name in ("lm-comparison.png", "verdict.json"):
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()
