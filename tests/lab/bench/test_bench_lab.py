from __future__ import annotations

import pytest

from ademamix.cli import main
from ademamix.lab.bench import training_loop


def test_the_command_prints_the_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--lab", "--quick"]) == 0
    assert "ratio" in capsys.readouterr().out


def test_the_table_says_whether_the_target_is_met() -> None:
    met = training_loop.table({"lab": 0.0204, "bare": 0.02, "ratio": 1.02})
    missed = training_loop.table({"lab": 0.022, "bare": 0.02, "ratio": 1.1})
    assert "20.4 ms" in met[0]
    assert "ratio 1.020 (at most 1.05: met)" in met[1]
    assert "not met" in missed[1]
