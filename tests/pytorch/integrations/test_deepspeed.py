"""An engine must have AdEMAMix to show it; tests/pytorch/distributed/zero_stages.py has real ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ademamix.pytorch.integrations.deepspeed import ademamix_of


def test_an_engine_with_another_optimizer_is_refused():
    adamw = torch.optim.AdamW([torch.ones(2)])
    with (
        pytest.raises(TypeError, match="the engine's optimizer is AdamW: pass AdEMAMix"),
        ademamix_of(SimpleNamespace(basic_optimizer=adamw, optimizer=adamw)),
    ):
        pass
