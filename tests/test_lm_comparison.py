from __future__ import annotations

from pathlib import Path

import pytest

from ademamix.cli import main
from ademamix.lab.recipes.lm_comparison import settings


def test_smoke_trains_tunes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "lm-comparison", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for part in ("they show nothing", "AdamW, 20 steps", "AdamW, 40 steps", "AdEMAMix, 20 steps", "after 2 T"):
        assert part in shown
    assert (tmp_path / "lm-comparison" / "lm-comparison.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "lm-comparison" / "lm-comparison.svg").read_text().startswith("<?xml")


def test_paper_scale_is_the_papers() -> None:
    panels = settings("paper")
    assert [panel.base.model.width for panel in panels] == [768, 1024, 2048]
    assert [panel.base.batch for panel in panels] == [64, 96, 128]
    assert [panel.base.clip for panel in panels] == [0.5, 0.1, 0.1]
    assert [panel.adamw.lr for panel in panels] == [1e-3, 5e-4, 5e-4]
    assert [panel.ademamix.lr for panel in panels] == [1e-3, 5e-4, 3e-4]
    assert [panel.ademamix.settings["alpha"] for panel in panels] == [8.0, 8.0, 5.0]
    assert all(panel.base.schedule.warmup == 3000 and panel.base.schedule.final == 1e-5 for panel in panels)


def test_laptop_scale_tunes_on_another_seed_than_it_reports() -> None:
    panels = settings("laptop")
    assert [panel.base.schedule.kind for panel in panels] == ["constant", "cosine"]
    for panel in panels:
        assert panel.base.steps == 10_000
        assert panel.longer == (20_000,)
        assert 0 not in panel.seeds
        assert len(panel.seeds) == 3
        assert panel.rates >= 3
