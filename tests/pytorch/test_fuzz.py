"""No input ends the process: see fuzz_inputs.py."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

CASES = 2_600


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
def test_no_input_ends_the_process(part):
    command = [sys.executable, Path(__file__).with_name("fuzz_inputs.py"), str(part * CASES), str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True)
    begun = done.stdout.split()
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        pytest.fail(f"case {begun[-1]} ended the process by {name}: `python fuzz_inputs.py {begun[-1]} 1`")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(begun) == CASES
