"""state_dict and load_state_dict: bit-identical resume, dtypes, other horizons, AdamW's state."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch

from ademamix import AdEMAMix, alpha_at, beta3_at
from cases import PATHS, gradients, make

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]


def run(params, optimizer, first, last):
    for step in range(first, last + 1):
        for seed, param in enumerate(params):
            shape = (*param.shape, 2) if param.is_complex() else tuple(param.shape)
            gradient = torch.tensor(gradients(seed, shape, step))
            param.grad = (torch.view_as_complex(gradient) if param.is_complex() else gradient).to(param.dtype)
        optimizer.step()


def fresh(dtype):
    return [(torch.ones(5, 3) * scale).to(dtype).requires_grad_() for scale in (1.0, 2.0)]


def through_disk(state_dict):
    buffer = io.BytesIO()
    torch.save(state_dict, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("beta1", [0.9, 0.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_resume_is_bit_identical(path, dtype, beta1):
    settings = {"lr": 1e-2, "betas": (beta1, 0.99), "total_steps": 40, "nonfinite": "skip", **PATHS[path]}
    params = fresh(dtype)
    optimizer = make(params, **settings)
    run(params, optimizer, 1, 20)
    saved, weights = through_disk(optimizer.state_dict()), [param.detach().clone() for param in params]
    run(params, optimizer, 21, 50)

    resumed = [weight.requires_grad_() for weight in weights]
    continued = AdEMAMix(resumed, total_steps=40, **PATHS[path])
    continued.load_state_dict(saved)
    run(resumed, continued, 21, 50)
    for param, other in zip(params, resumed, strict=True):
        assert torch.equal(param, other)
        for name, value in optimizer.state[param].items():
            assert value.dtype == continued.state[other][name].dtype
            assert torch.equal(value, continued.state[other][name]), name
    assert continued.param_groups[0]["betas"] == optimizer.param_groups[0]["betas"]


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_copies_go_on_alike(duplicate):
    params = fresh(torch.bfloat16)
    optimizer = make(params, total_steps=40)
    run(params, optimizer, 1, 10)
    copied_params, copied = duplicate((params, optimizer))
    run(params, optimizer, 11, 20)
    run(copied_params, copied, 11, 20)
    for param, other in zip(params, copied_params, strict=True):
        assert torch.equal(param, other)
    copied.add_param_group({"params": [torch.ones(1, requires_grad=True)]})
    assert copied.param_groups[1]["alpha_warmup"] == 40


def checkpoint_at(step, **settings):
    params = fresh(torch.float32)
    optimizer = make(params, **settings)
    run(params, optimizer, 1, step)
    return optimizer.state_dict()


OVERRIDES = [
    # saved with, constructed with, expected settings of the continued run
    ({"total_steps": 100}, {"total_steps": 200}, {"total_steps": 200, "alpha_warmup": 200, "beta3": 1 - 1 / 8}),
    ({"total_steps": 100}, {}, {"total_steps": 100, "alpha_warmup": 100, "beta3": 0.75}),
    ({"total_steps": 100}, {"alpha": 3.0}, {"alpha": 3.0, "total_steps": 100, "beta3": 0.75}),
    ({"total_steps": 100}, {"alpha": 5.0}, {"alpha": 5.0, "total_steps": 100}),
    ({"total_steps": 100, "alpha": 8.0}, {}, {"alpha": 8.0}),
    ({"total_steps": 100, "alpha_warmup": 7}, {"total_steps": 200}, {"alpha_warmup": 7, "beta3_warmup": 200}),
    ({"total_steps": 100}, {"alpha_warmup": 0}, {"alpha_warmup": 0, "beta3_warmup": 100}),
    ({"total_steps": 100}, {"betas": (0.1, 0.1, 0.9)}, {"beta1": 0.5, "beta2": 0.99, "beta3": 0.9}),
    ({"betas3": 0.95, "total_steps": 100}, {"total_steps": 500}, {"beta3": 0.95, "alpha_warmup": 500}),
    ({"total_steps": 100}, {"beta3_start": 0.0}, {"beta3_start": 0.0}),
    ({"total_steps": 100, "beta3_start": 0.1}, {"total_steps": 50}, {"beta3_start": 0.1}),
]


@pytest.mark.parametrize(("saved", "own", "expected"), OVERRIDES, ids=lambda value: str(value)[:50])
def test_only_what_was_given_overrides_the_checkpoint(saved, own, expected):
    saved = dict(saved)
    beta3 = saved.pop("betas3", None)
    saved_state = checkpoint_at(30, lr=0.02, betas=(0.5, 0.99) if beta3 is None else (0.5, 0.99, beta3), **saved)
    before = saved_state["param_groups"][0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = AdEMAMix(fresh(torch.float32), **own)
        caught.clear()  # the constructor's advice
        optimizer.load_state_dict(saved_state)
    group = optimizer.param_groups[0]
    found = {**group, "beta1": group["betas"][0], "beta2": group["betas"][1], "beta3": group["betas"][2]}
    assert {name: found[name] for name in expected} == expected
    assert group["lr"] == 0.02
    assert {float(state["slow_step"]) for state in optimizer.state.values()} == {30.0}

    def schedule(group):
        alpha = alpha_at(30, group["alpha"], group["alpha_warmup"])
        return alpha, beta3_at(30, group["betas"][2], group["beta3_start"], group["beta3_warmup"])

    changed = schedule(before) != schedule(group)
    assert len(caught) == int(changed)
    if changed:
        assert caught[0].filename == __file__
        for value in (*schedule(before), *schedule(group)):
            assert f"{value:.6g}"[:6] in str(caught[0].message)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_adamw_state_loads_as_a_switch(dtype):
    params = fresh(dtype)
    adamw = torch.optim.AdamW(params, lr=0.03, betas=(0.8, 0.95), weight_decay=0.2)
    run(params, adamw, 1, 10)
    saved = through_disk(adamw.state_dict())
    optimizer = AdEMAMix(params, total_steps=1000, alpha=2.0)
    optimizer.load_state_dict(saved)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.03, 0.2)
    assert group["betas"] == (0.8, 0.95, 0.975)
    assert "amsgrad" not in group
    for param in params:
        state = optimizer.state[param]
        assert (state["step"], state["slow_step"]) == (10, 0)
        assert {state[name].dtype for name in ("exp_avg", "exp_avg_slow", "exp_avg_sq")} == {torch.float32}
        assert torch.equal(state["exp_avg"].to(dtype), adamw.state[param]["exp_avg"])
        assert not state["exp_avg_slow"].any()
    run(params, optimizer, 11, 12)
    assert optimizer.schedule()[0]["slow_step"] == 2


def test_other_adams_are_refused_and_nothing_changes():
    params = fresh(torch.float32)
    optimizer = make(params, total_steps=100)
    run(params, optimizer, 1, 3)
    before = copy.deepcopy(optimizer.state_dict())
    refused = [
        (torch.optim.AdamW(params, amsgrad=True), "amsgrad=True is not possible"),
        (torch.optim.Adam(params, weight_decay=0.1), "Adam with L2 weight decay"),
        (make([torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)]), "has shape"),
    ]
    for other, message in refused:
        for param in other.param_groups[0]["params"]:
            param.grad = torch.ones_like(param)
        other.step()
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(other.state_dict())
        after = optimizer.state_dict()
        assert after["param_groups"] == before["param_groups"]
        for index, state in before["state"].items():
            assert all(torch.equal(value, after["state"][index][name]) for name, value in state.items())


def test_a_checkpoint_of_another_memory_layout_loads():
    weights = torch.tensor(gradients(0, (4, 3, 2, 2), 0), dtype=torch.float32)
    plain = weights.clone().requires_grad_()
    optimizer = make([plain], total_steps=50)
    run([plain], optimizer, 1, 5)
    last = plain.detach().clone(memory_format=torch.channels_last).requires_grad_()
    continued = make([last], total_steps=50)
    continued.load_state_dict(through_disk(optimizer.state_dict()))
    run([plain], optimizer, 6, 9)
    run([last], continued, 6, 9)
    assert torch.equal(plain, last)
    assert continued.state[last]["exp_avg_slow"].is_contiguous(memory_format=torch.channels_last)


def test_hooks_see_plain_tensors_and_groups_keep_their_identity():
    params = fresh(torch.float32)
    optimizer = make(params, total_steps=50)
    run(params, optimizer, 1, 3)
    saved = optimizer.state_dict()
    groups, group = optimizer.param_groups, optimizer.param_groups[0]
    seen = []
    optimizer.register_load_state_dict_pre_hook(lambda _, state: seen.append(type(state["state"][0]["exp_avg"])))
    optimizer.register_load_state_dict_post_hook(lambda opt: seen.append(type(opt.state[params[0]]["exp_avg"])))
    optimizer.load_state_dict(saved)
    assert seen == [torch.Tensor, torch.Tensor]
    assert optimizer.param_groups is groups
    assert optimizer.param_groups[0] is group


@pytest.mark.parametrize("horizon", ["open", 100_000, 2_000_000], ids=["extended", "ended", "ended late"])
def test_an_open_run_is_extended_and_ended_silently(horizon):
    params = fresh(torch.float32)
    optimizer = AdEMAMix(params, total_steps="open")
    run(params, optimizer, 1, 20)
    saved = through_disk(optimizer.state_dict())
    other = fresh(torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        continued = AdEMAMix(other, total_steps=horizon)
        continued.load_state_dict(saved)
    assert continued.param_groups[0]["total_steps"] == horizon
    assert continued.schedule() == optimizer.schedule()


def test_an_open_run_that_ends_before_its_warm_ups_is_told_so():
    params = fresh(torch.float32)
    saved = AdEMAMix(params, total_steps="open").state_dict()
    with pytest.warns(UserWarning, match=r"warm-ups of 100,000 steps, and now ends after 5,000"):
        AdEMAMix(params, total_steps=5000).load_state_dict(saved)


def test_an_open_run_takes_settings_that_are_given_with_its_end():
    params = fresh(torch.float32)
    saved = AdEMAMix(params, total_steps="open").state_dict()
    continued = AdEMAMix(params, total_steps=5000, betas=(0.9, 0.999, 0.999), beta3_warmup=10)
    with pytest.warns(UserWarning, match=r"schedule was replaced.*now ends after 5,000"):
        continued.load_state_dict(saved)
    (group,) = continued.param_groups
    assert (group["betas"][2], group["beta3_warmup"], group["alpha_warmup"]) == (0.999, 10, 100_000)


def test_a_new_horizon_keeps_the_start_of_beta3_that_the_run_began_with():
    """Some lr schedulers rewrite beta1; where beta3 started from is not changed by that."""
    params = fresh(torch.float32)
    optimizer = make(params, betas=(0.9, 0.99), total_steps=1000)
    run(params, optimizer, 1, 3)
    optimizer.param_groups[0]["betas"] = (0.8, *optimizer.param_groups[0]["betas"][1:])
    continued = make(params, total_steps=2000)
    with pytest.warns(UserWarning, match="schedule was replaced"):
        continued.load_state_dict(through_disk(optimizer.state_dict()))
    assert continued.param_groups[0]["betas"] == (0.8, 0.99, 1 - 1 / 80)
    assert continued.param_groups[0]["beta3_start"] == 0.9


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("state_storage", ["fp32", "compact"])
def test_a_step_that_only_creates_state_is_none(state_storage, dtype, path):
    """torch.distributed.checkpoint takes it: zeros for gradients, 0 for lr."""
    param = torch.randn(64, 128).to(dtype).requires_grad_()
    before = param.detach().clone()
    optimizer = make([param], lr=0.0, state_storage=state_storage, **PATHS[path])
    param.grad = torch.zeros_like(param)
    optimizer.step()
    assert torch.equal(param, before)
    state = optimizer.state[param]
    assert state["step"] == state["slow_step"] == 0
    assert not any(value.any() for value in state.values())
    optimizer.step()
    assert state["step"] == 1  # there is state now, so that this one is a step


@pytest.mark.parametrize(("lr", "gradient"), [(0.0, 1.0), (1e-3, 0.0)])
def test_a_first_step_with_a_rate_or_a_gradient_counts(lr, gradient):
    param = torch.ones(3, requires_grad=True)
    optimizer = make([param], lr=lr)
    param.grad = torch.full((3,), gradient)
    optimizer.step()
    assert optimizer.schedule()[0]["step"] == 1


def test_a_group_that_was_saved_without_settings_keeps_its_own():
    """torch.distributed.checkpoint saves nothing of a group without parameters."""
    param = torch.ones(3, requires_grad=True)
    optimizer = make([{"params": [param]}, {"params": [], "lr": 0.5}])
    run([param], optimizer, 1, 2)
    saved = optimizer.state_dict()
    saved["param_groups"][1] = {"params": []}
    other = make([{"params": [param]}, {"params": [], "lr": 0.25}])
    other.load_state_dict(saved)
    assert other.param_groups[1]["lr"] == 0.25
    assert other.state[param]["step"] == 2
