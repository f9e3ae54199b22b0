"""Programs in processes of their own, where the host appears as 8 devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_on_8_devices(program: str, *arguments: str) -> str:
    """Run a program of this folder, and return what it prints."""
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-W", "error", Path(__file__).with_name(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
