"""How much memory the state of an optimizer takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def state_bytes(optimizer: Any) -> int:
    """Count the bytes of all tensors in the state of `optimizer`, including clocks and tables; shared memory once.

    Tensors that are divided among processes count as a whole.

    >>> import torch
    >>> point = torch.ones(1000)
    >>> point.grad = torch.ones(1000)
    >>> optimizer = torch.optim.AdamW([point])
    >>> optimizer.step()
    >>> state_bytes(optimizer)  # two averages and a clock
    8004
    """
    from ademamix.pytorch import shards

    storages = {}
    for tensor in _tensors(optimizer.state):
        part = shards.local(tensor)
        storage = part.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes() if part is tensor else tensor.numel() * tensor.element_size()
    return sum(storages.values())


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested containers; for a tensor that wraps others, the wrapped ones."""
    import torch

    from ademamix.pytorch import shards

    if isinstance(value, torch.Tensor):
        if not hasattr(value, "__tensor_flatten__") or shards.is_sharded(value):
            yield value
            return
        value = [getattr(value, name) for name in value.__tensor_flatten__()[0]]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
