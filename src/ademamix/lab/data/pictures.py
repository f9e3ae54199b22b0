"""Where images come from: scikit-learn's digits, CIFAR-10, folders, and the Hugging Face hub."""

from __future__ import annotations

import codecs
import hashlib
import pickle
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ademamix.lab.data import DataError
from ademamix.lab.data.cifar10 import cifar10_files
from ademamix.lab.data.hub import cannot_be_had

SUFFIXES = (".png", ".jpg", ".jpeg")
VALIDATION_NAMES = ("validation", "val", "valid", "test")
IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "fine_label", "labels")
CIFAR_PIXELS = 3 * 32 * 32
KEPT_BYTES = 1 << 29
"""A split that takes no more memory than this is decoded once; a larger one is decoded batch by batch."""
OPENED_AT_ONCE = 16
"""Images that a thread opens before it asks for more: to hand over a small one takes longer than to open it."""
SAMPLED = 256
"""How many images of a split, evenly spaced, are used to estimate the memory of all; and how many enter the fingerprint
of a split that is not kept in memory, besides all labels."""


@dataclass(frozen=True, eq=False)
class Pictures:
    """Labelled images, opened one by one."""

    labels: NDArray[np.int64]
    open: Callable[[int], Image.Image]

    def open_all(self, chosen: Iterable[int]) -> list[Image.Image]:
        """Return some of the images, opened on all processors."""
        indices = list(chosen)
        parts = [indices[first : first + OPENED_AT_ONCE] for first in range(0, len(indices), OPENED_AT_ONCE)]
        with ThreadPoolExecutor() as pool:  # Pillow decodes without Python's lock
            return [image for opened in pool.map(lambda part: [*map(self.open, part)], parts) for image in opened]

    @cached_property
    def are_few(self) -> bool:
        """Whether all take no more memory than `KEPT_BYTES`, judging by a sample."""
        sizes = [image.width * image.height * len(image.getbands()) for image in self.open_all(self._sample())]
        return len(self.labels) * float(np.mean(sizes)) <= KEPT_BYTES

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all labels and of all images as they are or, if there are many, of a sample of the images."""
        total = hashlib.sha256(self.labels.tobytes())
        chosen = range(len(self.labels)) if self.are_few else self._sample()
        for image in self.open_all(chosen):
            total.update(f"{image.size}{image.mode}".encode() + image.tobytes())
        return total.hexdigest()

    def _sample(self) -> list[int]:
        return [int(index) for index in np.linspace(0, len(self.labels) - 1, SAMPLED)]


@dataclass(frozen=True, eq=False)
class Splits:
    """The images of a source; the classes are numbered from 0."""

    training: Pictures
    validation: Pictures
    classes: int
    photographs: bool = True
    """Whether they show the world, so that a mirrored one shows the same thing."""

    @property
    def fingerprint(self) -> str:
        """A hash of both splits as they are, whatever size a model takes."""
        return hashlib.sha256(f"{self.training.fingerprint} {self.validation.fingerprint}".encode()).hexdigest()


def open_pictures(source: str, cache: Path) -> Splits:
    """Return the images that a config names: "digits", "cifar10", a folder, or "hub:NAME[:CONFIG]".

    CIFAR-10 is fetched once and kept in the folder `cache`.
    """
    if source == "digits":
        return digits()
    if source.startswith("hub:"):
        return hub_pictures(*source.removeprefix("hub:").split(":", 1))
    folder = cifar10_files(cache) if source == "cifar10" else Path(source).expanduser()
    if not folder.is_dir():
        raise DataError(f"there are no images at {source!r}: give 'digits', 'cifar10', a folder, or 'hub:NAME'")
    for inner in (folder, folder / "cifar-10-batches-py", folder / "cifar-10-batches-bin"):
        if (inner / "data_batch_1").is_file() or (inner / "data_batch_1.bin").is_file():
            return cifar10(inner)
    return class_folders(folder)


def digits() -> Splits:
    """Return scikit-learn's 1,797 handwritten digits of 8 x 8 pixels; the fifth of every five of a class validates.

    By class, because most of the file runs from 0 to 9 again and again: every fifth image of all would be a 4 or a 9.

    >>> splits = digits()
    >>> len(splits.training.labels), len(splits.validation.labels), np.bincount(splits.validation.labels).tolist()
    (1442, 355, [35, 36, 35, 36, 36, 36, 36, 35, 34, 36])
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    labels = bunch.target.astype(np.int64)
    pixels = (15 * bunch.images).astype(np.uint8)  # from 0 .. 16, exactly
    rank_in_class = np.array([np.count_nonzero(labels[:index] == label) for index, label in enumerate(labels)])
    validates = rank_in_class % 5 == 4
    return Splits(
        _in_memory(pixels[~validates], labels[~validates]),
        _in_memory(pixels[validates], labels[validates]),
        classes=10,
        photographs=False,
    )


def class_folders(root: Path) -> Splits:
    """Return the images of `train/CLASS/` and of `val/CLASS/` (or validation, valid, test), ImageNet's layout."""
    validation = next((root / name for name in VALIDATION_NAMES if (root / name).is_dir()), None)
    if not (root / "train").is_dir() or validation is None:
        raise DataError(
            f"{root} must hold train/CLASS/*.png (or .jpg) and val/CLASS/*.png, or CIFAR-10's files, got "
            f"{sorted(path.name for path in root.iterdir())[:8]}"
        )
    classes = sorted(path.name for path in (root / "train").iterdir() if path.is_dir())
    return Splits(_folder(root / "train", classes), _folder(validation, classes), len(classes))


def cifar10(folder: Path) -> Splits:
    """Return CIFAR-10 from its makers' files, those for Python or the binary ones."""
    read = _read_pickle if (folder / "data_batch_1").is_file() else _read_binary
    suffix = "" if read is _read_pickle else ".bin"

    def pictures(names: Sequence[str]) -> Pictures:
        try:
            parts = [read(folder / f"{name}{suffix}") for name in names]
        except (OSError, KeyError, ValueError, pickle.UnpicklingError) as error:
            raise DataError(f"CIFAR-10 cannot be read from {folder}: {error}: download it again") from error
        pixels = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return _in_memory(np.ascontiguousarray(pixels), np.concatenate([labels for _, labels in parts]))

    return Splits(pictures([f"data_batch_{number}" for number in range(1, 6)]), pictures(["test_batch"]), classes=10)


def hub_pictures(name: str, config: str | None = None) -> Splits:
    """Return the images of a dataset of the hub, or of a local folder of one, downloaded as a whole."""
    try:
        import datasets  # type: ignore[import-untyped]

        splits: Any = datasets.load_dataset(name, config or None)
    except Exception as error:  # whatever the library raises: its errors have no class in common
        raise cannot_be_had(f"the dataset {name!r}", error) from error
    validation = next((split for split in VALIDATION_NAMES if split in splits), None)
    if "train" not in splits or validation is None:
        raise DataError(f"the dataset {name!r} must have the splits train and validation or test, got {list(splits)}")
    columns = splits["train"].column_names
    image = next((column for column in IMAGE_COLUMNS if column in columns), None)
    label = next((column for column in LABEL_COLUMNS if column in columns), None)
    if image is None or label is None:
        raise DataError(f"the dataset {name!r} must have the columns image and label, got {columns}")

    def pictures(split: str) -> Pictures:
        rows = splits[split]
        return Pictures(np.array(rows[label], dtype=np.int64), lambda index: rows[index][image])

    training, validating = pictures("train"), pictures(validation)
    labels = np.concatenate([training.labels, validating.labels])
    if labels.min(initial=0) < 0:
        raise DataError(f"the dataset {name!r} has images without a class (label {labels.min()}): choose another")
    return Splits(training, validating, classes=int(labels.max(initial=0)) + 1)


def _in_memory(pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> Pictures:
    return Pictures(labels, lambda index: Image.fromarray(pixels[index]))


def _folder(root: Path, classes: Sequence[str]) -> Pictures:
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = sorted(path.name for path in root.iterdir() if path.is_dir() and path.name not in numbers)
    if unknown:
        raise DataError(f"{root} has classes that train does not have: {unknown[:5]}: give both the same")
    files = sorted(path for path in root.glob("*/*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise DataError(f"{root} has no images: put them into CLASS/*.png or CLASS/*.jpg")

    def read(index: int) -> Image.Image:
        try:
            with Image.open(files[index]) as image:
                image.load()
                return image
        except OSError as error:
            raise DataError(f"{files[index]} cannot be read as an image: {error}: replace or delete it") from error

    return Pictures(np.array([numbers[path.parent.name] for path in files], dtype=np.int64), read)


def _read_binary(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    records = np.fromfile(path, dtype=np.uint8).reshape(-1, 1 + CIFAR_PIXELS)
    return records[:, 1:], records[:, 0].astype(np.int64)


def _read_pickle(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    with path.open("rb") as handle:
        content = _ArraysOnly(handle, encoding="bytes").load()
    return content[b"data"], np.array(content[b"labels"], dtype=np.int64)


class _ArraysOnly(pickle.Unpickler):
    """Reads arrays, lists and dicts. A pickle can run any code; one that was downloaded must not."""

    def find_class(self, module: str, name: str) -> Any:
        reconstruct = np.empty(0).__reduce__()[0]  # which has moved between versions of NumPy
        known = {"ndarray": np.ndarray, "dtype": np.dtype, "_reconstruct": reconstruct}
        if module.split(".")[0] == "numpy" and name in known:
            return known[name]
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
            return codecs.encode
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, which is no array")
