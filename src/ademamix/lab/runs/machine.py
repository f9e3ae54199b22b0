"""The machine that this runs on; loads no other module of the lab."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Return the name of its CPU."""
    return _info("model name") or platform.processor() or platform.machine()


def processor_model() -> str:
    """Return the numbers of an x86 CPU, which tell generations of one name apart; empty if they are not known.

    >>> processor_model()  # doctest: +SKIP
    'family 26, model 2'
    """
    family, model = _info("cpu family"), _info("model")
    return f"family {family}, model {model}" if family and model else ""


def _info(key: str) -> str:
    """Return an entry of the first CPU in /proc/cpuinfo, empty if there is none."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    entries = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in entries if name.strip() == key), "")
