"""Trees are compared to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ademamix.checkpoints.trees import difference, replaced

NAN = torch.tensor([1.0, float("nan")])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (NAN, NAN.clone()),
        (torch.ones(2, 3).t(), torch.ones(3, 2)),
        (torch.tensor(2.0), torch.tensor(2.0)),
        (torch.ones(0), torch.ones(0)),
        (torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)),
        (torch.tensor([1, 2]).to_sparse(), torch.tensor([1, 2]).to_sparse()),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan])),
        (np.array(3), np.array(3)),
        (float("nan"), float("nan")),
        ((1, [2, "x"], None), (1, [2, "x"], None)),
    ],
)
def test_the_same(old: Any, new: Any) -> None:
    assert difference({"a": old}, {"a": new}) is None


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        (torch.zeros(2), torch.tensor([0.0, -0.0]), "a"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), "a"),
        (torch.ones(2), torch.ones(2, 1), "a"),
        (torch.ones(2), [1.0, 1.0], "a"),
        (np.ones(2), np.array([1.0, np.nextafter(1.0, 2)]), "a"),
        (1, 1.0, "a"),
        (True, 1, "a"),
        ([1, 2], [1, 2, 3], "a"),
        ([1, {"b": 2}], [1, {"b": 3}], "a[1].b"),
        ({"b": 1}, {"b": 1, "c": 2}, "a"),
    ],
)
def test_a_difference_is_found(old: Any, new: Any, place: str) -> None:
    assert difference({"a": old}, {"a": new}) == place


def test_replacing_keeps_kinds_and_the_original() -> None:
    tree = {"a": (1, [2, 3])}
    assert replaced(tree, ("a", 1, 0), "new") == {"a": (1, ["new", 3])}
    assert tree == {"a": (1, [2, 3])}
    assert replaced(tree, (), 5) == 5
