"""bf16 and compact state: every step against the oracle, memory, checkpoints, non-finite gradients."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch

from ademamix import AdEMAMix, formats
from ademamix.lab.bench.rows import gpt2_shapes
from ademamix.pytorch import block_codes, step
from ademamix.pytorch.parameter_state import adopt, values_of
from ademamix.state_keys import CLOCK_KEYS, MOMENT_KEYS, SCALE_KEYS
from cases import FUSED_REDUCED, PATHS, REDUCED, STORAGES, TOLERANCES, distance, gradients, make, on_paths, oracle_of

SHAPES = [(64, 100), (33, 3, 43), (65,), (16, 384)]  # rows of 100, 129 and 384; the third is too small to be coded
CODED = [True, True, False, True]
MOMENTS = tuple(MOMENT_KEYS.values())
DTYPES = {
    storage: {key: getattr(torch, dtype) for key, dtype in zip(MOMENTS, formats.STORAGES[storage], strict=True)}
    for storage in STORAGES
}
ORACLE_NAMES = {"exp_avg": "m1", "exp_avg_slow": "m2", "exp_avg_sq": "nu"}

every_reduced = pytest.mark.parametrize("reduced", REDUCED)
every_fused = pytest.mark.parametrize("reduced", FUSED_REDUCED)


def on_each_of(paths):
    return pytest.mark.parametrize(("path", "reduced"), on_paths(paths, REDUCED))


def fresh(dtype=torch.float32, shapes=SHAPES):
    return [torch.tensor(gradients(9, shape, 0)).to(dtype).requires_grad_() for shape in shapes]


def two_decades(seed, shape, t):
    """Gradients whose element scales are spread as those of a real block may be: less than `gradients` does."""
    wide = gradients(seed, shape, t)
    return np.sign(wide) * np.sqrt(np.abs(wide))


def run(params, optimizer, first, last, poison=None, gradient=two_decades):
    for t in range(first, last + 1):
        for seed, param in enumerate(params):
            param.grad = torch.tensor(gradient(seed, tuple(param.shape), t)).to(param.dtype)
        if poison is not None:
            poison(t, params)
        optimizer.step()


def through_disk(state_dict):
    buffer = io.BytesIO()
    torch.save(state_dict, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def spacing(moment, stored, scale, exact):
    """The distance between neighbouring stored values at `exact`."""
    if scale is None:
        return np.maximum(2.0**-7 * 2.0 ** np.floor(np.log2(np.maximum(np.abs(exact), 1e-38))), 1e-38)
    code = block_codes.BY_DTYPE[stored.dtype]
    rows = stored.shape[0]
    is_wide = (scale >= formats.FIRST_WIDE_SCALE) & (scale <= formats.LAST_WIDE_SCALE)
    exponents = torch.where(is_wide, 45 + 8 * scale.double(), scale.double())

    def per_element(per_block):
        repeated = per_block.repeat_interleave(formats.BLOCK, 1)[:, : stored.numel() // rows]
        return repeated.reshape(stored.shape).numpy()

    def spaced(code):
        unit = np.abs(exact) / scales + 2.0**-code.octaves
        return scales * 2.0 ** (np.floor(np.log2(unit)) - code.mantissa_bits)

    scales = per_element(2.0 ** (exponents - 127))
    return np.where(per_element(is_wide), spaced(formats.WIDE_SQUARE), spaced(code))


@pytest.mark.parametrize(("beta1", "slow_clip"), [(0.9, None), (0.0, None), (0.9, 0.1), (0.0, 0.1)])
@on_each_of(PATHS)
def test_each_step_rounds_the_oracle_once(path, reduced, beta1, slow_clip):
    params = fresh()
    settings = {"betas": (beta1, 0.99, 0.999), "alpha_warmup": 80, "beta3_warmup": 80, "state_storage": reduced}
    optimizer = make(params, lr=1e-2, slow_clip=slow_clip, **settings, **PATHS[path])
    oracles = [oracle_of(param.detach().numpy(), optimizer) for param in params]
    for t in range(1, 101 if "capturable" not in path else 31):
        for oracle, param in zip(oracles, params, strict=True):
            oracle.theta = param.detach().double().numpy()
            for moment in set(optimizer.state[param]) & set(MOMENTS):
                setattr(oracle, ORACLE_NAMES[moment], values_of(optimizer.state[param], moment).double().numpy())
        run(params, optimizer, t, t, gradient=gradients)
        for seed, (oracle, param, coded) in enumerate(zip(oracles, params, CODED, strict=True)):
            before = {moment: getattr(oracle, name) for moment, name in ORACLE_NAMES.items()}
            oracle.update(gradients(seed, tuple(param.shape), t))
            state = optimizer.state[param]
            assert distance(param, oracle.theta) <= TOLERANCES[torch.float32] * np.linalg.norm(oracle.theta)
            assert ("exp_avg" in state) == (beta1 > 0)
            for moment in MOMENTS if beta1 > 0 else MOMENTS[1:]:
                exact, values = getattr(oracle, ORACLE_NAMES[moment]), values_of(state, moment)
                assert state[moment].dtype == DTYPES[reduced if coded else "fp32"][moment]
                if not coded:
                    assert distance(values, exact) <= TOLERANCES[torch.float32] * np.linalg.norm(exact)
                    continue
                unit = spacing(moment, state[moment], state.get(f"{moment}_scale"), exact)
                fp32_error = 2e-7 * (np.abs(before[moment]) + np.abs(exact - before[moment]))
                close = np.abs(values.double().numpy() - exact) <= unit * (1 + 1e-3) + fp32_error
                if moment == "exp_avg_sq":
                    close |= (state[moment] == 1).numpy() & (exact < unit)
                assert close.all(), (moment, t)


@every_reduced
def test_what_is_small_or_double_stays_as_it_is(reduced):
    kept = [(4096,), (), (100, 63), (63, 64), (64, 63), (2, 2047)]
    params = [torch.zeros(shape, requires_grad=True) for shape in [*kept, (64, 64), (2, 2048)]]
    params += [torch.zeros(64, 64, dtype=dtype, requires_grad=True) for dtype in (torch.float64, torch.complex64)]
    optimizer = make(params, total_steps=10, state_storage=reduced)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    stored = [optimizer.state[param]["exp_avg_slow"].dtype for param in params]
    coded = DTYPES[reduced]["exp_avg_slow"]
    assert stored == [torch.float32] * len(kept) + [coded, coded, torch.float64, torch.complex64]


@pytest.mark.parametrize(
    ("reduced", "beta1", "most"),
    [("compact", 0.9, 4.2), ("compact", 0.0, 3.2), ("bf16", 0.9, 6.1), ("bf16", 0.0, 4.1), ("fp32", 0.9, 12.1)],
)
def test_bytes_a_parameter_on_the_shapes_of_gpt2(reduced, beta1, most):
    shapes = gpt2_shapes()
    group = {
        "state_storage": reduced,
        "betas": (beta1, 0.999, 0.9999),
        "capturable": False,
        "nonfinite": "propagate",
        "master": None,
    }
    states = [adopt({}, torch.empty(shape, device="meta"), group) for shape in shapes]
    tensors = [tensor for state in states for tensor in state.values()]
    parameters = sum(torch.Size(shape).numel() for shape in shapes)
    assert most - 0.2 < sum(x.numel() * x.element_size() for x in tensors) / parameters <= most


@pytest.mark.parametrize("path", ["single", "foreach", "fused"])
def test_the_slow_average_remembers(path):
    """The slow average of a direction that is reversed half way, element scales over two decades in each block."""
    steps = 20_000 if path == "fused" else 300
    rng = np.random.default_rng(0)
    scales = torch.tensor(10 ** rng.uniform(-2, 0, (32, 128)), dtype=torch.float32)
    direction = scales * torch.tensor(rng.standard_normal((32, 128)), dtype=torch.float32)
    noise = [scales * torch.tensor(rng.standard_normal((32, 128)), dtype=torch.float32) for _ in range(64)]
    cosines = {}
    for reduced in ("bf16", "compact"):
        param = torch.zeros(32, 128, requires_grad=True)
        optimizer = make([param], lr=0.0, betas=(0.9, 0.999, 0.9999), state_storage=reduced, **PATHS[path])
        exact = torch.zeros(32, 128, dtype=torch.float64)
        for t in range(steps):
            param.grad = noise[(t * 37) % 64] + (direction if t < steps // 2 else -direction)
            exact += 1e-4 * (param.grad.double() - exact)
            optimizer.step()
        decoded = values_of(optimizer.state[param], "exp_avg_slow").double()
        cosines[reduced] = [
            float((a * b).sum() / (a.norm() * b.norm()))
            for a, b in ((decoded, exact), (decoded / scales, exact / scales))
        ]
    assert min(cosines["compact"]) >= (0.9995 if path == "fused" else 0.999)
    assert min(cosines["bf16"]) < 0.9995  # or the test would tell nothing


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@on_each_of(PATHS)
def test_resume_is_bit_identical(path, reduced, dtype):
    settings = {"lr": 1e-2, "betas": (0.9, 0.99), "total_steps": 12, "state_storage": reduced, "nonfinite": "skip"}
    params = fresh(dtype)
    optimizer = make(params, **settings, **PATHS[path])
    run(params, optimizer, 1, 8)
    saved, resumed = through_disk(optimizer.state_dict()), [p.detach().clone().requires_grad_() for p in params]
    run(params, optimizer, 9, 16)

    continued = AdEMAMix(resumed, total_steps=12, **PATHS[path])
    continued.load_state_dict(saved)
    run(resumed, continued, 9, 16)
    for param, other in zip(params, resumed, strict=True):
        assert torch.equal(param, other)
        assert optimizer.state[param].keys() == continued.state[other].keys()
        for name, value in optimizer.state[param].items():
            assert value.dtype == continued.state[other][name].dtype
            assert torch.equal(value, continued.state[other][name]), name


@pytest.mark.parametrize("after", DTYPES)
@pytest.mark.parametrize("before", DTYPES)
def test_a_checkpoint_continues_under_every_storage(before, after):
    params = fresh()
    optimizer = make(params, total_steps=40, state_storage=before)
    run(params, optimizer, 1, 10)
    resumed = [param.detach().clone().requires_grad_() for param in params]
    continued = AdEMAMix(resumed, total_steps=40, state_storage=after)
    continued.load_state_dict(through_disk(optimizer.state_dict()))
    assert continued.param_groups[0]["state_storage"] == after
    for old, new, coded in zip(params, resumed, CODED, strict=True):
        own, other = optimizer.state[old], continued.state[new]
        assert (own["step"], own["slow_step"]) == (other["step"], other["slow_step"]) == (10, 10)
        assert ("exp_avg_scale" in other) == (coded and after == "compact")
        for moment in MOMENTS:
            assert other[moment].dtype == DTYPES[after if coded else "fp32"][moment]
            values, exact = values_of(other, moment), values_of(own, moment).double().numpy()
            if after in (before, "fp32") or not coded:
                assert distance(values, exact) == 0
            else:
                unit = spacing(moment, other[moment], other.get(f"{moment}_scale"), exact)
                assert (np.abs(values.double().numpy() - exact) <= unit * 0.51 + (moment == "exp_avg_sq") * unit).all()
    run(resumed, continued, 11, 20)
    run(params, optimizer, 11, 20)
    for old, new in zip(params, resumed, strict=True):
        assert distance(new, old.detach().numpy()) <= 2e-3 * float(old.detach().norm())


def test_without_a_storage_of_its_own_the_constructor_takes_that_of_the_checkpoint():
    params = fresh()
    optimizer = make(params, total_steps=40, state_storage="compact")
    run(params, optimizer, 1, 3)
    continued = AdEMAMix(fresh(), total_steps=40)
    continued.load_state_dict(optimizer.state_dict())
    assert continued.param_groups[0]["state_storage"] == "compact"
    copied = copy.deepcopy(optimizer)
    assert copied.state[copied.param_groups[0]["params"][0]]["exp_avg_slow"].dtype == torch.int16


def test_a_damaged_checkpoint_is_refused():
    params = fresh()
    optimizer = make(params, total_steps=40, state_storage="compact")
    run(params, optimizer, 1, 2)
    saved = optimizer.state_dict()
    del saved["state"][0]["exp_avg_slow_scale"]
    with pytest.raises(
        ValueError,
        match=r"exp_avg_slow is coded as torch.int16, which needs exp_avg_slow_scale in torch.uint8 of shape",
    ):
        AdEMAMix(fresh(), total_steps=40).load_state_dict(saved)


def test_the_storage_of_a_group_can_change_in_the_middle_of_a_run():
    params, others = fresh(), fresh()
    optimizer, unchanged = make(params, total_steps=40), make(others, total_steps=40)
    for t, name in enumerate(("fp32", "compact", "bf16", "fp32"), start=1):
        optimizer.param_groups[0]["state_storage"] = name
        run(params, optimizer, t, t)
        run(others, unchanged, t, t)
        state = optimizer.state[params[0]]
        assert {moment: state[moment].dtype for moment in MOMENTS} == DTYPES[name]
        assert set(state) == {*CLOCK_KEYS, *MOMENTS, *(SCALE_KEYS.values() if name == "compact" else ())}
        assert state["step"] == t
    exact = unchanged.state[others[0]]["exp_avg_slow"]
    assert distance(state["exp_avg_slow"], exact.numpy()) < 5e-3 * float(exact.norm())


def test_groups_may_have_their_own_storage():
    params = fresh()
    groups = [
        {"params": [param], "state_storage": name} for param, name in zip(params, (*DTYPES, "compact"), strict=True)
    ]
    optimizer = make(groups, total_steps=10)
    run(params, optimizer, 1, 3)
    dtypes = [optimizer.state[param]["exp_avg_slow"].dtype for param in params]
    assert dtypes == [torch.float32, torch.bfloat16, torch.float32, torch.int16]


@on_each_of(["single", "foreach"])
def test_parts_give_the_bits_of_the_whole(path, reduced, monkeypatch):
    results = []
    for elements in (1 << 22, 7000, 2500, 100):
        monkeypatch.setattr(step, "DECODED_ELEMENTS", elements)
        params = fresh(torch.bfloat16)
        optimizer = make(params, lr=1e-2, total_steps=10, state_storage=reduced, nonfinite="skip", **PATHS[path])

        def poison(t, params):
            params[0].grad[63, 99] = torch.nan

        run(params, optimizer, 1, 5, poison)
        assert optimizer.diagnostics()[0]["skipped"] == 5
        results.append([*params, *(value for param in params for value in optimizer.state[param].values())])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_fused
def test_the_torch_and_the_core_paths_round_alike(reduced, dtype, maximize):
    """The random words are the same; values differ by fp32 rounding, which changes a code now and then."""
    states = []
    for path in ("single", "fused"):
        params = fresh(dtype)
        optimizer = make(params, lr=1e-2, total_steps=10, state_storage=reduced, maximize=maximize, **PATHS[path])
        run(params, optimizer, 1, 3)
        states.append([optimizer.state[param] for param in params])
    for single, fused, coded in zip(*states, CODED, strict=True):
        for moment in MOMENTS if coded else ():
            assert (single[moment] != fused[moment]).float().mean() < 2e-3


@every_fused
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_bits_for_any_number_of_threads(reduced, dtype):
    results = []
    for threads in (1, 2, 5):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            params = fresh(dtype, [(512, 300), (64, 640)])
            optimizer = make(params, total_steps=10, state_storage=reduced, fused=True)
            run(params, optimizer, 1, 4)
        finally:
            torch.set_num_threads(before)
        results.append([*params, *(value for param in params for value in optimizer.state[param].values())])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


BAD = {(0, 3): torch.nan, (5, 17): torch.inf, (63, 99): -torch.inf}


every_memory = pytest.mark.parametrize("betas", [(0.9, 0.999), (0.3, 0.4, 0.45)], ids=["long", "short"])


def poisoned_run(path, reduced, nonfinite, bad, betas):
    params = fresh(shapes=[(64, 100)])
    settings = {"lr": 1e-2, "betas": betas, "total_steps": 20, "state_storage": reduced, "nonfinite": nonfinite}
    optimizer = make(params, **settings, **PATHS[path])

    def poison(t, params):
        if t == 5:
            for element, value in bad.items():
                params[0].grad[element] = value

    run(params, optimizer, 1, 5, poison)
    return params[0], optimizer


@every_memory
@on_each_of(["single", "foreach", "fused"])
def test_skip_keeps_elements_with_nonfinite_gradients_and_their_neighbours(path, reduced, betas):
    param, optimizer = poisoned_run(path, reduced, "skip", BAD, betas)
    clean, clean_optimizer = poisoned_run(path, reduced, "skip", {}, betas)
    before = fresh(shapes=[(64, 100)])
    settings = {"lr": 1e-2, "betas": betas, "total_steps": 20, "state_storage": reduced, "nonfinite": "skip"}
    stopped = make(before, **settings, **PATHS[path])
    run(before, stopped, 1, 4)
    others = torch.ones(64, 100, dtype=torch.bool)
    for element in BAD:
        others[element] = False
        assert param[element] == before[0][element]
    assert torch.equal(param[others], clean[others])
    state, expected, old = optimizer.state[param], clean_optimizer.state[clean], stopped.state[before[0]]
    assert state["skipped"] == 3
    for moment in MOMENTS:
        values = values_of(state, moment)
        assert torch.equal(values[others], values_of(expected, moment)[others])
        kept, was = values[~others], values_of(old, moment)[~others]
        unit = spacing(moment, state[moment], state.get(f"{moment}_scale"), values.double().numpy())[~others.numpy()]
        assert (np.abs((kept - was).numpy()) <= unit).all()  # the block's scale may have changed


@every_memory
@on_each_of(["single", "foreach", "fused"])
def test_propagate_poisons_the_element_and_not_its_block(path, reduced, betas):
    param, optimizer = poisoned_run(path, reduced, "propagate", BAD, betas)
    clean, clean_optimizer = poisoned_run(path, reduced, "propagate", {}, betas)
    others = torch.ones(64, 100, dtype=torch.bool)
    for element in BAD:
        others[element] = False
        assert param[element].isnan()
    assert torch.equal(param[others], clean[others])
    for moment in MOMENTS:
        values = values_of(optimizer.state[param], moment)
        assert torch.equal(values[others], values_of(clean_optimizer.state[clean], moment)[others])
        if reduced == "compact":
            assert (values[~others] == 0).all()
        else:
            assert not values[~others].isfinite().any()


@every_reduced
def test_switching_from_adamw_and_back(reduced):
    params = fresh()
    adamw = torch.optim.AdamW(params)
    run(params, adamw, 1, 5)
    before = {moment: adamw.state[params[0]][moment].clone() for moment in ("exp_avg", "exp_avg_sq")}
    optimizer = AdEMAMix.from_adamw(adamw, total_steps=20, state_storage=reduced)
    state = optimizer.state[params[0]]
    for moment, exact in before.items():
        assert state[moment].dtype == DTYPES[reduced][moment]
        assert distance(values_of(state, moment), exact.numpy()) < 0.04 * float(exact.norm())
    run(params, optimizer, 6, 8)
    expected = values_of(optimizer.state[params[0]], "exp_avg")
    back = optimizer.to_adamw()
    assert torch.equal(back.state[params[0]]["exp_avg"], expected)
    assert "exp_avg_scale" not in back.state[params[0]]
    run(params, back, 9, 10)


@every_reduced
def test_diagnostics_and_reset(reduced):
    results = {}
    for name in (reduced, "fp32"):
        params = fresh()
        optimizer = make(params, total_steps=20, state_storage=name)
        run(params, optimizer, 1, 10)
        results[name] = optimizer.diagnostics()[0]
    for key, value in results["fp32"].items():
        if not key.endswith("_bytes"):
            assert results[reduced][key] == pytest.approx(value, rel=0.05)
    assert 0 < results[reduced]["reduced_bytes"] < results["fp32"]["full_bytes"]
    assert results["fp32"]["reduced_bytes"] == 0
    optimizer = make(fresh(), total_steps=20, state_storage=reduced)
    params = optimizer.param_groups[0]["params"]
    run(params, optimizer, 1, 3)
    optimizer.reset_slow()
    assert not any(values_of(optimizer.state[param], "exp_avg_slow").any() for param in params)
    assert optimizer.schedule()[0]["slow_step"] == 0


@every_reduced
def test_a_layout_that_is_not_row_major(reduced):
    """Codes are row-major whatever the layout of their parameter, so the result is the same."""
    results = []
    for channels_last in (False, True):
        param = torch.tensor(gradients(3, (32, 8, 4, 4), 0), dtype=torch.float32)
        if channels_last:
            param = param.to(memory_format=torch.channels_last)
        param.requires_grad_()
        optimizer = make([param], total_steps=20, state_storage=reduced)
        run([param], optimizer, 1, 5)
        assert optimizer.state[param]["exp_avg_slow"].is_contiguous()
        results.append(param.detach().contiguous())
    assert torch.equal(*results)


def test_reduced_moments_have_no_derivative():
    with pytest.raises(ValueError, match=r"state_storage='compact' rounds the moments.*differentiable=True needs"):
        make([torch.zeros(3)], state_storage="compact", differentiable=True)
