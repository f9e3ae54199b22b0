"""Batches of images, augmented for training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from ademamix.lab.config import Images, ViT
from ademamix.lab.data import Batch, DataError
from ademamix.lab.data.order import ShuffledEpochs, spread_evenly
from ademamix.lab.data.pictures import Pictures, Splits, open_pictures

MODES = {1: "L", 3: "RGB"}
CROP_ATTEMPTS = 10


def load_images(config: Images, *, model: ViT, batch: int, seed: int, cache: Path) -> LabelledImages:
    """Return images as batches of the size and channels that the model takes."""
    if model.channels not in MODES:
        raise DataError(f"images have 1 or 3 channels, got a model of {model.channels}")
    splits = open_pictures(config.source, cache)
    return LabelledImages(splits, config, size=model.image, channels=model.channels, batch=batch, seed=seed)


class LabelledImages:
    """Batches of images of one size, every training image once an epoch in an order of its own.

    Training batches are augmented if the config says so, beginning with a random part of each image; their targets are
    then probabilities. In all others an image is cut to its central square and resized, and its class is the target.
    Photographs are scaled from 0 .. 255 to -1 .. 1, others to mean 0 and standard deviation 1 over the training images.
    """

    def __init__(self, splits: Splits, config: Images, *, size: int, channels: int, batch: int, seed: int) -> None:
        self._batch, self._seed, self._held_out_batches = batch, seed, config.held_out_batches
        # Sources are often sorted by class: the held-out images are a fixed draw, the same for every seed.
        drawn = np.random.default_rng(0).permutation(len(splits.training.labels))
        self._trained = drawn[: max(0, len(drawn) - config.held_out_batches * batch)]
        self._held_out = drawn[len(self._trained) :]
        self._trained = self._trained[: config.examples]
        if len(self._trained) < batch:
            raise DataError(
                f"a batch of {batch} images needs as many, got {len(self._trained)} for training "
                f"({config.held_out_batches} batches are held out): give more images, or a smaller batch"
            )
        if not len(splits.validation.labels):
            raise DataError(f"{config.source!r} has no images for validation: give some")
        self._training = _Pixels(splits.training, size, channels)
        self._validation = _Pixels(splits.validation, size, channels)
        self._order = ShuffledEpochs(len(self._trained), batch=batch, seed=seed)
        self.outputs = splits.classes
        self._mean, self._deviation = (0.5, 0.5) if splits.photographs else self._training.statistics()
        self._augmentation = (
            Augmentation(channels=channels, classes=splits.classes, photographs=splits.photographs)
            if config.augment
            else None
        )
        self.fingerprint = splits.fingerprint

    def batch(self, step: int) -> Batch:
        """Return the training batch of a step, counted from 0; its random numbers come from (seed, step) alone."""
        chosen = self._trained[self._order(step)]
        if self._augmentation is None:
            return self._plain(self._training, chosen)
        # branches of their own: the numbers of (seed, step) itself are those of the model's dropout
        crops, changes = np.random.SeedSequence([self._seed, step]).spawn(2)
        images, labels = self._training.read_parts(chosen, self._augmentation.crop, np.random.default_rng(crops))
        seed = int(changes.generate_state(1, np.uint64)[0])
        augmented, probabilities = self._augmentation(images, labels, seed)
        return Batch(self._standardised(augmented), probabilities)

    def validation(self, count: int, *, chunk: int) -> Iterator[Batch]:
        """Yield `count` images spread evenly over the validation split, in batches of `chunk`; fewer if it is small."""
        for chosen in spread_evenly(len(self._validation), count=count, chunk=chunk):
            yield self._plain(self._validation, chosen)

    def training(self, count: int, *, chunk: int) -> Iterator[Batch]:
        """Yield `count` images spread evenly over those trained on, not augmented, in batches of `chunk`."""
        for chosen in spread_evenly(len(self._trained), count=count, chunk=chunk):
            yield self._plain(self._training, self._trained[chosen])

    def held_out(self, index: int) -> Batch:
        """Return one of the batches that were taken out of training, not augmented."""
        if not 0 <= index < self._held_out_batches:
            raise DataError(f"there is no held-out batch {index}: held_out_batches is {self._held_out_batches}")
        return self._plain(self._training, self._held_out[index * self._batch : (index + 1) * self._batch])

    def _plain(self, pixels: _Pixels, chosen: NDArray[np.int64]) -> Batch:
        images, labels = pixels.read(chosen)
        return Batch(self._standardised(images), labels)

    def _standardised(self, images: Tensor) -> Tensor:
        return (images - self._mean) / self._deviation


@dataclass(frozen=True)
class RandomCrop:
    """A random part of an image, to take the place of the whole.

    Its share of the image's area is uniform between `smallest` and 1, and the logarithm of width over height is uniform
    between those of 1 / `longest` and `longest`. One that would not fit is drawn again; after ten attempts it is the
    central square.
    """

    smallest: float
    longest: float

    def box(self, width: int, height: int, draws: NDArray[np.float64]) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of the part, given four uniform numbers for each attempt.

        >>> RandomCrop(smallest=0.25, longest=1.0).box(8, 8, np.array([[0.0, 0.0, 0.5, 1.0]]))
        (2.0, 4.0, 6.0, 8.0)
        """
        for area, shape, x, y in draws.tolist():
            root = math.sqrt(width * height * (self.smallest + (1 - self.smallest) * area))
            stretch = math.exp((shape - 0.5) * math.log(self.longest))  # the root of width over height
            across, down = root * stretch, root / stretch
            if across <= width and down <= height:
                left, top = x * (width - across), y * (height - down)
                return left, top, left + across, top + down
        side = min(width, height)
        return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


class Augmentation:
    """Random resized crop, and by kornia horizontal flip, colour jitter and mixup.

    Photographs: a crop of 8% to 100% of the area, a flip of every second image, jitter of 0.4 in brightness, contrast
    and saturation and of 0.1 in hue for 80% of the images (none with 1 channel). Others, that is digits: a crop of at
    least 70%, no flip (a mirrored 2 is no 2) and no jitter. Mixup mixes each image with one drawn from the batch:
    x = (1 - w) x_i + w x_j and the same for the classes' probabilities, w uniform in 0 .. 1. The paper names these
    four, the flip's 0.5 and the jitter's 0.8; the other numbers are ours.

    The crop is taken from the full image, where images are decoded: kornia's would see one that is already as small as
    the model's.
    """

    def __init__(self, *, channels: int, classes: int, photographs: bool) -> None:
        from kornia.augmentation import ColorJitter, RandomHorizontalFlip, RandomMixUpV2

        self._classes = classes
        self.crop = RandomCrop(smallest=0.08, longest=4 / 3) if photographs else RandomCrop(smallest=0.7, longest=1.1)
        self._changes: list[torch.nn.Module] = []
        if photographs:
            self._changes.append(RandomHorizontalFlip(p=0.5))
            if channels == 3:
                self._changes.append(ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8))
        self._mixup = RandomMixUpV2(data_keys=["input", "class"])

    def __call__(self, images: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Return images between 0 and 1, which were cropped before, and the probabilities of their classes."""
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would also seed the generators of other devices.
            torch.default_generator.manual_seed(seed)
            for change in self._changes:
                images = change(images)
            images, mixed = self._mixup(images, labels)
        own, other, weight = mixed[:, 0].long(), mixed[:, 1].long(), mixed[:, 2:]
        one_hot = torch.eye(self._classes)
        return images, (1 - weight) * one_hot[own] + weight * one_hot[other]


class _Pixels:
    """The images of a split, in memory if they are few, as arrays (channels, size, size)."""

    def __init__(self, pictures: Pictures, size: int, channels: int) -> None:
        self._pictures, self._size, self._mode = pictures, (size, size), MODES[channels]
        self._kept: list[Image.Image] | None = None
        if pictures.are_few:
            self._kept = self._opened(np.arange(len(self)))

    def __len__(self) -> int:
        return len(self._pictures.labels)

    def read(self, chosen: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return the central squares of images, between 0 and 1, and their classes."""
        return self._tensors(self._central(chosen), chosen)

    def read_parts(
        self, chosen: NDArray[np.int64], crop: RandomCrop, generator: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return random parts of images, between 0 and 1, and their classes."""
        draws = generator.random((len(chosen), CROP_ATTEMPTS, 4))
        parts = [
            image.resize(self._size, Image.Resampling.BICUBIC, crop.box(image.width, image.height, each))
            for image, each in zip(self._opened(chosen), draws, strict=True)
        ]
        return self._tensors(_array(parts), chosen)

    def statistics(self) -> tuple[float, float]:
        """Return mean and standard deviation of all values between 0 and 1."""
        pixels = self._central(np.arange(len(self)))
        return float(pixels.mean() / 255), float(pixels.std() / 255)

    def _central(self, chosen: NDArray[np.int64]) -> NDArray[np.uint8]:
        return _array(
            [
                image if image.size == self._size else ImageOps.fit(image, self._size, Image.Resampling.BICUBIC)
                for image in self._opened(chosen)
            ]
        )

    def _opened(self, chosen: NDArray[np.int64]) -> list[Image.Image]:
        if self._kept is not None:
            return [self._kept[index] for index in chosen.tolist()]
        return [image.convert(self._mode) for image in self._pictures.open_all(chosen.tolist())]

    def _tensors(self, pixels: NDArray[np.uint8], chosen: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(pixels.astype(np.float32) / 255), torch.from_numpy(self._pictures.labels[chosen])


def _array(images: list[Image.Image]) -> NDArray[np.uint8]:
    """Return images of one size as an array (images, channels, height, width)."""
    arrays = [np.asarray(image) for image in images]
    return np.stack([array.reshape(*array.shape[:2], -1).transpose(2, 0, 1) for array in arrays])
