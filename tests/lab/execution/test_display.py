"""What is shown of several runs while they are carried out."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ademamix.lab.execution import display
from ademamix.lab.execution.display import Display, total
from ademamix.lab.execution.options import Progress
from ademamix.lab.execution.runner import Status
from ademamix.lab.runs.record import Result
from lab_runs import TINY, changed

LONG = changed(TINY, steps=10_000)
HALF = Progress(step=5_000, loss=2.5, validation_loss=2.6, steps_a_second=10.0, seconds_left=600.0)
RESULT = Result(10_000, validation_loss=1.25, accuracy=None, seconds=1.0, parameters=1, state_bytes=1)
NAME = "AdEMAMix lr=0.004 state_storage=compact, seed 12"


def _statuses() -> dict[str, Status]:
    return {
        "done": Status(LONG, HALF, result=RESULT),
        NAME: Status(LONG, HALF),
        "waiting for its turn": Status(LONG),
    }


def test_the_total_counts_what_has_not_begun() -> None:
    statuses = {NAME: Status(LONG, HALF), "waiting for its turn": Status(LONG), "done": Status(LONG, result=RESULT)}
    assert total(statuses, processes=1) == "1 of 3 runs done, about 30:00 left in all"
    assert total(statuses, processes=2) == "1 of 3 runs done, about 20:00 left in all"  # the longest takes that
    assert total({"one": Status(LONG)}, processes=1) == "0 of 1 runs done"
    assert total({"one": Status(LONG, HALF, result=RESULT)}, processes=1) == "1 of 1 runs done"


def test_where_there_is_no_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    statuses = _statuses()
    statuses["done"].result = None
    statuses[NAME].notices.append("beta3 outlives the run")
    with Display("three runs", processes=2) as shown:
        shown(statuses)
        statuses["done"].result = RESULT
        shown(statuses)
    assert capsys.readouterr().err.splitlines() == [
        "three runs",
        f"{NAME}: beta3 outlives the run",
        "done: step 5,000 of 10,000, loss 2.500, validation 2.600, 10 steps/s, 10:00 left",
        f"{NAME}: step 5,000 of 10,000, loss 2.500, validation 2.600, 10 steps/s, 10:00 left",
        "0 of 3 runs done, about 20:00 left in all",
        "done: finished, validation 1.2500",
    ]


@pytest.mark.parametrize("width", [160, 80, 40])
def test_nothing_of_a_run_is_cut(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    console.print(display._row(NAME, Status(LONG, HALF), len(NAME), width))
    assert isinstance(console.file, io.StringIO)
    words = " ".join(console.file.getvalue().split())
    assert NAME in words
    for part in ("5000/10000", "loss 2.500,", "validation 2.600,", "10 steps/s,", "10:00 left"):
        assert part in words
    assert ("━" in words) == (width == 160)
