"""`ademamix reproduce`, as a user calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ademamix.cli import main


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("lm-comparision", "there is no recipe 'lm-comparision'; did you mean 'lm-comparison'?"),
        ("x", "there is no recipe 'x':"),
    ],
)
def test_a_recipe_that_does_not_exist(recipe: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "lion", recipe]) == 2
    assert capsys.readouterr().err == f"ademamix: error: {expected} `ademamix reproduce --list` lists them\n"


def test_output_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ademamix", "reproduce", "beta3-schedule", "--out", str(tmp_path)]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("ademamix: error: cannot read or write ")
    assert "No space left on device" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
