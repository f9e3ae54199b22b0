"""Parameters sharded by rows over 8 devices: the same bits as on one, state sharded alike, no communication."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("slow_dtype", [None, "bfloat16", "int16"])
@pytest.mark.parametrize("b1", [0.9, 0.0])
def test_sharded_like_the_parameters(slow_dtype, b1):
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "error", Path(__file__).with_name("sharded_run.py"), str(slow_dtype), str(b1)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "same bits, no collectives" in done.stdout
