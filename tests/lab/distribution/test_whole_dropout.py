from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ademamix.lab.distribution.process_group import Group
from ademamix.lab.distribution.whole_dropout import WholeBatchDropout

EXAMPLES, SHARE = 8, 0.25
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "on a CPU": lambda values: torch.dropout(values, SHARE, train=True),
    "on a GPU": lambda values: torch.native_dropout(values, SHARE, train=True)[0],  # which torch chooses there
    "of attention": lambda values: torch.nn.functional.scaled_dot_product_attention(
        values, values, values, dropout_p=SHARE
    ),
}


def _dropped(way: str, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return what two dropouts with the same seed leave, and the gradient of its sum of squares."""
    torch.default_generator.manual_seed(3)
    values = values.clone().requires_grad_()
    left = WAYS[way](WAYS[way](values))
    left.square().sum().backward()
    assert values.grad is not None
    return left.detach(), values.grad


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [2, 4])
def test_each_process_drops_what_one_with_the_whole_batch_would(way: str, count: int) -> None:
    values = torch.randn(EXAMPLES, 2, 6, 16, generator=torch.Generator().manual_seed(0))
    whole = _dropped(way, values)
    for rank in range(count):
        with WholeBatchDropout(Group(rank, count)):
            found = _dropped(way, values.chunk(count)[rank])
        for part, expected in zip(found, whole, strict=True):
            torch.testing.assert_close(part, expected.chunk(count)[rank])
