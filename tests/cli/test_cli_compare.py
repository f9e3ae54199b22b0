"""`ademamix compare`, as a user calls it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ademamix.cli import main
from ademamix.lab import tuning
from lab_runs import SMALL

pytestmark = pytest.mark.usefixtures("quick_workers")


def test_compare_trains_shows_and_remembers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "ROUNDS", 2)
    monkeypatch.setenv("COLUMNS", "160")  # so that no cell is wrapped
    command = ["compare", *SMALL, "--steps", "4", "--out", str(tmp_path), "--tune", "3", "--seeds", "3"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    names = ["AdamW in 4 steps", "AdamW in 8 steps", "AdEMAMix in 4 steps"]
    for part in (*(f"{name}, best: lr=" for name in names), "ms per step", "bytes per parameter", "one seed"):
        assert part in shown
    (folder,) = (tmp_path / "compare").iterdir()
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((folder / "sweep.json").read_text())
    assert {name: {row["beta2"] for row in record["losses"]} for name, record in found.items()} == {
        name: {0.99 if name.startswith("AdamW") else 0.999} for name in names
    }
    report = (folder / "report.txt").read_text()
    assert re.match(r"AdEMAMix in 4 steps ended \d\.\d{4} (below|above) AdamW in 8 steps ", report)
    assert "AdamW in 8 steps, best: lr=" in report
    assert "ms per step" in report
    assert str(folder / "report.txt") in shown
    assert main(command) == 0
    again = capsys.readouterr()
    assert "Trained before" not in shown
    note = again.out[again.out.index("Trained before") : again.out.index("picture: ")]
    assert again.out.replace(note, "") == shown
    assert main(["compare", *SMALL, "--steps", "4", "--out", str(tmp_path), "--optimizers", "adamw"]) == 0
    assert len(list((tmp_path / "compare").iterdir())) == 2


def test_kept_results_are_shown_without_a_framework(tmp_path: Path) -> None:
    command = ["compare", *SMALL, "--steps", "4", "--out", str(tmp_path)]
    assert main(command) == 0
    code = """
        import sys
        from ademamix.cli import main

        assert main(sys.argv[1:]) == 0
        heavy = {"torch", "transformers", "datasets", "matplotlib", "rich"} & set(sys.modules)
        assert not heavy, heavy
    """
    arguments = [sys.executable, "-c", textwrap.dedent(code), *command]
    shown = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "Trained before" in shown
    assert "compare.png" in shown


def test_results_of_other_data_are_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three " * 200)
    run = [*SMALL, "--data", str(text), "--steps", "2", "--out", str(tmp_path / "out")]
    commands = [["train", "--threads", "1", *run], ["compare", *run]]
    for command in commands:
        assert main(command) == 0
    text.write_text("four five six " * 200)
    for command in commands:
        capsys.readouterr()
        assert main(command) == 2
        assert "has changed since the run in" in capsys.readouterr().err
    text.unlink()
    for command in commands:
        assert main(command) == 0
        assert "rained before" in capsys.readouterr().out
