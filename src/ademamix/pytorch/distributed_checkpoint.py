"""Loading a checkpoint of torch.distributed.checkpoint whose state is stored in another way than the optimizer's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from ademamix.pytorch import block_codes, shards
from ademamix.pytorch.master import CORRECTION_DTYPE
from ademamix.state_keys import CORRECTION_KEY, MOMENT_KEYS, SCALE_KEYS, SQUARE_KEY


class AnyStorage(DefaultLoadPlanner):
    """Loads the state of AdEMAMix as it was saved, whatever `state_storage` and `master` the optimizer has.

    torch.distributed.checkpoint loads into the tensors of a state_dict that the optimizer has made, and knows nothing
    of codes, scales and corrections. This planner first gives that state_dict the tensors of the form that was saved.
    The optimizer then brings them into its own form, as with any other checkpoint::

        state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
        torch.distributed.checkpoint.load(state, checkpoint_id=folder, planner=AnyStorage())
        set_optimizer_state_dict(model, optimizer, state["optimizer"])

    The state_dict must not be flattened. Where a parameter is now cut through blocks of 128 elements, each process
    loads the whole of its codes first.
    """

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Take the state_dict to load into and the description of what was saved."""
        if metadata is not None:
            _adapt(state_dict, "", metadata.state_dict_metadata)
        super().set_up_planner(state_dict, metadata, is_coordinator)


def _adapt(entries: dict[str, Any], prefix: str, saved: dict[str, Any]) -> None:
    """Give the states of parameters, in dicts inside of dicts, the form that was saved."""
    for name, entry in list(entries.items()):
        if isinstance(entry, dict):
            _adapt(entry, f"{prefix}{name}.", saved)
    for moment, key in MOMENT_KEYS.items():
        there = saved.get(prefix + key)
        if isinstance(entries.get(key), Tensor) and isinstance(there, TensorStorageMetadata):
            scale_key = SCALE_KEYS[moment]
            is_coded = prefix + scale_key in saved
            entries[key], scale = _like_saved(entries[key], there.properties.dtype, is_coded=is_coded)
            entries.pop(scale_key, None)
            if scale is not None:
                entries[scale_key] = scale
    square = entries.get(SQUARE_KEY)
    if isinstance(square, Tensor):
        entries.pop(CORRECTION_KEY, None)
        if prefix + CORRECTION_KEY in saved:
            entries[CORRECTION_KEY], _ = _like_saved(square, CORRECTION_DTYPE, is_coded=False)


def _like_saved(stored: Tensor, dtype: torch.dtype, *, is_coded: bool) -> tuple[Tensor, Tensor | None]:
    """Return tensors to load a moment of this dtype and its scales into, spread like `stored` if that is possible."""
    if is_coded and not shards.keeps_blocks(stored):
        shape = block_codes.scale_shape(stored.shape)
        device = stored.device
        return torch.empty(stored.shape, dtype=dtype, device=device), torch.empty(
            shape, dtype=torch.uint8, device=device
        )
    part = torch.empty_like(shards.local(stored), dtype=dtype)
    scale = None
    if is_coded:
        shape = block_codes.scale_shape(part.shape)
        scale = shards.wrapped_scale(torch.empty(shape, dtype=torch.uint8, device=part.device), stored)
    return shards.wrapped(part, stored), scale
