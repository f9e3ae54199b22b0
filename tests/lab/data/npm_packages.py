"""Packages of npm's form, and a program `npm` that has them."""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest


def packed(path: Path, contents: Mapping[str, bytes]) -> Path:
    """Write files by name as a package."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def install_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    """Put a program `npm` first on the path, with an action in Python; `sys.argv` has what it was asked."""
    folder.mkdir()
    program = folder / "npm"
    program.write_text(f"#!{sys.executable}\nimport shutil, sys\n{action}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
