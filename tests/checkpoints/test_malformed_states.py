"""States that are no optimizer's are refused with their place, whatever is wrong with them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ademamix import AdEMAMix
from ademamix.checkpoints import CheckpointError, convert, inspect
from cases import STORAGES
from fixtures.foreign import write_foreign as foreign
from written_by import state

FOREIGN = Path(foreign.__file__).parent
Change = Callable[[dict[str, Any]], Any]


def entry(name: str, value: Any) -> Change:
    return lambda saved: saved["state"][0].update({name: value})


def setting(name: str, value: Any) -> Change:
    return lambda saved: saved["param_groups"][0].update({name: value})


def without(name: str) -> Change:
    return lambda saved: saved["state"][0].pop(name)


def group_without(name: str) -> Change:
    return lambda saved: saved["param_groups"][0].pop(name)


def whole(key: str, value: Any) -> Change:
    return lambda saved: saved.update({key: value})


DENSE = "must be a dense tensor that has its values, got a tensor"
NUMBERS = "must have floating-point numbers, or codes with their scales, got a tensor, "
ONE = "must be a value, or a tensor of one element, got a tensor"
HUGE = 10**400
STEPS = "must count steps, with a whole number of at least 0, got"
MALFORMED: dict[str, tuple[Change, str]] = {  # whose they are does not matter
    "none": (entry("exp_avg", None), "exp_avg of parameter w must be a tensor, got None"),
    "number": (entry("exp_avg", 1.5), "exp_avg of parameter w must be a tensor, got 1.5"),
    "text": (entry("exp_avg_sq", "x"), "exp_avg_sq of parameter w must be a tensor, got 'x'"),
    "sparse": (entry("exp_avg", torch.eye(3).to_sparse()), f"exp_avg of parameter w {DENSE} as torch.sparse_coo"),
    "meta": (entry("exp_avg", torch.ones(3, device="meta")), f"exp_avg of parameter w {DENSE} without values"),
    "meta step": (entry("step", torch.ones((), device="meta")), f"step of parameter w {DENSE} without values"),
    "bool": (entry("exp_avg", torch.ones(3, dtype=torch.bool)), f"exp_avg of parameter w {NUMBERS}torch.bool"),
    "codes": (entry("exp_avg_sq", torch.ones(3, dtype=torch.uint8)), f"exp_avg_sq of parameter w {NUMBERS}torch.uint8"),
    "shape": (entry("exp_avg", torch.ones(2)), "exp_avg of parameter w must have the shape of exp_avg_sq, (3,), got"),
    "step NaN": (entry("step", math.nan), f"step of parameter w {STEPS} nan"),
    "step infinite": (entry("step", torch.tensor(math.inf)), f"step of parameter w {STEPS} inf"),
    "step text": (entry("step", "x"), f"step of parameter w {STEPS} 'x'"),
    "step none": (entry("step", None), f"step of parameter w {STEPS} None"),
    "step negative": (entry("step", -1.0), f"step of parameter w {STEPS} -1.0"),
    "steps": (entry("step", torch.ones(2)), f"step of parameter w {STEPS} a tensor, torch.float32 of shape (2,)"),
    "step dict": (entry("step", {}), f"step of parameter w {STEPS} {{}}"),
    "entries": (whole("state", {0: 1.0}), "the state of parameter w must be a dict, got 1.0"),
    "other keys": (setting("params", [1]), "state has moments under 0, and no group has a parameter of that name"),
    "no groups": (whole("param_groups", []), "has no parameter groups, or only empty ones"),
    "params": (setting("params", None), "params of group 0 must be a list of numbers or names, got None"),
    "names": (setting("param_names", ["w", "b"]), "param_names of group 0 must be a list of 1 names"),
    "betas": (setting("betas", 0.9), "betas of group 0 must be two or three numbers, got 0.9"),
    "beta": (setting("betas", (0.9, 1.5, 0.99)), "beta2 of group 0 must be a number in [0, 1), got 1.5"),
    "names tensor": (setting("param_names", torch.ones(2)), "param_names of group 0 must be a list of 1 names"),
    "names number": (
        setting("param_names", 0),
        "param_names of group 0 must be a list of 1 names, as params is, got 0",
    ),
    "beta meta": (setting("betas", (torch.ones((), device="meta"), 0.9)), f"betas of group 0 {ONE} without values"),
    "beta huge": (setting("betas", (0.9, HUGE)), "betas of group 0 must be small enough for a float, got an integer"),
    "lr": (setting("lr", torch.ones(2)), f"lr of group 0 {ONE}"),
    "lr huge": (setting("lr", HUGE), "lr of group 0 must be small enough for a float, got an integer of 1,329 bits"),
    "eps huge": (setting("eps", HUGE), "eps of group 0 must be small enough for a float"),
    "decay huge": (setting("weight_decay", -HUGE), "weight_decay of group 0 must be small enough for a float"),
    "step huge": (entry("step", HUGE), f"step of parameter w {STEPS} an integer of 1,329 bits"),
    "others": (setting("note", [{"a": torch.ones(2, device="meta")}]), f"note of group 0 {ONE} without values"),
}
LACKING = "the state of parameter w must have"
OURS = partial(AdEMAMix, total_steps=1000)
SETTING = "group 0 has a setting that no step can be taken with: "
MALFORMED_OURS: dict[str, tuple[Change, str]] = {
    "slow": (entry("exp_avg_slow", None), "exp_avg_slow of parameter w must be a tensor, got None"),
    "no moments": (whole("state", {0: {"a": 1}}), f"{LACKING} step, got ['a']"),
    "no nu": (without("exp_avg_sq"), f"{LACKING} exp_avg_sq, got ['step', 'slow_step', 'exp_avg', 'exp_avg_slow']"),
    "no nu at 0": (whole("state", {0: {"step": 0, "slow_step": 0}}), f"{LACKING} exp_avg_sq, got"),
    "no clock": (without("step"), f"{LACKING} step, got"),
    "no slow": (without("exp_avg_slow"), f"{LACKING} exp_avg_slow, got ['step', 'slow_step', 'exp_avg', 'exp_avg_sq']"),
    "no slow clock": (without("slow_step"), f"{LACKING} slow_step, got"),
    "alpha huge": (setting("alpha", HUGE), "alpha of group 0 must be small enough for a float"),
    "beta3_start huge": (setting("beta3_start", HUGE), "beta3_start of group 0 must be small enough for a float"),
    "slow_clip huge": (setting("slow_clip", HUGE), "slow_clip of group 0 must be small enough for a float"),
    "slow step": (entry("slow_step", math.nan), f"slow_step of parameter w {STEPS} nan"),
    "horizon": (setting("total_steps", "x"), f"{SETTING}total_steps must be an integer >= 1"),
    "warm-up": (setting("alpha_warmup", "x"), f"{SETTING}alpha_warmup must be an integer >= 0 or None, got 'x'"),
    "betas": (setting("betas", (0.9, 0.99)), f"{SETTING}betas must be (beta1, beta2, beta3)"),
    "lr": (setting("lr", "x"), f"{SETTING}lr must be a number"),
    "both": (lambda saved: saved["param_groups"][0].update(fused=True, foreach=True), f"{SETTING}`fused` and"),
    "given": (setting("given", None), "given of group 0 must be a list of settings, got None"),
}


@pytest.mark.parametrize(
    ("optimizer", "change"),
    [
        *[pytest.param(torch.optim.AdamW, row, id=f"AdamW-{name}") for name, row in MALFORMED.items()],
        *[pytest.param(OURS, row, id=f"ours-{name}") for name, row in (MALFORMED | MALFORMED_OURS).items()],
    ],
)
def test_a_malformed_state_is_refused_with_its_place(
    tmp_path: Path, optimizer: Any, change: tuple[Change, str]
) -> None:
    """By both commands, in the same words, whatever torch or the optimizer would have said of it."""
    apply, expected = change
    saved = state(optimizer=optimizer)
    apply(saved)
    torch.save({"optimizer": saved}, tmp_path / "source.pt")
    for read in (inspect, lambda source: convert(source, tmp_path / "new.pt", total_steps=1000)):
        with pytest.raises(CheckpointError) as raised:
            read(tmp_path / "source.pt")
        said = str(raised.value)
        assert said.startswith("at optimizer: ")
        assert expected in said
        assert "\n" not in said
    assert [file.name for file in tmp_path.iterdir()] == ["source.pt"]


WRAPPER = "__bnb_optimizer_quant_state__"
MALFORMED_OF_OTHERS: dict[str, tuple[str, Change, str]] = {
    "wrapper": ("bitsandbytes-8", entry(WRAPPER, None), f"{WRAPPER} of parameter 0 must be a dict, got None"),
    "table": (
        "bitsandbytes-8",
        lambda saved: saved["state"][0][WRAPPER].update(qmap1=torch.ones(7)),
        "the codes of this state do not fit its scales or its table of values",
    ),
    "clock": ("heavyball-risen", setting("step_count", "x"), f"step_count of group 0 {STEPS} 'x'"),
    "no step": ("pytorch_optimizer", setting("step", None), "the state of parameter 0 must have step, got ['step',"),
    "authors' betas": (
        "authors-risen",
        group_without("betas"),
        "group 0 of this AdEMAMix of the paper's authors has no betas: it was changed",
    ),
    "bitsandbytes' warm-up": ("bitsandbytes-32", group_without("t_beta3"), "of bitsandbytes has no t_beta3"),
    "heavyball's warm-up": ("heavyball-risen", group_without("alpha_warmup"), "of heavyball has no alpha_warmup"),
    "their warm-up": ("authors-risen", group_without("beta3_warmup"), "of the paper's authors has no beta3_warmup"),
    "m1": ("authors-risen", entry("exp_avg_fast", 1.5), "exp_avg_fast of parameter 0 must be a tensor, got 1.5"),
}


@pytest.mark.parametrize("name", MALFORMED_OF_OTHERS)
def test_a_malformed_state_of_another_ademamix_is_refused(tmp_path: Path, name: str) -> None:
    file, apply, expected = MALFORMED_OF_OTHERS[name]
    saved = torch.load(FOREIGN / f"{file}.pt")
    apply(saved["optimizer"])
    torch.save(saved, tmp_path / "source.pt")
    for read in (inspect, lambda source: convert(source, tmp_path / "new.pt", total_steps=1000)):
        with pytest.raises(CheckpointError) as raised:
            read(tmp_path / "source.pt")
        assert expected in str(raised.value)


VALID: dict[str, Any] = {
    "AdamW": torch.optim.AdamW,
    **{storage: partial(OURS, state_storage=storage) for storage in STORAGES},
    "beta1 of 0": partial(OURS, betas=(0.0, 0.99)),
    "skipping": partial(OURS, nonfinite="skip"),
    "without a horizon": partial(AdEMAMix, alpha_warmup=0, beta3_warmup=0),
}


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("name", VALID)
def test_what_an_optimizer_writes_is_never_malformed(tmp_path: Path, name: str, steps: int) -> None:
    """Also where a parameter was never stepped, and after a change of the optimizer during the run."""
    used, unused = torch.ones(70, 70, requires_grad=True), torch.ones(3, requires_grad=True)
    optimizer = VALID[name]([used, unused])
    for _ in range(steps):
        used.grad = torch.ones(70, 70)
        optimizer.step()
    states = {"as it was": copy.deepcopy(optimizer.state_dict())}
    if name == "AdamW":
        switched = AdEMAMix.from_adamw(optimizer, total_steps=1000)
    else:
        switched = optimizer
        switched.param_groups[0]["betas"] = (0.5, 0.99, 0.999)  # so that m1 begins late where there was none
    states["changed"] = copy.deepcopy(switched.state_dict())
    states["AdamW"] = switched.to_adamw().state_dict()
    for label, saved in states.items():
        torch.save(saved, tmp_path / "source.pt")
        (found,) = inspect(tmp_path / "source.pt").states
        assert len(found.parameters) == min(steps, 1), label
        convert(tmp_path / "source.pt", tmp_path / "new.pt", total_steps=2000)
        written = torch.load(tmp_path / "new.pt")["state"]
        assert [entries["exp_avg_slow"].shape for entries in written.values()] == [(70, 70)] * min(steps, 1)
        (tmp_path / "new.pt").unlink()


@pytest.mark.parametrize("other", [torch.optim.RAdam, torch.optim.NAdam, torch.optim.Adamax])
def test_other_adams_are_refused(tmp_path: Path, other: Any) -> None:
    torch.save(state(optimizer=other), tmp_path / "source.pt")
    for read in (inspect, lambda source: convert(source, tmp_path / "new.pt")):
        with pytest.raises(CheckpointError, match=r"the state of (another optimizer|torch\.optim\.RAdam)"):
            read(tmp_path / "source.pt")


def test_a_group_of_nothing_is_no_mistake(tmp_path: Path) -> None:
    """torch.distributed.checkpoint keeps no settings of a group without parameters."""
    saved = state(optimizer=OURS)
    del saved["param_groups"][0]["param_names"]  # nor names
    saved["param_groups"].append({"params": []})
    torch.save(saved, tmp_path / "source.pt")
    (found,) = inspect(tmp_path / "source.pt").states
    assert [parameter.name for parameter in found.parameters] == ["0"]
