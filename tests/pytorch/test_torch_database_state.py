"""AdamW's entry of torch's optimizer test database: state_dict, loading, copies and hooks."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cases import make
from database import OURS, assert_same, build, every_base, every_input, model, parameters, run


def named(params, is_named):
    return list(zip(("weight", "bias"), params, strict=True)) if is_named else params


def stepped(kwargs, is_named=False, groups=False):
    """Return parameters and their optimizer after five steps. The moments of a bf16 parameter must stay fp32."""
    weight, bias, _ = model()
    params = parameters(kwargs, weight, bias.bfloat16())
    given = named(params, is_named)
    optimizer = build([{"params": given[:1]}, {"params": given[1:], "lr": 2e-3}] if groups else given, kwargs)
    run(params, optimizer)
    return params, optimizer


def assert_continues_alike(params, optimizer, others, other_optimizer):
    assert others[0] is not params[0]
    run(params, optimizer, range(5, 9))
    run(others, other_optimizer, range(5, 9))
    assert_same(others, params)
    assert_same(other_optimizer.state_dict(), optimizer.state_dict())


def through_file(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def with_number_clocks(state_dict):
    state_dict = copy.deepcopy(state_dict)
    for state in state_dict["state"].values():
        state["step"], state["slow_step"] = state["step"].item(), int(state["slow_step"].item())
    return state_dict


SAVED = {"as-is": lambda saved: saved, "weights_only": through_file, "number-clocks": with_number_clocks}


@pytest.mark.parametrize("is_named", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("way", SAVED)
@every_input
def test_a_loaded_state_dict_continues_alike(kwargs, way, is_named):
    params, optimizer = stepped(kwargs, is_named, groups=True)
    others = parameters(kwargs, *params)
    given = named(others, is_named)
    other_optimizer = make([{"params": given[:1]}, {"params": given[1:]}])  # everything else is the checkpoint's
    state_dict = SAVED[way](copy.deepcopy(optimizer.state_dict()))
    before = copy.deepcopy(state_dict)
    other_optimizer.load_state_dict(state_dict)
    assert_same(state_dict, before)
    assert_continues_alike(params, optimizer, others, other_optimizer)


@pytest.mark.parametrize("flag", OURS.not_og_supported_flags)
@every_base
def test_a_state_dict_from_before_a_flag_existed_loads(kwargs, flag):
    params, optimizer = stepped(kwargs)
    others = parameters(kwargs, *params)
    state_dict = copy.deepcopy(optimizer.state_dict())
    del state_dict["param_groups"][0][flag]
    other_optimizer = build(others, kwargs)
    other_optimizer.load_state_dict(state_dict)
    assert_continues_alike(params, optimizer, others, other_optimizer)


@pytest.mark.parametrize("own", [True, False], ids=["to-named", "from-named"])
@every_base
def test_named_and_unnamed_state_dicts_mix(kwargs, own):
    params, optimizer = stepped(kwargs, is_named=not own)
    others = parameters(kwargs, *params)
    other_optimizer = build(named(others, own), kwargs)
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other_optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    optimizer.param_groups[0]["param_names"] = ["weight", "bias"]
    assert_continues_alike(params, optimizer, others, other_optimizer)


@every_input
def test_a_state_dict_of_another_model_is_refused_and_changes_nothing(kwargs):
    params, optimizer = stepped(kwargs)
    foreign = build(parameters(kwargs, params[1], params[0]), kwargs)
    run(foreign.param_groups[0]["params"], foreign)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"exp_avg has shape \(10,\) but its parameter has \(10, 5\)"):
        optimizer.load_state_dict(foreign.state_dict())
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict(stepped(kwargs, groups=True)[1].state_dict())
    with pytest.raises(ValueError, match="size of optimizer's group"):
        optimizer.load_state_dict(build(parameters(kwargs, params[0]), kwargs).state_dict())
    assert_same(optimizer.state_dict(), before)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer))}


@pytest.mark.parametrize("way", COPIES)
@every_input
def test_copies_go_on_by_themselves(kwargs, way):
    params, optimizer = stepped(kwargs, groups=True)
    if kwargs.get("differentiable"):
        for state in optimizer.state.values():
            assert all(not value.requires_grad for value in state.values())
    twin = COPIES[way](optimizer)
    public = {name for name in vars(optimizer) if not name.startswith("_")}
    assert {name for name in vars(twin) if not name.startswith("_")} == public
    others = [group["params"][0] for group in twin.param_groups]
    before = copy.deepcopy(optimizer.state_dict())
    run(others, twin, [99])
    assert_same(optimizer.state_dict(), before)
    twin = COPIES[way](optimizer)
    assert_continues_alike(params, optimizer, [group["params"][0] for group in twin.param_groups], twin)
    more = torch.ones(2, requires_grad=not kwargs.get("differentiable", False))
    twin.add_param_group({"params": [more], "alpha": 1.0})  # what the constructor was given is known to a copy too
    assert_same(twin.param_groups[-1]["given"], ["alpha", "alpha_warmup", "beta3_warmup"])


@every_input
def test_state_has_adamws_names_and_one_more(kwargs):
    params, optimizer = stepped(kwargs)
    for param in params:
        state = optimizer.state[param]
        assert list(state) == ["step", "slow_step", "exp_avg", "exp_avg_slow", "exp_avg_sq"]
        assert state["step"] == state["slow_step"] == 5
        assert all(state[name].all() for name in ("exp_avg", "exp_avg_slow", "exp_avg_sq"))
    assert "AdEMAMix" in repr(optimizer)
    assert f"beta3_start: {float(kwargs.get('betas', (0.9,))[0])}" in repr(optimizer)


@every_input
def test_step_hooks_run_in_order(kwargs):
    params, optimizer = stepped(kwargs)
    calls = []

    def note(name):
        def hook(opt, args, hook_kwargs):
            assert opt is optimizer
            calls.append((name, int(opt.state[params[0]]["step"])))

        return hook

    handles = [
        register_optimizer_step_pre_hook(note("global pre")),
        register_optimizer_step_post_hook(note("global post")),
        optimizer.register_step_pre_hook(note("pre")),
        optimizer.register_step_post_hook(note("post")),
    ]
    try:
        optimizer.step()
    finally:
        for handle in handles:
            handle.remove()
    optimizer.step()
    assert calls == [("global pre", 5), ("pre", 5), ("post", 6), ("global post", 6)]


@every_input
def test_state_dict_hooks_run_in_order(kwargs):
    params, optimizer = stepped(kwargs)
    calls = []
    optimizer.register_state_dict_pre_hook(lambda opt: calls.append("saving"))
    optimizer.register_state_dict_post_hook(lambda opt, saved: {**saved, "extra": 1})
    state_dict = optimizer.state_dict()
    assert calls == ["saving"]
    assert state_dict["extra"] == 1

    def change_lr(opt, loaded):
        assert all(isinstance(value, torch.Tensor) for value in loaded["state"][0].values())
        calls.append("last")
        loaded["param_groups"][0]["lr"] = 0.5
        return loaded

    optimizer.register_load_state_dict_pre_hook(change_lr)
    optimizer.register_load_state_dict_pre_hook(lambda opt, loaded: calls.append("first"), prepend=True)
    optimizer.register_load_state_dict_post_hook(lambda opt: calls.append(("loaded", opt.param_groups[0]["lr"])))
    for _ in range(2):
        del calls[:]
        optimizer.load_state_dict(state_dict)
        run(params, optimizer)
        assert calls == ["first", "last", ("loaded", 0.5)]
