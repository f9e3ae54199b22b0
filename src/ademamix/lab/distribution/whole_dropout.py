"""Dropout of a batch that several processes share: each drops what one process with the whole batch would drop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ademamix.lab.distribution.process_group import Group


class WholeBatchDropout(TorchDispatchMode):
    """While this is active, the random numbers of dropout are drawn for the whole batch, of which a part is used.

    Examples come first in every tensor, and each process has the same number of them.

    >>> seeded = torch.default_generator.manual_seed(0)
    >>> whole = torch.dropout(torch.ones(8), 0.5, train=True)
    >>> seeded = torch.default_generator.manual_seed(0)
    >>> with WholeBatchDropout(Group(rank=1, count=2)):
    ...     part = torch.dropout(torch.ones(4), 0.5, train=True)
    >>> torch.equal(part, whole[4:])
    True
    """

    def __init__(self, group: Group) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._group = group

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out an operation of torch."""
        if function is torch.ops.aten.bernoulli_.float:  # dropout on a CPU
            return args[0].copy_(self._part_of(self._whole(args[0]).bernoulli_(*args[1:])))
        if function is torch.ops.aten.native_dropout.default:  # on a GPU
            values, share, _ = args
            mask = self._part_of(torch.native_dropout(self._whole(values), share, True)[1])
            return values * mask / (1 - share), mask
        return function(*args, **(kwargs or {}))

    def _whole(self, part: Tensor) -> Tensor:
        return part.new_empty((self._group.count * len(part), *part.shape[1:]))

    def _part_of(self, whole: Tensor) -> Tensor:
        return whole.chunk(self._group.count)[self._group.rank]
