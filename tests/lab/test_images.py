"""The lab's images: their sources, order, splits and augmentation."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ademamix.lab.config import Images, ViT
from ademamix.lab.data import Batch, DataError, images, load, pictures
from ademamix.lab.data.images import Augmentation, RandomCrop
from ademamix.lab.data.order import ShuffledEpochs, spread_evenly
from ademamix.lab.data.pictures import Pictures, Splits

DIGITS = ViT(kind="vit", width=16, layers=1, heads=1, patch=2, image=8, channels=1)
SMALL = ViT(kind="vit", width=16, layers=1, heads=1, patch=2, image=4, channels=3)


def read(source="digits", *, model=DIGITS, batch=32, seed=0, **settings):
    config = Images(kind="images", source=str(source), **settings)
    return load(config, model=model, batch=batch, seed=seed, cache=None)  # images need no cache


def same(one, two):
    return torch.equal(one.inputs, two.inputs) and torch.equal(one.targets, two.targets)


def rows(tensor):
    return [tuple(row) for row in tensor.flatten(1).tolist()]


def an_epoch(data, steps):
    return Batch(*(torch.cat(part) for part in zip(*(data.batch(step) for step in range(steps)), strict=True)))


@pytest.fixture(scope="module")
def digits():
    return {augment: read(augment=augment, held_out_batches=2) for augment in (True, False)}


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**40))
def test_every_item_is_visited_once_an_epoch(items, batch, seed):
    order = ShuffledEpochs(items, batch=batch, seed=seed)
    visited = np.concatenate([order(step) for step in range(3 * items)])
    for epoch in visited[: len(visited) // items * items].reshape(-1, items):
        assert sorted(epoch.tolist()) == list(range(items))


@given(st.integers(0, 200), st.integers(1, 20), st.integers(0, 250))
def test_validation_has_nothing_twice_and_even_gaps_whatever_the_chunk(items, chunk, count):
    chosen = list(spread_evenly(items, chunk=chunk, count=count))
    assert sum(map(len, chosen)) == min(count, items)
    assert all(len(each) == chunk for each in chosen[:-1])
    if chosen:
        everything = np.concatenate(chosen)
        assert np.array_equal(everything, np.concatenate(list(spread_evenly(items, chunk=7, count=count))))
        assert everything[0] == 0
        assert everything[-1] < items
        gaps = np.diff(everything)
        assert gaps.min(initial=1) >= 1
        assert gaps.max(initial=0) - gaps.min(initial=items) <= 1


# Digits


def test_digits_are_standardised_by_their_training_images(digits):
    data = read(augment=False, batch=1)
    everything = torch.cat([data.batch(step).inputs for step in range(1442)])
    assert everything.shape == (1442, 1, 8, 8)
    assert everything.dtype == torch.float32
    assert abs(float(everything.double().mean())) < 1e-6
    assert abs(float(everything.double().std(correction=0)) - 1) < 1e-6
    assert data.outputs == 10


def test_digits_are_those_of_scikit_learn_split_in_every_class(digits):
    from sklearn.datasets import load_digits

    bunch = load_digits()
    data = digits[False]
    inputs, targets = (torch.cat(part) for part in zip(*data.validation(1000, chunk=32), strict=True))
    assert len(targets) == 355
    original = ((inputs - inputs.min()) / (inputs.max() - inputs.min()) * 16).round()
    known = {tuple(image.flatten()): label for image, label in zip(bunch.images, bunch.target, strict=True)}
    assert [known[image] for image in rows(original)] == targets.tolist()
    assert torch.bincount(targets, minlength=10).min() >= 34


def test_training_held_out_and_validation_digits_are_disjoint(digits):
    data = digits[False]
    steps = -(-(1442 - 64) // 32)
    training = {row for step in range(steps) for row in rows(data.batch(step).inputs)}
    held_out = {row for index in range(2) for row in rows(data.held_out(index).inputs)}
    validation = {row for batch in data.validation(1000, chunk=32) for row in rows(batch.inputs)}
    assert len(training) == 1442 - 64
    assert len(held_out) == 64
    assert not training & held_out
    assert not (training | held_out) & validation
    with pytest.raises(DataError, match="no held-out batch 2: held_out_batches is 2"):
        data.held_out(2)


def test_a_batch_is_a_function_of_seed_and_step(digits):
    again = read(held_out_batches=2)
    steps = [5, 0, 100, 43]
    seen = {step: digits[True].batch(step) for step in steps}
    assert all(same(again.batch(step), seen[step]) for step in reversed(steps))
    other = read(seed=1, held_out_batches=2)
    assert not same(other.batch(0), seen[0])
    weights = [batch.targets.max(1).values for batch in (other.batch(0), seen[0], again.batch(1))]
    for one, two in ((0, 1), (1, 2)):  # mixed differently for another seed and for another step
        assert int((weights[one] == weights[two]).sum()) < 8
    assert same(other.held_out(1), again.held_out(1))
    assert all(
        same(one, two) for one, two in zip(*(each.validation(9, chunk=3) for each in (other, again)), strict=True)
    )
    assert other.fingerprint == again.fingerprint


def test_augmentation_leaves_the_global_generators_alone(digits):
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    states = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    expected = digits[True].batch(3)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    torch.manual_seed(8)
    assert same(digits[True].batch(3), expected)


def test_only_training_batches_are_augmented(digits):
    batch = digits[True].batch(0)
    assert batch.targets.shape == (32, 10)
    assert torch.allclose(batch.targets.sum(1), torch.ones(32))
    assert ((batch.targets > 0).sum(1) == 2).sum() > 10
    plain = digits[False].batch(0)
    assert plain.targets.dtype == torch.int64
    assert torch.equal(batch.targets.gather(1, plain.targets[:, None]) > 0, torch.ones(32, 1, dtype=torch.bool))
    assert not torch.equal(batch.inputs, plain.inputs)
    for kind in ("held_out", "validation"):
        one, two = (
            next(each.validation(32, chunk=32)) if kind == "validation" else each.held_out(0)
            for each in digits.values()
        )
        assert same(one, two)
        assert one.targets.shape == (32,)


def test_a_split_without_images_is_refused(monkeypatch):
    empty, some = (Pictures(np.zeros(n, np.int64), lambda _: Image.new("L", (8, 8))) for n in (0, 40))
    monkeypatch.setattr(images, "open_pictures", lambda source: Splits(some, empty, classes=2))
    with pytest.raises(DataError, match="'digits' has no images for validation"):
        read()


def test_digits_are_cropped_slightly_and_never_mirrored(monkeypatch):
    left = np.zeros((8, 8), np.uint8)
    left[:, 0:3] = 255
    labels = np.arange(256) % 2
    some = Pictures(labels, lambda index: Image.fromarray(left))
    splits = Splits(some, some, classes=2, photographs=False)
    monkeypatch.setattr(images, "open_pictures", lambda source: splits)
    plain, changed = (read(augment=augment, batch=256).batch(0).inputs for augment in (False, True))
    dark, light = plain.min(), plain.max()
    assert torch.allclose(changed[:, :, :, 0], light, atol=0.2)
    assert torch.allclose(changed[:, :, :, 6:], dark, atol=0.2)
    assert not torch.equal(changed, plain)


@given(st.integers(1, 900), st.integers(1, 900), st.integers(0, 2**32))
def test_a_crop_lies_within_the_image_and_has_the_area_and_shape_that_it_may_have(width, height, seed):
    draws = np.random.default_rng(seed).random((10, 4))
    left, top, right, bottom = RandomCrop(smallest=0.08, longest=4 / 3).box(width, height, draws)
    assert 0 <= left < right <= width * (1 + 1e-12)
    assert 0 <= top < bottom <= height * (1 + 1e-12)
    across, down = right - left, bottom - top
    assert across / down * (1 + 1e-9) >= 3 / 4
    assert across / down <= 4 / 3 * (1 + 1e-9)
    central = min(width, height) ** 2  # of an image that is so oblong that nothing else fits
    assert across * down >= min(0.08 * width * height, central) * (1 - 1e-9)


def test_photographs_are_mirrored_and_coloured_and_mixed():
    generator = torch.Generator().manual_seed(0)
    photographs = torch.rand(400, 3, 8, 8, generator=generator) * 0.1
    photographs[:, 0, :, :4] += 0.5  # red, on the left
    labels = torch.arange(400) % 4
    augmentation = Augmentation(channels=3, classes=4, photographs=True)
    changed, probabilities = augmentation(photographs, labels, seed=0)
    assert changed.shape == photographs.shape
    assert changed.min() >= 0
    assert changed.max() <= 1
    assert changed[:, 1:].std() > 1.5 * photographs[:, 1:].std()  # jitter of the hue takes red elsewhere
    side = changed.mean(1)[:, :, :2].mean((1, 2)) - changed.mean(1)[:, :, 6:].mean((1, 2))
    assert 100 < int((side > 0).sum()) < 300
    own = probabilities[torch.arange(400), labels]
    assert 0.4 < float(own.mean()) - 0.25 * float(1 - own.mean()) < 0.6  # 1 - w, w uniform, partners of any class
    grey, _ = Augmentation(channels=1, classes=4, photographs=True)(photographs[:, :1], labels, seed=0)
    assert grey.shape == (400, 1, 8, 8)


def test_mixup_mixes_images_as_it_mixes_classes():
    flat = torch.arange(4.0).div(4)[:, None, None, None].expand(4, 1, 8, 8)
    labels = torch.arange(4)
    mixed, probabilities = Augmentation(channels=1, classes=4, photographs=False)(flat, labels, seed=5)
    assert torch.allclose(mixed[:, 0, 0, 0], probabilities @ torch.arange(4.0).div(4), atol=1e-6)
    assert not torch.equal(probabilities, torch.eye(4))


# Folders


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
    with pytest.raises(DataError, match=r"bee/0\.png is no image that can be read"):
        read(class_folders, model=SMALL, batch=2)
    (class_folders / "val" / "cat").mkdir()
    with pytest.raises(DataError, match=r"val has classes that train has not: \['cat'\]"):
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


# The hub


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
