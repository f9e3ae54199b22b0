"""bf16 parameters with masters of 24 bits: the format, each path against the oracle, and what a user does to them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from ademamix import AdEMAMix
from ademamix.pytorch.gradient_release import gradient_release
from ademamix.pytorch.master import divided, joined
from cases import PATHS, STORAGES, gradients, make, on_paths, oracle_of, relative_error

SPACING = 2.0**-15  # of masters, relative
BF16 = torch.bfloat16


def bits_of(values):
    return values.view(torch.int32)


# ---- the format


def test_every_master_is_stored_exactly():
    """All 2^24 patterns of bits: what is rounded to 24 bits once stays as it is, whatever the random bits."""
    masters = (torch.arange(2**24, dtype=torch.int64) << 8).to(torch.int32).view(torch.float32)
    for random in (None, torch.tensor(255)):
        params, corrections = divided(masters, random)
        again = joined(params, corrections)
        own = params == 0  # these are their own masters
        kept = ~own & ~masters.isnan()
        assert torch.equal(bits_of(again[kept]), bits_of(masters[kept]))
        assert torch.equal(bits_of(again[own]), bits_of(params[own].float()))
        assert torch.equal(params.isnan(), masters.isnan())
        assert torch.equal(again.isnan(), masters.isnan())
        assert not corrections[~masters.isfinite()].any()
        finite = masters.isfinite() & params.isfinite()
        nearest = masters[finite].bfloat16().double()
        exact = masters[finite].double()
        assert torch.equal((params[finite].double() - exact).abs(), (nearest - exact).abs())


def random_floats(count, seed=0):
    bits = torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(seed))
    return bits.to(torch.int32).view(torch.float32)


def test_rounding_to_nearest_is_that_of_the_nearest_multiple():
    values = random_floats(200_000)
    values = values[(values.abs() > 1e-30) & (values.abs() < 1e38)]
    mantissas, exponents = np.frexp(values.double().numpy())
    expected = np.ldexp(np.rint(np.ldexp(mantissas, 16)), exponents - 16)  # ties to even
    assert np.array_equal(joined(*divided(values, None)).double().numpy(), expected)


def test_stochastic_rounding_is_to_a_neighbour_and_exact_in_the_mean():
    values = random_floats(400_000)
    values = values[(values.abs() > 1e-30) & (values.abs() < 1e38)]
    random = torch.randint(0, 2**32, values.shape, generator=torch.Generator().manual_seed(1))
    after = joined(*divided(values, random)).double()
    spacing = SPACING * torch.exp2(values.double().abs().log2().floor())
    error = (after.abs() - values.double().abs()) / spacing
    assert error.abs().max() < 1
    assert error.abs().max() > 0.99
    assert error.mean().abs() < 6 * 0.5 / len(values) ** 0.5


@pytest.mark.parametrize("random", [None, torch.tensor(255)], ids=["nearest", "up"])
def test_what_is_not_finite_or_becomes_so(random):
    largest = torch.finfo(torch.float32).max
    values = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, largest, -largest, 0.0, -0.0, 1e-44, -1e-44])
    odd = torch.tensor([0x7F800001, 0x7FFFFFFF, -1, -0x7FFFFF], dtype=torch.int32).view(torch.float32)  # all NaN
    params, corrections = divided(torch.cat([odd, values]), random)
    assert params.isnan().tolist() == 6 * [True] + 8 * [False]
    assert not corrections[:6].any()
    expected = [torch.inf, -torch.inf, torch.inf, -torch.inf, 0.0, -0.0, 0.0, -0.0]
    assert str(joined(params, corrections)[6:].tolist()) == str(expected)
    assert params[6:].equal(torch.tensor(expected).bfloat16())


def test_a_master_beyond_the_largest_bf16_stays_finite():
    values = torch.tensor([3.4e38, -3.4e38])
    params, corrections = divided(values, None)
    assert params.isinf().all()
    assert ((joined(params, corrections) - values).abs() < 1e34).all()


# ---- steps


@pytest.mark.parametrize("stochastic", [True, False], ids=["stochastic", "nearest"])
@pytest.mark.parametrize("path", PATHS)
def test_each_step_rounds_the_oracle_once(path, stochastic):
    shape = (8, 65)
    param = torch.tensor(gradients(1, shape, 0)).to(BF16).requires_grad_()
    settings = {"lr": 1e-2, "total_steps": 60, "stochastic_rounding": stochastic, "master": "24bit"}
    optimizer = make([param], **settings, **PATHS[path])
    oracle = oracle_of(param.detach().double().numpy(), optimizer)
    above_half = 0
    for step in range(1, 101):
        oracle.theta = before = optimizer.master_parameters()[0].double().numpy()
        param.grad = torch.tensor(gradients(2, shape, step)).to(BF16)
        exact = oracle.update(param.grad.double().numpy())
        optimizer.step()
        (master,) = optimizer.master_parameters()
        spacing = SPACING * 2.0 ** np.floor(np.log2(np.abs(exact)))
        arithmetic = 1e-6 * (np.abs(before) + np.abs(exact - before))  # its own rounding, in fp32
        error = np.abs(master.double().numpy() - exact) - arithmetic
        assert (error <= (1 if stochastic else 0.5) * spacing).all()
        above_half += (error > 0.5 * spacing).sum()
        difference = (param.detach().double() - master).abs()
        assert torch.equal(difference, (master.to(BF16).double() - master).abs())  # nearest
    assert (above_half > 0) == stochastic
    for name, attribute in {"exp_avg": "m1", "exp_avg_slow": "m2", "exp_avg_sq": "nu"}.items():
        assert relative_error(optimizer.state[param][name], getattr(oracle, attribute)) < 2e-6


@pytest.mark.parametrize("path", ["single", "foreach", "fused"])
def test_masters_follow_the_oracle_where_bf16_does_not(path):
    """Changes of a thousandth of a parameter, and less and less: plain bf16 loses most of them."""
    shape, errors = (16, 100), {}
    for name, settings in {"master": {"master": "24bit"}, "none": {"stochastic_rounding": False}}.items():
        param = torch.tensor(1 + np.abs(gradients(1, shape, 0))).to(BF16).requires_grad_()
        start = param.detach().double().numpy()
        optimizer = make([param], lr=1e-3, total_steps=1000, **settings, **PATHS[path])
        oracle = oracle_of(start, optimizer)
        for step in range(1, 1001):
            gradient = torch.tensor(gradients(2, shape, step)).to(BF16)
            oracle.lr = optimizer.param_groups[0]["lr"] = 1e-3 * (1 - step / 1001)
            oracle.update(gradient.double().numpy())
            param.grad = gradient
            optimizer.step()
        (master,) = optimizer.master_parameters()
        moved = np.linalg.norm(oracle.theta - start)
        errors[name] = np.linalg.norm(master.double().numpy() - oracle.theta) / moved
    assert errors["master"] < 2e-2
    assert errors["none"] > 0.1


@pytest.mark.parametrize(("path", "state_storage"), on_paths([path for path in PATHS if path != "single"], STORAGES))
def test_the_same_bits_on_every_path(path, state_storage):
    """At the first step with beta1 = 0 and alpha = 0 the change is -lr sign(g), the same on every path."""

    def stepped(seed=0, **more):
        params = [torch.linspace(-3, 3, 12_800).view(shape).to(BF16) for shape in ((100, 128), (64, 200), (12_800,))]
        params[0][0, :2], params[0][1, 0] = torch.tensor([0.0, -0.0]), torch.inf
        settings = {"lr": 2**-10 + 2**-20, "betas": (0.0, 0.999), "alpha": 0.0, "eps": 0.0, "rounding_seed": seed}
        optimizer = make(params, master="24bit", state_storage=state_storage, **settings, **more)
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
        return [*(param.view(torch.int16) for param in params), *(x["correction"] for x in optimizer.state.values())]

    expected = stepped(**PATHS["single"])
    assert all(torch.equal(a, b) for a, b in zip(stepped(**PATHS[path]), expected, strict=True))
    others = stepped(seed=1, **PATHS[path])
    assert not any(torch.equal(a, b) for a, b in zip(others[3:], expected[3:], strict=True))


@pytest.mark.parametrize(("path", "state_storage"), on_paths(["single", "foreach", "fused"], STORAGES))
def test_any_memory_order_gives_the_same_bits(path, state_storage):
    start = torch.tensor(gradients(1, (70, 80), 0)).to(BF16)
    gradient = torch.tensor(gradients(2, (70, 80), 1)).to(BF16)
    found = []
    for param in (start.clone(), start.t().contiguous().t(), torch.stack([start, start], dim=2)[:, :, 0]):
        optimizer = make([param], lr=1e-2, master="24bit", state_storage=state_storage, **PATHS[path])
        for _ in range(3):
            param.grad = gradient.clone()
            optimizer.step()
        found.append((param.contiguous(), optimizer.state[param]["correction"].contiguous()))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, found[0], strict=True))
    assert found[0][1].any()


@pytest.mark.parametrize(("path", "state_storage"), on_paths(PATHS, STORAGES))
def test_bf16_parameters_alone_have_masters(path, state_storage):
    """In one group with all other dtypes, whose steps are those of a group without masters."""
    dtypes = [torch.float32, BF16, torch.float16, BF16] + ([torch.float64] if state_storage == "fp32" else [])

    def trained(**more):
        shapes = [(80, 100), (80, 100), (80, 100), (5,), (7,)]
        params = [
            torch.tensor(gradients(i, shape, 0)).to(dtype)
            for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))
        ]
        optimizer = make(params, lr=1e-2, total_steps=50, state_storage=state_storage, **more, **PATHS[path])
        for step in range(1, 4):
            for i, param in enumerate(params):
                param.grad = torch.tensor(gradients(i, tuple(param.shape), step)).to(param.dtype)
            optimizer.step()
        return params, optimizer

    params, optimizer = trained(master="24bit")
    without, _ = trained()
    for param, other in zip(params, without, strict=True):
        state = optimizer.state[param]
        assert ("correction" in state) == (param.dtype == BF16)
        if param.dtype == BF16:
            assert state["correction"].dtype == torch.int8
            assert state["correction"].shape == param.shape
            assert state["correction"].any()
        else:
            assert torch.equal(param, other)
    assert [master.dtype for master in optimizer.master_parameters()] == [
        torch.float64 if dtype == torch.float64 else torch.float32 for dtype in dtypes
    ]


@pytest.mark.parametrize(("path", "state_storage"), on_paths(PATHS, STORAGES))
def test_skip_leaves_nonfinite_elements_as_they_were(path, state_storage):
    param = torch.tensor(gradients(1, (41, 100), 0)).to(BF16)
    optimizer = make([param], lr=1e-2, nonfinite="skip", master="24bit", state_storage=state_storage, **PATHS[path])
    for step in range(1, 4):
        before = optimizer.master_parameters()[0]
        param.grad = torch.tensor(gradients(2, (41, 100), step)).to(BF16)
        poisoned = torch.zeros(41, 100, dtype=torch.bool)
        poisoned[step], poisoned[:, 7] = True, True
        param.grad[poisoned] = torch.tensor([torch.nan, torch.inf, -torch.inf])[step - 1].to(BF16)
        optimizer.step()
        after = optimizer.master_parameters()[0]
        assert torch.equal(after[poisoned], before[poisoned])
        assert (after[~poisoned] != before[~poisoned]).float().mean() > 0.99
        assert after.isfinite().all()


@pytest.mark.parametrize("path", PATHS)
def test_parameters_that_the_user_writes_to(path):
    """A 0 stays 0, as masks of sparse models want, and the masters of others are within half a place of them."""
    param = torch.full((300,), 1.0, dtype=BF16)
    optimizer = make([param], lr=1e-3, weight_decay=0.1, master="24bit", **PATHS[path])
    for _ in range(3):
        param.grad = torch.ones_like(param)
        optimizer.step()
    assert (optimizer.state[param]["correction"] != 0).any()
    for value in (0.0, -0.0, 3.0):
        optimizer.state[param]["correction"].copy_(torch.arange(300) % 256 - 128)
        param.fill_(value)
        (master,) = optimizer.master_parameters()
        if value == 3.0:
            assert ((master - 3.0).abs() <= 2.0**-7).all()
        else:
            assert (master == value).all()
    optimizer = make([param], lr=1e-3, weight_decay=0.1, master="24bit", **PATHS[path])
    param.zero_()
    for _ in range(3):
        param.grad = torch.zeros_like(param)
        optimizer.step()
        assert not param.any()
        optimizer.state[param]["correction"].fill_(-5)


# ---- masters in and out, checkpoints, conversions


def trained_model(steps=3, seed=0, **settings):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(100, 80), torch.nn.Tanh(), torch.nn.Linear(80, 3)).to(BF16)
    optimizer = make(model.parameters(), **{"lr": 1e-2, "total_steps": 50, **settings})
    train(model, optimizer, range(steps))
    return model, optimizer


def train(model, optimizer, steps):
    for step in steps:
        batch = torch.randn(16, 100, generator=torch.Generator().manual_seed(step)).to(BF16)
        optimizer.zero_grad()
        model(batch).float().square().mean().backward()
        optimizer.step()


def assert_same_state(optimizer, other):
    for param, twin in zip(optimizer.param_groups[0]["params"], other.param_groups[0]["params"], strict=True):
        assert torch.equal(param, twin)
        assert optimizer.state[param].keys() == other.state[twin].keys()
        assert all(torch.equal(value, other.state[twin][key]) for key, value in optimizer.state[param].items())


@pytest.mark.parametrize(("path", "state_storage"), on_paths(PATHS, STORAGES))
def test_a_resumed_run_has_the_same_bits(path, state_storage, tmp_path):
    settings = {"state_storage": state_storage, **PATHS[path]}
    model, optimizer = trained_model(master="24bit", **settings)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "run.pt")
    for stated in ({"master": "24bit"}, {}):  # the checkpoint says it as well
        saved = torch.load(tmp_path / "run.pt", weights_only=True)
        resumed, other = trained_model(steps=0, seed=1, **stated, **settings)
        resumed.load_state_dict(saved["model"])
        other.load_state_dict(saved["optimizer"])
        assert other.param_groups[0]["master"] == "24bit"
        assert_same_state(optimizer, other)
        expected_model, expected = copy.deepcopy((model, optimizer))
        train(expected_model, expected, range(3, 6))
        train(resumed, other, range(3, 6))
        assert_same_state(expected, other)


def test_a_checkpoint_without_masters_gets_them_if_they_were_asked_for():
    model, optimizer = trained_model()
    other_model, other = trained_model(steps=0, master="24bit")
    other_model.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    for param, master in zip(other_model.parameters(), other.master_parameters(), strict=True):
        assert torch.equal(master, param.float())
        assert not other.state[param]["correction"].any()
    train(other_model, other, range(3, 5))
    assert all(other.state[param]["correction"].any() for param in other_model.parameters())


def test_masters_are_dropped_where_a_group_has_none():
    model, optimizer = trained_model(master="24bit")
    optimizer.param_groups[0]["master"] = None
    before = [param.detach().float() for param in model.parameters()]
    assert all(map(torch.equal, optimizer.master_parameters(), before))
    train(model, optimizer, range(3, 4))
    assert not any("correction" in state for state in optimizer.state.values())
    optimizer.param_groups[0]["master"] = "24bit"
    train(model, optimizer, range(4, 5))
    assert all("correction" in state for state in optimizer.state.values())


@pytest.mark.parametrize("path", ["single", "foreach", "fused"])
def test_a_model_that_changes_its_dtype(path):
    model, optimizer = trained_model(master="24bit", **PATHS[path])
    model.float()
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    assert not any("correction" in state for state in optimizer.state.values())
    train(model.to(BF16), optimizer, range(3, 4))
    assert all("correction" in state for state in optimizer.state.values())


def test_to_fp32_masters_and_back():
    """A run leaves with fp32 parameters, and comes back with those: both trainings go on from the same numbers."""
    model, optimizer = trained_model(master="24bit")
    masters = optimizer.master_parameters()
    assert any(
        not torch.equal(param.float(), master) for param, master in zip(model.parameters(), masters, strict=True)
    )
    wide = copy.deepcopy(model).float()
    elsewhere = make(wide.parameters(), lr=1e-2, total_steps=50)
    elsewhere.load_state_dict(optimizer.state_dict())
    elsewhere.load_master_parameters(masters)
    assert not any("correction" in state for state in elsewhere.state.values())
    assert all(map(torch.equal, wide.parameters(), masters))

    back_model, back = trained_model(steps=0, seed=5, master="24bit")
    with pytest.warns(UserWarning, match="masters begin at the values of the parameters"):
        back.load_state_dict(elsewhere.state_dict())
    back.load_master_parameters(wide.parameters())
    assert_same_state(optimizer, back)
    for param, master in zip(back_model.parameters(), masters, strict=True):
        assert (param.float() - master).abs().max() <= 2.0**-8 * master.abs().max()


def test_loaded_masters_are_rounded_to_24_bits_and_begin_a_run():
    values = [torch.randn(80, 100), torch.randn(80)]
    params = [torch.empty(80, 100, dtype=BF16), torch.empty(80)]
    optimizer = make(params, master="24bit", state_storage="compact")
    optimizer.load_master_parameters(values)
    bf16, fp32 = optimizer.master_parameters()
    assert ((bf16 - values[0]).abs() <= 2.0**-16 * values[0].abs()).all()
    assert torch.equal(fp32, values[1])
    assert fp32.data_ptr() != params[1].data_ptr()
    assert params[1] not in optimizer.state
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    assert optimizer.schedule()[0]["step"] == 1


@pytest.mark.parametrize(
    "masters",
    [[torch.ones(3)], [torch.ones(3), torch.ones(4, 4)], [torch.ones(3), torch.ones(4, dtype=torch.complex64)]],
    ids=["fewer", "another shape", "complex"],
)
def test_masters_that_do_not_fit_are_refused_before_anything_is_written(masters):
    params = [torch.zeros(3, dtype=BF16), torch.zeros(4, dtype=BF16)]
    optimizer = make(params, master="24bit")
    with pytest.raises(ValueError, match="master"):
        optimizer.load_master_parameters(masters)
    assert not params[0].any()
    assert not optimizer.state


@pytest.mark.parametrize(
    "correction", [torch.zeros(4), torch.zeros(5, dtype=torch.int8), 3], ids=["float", "another shape", "no tensor"]
)
def test_a_correction_that_does_not_fit_is_refused(correction):
    param = torch.ones(4, dtype=BF16)
    optimizer = make([param], master="24bit")
    param.grad = torch.ones_like(param)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0]["correction"] = correction
    with pytest.raises(ValueError, match=r"correction must be torch\.int8"):
        make([param], master="24bit").load_state_dict(saved)


def test_switching_from_and_to_adamw():
    torch.manual_seed(0)
    model = torch.nn.Linear(100, 80).to(BF16)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, adamw, range(2))
    optimizer = AdEMAMix.from_adamw(adamw, total_steps=100, master="24bit")
    train(model, optimizer, range(2, 4))
    assert all(state["correction"].any() for state in optimizer.state.values())
    before = copy.deepcopy(model.state_dict())
    adamw = optimizer.to_adamw()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(state.keys() == {"step", "exp_avg", "exp_avg_sq"} for state in adamw.state.values())
    assert "master" not in adamw.param_groups[0]
    train(model, adamw, range(4, 6))


@pytest.mark.parametrize("state_storage", STORAGES)
def test_gradient_release_has_the_same_bits(state_storage):
    settings = {"master": "24bit", "state_storage": state_storage}
    _, optimizer = trained_model(**settings)
    released_model, released = trained_model(steps=0, **settings)
    with gradient_release(released_model, released):
        for step in range(3):
            batch = torch.randn(16, 100, generator=torch.Generator().manual_seed(step)).to(BF16)
            released_model(batch).float().square().mean().backward()
    assert_same_state(optimizer, released)
    assert released.diagnostics() == optimizer.diagnostics()


def test_settings_that_are_refused():
    param = torch.ones(4, dtype=BF16)
    with pytest.raises(ValueError, match=r"master must be one of \(None, '24bit'\), got '32bit'"):
        make([param], master="32bit")
    with pytest.raises(ValueError, match="has no derivative"):
        make([param], master="24bit", differentiable=True)
