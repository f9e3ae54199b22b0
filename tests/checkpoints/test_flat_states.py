"""States that torch has flattened, whose groups repeat the names of all their parameters."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.nn import Linear, Sequential

from ademamix import AdEMAMix
from ademamix.checkpoints import convert, inspect

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def test_the_state_of_named_parameters_continues(tmp_path: Path) -> None:
    model = Sequential(Linear(4, 3), Linear(3, 2))
    adamw = torch.optim.AdamW(model.named_parameters())
    model(torch.ones(5, 4)).sum().backward()
    adamw.step()
    adamw.zero_grad()  # where there are gradients, torch does not load
    flat = get_optimizer_state_dict(model, adamw, options=FLAT)
    names = {key: value for key, value in flat.items() if key.endswith(".param_names")}
    assert {tuple(value) for value in names.values()} == {("0.weight", "0.bias", "1.weight", "1.bias")}
    torch.save(flat, tmp_path / "adamw.pt")

    convert(tmp_path / "adamw.pt", tmp_path / "ademamix.pt", total_steps=1000)
    (found,) = inspect(tmp_path / "ademamix.pt").states
    assert found.warnings == []
    converted = torch.load(tmp_path / "ademamix.pt")
    assert names.items() <= converted.items()
    optimizer = AdEMAMix(model.named_parameters(), total_steps=1000)
    set_optimizer_state_dict(model, optimizer, converted, options=FLAT)
    for param in model.parameters():
        assert torch.equal(optimizer.state[param]["exp_avg_sq"], adamw.state[param]["exp_avg_sq"])
        assert (int(optimizer.state[param]["step"]), int(optimizer.state[param]["slow_step"])) == (1, 0)

    convert(tmp_path / "ademamix.pt", tmp_path / "back.pt", to="adamw")
    again = torch.load(tmp_path / "back.pt")
    assert names.items() <= again.items()
    set_optimizer_state_dict(model, torch.optim.AdamW(model.named_parameters()), again, options=FLAT)
