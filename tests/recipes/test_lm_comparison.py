"""The recipe lm-comparison: what it trains at each scale, and what it says and draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ademamix.cli import main
from ademamix.lab.config import Run
from ademamix.lab.recipes import lm_comparison
from ademamix.lab.recipes.lm_comparison import settings
from ademamix.lab.runs.execution import Options
from ademamix.lab.runs.laboratory import Lab
from ademamix.lab.runs.record import Result
from lab_runs import result


def test_smoke_trains_tunes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "lm-comparison", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for part in ("they show nothing", "AdamW, 20 steps", "AdamW, 40 steps", "AdEMAMix, 20 steps", "after 2 T"):
        assert part in shown
    folder = tmp_path / "lm-comparison" / "smoke"
    assert (folder / "lm-comparison.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "lm-comparison.svg").read_text().startswith("<?xml")
    assert (folder / "report.txt").read_text() == shown


def test_panels_are_reported_as_they_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (replace(setting, rates=0, seeds=(seed,)) for seed in (1, 2) for setting in settings("smoke"))
    monkeypatch.setattr(lm_comparison, "settings", lambda scale: [first, second])
    carried_out = []

    class Watched(Lab):
        def carry_out(self, runs: Mapping[str, Run], title: str) -> dict[str, Result]:
            carried_out.append(title)
            return super().carry_out(runs, title)

    parts = lm_comparison.reproduce(tmp_path, "laptop", Watched(Options(tmp_path)))
    assert "seed 1" in next(parts)
    assert len(carried_out) == 1
    assert any("seed 2" in part for part in parts)


def test_adamw_is_tuned_at_every_length(tmp_path: Path) -> None:
    (setting,) = settings("smoke")
    tried: list[Run] = []

    class Pretending(Lab):
        def carry_out(self, runs: Mapping[str, Run], title: str) -> dict[str, Result]:
            tried.extend(runs.values())
            return {name: result(abs(math.log(run.optimizer.lr / 0.01))) for name, run in runs.items()}

    found, _ = lm_comparison._tuned(
        replace(setting, rounds=8), lm_comparison._runs(setting), Pretending(Options(tmp_path))
    )
    assert list(found) == ["AdamW, 20 steps", "AdamW, 40 steps", "AdEMAMix, 20 steps"]
    searched = {(run.optimizer.name, run.steps): set[float]() for run in tried}
    for run in tried:
        searched[run.optimizer.name, run.steps].add(run.optimizer.settings.get("betas", [0.9, 0.999])[1])
    assert searched == {
        ("adamw", 20): {0.99, 0.999, 0.9999},
        ("adamw", 40): {0.99, 0.999, 0.9999},
        ("ademamix", 20): {0.99, 0.999, 0.9999},
    }


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
    assert panels[0].base.model != panels[1].base.model
    for panel in panels:
        assert panel.base.schedule.kind == "cosine"
        assert panel.longer == (2 * panel.base.steps,)
        assert 0 not in panel.seeds
        assert len(panel.seeds) == 3
        assert panel.rates >= 3
