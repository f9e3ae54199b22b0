"""Batches of images, for the tests of where they come from and of what is done to them."""

from __future__ import annotations

import torch

from ademamix.lab.config import Images, ViT
from ademamix.lab.data import Batch, load

DIGITS = ViT(kind="vit", width=16, layers=1, heads=1, patch=2, image=8, channels=1)
SMALL = ViT(kind="vit", width=16, layers=1, heads=1, patch=2, image=4, channels=3)


def read(source="digits", *, model=DIGITS, batch=32, seed=0, cache=None, **settings):
    config = Images(kind="images", source=str(source), **settings)
    return load(config, model=model, batch=batch, seed=seed, cache=cache)  # only CIFAR-10 needs one


def same(one, two):
    return torch.equal(one.inputs, two.inputs) and torch.equal(one.targets, two.targets)


def an_epoch(data, steps):
    return Batch(*(torch.cat(part) for part in zip(*(data.batch(step) for step in range(steps)), strict=True)))
