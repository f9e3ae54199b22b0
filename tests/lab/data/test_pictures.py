"""Sources of images: folders, CIFAR's files, and datasets of the hub."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from ademamix.lab.data import DataError, pictures
from image_batches import SMALL, an_epoch, read, same


def colour(red, green, blue, size=(4, 4)):
    return Image.new("RGB", size, (red, green, blue))


@pytest.fixture
def class_folders(tmp_path):
    for split, count in (("train", 6), ("val", 3)):
        for number, name in enumerate(("ant", "bee")):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                suffix = (".png", ".JPEG")[index % 2]
                colour(255 * number, 20 * index, 100 * (split == "val")).save(folder / f"{index}{suffix}")
    (tmp_path / "train" / "ant" / "notes.txt").write_text("not an image")
    return tmp_path


def test_class_folders_are_read_resized_and_scaled(class_folders):
    colour(0, 100, 0, size=(40, 10)).save(class_folders / "train" / "ant" / "0.png")
    data = read(class_folders, model=SMALL, batch=6, augment=False)
    assert data.outputs == 2
    batch = an_epoch(data, 2)
    assert batch.inputs.shape == (12, 3, 4, 4)
    assert torch.bincount(batch.targets).tolist() == [6, 6]
    red = batch.inputs[:, 0].mean((1, 2))
    assert torch.allclose(red, 2.0 * batch.targets - 1, atol=0.05)
    greens = ((batch.inputs[:, 1, 0, 0] + 1) * 127.5)[batch.targets == 0]
    assert sorted(round(float(green), -1) for green in greens) == [20, 40, 60, 80, 100, 100]
    (validation,) = read(class_folders, model=SMALL, batch=6).validation(9, chunk=9)
    assert torch.allclose(validation.inputs[:, 2], torch.tensor(200 / 255 - 1), atol=0.05)
    grey = read(class_folders, model=SMALL.model_copy(update={"channels": 1}), batch=6)
    assert grey.batch(0).inputs.shape == (6, 1, 4, 4)


def test_the_centre_of_an_oblong_image_is_taken(class_folders):
    oblong = colour(0, 0, 0, size=(12, 4))
    oblong.paste(colour(0, 255, 0), (4, 0))
    for path in class_folders.glob("train/*/*.png"):
        oblong.save(path)
    batch = an_epoch(read(class_folders, model=SMALL, batch=6, augment=False), 2)
    green = batch.inputs[:, 1].flatten(1)
    assert int((green == 1).all(1).sum()) == 6


def test_parts_are_cut_from_all_of_an_image_before_it_is_made_small(class_folders):
    rows, columns = np.mgrid[:32, :64]
    squares = (255 * ((rows // 4 + columns // 4) % 2)).astype(np.uint8)  # flat once 32 rows are 4
    for path in class_folders.glob("train/*/*.*"):
        path.unlink()
    for index, name in enumerate("abcdef"):
        beside = squares if index < 3 else np.where(columns < 8, 255, 0).astype(np.uint8)  # the centre is dark
        Image.fromarray(beside).save(class_folders / "train" / ("ant", "bee")[index // 3] / f"{name}.png")
    centres = an_epoch(read(class_folders, model=SMALL, batch=6, augment=False), 1).inputs
    assert centres.std((1, 2, 3)).max() < 0.02
    assert centres.max() < 0.1
    parts = an_epoch(read(class_folders, model=SMALL, batch=6), 20)
    squares, beside = ((parts.targets[:, number] > 0.99) for number in (0, 1))
    assert parts.inputs[squares].std((1, 2, 3)).max() > 0.1
    assert parts.inputs[beside].max() > 0.5


def test_images_that_are_too_many_to_keep_are_decoded_batch_by_batch(class_folders, monkeypatch):
    kept = read(class_folders, model=SMALL, batch=4)
    monkeypatch.setattr(pictures, "KEPT_BYTES", 0)
    decoded = read(class_folders, model=SMALL, batch=4)
    assert all(same(kept.batch(step), decoded.batch(step)) for step in (0, 7))
    before = decoded.fingerprint
    colour(1, 2, 3).save(class_folders / "train" / "ant" / "0.png")
    assert read(class_folders, model=SMALL, batch=4).fingerprint != before


def test_a_changed_image_or_class_changes_the_fingerprint(class_folders):
    before = read(class_folders, model=SMALL, batch=4).fingerprint
    assert read(class_folders, model=SMALL, batch=2, seed=5).fingerprint == before
    (class_folders / "val" / "ant" / "0.png").rename(class_folders / "val" / "bee" / "9.png")
    moved = read(class_folders, model=SMALL, batch=4).fingerprint
    colour(1, 2, 3).save(class_folders / "val" / "bee" / "9.png")
    changed = read(class_folders, model=SMALL, batch=4).fingerprint
    assert len({before, moved, changed}) == 3


def test_folders_that_cannot_be_used_are_explained(class_folders, tmp_path):
    with pytest.raises(DataError, match=r"a batch of 13 images needs as many, got 12 for training"):
        read(class_folders, model=SMALL, batch=13)
    with pytest.raises(DataError, match=r"got 0 for training \(9 batches are held out\)"):
        read(class_folders, model=SMALL, batch=2, held_out_batches=9)
    with pytest.raises(DataError, match="1 or 3 channels, got a model of 2"):
        read(class_folders, model=SMALL.model_copy(update={"channels": 2}))
    (class_folders / "train" / "bee" / "0.png").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"bee/0\.png cannot be read as an image"):
        read(class_folders, model=SMALL, batch=2)
    (class_folders / "val" / "cat").mkdir()
    with pytest.raises(DataError, match=r"val has classes that train does not have: \['cat'\]"):
        read(class_folders, model=SMALL, batch=2)
    empty = tmp_path / "empty"
    (empty / "train" / "ant").mkdir(parents=True)
    with pytest.raises(DataError, match=r"must hold train/CLASS/\*\.png .* got \['train'\]"):
        read(empty, model=SMALL)
    (empty / "test").mkdir()
    with pytest.raises(DataError, match="train has no images"):
        read(empty, model=SMALL)
    with pytest.raises(DataError, match=r"there are no images at .*nowhere"):
        read(tmp_path / "nowhere", model=SMALL)


def cifar_records(count, seed):
    generator = np.random.default_rng(seed)
    return generator.integers(256, size=(count, 3072), dtype=np.uint8), generator.integers(10, size=count)


def python2_pickle(pixels, labels):
    """The bytes of CIFAR-10's own files, which Python 2 wrote: its strings are neither bytes nor text."""

    def string(content):
        return b"T" + struct.pack("<i", len(content)) + content

    def number(value):
        return b"J" + struct.pack("<i", value)

    kind = b"cnumpy\ndtype\n(" + string(b"u1") + b"K\x00K\x01tR(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xff"
    kind += b"J\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + string(b"b") + b"tR(K\x01("
    array += (
        number(pixels.shape[0]) + number(pixels.shape[1]) + b"t" + kind + b"\x89" + string(pixels.tobytes()) + b"tb"
    )
    listed = b"](" + b"".join(map(number, labels.tolist())) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + listed + b"u."


def python3_pickle(pixels, labels):
    return pickle.dumps({b"data": pixels, b"labels": labels.tolist()}, protocol=2)


def test_cifar_is_read_from_both_kinds_of_files(tmp_path):
    model = SMALL.model_copy(update={"image": 32})
    old, new = tmp_path / "python" / "cifar-10-batches-py", tmp_path / "binary"
    old.mkdir(parents=True)
    new.mkdir()
    for seed, name in enumerate((*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")):
        pixels, labels = cifar_records(4, seed)
        written = python2_pickle if seed % 2 else python3_pickle
        (old / name).write_bytes(written(pixels, labels))
        (new / f"{name}.bin").write_bytes(np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1).tobytes())
    data = [read(folder, model=model, batch=4, augment=False) for folder in (tmp_path / "python", new)]
    assert data[0].fingerprint == data[1].fingerprint
    assert data[0].outputs == 10
    (batch,) = data[1].validation(5, chunk=5)
    pixels, labels = cifar_records(4, 5)
    assert torch.equal(batch.targets, torch.from_numpy(labels))
    expected = torch.from_numpy(pixels.reshape(4, 3, 32, 32)) / 127.5 - 1
    assert torch.allclose(batch.inputs, expected, atol=1e-6)
    (new / "test_batch.bin").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"CIFAR-10 cannot be read from .*binary.*download it again"):
        read(new, model=model, batch=4)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (pytest.fail, ("the pickle has been run",))

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": Harmful(), b"labels": []}))
    with pytest.raises(DataError, match="which is no array"):
        read(tmp_path, model=SMALL)


def test_a_dataset_of_images_is_read(class_folders, tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets_cache")
    for split in ("train", "val"):
        (class_folders / split / "ant" / "notes.txt").unlink(missing_ok=True)
    source = f"hub:{class_folders}"
    data = read(source, model=SMALL, batch=6, augment=False)
    local = read(class_folders, model=SMALL, batch=6, augment=False)
    assert data.outputs == 2
    assert data.fingerprint == local.fingerprint
    assert same(data.batch(3), local.batch(3))
    assert same(next(data.validation(1, chunk=1)), next(local.validation(1, chunk=1)))
