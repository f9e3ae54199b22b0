"""The documentation site, built once for all tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder of the site, as `make docs` builds it: a warning is an error. Workers share one."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "site"
    with FileLock(f"{folder}.lock"):
        if not (folder / "index.html").exists():
            command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(folder)]
            built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert (built.returncode, built.stderr) == (0, "")
    return folder
