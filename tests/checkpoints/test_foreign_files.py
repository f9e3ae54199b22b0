"""Files that other implementations have written: converted, the next 100 steps are theirs, up to fp32 rounding.

`tests/fixtures/foreign/write_foreign.py` says what is in them, and which versions wrote them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ademamix import AdEMAMix
from ademamix.checkpoints import convert
from fixtures.foreign import write_foreign as saved

NAMES = {  # and whose they are
    "authors-risen": "the paper's authors",
    "authors-rising": "the paper's authors",
    "bitsandbytes-32": "bitsandbytes",
    "bitsandbytes-8": "bitsandbytes",
    "heavyball-risen": "heavyball",
    "heavyball-rising": "heavyball",
    "pytorch_optimizer": "pytorch_optimizer",
}
TOLERANCES = {1: 3e-7, 10: 1e-6, 100: 5e-6}  # by steps, of parameters of about 1
EXACT_STEPS = {"bitsandbytes-8": 1}  # it rounds its state to 8 bits after each step, which ours does not


@pytest.mark.filterwarnings("ignore:AdEMAMix was given no horizon")
@pytest.mark.parametrize("name", NAMES)
def test_the_next_steps_are_those_of_the_source(name: str, tmp_path: Path) -> None:
    source = Path(saved.__file__).with_name(f"{name}.pt")
    (report,) = convert(source, tmp_path / "ours.pt")
    assert (report.label, report.origin) == ("optimizer", NAMES[name])
    checkpoint = torch.load(tmp_path / "ours.pt")
    assert checkpoint["step"] == saved.SAVED
    expected = torch.load(source.with_name(f"{name}-continued.pt"))
    params = [param.clone().requires_grad_() for param in checkpoint["parameters"]]
    optimizer = AdEMAMix(params)  # without settings: those of the file count
    optimizer.load_state_dict(checkpoint["optimizer"])
    for step in range(1, EXACT_STEPS.get(name, 100) + 1):
        for param, gradient in zip(params, saved.numbers(name, saved.SAVED + step), strict=True):
            param.grad = gradient
        optimizer.step()
        for param, other in zip(params, expected.get(str(step), params), strict=True):
            torch.testing.assert_close(param.detach(), other.detach(), rtol=0, atol=TOLERANCES.get(step, 0.0))


@pytest.mark.parametrize("name", NAMES)
def test_another_ademamix_becomes_adamw(name: str, tmp_path: Path) -> None:
    """The next step is AdamW's with the same m1 and nu: computed by hand."""
    convert(Path(saved.__file__).with_name(f"{name}.pt"), tmp_path / "adamw.pt", "adamw")
    convert(Path(saved.__file__).with_name(f"{name}.pt"), tmp_path / "ours.pt")
    state, ours = (torch.load(tmp_path / f"{file}.pt")["optimizer"] for file in ("adamw", "ours"))
    params = [torch.zeros(shape, requires_grad=True) for shape in saved.SHAPES.get(name, saved.SMALL)]
    optimizer = torch.optim.AdamW(params)
    optimizer.load_state_dict(state)
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    t = saved.SAVED + 1
    for param, moments in zip(params, ours["state"].values(), strict=True):
        m1_hat = 0.9 * moments["exp_avg"] / (1 - 0.9**t)
        nu_hat = 0.99 * moments["exp_avg_sq"] / (1 - 0.99**t)
        torch.testing.assert_close(param.detach(), -0.01 * m1_hat / (nu_hat.sqrt() + 1e-8), rtol=1e-5, atol=1e-8)
