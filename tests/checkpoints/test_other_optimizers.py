"""Checkpoints of several optimizers, one of which is neither AdamW nor an AdEMAMix."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from ademamix.checkpoints import CheckpointError, convert, inspect, trees
from ademamix.lab.report.checkpoint import text
from written_by import state


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A file with two of AdamW and one of SGD between them."""
    sgd = partial(torch.optim.SGD, momentum=0.9)
    saved = {"optimizers": [state(), state(optimizer=sgd), state()]}
    torch.save(saved, tmp_path / "three.pt")
    return tmp_path / "three.pt"


def test_one_that_cannot_be_converted_is_left_as_it_is(three: Path) -> None:
    with pytest.raises(CheckpointError, match=r"at optimizers\[1\].*To leave it .* as in --only 'optimizers\[0\]'"):
        convert(three, three.with_name("new.pt"))
    reports = convert(three, three.with_name("new.pt"), only=["optimizers[0]", "optimizers[2]"], total_steps=1000)
    assert [(report.label, report.origin) for report in reports] == [
        ("optimizers[0]", "AdamW"),
        ("optimizers[1]", ""),
        ("optimizers[2]", "AdamW"),
    ]
    old, new = (torch.load(three.with_name(name))["optimizers"] for name in ("three.pt", "new.pt"))
    assert trees.difference(old[1], new[1]) is None
    assert all("exp_avg_slow" in new[i]["state"][0] for i in (0, 2))
    with pytest.raises(CheckpointError, match=r"no optimizer state at 'optimizers\[3\]'; there is: optimizers\[0\], "):
        convert(three, three.with_name("other.pt"), only="optimizers[3]")


def test_the_others_are_inspected(three: Path) -> None:
    found = inspect(three)
    assert [state.label for state in found.states] == ["optimizers[0]", "optimizers[2]"]
    assert list(found.unread) == ["optimizers[1]"]
    assert "not read: at optimizers[1]: this is the state of another optimizer" in text(found, 200)
