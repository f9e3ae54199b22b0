"""What a run trains on: text or images, in batches that depend on the config, the seed and the step alone.

Batches can be taken in any order, so a run that continues after a pause sees the data that it would have seen without
one. Libraries that read other people's data (datasets, transformers, sentencepiece, scikit-learn, kornia) are imported
only when they are needed, and so is torch: a fingerprint can be taken without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ademamix.lab.config import Images, Model, Text, ViT

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Batch", "DataError", "Dataset", "OnRead", "fingerprint", "load"]


OnRead = Callable[[int, "int | None"], None]
"""Is told how many tokens were read, and of how many; None for as many as there are."""


class DataError(ValueError):
    """Data that cannot be used; the message says what is wrong, what was given and what to do."""


class Batch(NamedTuple):
    """The examples of one step."""

    inputs: Tensor
    """Token ids (batch, context) in int64, or images (batch, channels, height, width) in float32."""
    targets: Tensor
    """The token after each input; or the class of each image (batch,), or its probabilities (batch, classes)."""


class Dataset(Protocol):
    """Batches of one size, with random access to all of them."""

    outputs: int
    """The size of the vocabulary, or the number of classes."""
    fingerprint: str
    """A hash of the data behind the batches, tokeniser included. A run must not continue when it has changed."""

    def batch(self, step: int) -> Batch:
        """Return the training batch of a step, counted from 0: always the same one."""

    def validation(self, count: int, *, chunk: int) -> Iterator[Batch]:
        """Yield `count` examples spread evenly over the validation split, nothing twice, in batches of `chunk`.

        They do not depend on the training batch or the seed. If the split has fewer, they are all of it.
        """

    def training(self, count: int, *, chunk: int) -> Iterator[Batch]:
        """Yield `count` examples spread evenly over what is trained on, otherwise as in validation: not augmented."""

    def held_out(self, index: int) -> Batch:
        """Return one of the batches that were taken out of training: no training batch has any part of it."""


def fingerprint(config: Text | Images, cache: Path) -> str:
    """Return the fingerprint that the data has now; unlike :func:`load` this needs no torch.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as cache:
    ...     len(fingerprint(Text(kind="text"), Path(cache)))
    64
    """
    if isinstance(config, Text):
        from ademamix.lab.data.tokens import token_files

        return token_files(config, cache).fingerprint
    from ademamix.lab.data.pictures import open_pictures

    return open_pictures(config.source, cache).fingerprint


def load(
    config: Text | Images,
    *,
    model: Model,
    batch: int,
    seed: int,
    cache: Path,
    on_read: OnRead = lambda count, wanted: None,
) -> Dataset:
    """Return the data of a run; what is costly to have (tokens, CIFAR-10) is made once and kept in the folder `cache`.

    Meanwhile `on_read(count, wanted)` is told how far that is.

    >>> import tempfile
    >>> from ademamix.lab.config import GPT
    >>> model = GPT(kind="gpt", width=64, layers=2, heads=2, context=64)
    >>> with tempfile.TemporaryDirectory() as cache:
    ...     data = load(Text(kind="text"), model=model, batch=8, seed=0, cache=Path(cache))
    ...     data.outputs, tuple(data.batch(0).inputs.shape)
    (256, (8, 64))
    """
    if isinstance(config, Text) and not isinstance(model, ViT):
        from ademamix.lab.data.tokens import token_files
        from ademamix.lab.data.windows import Windows

        tokens = token_files(config, cache, on_read)
        return Windows(tokens, context=model.context, batch=batch, held_out_batches=config.held_out_batches, seed=seed)
    if isinstance(config, Images) and isinstance(model, ViT):
        from ademamix.lab.data.images import load_images

        return load_images(config, model=model, batch=batch, seed=seed, cache=cache)
    raise DataError(f"a model of kind {model.kind!r} cannot be trained on {config.kind}: choose another of the two")
