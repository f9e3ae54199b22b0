"""The Triton kernel in Triton's interpreter, on CPU tensors: against the oracle, and bit by bit against `single`.

`test_triton_compiled.py` has it as machine code. What is not tested is what takes a GPU: running the compiled kernel,
capturing it in a CUDA graph, and its speed.
"""

from __future__ import annotations

import importlib

import pytest
import torch

import test_low_precision
import test_master
import test_oracle
from ademamix.pytorch import step, step_cpu, step_single, step_triton, storage
from ademamix.pytorch.coefficients import Coefficients
from ademamix.pytorch.parameter_state import adopt, form_of
from ademamix.pytorch.rounding import Rounding
from ademamix.pytorch.tensors import KERNEL_COLUMNS, Place, Tensors
from cases import FUSED, PATHS, SETTINGS, TOLERANCES, gradients, make, oracle_of

pytestmark = [
    pytest.mark.triton,
    # The interpreter computes with NumPy, which warns of what non-finite gradients and padding lead to.
    pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|overflow) encountered:RuntimeWarning"),
]

LOW = [torch.bfloat16, torch.float16]
# Rows of whole blocks and of parts of them, shorter than a program's tile and longer; the first three stay plain.
SHAPES = [(), (5,), (129,), (64, 64), (41, 100), (33, 129), (14, 5, 60)]
KEYS = [(0, 0, 1), (1, 2, 3), (2**63 - 1, 2**32 + 5, 2**24), (12345, 7, 100_000)]  # seed, parameter index, step
# Relative to an element and, since sums cancel, to the largest one; what has a spacing of its own is rounded to that.
TOLERATED = {
    torch.float64: (1e-14, 1e-14),
    torch.float32: (1e-6, 1e-6),
    torch.bfloat16: (2.0**-7, 1e-6),
    torch.float16: (2.0**-10, 1e-6),
}
BETAS = {"beta1": (0.9, 0.999), "no-beta1": (0.0, 0.999)}


@pytest.fixture(autouse=True)
def _kernels_take_cpu_tensors(monkeypatch):
    monkeypatch.setattr(step, "runs_on_triton", lambda param: True)


@pytest.mark.parametrize(
    ("dtype", "setting"),
    [
        (torch.float32, "short-warmups"),
        (torch.float32, "beta1-zero"),
        (torch.float32, "no-warmups"),
        (torch.float64, "weight-decay"),
    ],
    ids=str,
)
def test_trace(dtype, setting):
    param = torch.tensor(gradients(7, (3, 50), 0)).to(dtype).requires_grad_()
    optimizer = make([param], fused=True, **SETTINGS[setting])
    oracles = [oracle_of(param.detach().numpy(), optimizer)]
    test_oracle.assert_trace_matches([param], optimizer, oracles, 200, TOLERANCES[dtype])


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("fused", test_oracle.test_maximize),
        ("fused", test_oracle.test_late_and_missing_gradients_have_their_own_clocks),
        ("fused-capturable", test_oracle.test_late_and_missing_gradients_have_their_own_clocks),
        ("fused", test_low_precision.test_propagate_does_as_torch_does),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_as_the_other_paths(path, test):
    test(path)


@pytest.mark.parametrize(
    ("dtype", "test"),
    [
        (torch.complex64, test_oracle.test_complex_parameters_are_pairs_of_real_ones),
        (torch.float32, test_low_precision.test_skip_leaves_nonfinite_elements_as_they_were),
        (torch.bfloat16, test_low_precision.test_skip_leaves_nonfinite_elements_as_they_were),
        (torch.float16, test_low_precision.test_skip_leaves_nonfinite_elements_as_they_were),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_as_the_other_paths_in_each_dtype(dtype, test):
    test("fused", dtype)


@pytest.mark.parametrize(
    ("dtype", "stochastic"), [(torch.bfloat16, True), (torch.bfloat16, False), (torch.float16, True)], ids=str
)
def test_each_step_rounds_the_oracle_once(dtype, stochastic):
    test_low_precision.test_each_step_rounds_the_oracle_once("fused", dtype, stochastic)


@pytest.mark.parametrize("stochastic", [True, False])
def test_each_step_rounds_the_oracle_once_in_masters(stochastic):
    test_master.test_each_step_rounds_the_oracle_once("fused", stochastic)


@pytest.mark.parametrize("state_storage", FUSED)
@pytest.mark.parametrize(
    "test",
    [
        test_master.test_the_same_bits_on_every_path,
        test_master.test_any_memory_order_gives_the_same_bits,
        test_master.test_bf16_parameters_alone_have_masters,
        test_master.test_skip_leaves_nonfinite_elements_as_they_were,
    ],
    ids=lambda test: test.__name__,
)
def test_masters_as_on_the_other_paths(test, state_storage):
    test("fused", state_storage)


def some_gradient(seed, param, step, poisoned):
    gradient = torch.tensor(gradients(seed, tuple(param.shape), step)).to(param.dtype)
    if poisoned and step == 2 and param.dim():
        for place, value in zip((0, 3, -1), (torch.nan, torch.inf, -torch.inf), strict=True):
            gradient.view(-1)[place] = value
    return gradient


def assert_nearly_same(actual, expected, name):
    """Allow for other last bits of the arithmetic. They decide on the rounding of one element in thousands."""
    spacing, last_bits = TOLERATED.get(expected.dtype, (1.0, 0.0))
    finite = expected.isfinite()
    assert torch.equal(actual.isfinite(), finite), name
    difference = (actual[finite].double() - expected[finite].double()).abs()
    magnitude = expected[finite].double().abs()
    if difference.any():
        # Codes may be off by one.
        bound = spacing * magnitude + last_bits * magnitude.max() if expected.is_floating_point() else 1.0
        assert (difference <= bound).all(), name
        if spacing != last_bits:
            assert (difference > 0).double().mean() < 2e-3, name


def assert_each_step_as_single(params, steps=3, poisoned=False, **settings):
    """Take steps on Triton and on `single`, each from the same state."""
    expected_params = [param.detach().clone().requires_grad_() for param in params]
    single = make(expected_params, **{**settings, **PATHS["single"]})
    triton = make(params, fused=True, **settings)
    for time in range(1, steps + 1):
        for i, (param, other) in enumerate(zip(params, expected_params, strict=True)):
            param.grad = some_gradient(i, param, time, poisoned)
            other.grad = param.grad.clone()
        triton.step()
        single.step()
        for param, other in zip(params, expected_params, strict=True):
            assert_nearly_same(param.detach(), other.detach(), ("param", time, param.shape))
            assert triton.state[param].keys() == single.state[other].keys()
            for name, value in triton.state[param].items():
                assert_nearly_same(value, single.state[other][name], (name, time, param.shape))
                value.copy_(single.state[other][name])
            param.detach().copy_(other.detach())
    return triton


@pytest.mark.parametrize("betas", BETAS)
@pytest.mark.parametrize("nonfinite", ["skip", "propagate"])
@pytest.mark.parametrize("state_storage", FUSED)
def test_all_shapes_and_dtypes_in_one_call(state_storage, nonfinite, betas, monkeypatch):
    launches = []
    launch = step_triton._launch

    def noted_launch(*args, **flags):
        launches.append(args[0])
        launch(*args, **flags)

    monkeypatch.setattr(step_triton, "_launch", noted_launch)
    dtypes = [torch.float32, torch.float64, *LOW] if state_storage == "fp32" else [torch.float32, *LOW]
    params = [
        torch.tensor(gradients(i, shape, 0)).to(dtypes[i % len(dtypes)]).requires_grad_()
        for i, shape in enumerate(SHAPES)
    ]
    settings = {"state_storage": state_storage, "nonfinite": nonfinite, "betas": BETAS[betas], "total_steps": 50}
    optimizer = assert_each_step_as_single(params, poisoned=True, lr=1e-2, weight_decay=0.1, **settings)
    assert len(launches) == 3 * len(set(launches))
    assert {storage.is_reduced(state["exp_avg_slow"]) for state in optimizer.state.values()} == (
        {False} if state_storage == "fp32" else {False, True}
    )
    if nonfinite == "skip":
        assert optimizer.diagnostics()[0]["skipped"] == 3 * sum(param.dim() > 0 for param in params)
        assert all(param.isfinite().all() for param in params)


@pytest.mark.parametrize("state_storage", ["fp32", "compact"])
def test_any_memory_order(state_storage):
    shapes = [(70, 80), (8, 8, 8, 10)]
    for dtype in (torch.float32, torch.bfloat16) if state_storage == "fp32" else (torch.bfloat16,):
        values = [torch.tensor(gradients(i, shape, 0)).to(dtype) for i, shape in enumerate(shapes)]
        params = [values[0].T, values[1].contiguous(memory_format=torch.channels_last), values[0].clone()[:, ::2]]
        assert_each_step_as_single([param.requires_grad_() for param in params], steps=2, state_storage=state_storage)


def empty_tensors(values, state_storage, dtypes, **places):
    """Parameters and moments that are all zero, and gradients of `values`."""
    group = {"state_storage": state_storage, "betas": (0.9,), "capturable": False, "nonfinite": "skip", "master": None}
    params = [torch.zeros_like(x, dtype=dtypes[0]) for x in values]
    states = [adopt({}, param, group) for param in params]
    keys = form_of(state_storage, has_fast=True, skips=True).keys
    columns = {column: [state[key] for state in states] for column, key in keys.items()}
    grads = [x.to(dtypes[1]) for x in values]
    return Tensors.none()._replace(params=params, grads=grads, **columns, **places)


@pytest.mark.parametrize(
    ("state_storage", "grad_dtype"),
    [("bf16", torch.float32), ("bf16", torch.float16), ("compact", torch.float64), ("compact", torch.bfloat16)],
    ids=str,
)
def test_the_same_random_words_for_moments(state_storage, grad_dtype):
    """At rates of 1 moments are g, g and g^2 whatever the order of operations, so that all bits have to agree."""
    values = [torch.tensor(gradients(i, shape, 0)).float() for i, shape in enumerate([(33, 129), (41, 100), (14, 300)])]
    values[0][5] = 0.0
    values[1][2, 3], values[1][7, 99], values[2][0] = torch.nan, torch.inf, 1e-30
    seed, index, time = KEYS[2]
    # The second is cut by rows, the third by rows and by columns: at the third block of rows of five, and two shorter.
    places = [Place(index), Place(0, (2**31, 0), (2**32, 100)), Place(2, (3, 256), (20, 556))]
    rates = Coefficients(1.0, 1.0, 1.0, 0.5, 1.0, 0.1, 0.0, time)
    results = []
    for body in (step_single.update, step_triton.update):
        tensors = empty_tensors(values, state_storage, (torch.bfloat16, grad_dtype), places=places)
        body(tensors, [rates] * 3, Rounding(seed, True), maximize=False, grad_scale=None)
        results.append(tensors)
    expected, actual = results
    for name in Tensors._fields[3 : 1 + KERNEL_COLUMNS]:
        for ours, others in zip(getattr(actual, name), getattr(expected, name), strict=True):
            as_bits = torch.int16 if ours.dtype == torch.bfloat16 else ours.dtype
            assert torch.equal(ours.view(as_bits), others.view(as_bits)), name
    assert any((moment != 0).any() for moment in actual.fasts)
    assert [count.item() for count in actual.skipped] == [0, 2, 0]


def tensors_of(place, param, grad, slow):
    columns = {"params": param, "grads": grad, "slows": slow.clone(), "squares": torch.zeros_like(slow)}
    lists = {name: [tensor] for name, tensor in columns.items()}
    return Tensors.none()._replace(places=[place], **lists)


@pytest.mark.parametrize(("seed", "index", "time"), KEYS)
def test_the_same_random_words_for_parameters(seed, index, time):
    """A parameter at 0 moves to exactly the slow average, and its 16 dropped bits show the random ones."""
    generator = torch.Generator().manual_seed(time)
    bits = torch.randint(-(2**31), 2**31, (5000,), generator=generator, dtype=torch.int64).to(torch.int32)
    values = bits.view(torch.float32)
    values = values[values.isfinite() & (values != 0)]
    param, zeros = torch.zeros_like(values, dtype=torch.bfloat16), torch.zeros_like(values)
    c = Coefficients(0.0, 0.0, 0.0, slow_gain=1.0, step_size=-1.0, eps=1.0, decay=0.0, step=float(time))
    how, place = Rounding(seed, True), Place(index, (2**33,), (2**34,))
    step_triton.update(tensors_of(place, param, zeros, values), [c], how, maximize=False, grad_scale=None)
    expected = torch.zeros_like(param)
    how.write(expected, values, place, time)
    assert torch.equal(param.view(torch.int16), expected.view(torch.int16))


@pytest.mark.parametrize("stochastic", [True, False])
@pytest.mark.parametrize(("seed", "index", "time"), KEYS)
def test_the_same_bits_of_masters(seed, index, time, stochastic):
    """A parameter at 0 moves to exactly the slow average, of any bits."""
    values = torch.cat([test_master.random_floats(5000, time), torch.tensor([torch.nan, 3.4e38, -0.0, 1e-44])])
    values = values[~values.isinf()]  # a step would make NaN of them
    param, zeros = torch.zeros_like(values, dtype=torch.bfloat16), torch.zeros_like(values)
    c = Coefficients(0.0, 0.0, 0.0, slow_gain=1.0, step_size=-1.0, eps=1.0, decay=0.0, step=float(time))
    how, place = Rounding(seed, stochastic), Place(index, (2**33,), (2**34,))
    tensors = tensors_of(place, param, zeros, values)
    tensors.corrections.append(torch.full_like(values, 55, dtype=torch.int8))
    step_triton.update(tensors, [c], how, maximize=False, grad_scale=None)
    expected, correction = torch.zeros_like(param), torch.zeros_like(tensors.corrections[0])
    how.write(expected, values + 0.0, place, time, correction)
    assert torch.equal(param.view(torch.int16), expected.view(torch.int16))
    assert torch.equal(tensors.corrections[0], correction)
    assert correction.unique().numel() == 256


@pytest.mark.parametrize("stochastic", [True, False])
def test_a_parameter_that_becomes_nan_or_overflows(stochastic):
    """NaN and infinity stay what they are when they are rounded to bf16."""
    values = torch.tensor([torch.nan, 3e38, -3e38, 1.0, -0.0])
    param, zeros = torch.zeros(5, dtype=torch.bfloat16), torch.zeros(5)
    c = Coefficients(0.0, 0.0, 0.0, slow_gain=1.0, step_size=-2.0, eps=1.0, decay=0.0, step=1.0)
    tensors = tensors_of(Place(0), param, zeros, values)
    step_triton.update(tensors, [c], Rounding(0, stochastic), maximize=False, grad_scale=None)
    assert param[0].isnan()
    assert param[1:].tolist() == [torch.inf, -torch.inf, 2.0, 0.0]


def stepped(scale=1.0, sign=1.0, steps=3, **settings):
    """Return what three steps with gradients times `sign` and `scale` lead to."""
    params = [
        torch.tensor(gradients(i, shape, 0)).float().requires_grad_() for i, shape in enumerate([(41, 100), (5,)])
    ]
    optimizer = make(params, **{"total_steps": 50, "state_storage": "compact", "fused": True, **settings})
    if scale != 1.0:
        optimizer.grad_scale = torch.tensor(scale)
    for time in range(1, steps + 1):
        for i, param in enumerate(params):
            param.grad = scale * sign * torch.tensor(gradients(i, tuple(param.shape), time)).float()
        optimizer.step()
    return [*(param.detach() for param in params), *(state["exp_avg_slow"] for state in optimizer.state.values())]


@pytest.mark.parametrize(
    "settings",
    [{"scale": 1024.0}, {"sign": -1.0, "maximize": True}, {"scale": 0.125, "capturable": True}],
    ids=["grad_scale", "maximize", "both on tensors"],
)
def test_scaled_and_negated_gradients_do_the_same(settings):
    for actual, expected in zip(
        stepped(**settings), stepped(capturable=settings.get("capturable", False)), strict=True
    ):
        assert torch.equal(actual, expected)


def test_capturable_takes_coefficients_as_tensors():
    tensors = stepped(capturable=True, lr=torch.tensor(1e-3, dtype=torch.float64), rounding_seed=5)
    for actual, expected in zip(tensors, stepped(rounding_seed=5), strict=True):
        assert_nearly_same(actual, expected, "capturable")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch's own compiler
def test_compiled_steps_go_through_the_operator(monkeypatch):
    # torch sends CPU tensors to the operator's kernel for a CPU
    monkeypatch.setattr(step_cpu, "update", step_triton.update)

    def compiled_step(optimizer):
        torch._dynamo.reset()
        return torch.compile(optimizer.step, fullgraph=True, backend="aot_eager")

    results = []
    for make_step in (compiled_step, lambda optimizer: optimizer.step):
        params = [torch.ones(3, 4, requires_grad=True), torch.ones(5, dtype=torch.bfloat16, requires_grad=True)]
        step_ = make_step(make(params, fused=True, total_steps=50, nonfinite="skip", maximize=True))
        for time in range(1, 4):
            for i, param in enumerate(params):
                param.grad = torch.tensor(gradients(i, tuple(param.shape), time)).to(param.dtype)
            step_()
        results.append([param.detach() for param in params])
    for actual, expected in zip(*results, strict=True):
        assert_nearly_same(actual, expected, "compiled")


def test_programs_have_fewer_elements_per_thread_where_those_take_more_registers(monkeypatch):
    """In the interpreter nothing else shows it. A warp has 32 threads."""
    launched = []
    kernel = importlib.import_module("ademamix.pytorch.triton_kernels").step

    class Noted:
        def __getitem__(self, grid):
            def launch(*args, num_warps):
                launched.append(num_warps)
                kernel[grid](*args, num_warps=num_warps)

            return launch

    monkeypatch.setattr("ademamix.pytorch.triton_kernels.step", Noted())
    bounded = {"slow_clip": 1.0}
    cases = [((64, 64), {}), ((41, 100), {}), ((64, 64), {"nonfinite": "skip"}), ((64, 64), bounded)]
    cases.append(((64, 64), {"state_storage": "compact", **bounded}))
    for dtype, chosen in ((torch.float32, cases), (torch.float64, cases[:1])):
        for shape, settings in chosen:
            param = torch.ones(shape, dtype=dtype, requires_grad=True)
            param.grad = torch.ones_like(param)
            make([param], fused=True, **settings).step()
    assert launched == [4, 8, 8, 4, 8, 8]


def test_tables_in_kernel_arguments_are_exact():
    """Only a capture uses these, but torch's operations are the same on any device."""
    addresses = [2**63 - 1, 0, 2**53 + 1, -7, 1]
    assert step_triton.as_arguments(addresses, torch.int64, torch.device("cpu")).tolist() == addresses
    numbers = [0.1, 0.0, 1e-300]
    assert step_triton.as_arguments(numbers, torch.float64, torch.device("cpu")).tolist() == numbers


def test_empty_tensors_are_passed_over():
    param = torch.ones(2, 0, requires_grad=True)
    optimizer = make([param], fused=True)
    param.grad = torch.zeros(2, 0)
    optimizer.step()
    assert optimizer.state[param]["step"] == 1


def test_a_group_on_two_devices_is_split():
    tensors = [torch.ones(3), torch.ones(4, device="meta"), torch.ones(5)]
    numbers = [Coefficients(*[float(i)] * 8) for i in range(3)]
    places = [Place(7), Place(8, (1,), (5,)), Place(9, (2,), (7,))]
    whole = Tensors.none()._replace(places=places, params=tensors, grads=tensors, slows=tensors, squares=tensors)
    parts = list(step._parts(whole, numbers, fused=True))
    assert [[len(param) for param in part.params] for part, _ in parts] == [[3, 5], [4]]
    assert [[c.step for c in own] for _, own in parts] == [[0.0, 2.0], [1.0]]
    assert [part.places for part, _ in parts] == [[places[0], places[2]], [places[1]]]


def test_without_triton_fused_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(step, "has_triton", False)
    with pytest.raises(RuntimeError, match="pip install triton"):
        make([torch.ones(3, requires_grad=True)], fused=True)
