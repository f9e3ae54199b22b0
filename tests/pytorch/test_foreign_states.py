"""States of other optimizers: those of other AdEMAMixes continue exactly, what is not known is refused in a sentence.

The layouts were written down from bitsandbytes 0.50.2, pytorch_optimizer 4.1.0, heavyball 3.2.1 and apple/ml-ademamix
(c3d73c0), after three steps on a CPU.
"""

from __future__ import annotations

import copy

import pytest
import torch

from ademamix import AdEMAMix
from cases import PATHS, gradients, make
from database import assert_same, params_of

SHAPES = ((8, 4), (5,))
BETAS, ALPHA, WARMUP = (0.9, 0.99, 0.999), 3.0, 50
COMMON = {"lr": 0.02, "betas": BETAS, "eps": 1e-7, "weight_decay": 0.1, "alpha": ALPHA, "params": [0, 1]}


def run(params, optimizer, steps):
    for step in steps:
        for seed, param in enumerate(params):
            param.grad = torch.tensor(gradients(seed, tuple(param.shape), step), dtype=param.dtype)
        optimizer.step()


def three_steps():
    """A run of our own, which the foreign states are made from."""
    params = params_of(*SHAPES)
    settings = {key: COMMON[key] for key in ("lr", "betas", "eps", "weight_decay", "alpha")}
    optimizer = make(params, **settings, alpha_warmup=WARMUP, beta3_warmup=WARMUP)
    run(params, optimizer, range(1, 4))
    return params, optimizer


def of_bitsandbytes(state, wrapped=True):
    tensors = {"state1": torch.stack([state["exp_avg"], state["exp_avg_slow"]]), "state2": state["exp_avg_sq"]}
    return {"step": 3, **({"__bnb_optimizer_quant_state__": tensors} if wrapped else tensors)}


def of_pytorch_optimizer(state):
    return {key: state[key] for key in ("exp_avg", "exp_avg_sq", "exp_avg_slow")}


def of_apple(state):
    return {"step": 3, "exp_avg_fast": state["exp_avg"], **{k: state[k] for k in ("exp_avg_slow", "exp_avg_sq")}}


DECOUPLED = {"weight_decouple": True, "fixed_decay": False, "t_alpha_beta3": WARMUP, "foreach": None, "step": 3}
LAYOUTS = {
    "bitsandbytes": ({**COMMON, "t_alpha": WARMUP, "t_beta3": WARMUP}, of_bitsandbytes),
    "bitsandbytes, older": (
        {**COMMON, "t_alpha": WARMUP, "t_beta3": WARMUP},
        lambda state: of_bitsandbytes(state, wrapped=False),
    ),
    "pytorch_optimizer": ({**COMMON, **DECOUPLED}, of_pytorch_optimizer),
    "apple": ({**COMMON, "alpha_warmup": WARMUP, "beta3_warmup": WARMUP}, of_apple),
}


def foreign(layout, optimizer, **group):
    settings, translate = LAYOUTS[layout]
    state = {i: translate(copy.deepcopy(entry)) for i, entry in enumerate(optimizer.state.values())}
    return {"state": state, "param_groups": [{**settings, **group}]}


@pytest.mark.parametrize("path", ["single", "fused", "foreach-capturable"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_another_ademamix_continues(layout, path):
    params, optimizer = three_steps()
    others = [param.detach().clone().requires_grad_() for param in params]
    continued = AdEMAMix(others, total_steps=1000, **PATHS[path])
    saved = foreign(layout, optimizer)
    before = copy.deepcopy(saved)
    with pytest.warns(UserWarning, match=f"AdEMAMix of {'the paper' if layout == 'apple' else layout.split(',')[0]}"):
        continued.load_state_dict(saved)
    assert_same(saved, before)
    for param, other in zip(params, others, strict=True):
        assert_same(continued.state[other], optimizer.state[param])
    group = continued.param_groups[0]
    for name in ("lr", "betas", "eps", "weight_decay", "alpha", "alpha_warmup", "beta3_warmup", "beta3_start"):
        assert group[name] == optimizer.param_groups[0][name], name
    assert not {"t_alpha", "t_beta3", "t_alpha_beta3", "step", "weight_decouple", "origin"} & set(group)
    reference = copy.deepcopy((params, optimizer))
    reference[1].param_groups[0].update(PATHS[path])
    run(others, continued, range(4, 8))
    run(*reference, range(4, 8))
    for other, param in zip(others, reference[0], strict=True):
        torch.testing.assert_close(other, param.detach(), rtol=2e-6, atol=1e-7)


def test_no_warmup_of_theirs_stays_none_and_what_was_given_wins():
    _, optimizer = three_steps()
    saved = foreign("apple", optimizer, alpha_warmup=None, beta3_warmup=None)
    continued = AdEMAMix(params_of(*SHAPES), total_steps=1000, alpha=7.0)
    with pytest.warns(UserWarning, match=r"AdEMAMix of the paper.* schedule was replaced"):
        continued.load_state_dict(saved)
    group = continued.param_groups[0]
    assert (group["alpha_warmup"], group["beta3_warmup"], group["alpha"], group["betas"]) == (0, 0, 7.0, BETAS)


def test_apple_stores_no_m1_with_beta1_of_zero():
    (param,) = params_of((5,))
    optimizer = make([param], betas=(0.0, 0.99, 0.999))
    run([param], optimizer, range(1, 4))
    saved = foreign("apple", three_steps()[1], betas=(0.0, 0.99, 0.999), params=[0])
    state = {key: optimizer.state[param][key] for key in ("exp_avg_slow", "exp_avg_sq")}
    saved["state"] = {0: {"step": 3, "exp_avg_fast": None, **state}}
    continued = make([param])
    with pytest.warns(UserWarning, match="AdEMAMix of the paper"):
        continued.load_state_dict(saved)
    assert_same(continued.state[param], optimizer.state[param])


def test_eight_bits_of_bitsandbytes_are_read_by_their_own_tables():
    """Blocks of 256 elements over the flattened tensor, each with a largest magnitude; m1 and m2 have their own."""
    (param,) = params_of((20, 33))
    generator = torch.Generator().manual_seed(0)
    tables = {"qmap1": torch.linspace(-1, 1, 256), "qmap2": torch.linspace(0, 1, 256)}
    codes1 = torch.randint(0, 256, (2, 20, 33), generator=generator, dtype=torch.uint8)
    codes2 = torch.randint(0, 256, (20, 33), generator=generator, dtype=torch.uint8)
    absmax1, absmax2 = torch.rand(2, 3, generator=generator), torch.rand(3, generator=generator)
    quantised = {**tables, "absmax1": absmax1, "absmax2": absmax2, "state1": codes1, "state2": codes2}
    group = {**COMMON, "t_alpha": None, "t_beta3": None, "params": [0]}
    saved = {"state": {0: {"step": 3, "__bnb_optimizer_quant_state__": quantised}}, "param_groups": [group]}
    optimizer = make([param])
    with pytest.warns(UserWarning, match="AdEMAMix of bitsandbytes"):
        optimizer.load_state_dict(saved)
    row, column = 13, 17
    block = (row * 33 + column) // 256
    state = optimizer.state[param]
    for name, expected in {
        "exp_avg": tables["qmap1"][codes1[0, row, column].long()] * absmax1[0, block],
        "exp_avg_slow": tables["qmap1"][codes1[1, row, column].long()] * absmax1[1, block],
        "exp_avg_sq": tables["qmap2"][codes2[row, column].long()] * absmax2[block],
    }.items():
        assert state[name][row, column] == expected
    quantised["absmax2"] = torch.rand(2)
    with pytest.raises(ValueError, match="blocks of 256"):
        optimizer.load_state_dict(saved)


def stepped(build, **settings):
    params = params_of(*SHAPES)
    optimizer = build(params, **settings)
    run(params, optimizer, range(1, 4))
    return optimizer.state_dict()


def bitsandbytes_adamw():
    group = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "alpha": 0.0, "t_alpha": None}
    entry = {"step": 3, "state1": torch.ones(5), "state2": torch.ones(5)}
    return {"state": {1: entry}, "param_groups": [{**group, "t_beta3": None, "params": [0, 1]}]}


def heavyball(transform="update_by_ademamix", parts=1, **group):
    """What it stores for the second parameter. Files that it wrote are in tests/fixtures/foreign."""
    names = ("exp_avg_fast", "exp_avg_slow", "exp_avg_sq")
    part = {f"{transform}_{name}_0": torch.ones(5) for name in names} | {"is_initialized": {0}}
    more = {"beta3_warmup": None, "alpha_warmup": None, "multi_tensor": True, "storage_dtype": "float32", "step": None}
    more |= {"warmup_steps": 0, "step_count": torch.tensor(3), **group}
    return {"state": {1: dict.fromkeys(range(parts), part)}, "param_groups": [{**COMMON, **more}], "heavyball": {}}


def without_steps():
    saved = stepped(torch.optim.AdamW)
    for entry in saved["state"].values():
        del entry["step"]
    return saved


def adamw_with(**group):
    saved = stepped(torch.optim.AdamW, weight_decay=0.1)
    saved["param_groups"][0] |= group
    return saved


def own_without(name):
    saved = copy.deepcopy(three_steps()[1].state_dict())
    del saved["state"][0][name]
    return saved


def foreign_without(layout, name):
    saved = foreign(layout, three_steps()[1])
    del saved["param_groups"][0][name]
    return saved


REFUSED = {
    "SGD": (lambda: stepped(torch.optim.SGD, momentum=0.9), "another optimizer.*momentum_buffer"),
    "SGD before its first step": (lambda: torch.optim.SGD(params_of(*SHAPES)).state_dict(), "another optimizer"),
    "Adagrad": (lambda: stepped(torch.optim.Adagrad), "another optimizer"),
    "NAdam": (lambda: stepped(torch.optim.NAdam), "another optimizer.*mu_product"),
    "RAdam": (lambda: stepped(torch.optim.RAdam), r"torch.optim.RAdam.*load it into a torch.optim.AdamW"),
    "RAdam before its first step": (lambda: torch.optim.RAdam(params_of(*SHAPES)).state_dict(), "torch.optim.RAdam"),
    "RAdam with L2 decay": (lambda: stepped(torch.optim.RAdam, weight_decay=0.1), "torch.optim.RAdam"),
    "NAdam before its first step": (lambda: torch.optim.NAdam(params_of(*SHAPES)).state_dict(), "another optimizer"),
    "Adamax": (lambda: stepped(torch.optim.Adamax), "another optimizer.*exp_inf"),
    "LAMB of timm": (lambda: adamw_with(trust_clip=False, always_adapt=False), "the state of LAMB.*trust_clip"),
    "apex without bias correction": (lambda: adamw_with(bias_correction=False), "AdamW with bias_correction=False"),
    "bitsandbytes' AdamW": (bitsandbytes_adamw, "bitsandbytes.*only the state of its AdEMAMix"),
    "heavyball's SOAP": (lambda: heavyball("scale_by_soap_ademamix"), "another optimizer"),
    "heavyball without a clock": (lambda: heavyball(step_count=None), "no step_count in its group"),
    "heavyball in parts": (lambda: heavyball(parts=2), "heavyball with 2 parts for a parameter"),
    "heavyball with caution": (lambda: heavyball(caution=True), "heavyball has caution=True"),
    "heavyball with error correction": (lambda: heavyball(ecc="bf16+8"), r"heavyball has ecc='bf16\+8'"),
    "heavyball that warms up": (lambda: heavyball(warmup_steps=10), "its own warm-up of lr, over 10 steps"),
    "AdamW without clocks": (without_steps, "another optimizer"),
    "L2 decay of pytorch_optimizer": (
        lambda: foreign("pytorch_optimizer", three_steps()[1], weight_decouple=False),
        "L2 weight decay",
    ),
    "fixed decay of pytorch_optimizer": (
        lambda: foreign("pytorch_optimizer", three_steps()[1], fixed_decay=True),
        "not multiplied by lr",
    ),
    "bitsandbytes without a warm-up": (
        lambda: foreign_without("bitsandbytes", "t_beta3"),
        "group 0 of this AdEMAMix of bitsandbytes has no t_beta3",
    ),
    "pytorch_optimizer without betas": (
        lambda: foreign_without("pytorch_optimizer", "betas"),
        "group 0 of this AdEMAMix of pytorch_optimizer has no betas",
    ),
    "cautious": (lambda: foreign("pytorch_optimizer", three_steps()[1], cautious=True), "cautious"),
    "own, damaged": (lambda: own_without("exp_avg_sq"), "has no exp_avg_sq"),
    "own, no clock": (lambda: own_without("step"), "has no step"),
    "own, no slow average": (lambda: own_without("exp_avg_slow"), "has no exp_avg_slow"),
    "own, no slow clock": (lambda: own_without("slow_step"), "has no slow_step"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_and_nothing_changes(case):
    build, message = REFUSED[case]
    _, optimizer = three_steps()
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(build())
    assert_same(optimizer.state_dict(), before)


def without(*keys):
    saved = adamw_with()
    saved["param_groups"][0] = {key: value for key, value in saved["param_groups"][0].items() if key not in keys}
    return saved


DOUBTED = {
    "a setting that AdamW does not have": (lambda: adamw_with(rectify=True, name="w"), "have name, rectify, which"),
    "Adam or AdamW of older torch": (lambda: without("decoupled_weight_decay"), "whether its weight decay is decoup"),
    "not of torch": (lambda: without("amsgrad", "decoupled_weight_decay"), "groups have no amsgrad"),
}


@pytest.mark.parametrize("case", DOUBTED)
def test_what_may_be_another_optimizer_is_said(case):
    build, message = DOUBTED[case]
    with pytest.warns(UserWarning, match=message):
        make(params_of(*SHAPES)).load_state_dict(build())


def test_settings_that_both_have_are_the_users():
    optimizer = make(params_of(*SHAPES))
    optimizer.param_groups[0]["name"] = "matrices"
    optimizer.load_state_dict(adamw_with(name="matrices", max_lr=0.1, initial_lr=0.1))


@pytest.mark.parametrize("fused", [None, False, True])
@pytest.mark.parametrize("own", [None, True])
def test_the_kernel_of_adamw_chooses_none_of_ours(own, fused):
    """On CUDA, fused=True would choose one that nobody has asked for; that of the constructor stays."""
    optimizer = make(params_of(*SHAPES), fused=own)
    optimizer.load_state_dict(adamw_with(fused=fused))
    assert optimizer.param_groups[0]["fused"] is own


def test_the_advice_about_radam_works():
    params = params_of(*SHAPES)
    adamw = torch.optim.AdamW(params)
    adamw.load_state_dict(stepped(torch.optim.RAdam))
    optimizer = make(params)
    optimizer.load_state_dict(adamw.state_dict())
    assert optimizer.schedule()[0]["step"] == 3


def test_heavyball_has_its_bias_corrections_undone():
    """At step 3, with ones for m1 / (1 - beta1^3) and nu / (1 - beta2^3); m2 has none."""
    params = params_of(*SHAPES)
    optimizer = make(params)
    with pytest.warns(UserWarning, match="AdEMAMix of heavyball"):
        optimizer.load_state_dict(heavyball())
    state = optimizer.state[params[1]]
    assert (float(state["step"]), float(state["slow_step"])) == (3, 3)
    for name, expected in {"exp_avg": 1 - 0.9**3, "exp_avg_slow": 1.0, "exp_avg_sq": 1 - 0.99**3}.items():
        torch.testing.assert_close(state[name], torch.full((5,), expected), rtol=1e-6, atol=0)


def test_clocks_in_the_group_serve_for_adamw_as_well():
    """As in apex's FusedAdam."""
    saved = without_steps()
    saved["param_groups"][0]["step"] = 3
    optimizer = make(params_of(*SHAPES))
    optimizer.load_state_dict(saved)
    assert [(group["step"], group["slow_step"]) for group in optimizer.schedule()] == [(3, 0)]
    assert "step" not in optimizer.param_groups[0]


def test_a_state_that_was_assigned_must_be_whole():
    (param,) = params_of((5,))
    optimizer = make([param])
    param.grad = torch.ones(5)
    for entry, message in [
        ({"step": torch.tensor(9.0), "exp_avg": torch.ones(5)}, "has no exp_avg_sq"),
        ({"exp_avg": torch.ones(5), "exp_avg_sq": torch.ones(5)}, "has no step"),
        ({"step": 9.0, "slow_step": 9.0, "exp_avg_sq": torch.ones(5)}, "has no exp_avg_slow"),
    ]:
        optimizer.state[param] = entry
        with pytest.raises(ValueError, match=message):
            optimizer.step()
