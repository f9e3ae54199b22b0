"""Parameters sharded over 8 devices: the same bits as on one, state sharded alike, no communication."""

from __future__ import annotations

import pytest

from host_devices import run_on_8_devices


@pytest.mark.parametrize("slow_dtype", [None, "bfloat16", "int16"])
@pytest.mark.parametrize("b1", [0.9, 0.0])
def test_sharded_like_the_parameters(slow_dtype, b1):
    assert "same bits, no collectives" in run_on_8_devices("sharded_run.py", str(slow_dtype), str(b1))


@pytest.mark.parametrize("b1", [0.9, 0.0])
def test_fused_steps_on_sharded_arrays(b1):
    assert "same bits, in place, no collectives" in run_on_8_devices("fused_run.py", str(b1))
