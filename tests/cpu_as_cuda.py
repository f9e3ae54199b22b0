"""CPU tensors for code that insists on CUDA's: Megatron-Core allocates there, and looks at the types of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode


class _Shown(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if isinstance(device, int) or (device is not None and torch.device(device).type == "cuda"):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        found = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(found, str):
            return found.replace("torch.", "torch.cuda.")
        return found


@contextmanager
def cpu_as_cuda() -> Iterator[None]:
    """Put on the CPU what is to be on a CUDA device, and name the types of tensors as if they were there."""
    with mock.patch.multiple("torch.cuda", current_device=lambda: 0, synchronize=lambda: None), _Shown():
        yield
