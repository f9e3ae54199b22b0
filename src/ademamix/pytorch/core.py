"""The C++ core, or the reason why it is missing, and how it reads tensors."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ademamix.native import core as core
from ademamix.native import missing


def element_types(core: ModuleType) -> dict[torch.dtype, int]:
    """Return the numbers under which the core knows the dtypes of tensors."""
    return {getattr(torch, name): number for name, number in core.ELEMENT_TYPES.items()}


def tensor_reader(core: ModuleType, exchange: Any) -> Any:
    """Return the core's reader of tensors; `exchange` are DLPack's functions for them, None before torch 2.10."""
    return core.TensorReader(torch.Tensor, torch.nn.Parameter, exchange, element_types(core))


reader: Any = None if core is None else tensor_reader(core, getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))
CORE_STORAGES: tuple[str, ...] = () if core is None else core.STORAGES  # those that it has kernels for
missing_core = missing and f"{missing}, or leave `fused` out"


def check_memory(columns: Iterable[list[Tensor]]) -> None:
    """Refuse CPU tensors that have lost their memory, if there is a core: torch would end the process."""
    if core is not None:
        core.check_memory(list(columns), reader)
