"""The lab's images: splits, batches and augmentation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ademamix.lab.data import DataError, images
from ademamix.lab.data.images import Augmentation, RandomCrop
from ademamix.lab.data.pictures import Pictures, Splits
from image_batches import read, same


def rows(tensor):
    return [tuple(row) for row in tensor.flatten(1).tolist()]


@pytest.fixture(scope="module")
def digits():
    return {augment: read(augment=augment, held_out_batches=2) for augment in (True, False)}


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


def test_fewer_images_are_among_more_and_the_same_for_every_seed(digits):
    def trained(**settings):
        (everything,) = read(augment=False, held_out_batches=2, **settings).training(2000, chunk=2000)
        return set(rows(everything.inputs))

    few, more, every = (trained(examples=count) for count in (40, 400, None))
    assert [len(few), len(more), len(every)] == [40, 400, 1442 - 64]
    assert few < more < every
    assert trained(examples=40, seed=3) == few
    assert trained(examples=9999) == every
    data = read(augment=False, held_out_batches=2, examples=40)
    assert {row for step in range(5) for row in rows(data.batch(step).inputs)} == few
    assert all(same(data.held_out(index), digits[False].held_out(index)) for index in (0, 1))
    assert data.fingerprint == digits[False].fingerprint
    with pytest.raises(DataError, match="a batch of 32 images needs as many, got 20 for training"):
        read(examples=20)


def test_training_images_are_looked_at_without_augmentation(digits):
    (plain,) = digits[True].training(50, chunk=50)
    (expected,) = digits[False].training(50, chunk=50)
    assert same(plain, expected)
    assert plain.targets.dtype == torch.int64
    chunks = [len(batch.targets) for batch in digits[True].training(50, chunk=32)]
    assert chunks == [32, 18]


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
    monkeypatch.setattr(images, "open_pictures", lambda source, cache: Splits(some, empty, classes=2))
    with pytest.raises(DataError, match="'digits' has no images for validation"):
        read()


def test_digits_are_cropped_slightly_and_never_mirrored(monkeypatch):
    left = np.zeros((8, 8), np.uint8)
    left[:, 0:3] = 255
    labels = np.arange(256) % 2
    some = Pictures(labels, lambda index: Image.fromarray(left))
    splits = Splits(some, some, classes=2, photographs=False)
    monkeypatch.setattr(images, "open_pictures", lambda source, cache: splits)
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


# The hub
