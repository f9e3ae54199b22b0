"""Optax's own tests pass with our optimizer; in a process of their own, since they change settings of JAX."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def test_the_tests_that_optax_has_for_its_optimizers():
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # they compile hundreds of small programs, and run each a few times
    }
    suites = str(Path(__file__).with_name("optax_suites.py"))
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore:Specifying a key:UserWarning"]
    command = [sys.executable, "-m", "pytest", suites, *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-3000:]
    summary = done.stdout.splitlines()[-1]
    assert int(re.search(r"(\d+) passed", summary)[1]) > 130
    assert "skipped" not in summary
