"""The C++ core, or the reason why it is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

core: ModuleType | None
try:
    core = importlib.import_module("ademamix._core")
    missing = ""
except ImportError as error:
    core = None
    missing = (
        f"the C++ core of ademamix is not there ({error}). It is built when the package is installed and a C++17 "
        "compiler is found: install one (g++ or clang++) and run "
        "`pip install --force-reinstall --no-deps --no-cache-dir ademamix`"
    )
