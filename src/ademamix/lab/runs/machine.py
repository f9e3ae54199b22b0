"""The machine that this runs on; loads no other module of the lab."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Return the name of its CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (names or [platform.processor() or platform.machine()])[0]
