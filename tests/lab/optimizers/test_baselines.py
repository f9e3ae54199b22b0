"""The baselines of the lab: each against its equation written out in float64, and against those it must agree with."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from ademamix import AdEMAMix
from ademamix.lab.config import ConfigError, Optimizer
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.optimizers.baselines import AdMetaS, AggMo, Lion
from ademamix.lab.optimizers.construction import build
from ademamix.lab.optimizers.successors import LogTimeAdEMAMix, SimplifiedAdEMAMix
from ademamix.lab.optimizers.variants import Ad3EMAMix, AdamWScheduledBeta1, ConvexMix
from baseline_equations import (
    ad3emamix,
    adamw_scheduled_beta1,
    admeta_s,
    aggmo,
    convex_mix,
    lion,
    log_time_ademamix,
    simplified_ademamix,
)

STEPS, HORIZON = 260, 200  # schedules end before the trace does
SHAPES = ((3, 4), (5,), (2, 3, 2), (1,))
FIRST_GRADIENT = (1, 1, 31, 1)  # one parameter joins late and has a clock of its own
DECAYS = (0.1, 0.1, 0.0, 0.03)
SCALES = (1.0, 1.0, 1.0, 0.5)  # of the learning rate


def rate(step: int) -> float:
    return 0.01 * (1 + math.cos(math.pi * step / STEPS)) / 2


def starts() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.normal(size=shape) for shape in SHAPES]


def gradients() -> list[list[np.ndarray]]:
    """For each tensor a gradient of each step: noise around a direction that turns half way."""
    random = np.random.default_rng(2)
    traces = []
    for shape in SHAPES:
        direction = random.normal(size=shape)
        signs = np.where(np.arange(1, STEPS + 1) < STEPS / 2, 1.0, -1.0)
        traces.append([0.3 * sign * direction + random.normal(size=shape) for sign in signs])
    return traces


def run(make: Callable[..., torch.optim.Optimizer], dtype: torch.dtype = torch.float64) -> list[list[np.ndarray]]:
    """Return each tensor after each step; `make` gets groups with different decays and learning rates."""
    params = [torch.tensor(start, dtype=dtype) for start in starts()]
    groups = [
        {"params": params[:2], "weight_decay": DECAYS[0]},
        {"params": params[2:3], "weight_decay": DECAYS[2]},
        {"params": params[3:], "weight_decay": DECAYS[3]},
    ]
    optimizer = make(groups)
    paths: list[list[np.ndarray]] = [[] for _ in params]
    for step in range(1, STEPS + 1):
        take_step(optimizer, params, step)
        for path, param in zip(paths, params, strict=True):
            path.append(param.numpy().astype(np.float64))
    return paths


GRADIENTS = gradients()


def take_step(optimizer: torch.optim.Optimizer, params: list[torch.Tensor], step: int) -> None:
    for param, trace, first in zip(params, GRADIENTS, FIRST_GRADIENT, strict=True):
        param.grad = torch.tensor(trace[step - 1], dtype=param.dtype) if step >= first else None
    for group in optimizer.param_groups:
        group["lr"] = rate(step) * SCALES[3 if group is optimizer.param_groups[-1] else 0]
    optimizer.step()


# An oracle takes a start, gradients, learning rates and a weight decay, and yields the parameter after each step.


class Case(NamedTuple):
    name: str
    settings: dict
    oracle: Callable[..., Iterator[np.ndarray]]
    constants: dict


CASES = [
    Case(
        "adamw-scheduled-beta1",
        {"betas": [0.9999, 0.995], "beta1_start": 0.8},
        adamw_scheduled_beta1,
        {"betas": (0.9999, 0.995), "beta1_start": 0.8, "T": HORIZON},
    ),
    Case(
        "convex-mix",
        {"betas": [0.9, 0.99, 0.9999], "alpha": 0.7},
        convex_mix,
        {"betas": (0.9, 0.99, 0.9999), "alpha": 0.7, "T": HORIZON},
    ),
    Case(
        "ad3emamix",
        {"betas": [0.9, 0.99, 0.999, 0.9999], "alpha": 6.0},
        ad3emamix,
        {"betas": (0.9, 0.99, 0.999, 0.9999), "alpha": 6.0, "T": HORIZON},
    ),
    Case(
        "log-time-ademamix",
        {"betas": [0.8, 0.99], "alpha": 2.0, "delta": 5.0, "kappa": 0.7, "decay_time": 30},
        log_time_ademamix,
        {"betas": (0.8, 0.99), "alpha": 2.0, "delta": 5.0, "kappa": 0.7, "tau": 30},
    ),
    Case(
        "simplified-ademamix",
        {"betas": [0.999, 0.99], "alpha": 20.0, "beta1_start": 0.8},
        simplified_ademamix,
        {"betas": (0.999, 0.99), "alpha": 20.0, "beta1_start": 0.8, "T": HORIZON},
    ),
    Case("aggmo", {"betas": [0.0, 0.9, 0.99, 0.9]}, aggmo, {"betas": (0.0, 0.9, 0.99, 0.9)}),
    Case("admeta-s", {"betas": [0.8, 0.3]}, admeta_s, {"betas": (0.8, 0.3)}),
    Case("lion", {"alpha": 0.8, "beta": 0.9999}, lion, {"alpha": 0.8, "beta": 0.9999}),
]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 3e-5)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_follows_its_equation(case, dtype, tolerance):
    config = Optimizer(name=case.name, lr=0.5, settings=case.settings)
    paths = run(lambda groups: build(config, groups, total_steps=HORIZON), dtype)
    for i, (start, first) in enumerate(zip(starts(), FIRST_GRADIENT, strict=True)):
        rates = [SCALES[i] * rate(step) for step in range(first, STEPS + 1)]
        expected = list(case.oracle(start, GRADIENTS[i][first - 1 :], rates, DECAYS[i], **case.constants))
        assert_allclose(paths[i][first - 1 :], expected, rtol=tolerance, atol=tolerance)
        assert_allclose(paths[i][: first - 1], [start] * (first - 1), rtol=1e-7)


def adamw(groups: list[dict]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, betas=(0.9, 0.99))


def ademamix(groups: list[dict], **settings) -> torch.optim.Optimizer:
    return AdEMAMix(groups, betas=(0.9, 0.99, 0.98), total_steps=HORIZON, **settings)


AGREEMENTS = {
    "convex mix with matching schedules = AdEMAMix": (
        lambda groups: ConvexMix(
            groups, betas=(0.9, 0.99, 0.98), alpha=8.0, matches_ademamix=True, total_steps=HORIZON
        ),
        lambda groups: ademamix(groups, alpha=8.0),
    ),
    "Ad3EMAMix with beta4 = beta3 = AdEMAMix with 2 alpha": (
        lambda groups: Ad3EMAMix(groups, betas=(0.9, 0.99, 0.98, 0.98), alpha=4.0, total_steps=HORIZON),
        lambda groups: ademamix(groups, alpha=8.0),
    ),
    "log-time AdEMAMix with no part of it = AdEMAMix": (
        lambda groups: LogTimeAdEMAMix(
            groups, betas=(0.9, 0.99, 0.98), alpha=8.0, delta=None, kappa=None, total_steps=HORIZON
        ),
        lambda groups: ademamix(groups, alpha=8.0),
    ),
    "log-time AdEMAMix with alpha = 0 = AdamW": (
        lambda groups: LogTimeAdEMAMix(groups, betas=(0.9, 0.99), alpha=0.0),
        adamw,
    ),
    "Ad3EMAMix with alpha = 0 = AdamW": (
        lambda groups: Ad3EMAMix(groups, betas=(0.9, 0.99, 0.98, 0.999), alpha=0.0, total_steps=HORIZON),
        adamw,
    ),
    "convex mix with alpha = 0 = AdamW": (
        lambda groups: ConvexMix(groups, betas=(0.9, 0.99, 0.98), alpha=0.0, total_steps=HORIZON),
        adamw,
    ),
    "AdamW with a scheduled beta1, without a horizon = AdamW": (
        lambda groups: AdamWScheduledBeta1(groups, betas=(0.9, 0.99), beta1_start=0.5),
        adamw,
    ),
    "AdamW with a scheduled beta1 that starts at its end = AdamW": (
        lambda groups: AdamWScheduledBeta1(groups, betas=(0.9, 0.99), beta1_start=0.9, total_steps=HORIZON),
        adamw,
    ),
    "AggMo with equal betas = AggMo with one": (
        lambda groups: AggMo(groups, betas=(0.9, 0.9)),
        lambda groups: AggMo(groups, betas=(0.9,)),
    ),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 3e-5)])
@pytest.mark.parametrize("pair", AGREEMENTS.values(), ids=AGREEMENTS)
def test_agrees_with_what_it_generalises(pair, dtype, tolerance):
    one, other = (run(make, dtype) for make in pair)
    for path, expected in zip(one, other, strict=True):
        assert_allclose(path, expected, rtol=tolerance, atol=tolerance)


def test_aggmo_with_one_beta_is_sgd_with_momentum():
    undecayed = [{"params": [torch.tensor(start)]} for start in starts()]
    others = copy.deepcopy(undecayed)
    one, other = AggMo(undecayed, lr=0.01, betas=(0.9,)), torch.optim.SGD(others, lr=0.01, momentum=0.9)
    for step in range(1, STEPS + 1):
        take_step(one, [group["params"][0] for group in undecayed], step)
        take_step(other, [group["params"][0] for group in others], step)
    for group, expected in zip(undecayed, others, strict=True):
        assert_allclose(group["params"][0], expected["params"][0], rtol=1e-12)


def test_the_convex_mix_without_matching_schedules_is_another_optimizer():
    # at the end of the schedules alpha_hat = 8/9 is the same mixture, but on the way there it is not
    plain = run(lambda groups: ConvexMix(groups, betas=(0.9, 0.99, 0.98), alpha=8 / 9, total_steps=HORIZON))
    matching = run(lambda groups: ademamix(groups, alpha=8.0))
    assert np.abs(np.array(plain[0]) - np.array(matching[0])).max() > 0.01


def test_an_average_with_scheduled_beta1_is_corrected_to_a_true_average():
    # of a constant gradient every average is that gradient, so that every step has the length lr
    point = torch.zeros(3, dtype=torch.float64)
    optimizer = AdamWScheduledBeta1([point], lr=0.1, betas=(0.9999, 0.999), total_steps=300, eps=0.0, weight_decay=0.0)
    for step in range(1, 301):
        point.grad = torch.tensor([1.0, -3.0, 0.02], dtype=torch.float64)
        optimizer.step()
        assert_allclose(point, [-0.1 * step, 0.1 * step, -0.1 * step], rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumes_with_the_same_bits(name, dtype):
    config = Optimizer(name=name, lr=1e-3)

    def fresh() -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
        params = [torch.tensor(start, dtype=dtype) for start in starts()]
        groups = [{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0}]
        return params, build(config, groups, total_steps=HORIZON)

    params, optimizer = fresh()
    for step in range(1, 61):
        if step == 25:  # before the first gradient of a parameter
            file = io.BytesIO()
            torch.save({"params": params, "optimizer": optimizer.state_dict()}, file)
        take_step(optimizer, params, step)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed_params, resumed = fresh()
    for param, value in zip(resumed_params, saved["params"], strict=True):
        param.copy_(value)
    resumed.load_state_dict(saved["optimizer"])
    for step in range(25, 61):
        take_step(resumed, resumed_params, step)
    for param, expected in zip(resumed_params, params, strict=True):
        assert torch.equal(param, expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_comes_near_a_minimum_and_returns_the_loss_of_a_closure(name):
    point = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = build(Optimizer(name=name, lr=0.05), [{"params": [point], "weight_decay": 0.0}], total_steps=500)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = point.square().sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(500)]
    assert losses[0] == 9.0
    assert min(losses) < 0.01


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_group_without_gradients_stays(name):
    moved, still = torch.ones(2), torch.ones(2)
    moved.grad = torch.ones(2)
    optimizer = build(Optimizer(name=name, lr=0.1), [{"params": [still]}, {"params": [moved]}], total_steps=100)
    optimizer.step()
    assert torch.equal(still, torch.ones(2))
    assert not torch.equal(moved, torch.ones(2))
    assert not optimizer.state.get(still)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_group_can_be_added_in_the_middle(name):
    first, second = torch.ones(2), torch.ones(2)
    optimizer = build(Optimizer(name=name, lr=0.01), [{"params": [first]}], total_steps=100)
    path = []
    for step in range(8):
        if step == 4:
            optimizer.add_param_group({"params": second})
        first.grad = second.grad = torch.full((2,), 0.5)
        optimizer.step()
        path.append((first.tolist(), second.tolist()))
    assert [point for point, _ in path[:4]] == [point for _, point in path[4:]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: AdamWScheduledBeta1(p, lr=-1.0), r"lr must be a finite number >= 0, got -1.0"),
        (lambda p: AdamWScheduledBeta1(p, betas=(0.9,)), r"betas must be 2 numbers in \[0, 1\), got \(0.9,\)"),
        (lambda p: AdamWScheduledBeta1(p, betas=(1.0, 0.9)), r"beta1 must be a number in \[0, 1\), got 1.0"),
        (lambda p: AdamWScheduledBeta1(p, beta1_start=math.nan), r"beta1_start must be a number in \[0, 1\), got nan"),
        (lambda p: AdamWScheduledBeta1(p, total_steps=0), r"total_steps must be an integer >= 1 or None, got 0"),
        (lambda p: ConvexMix(p, lr=torch.ones(())), r"lr must be a finite number >= 0, got tensor"),
        (lambda p: ConvexMix(p, alpha=1.5), r"alpha must be in \[0, 1\], or matches_ademamix=True, got 1.5"),
        (lambda p: ConvexMix(p, alpha=-0.1, matches_ademamix=True), r"alpha must be a finite number >= 0, got -0.1"),
        (lambda p: ConvexMix(p, betas=(0.9, 0.99, 1.0)), r"beta3 must be a number in \[0, 1\), got 1.0"),
        (lambda p: ConvexMix(p, total_steps=1.5), r"total_steps must be an integer >= 1 or None, got 1.5"),
        (lambda p: Ad3EMAMix(p, betas=(0.9, 0.99, 0.999)), r"betas must be 4 numbers in \[0, 1\), got \(0.9, 0.99"),
        (lambda p: Ad3EMAMix(p, betas=(0.9, 0.99, 0.999, -1)), r"beta4 must be a number in \[0, 1\), got -1"),
        (lambda p: Ad3EMAMix(p, eps=-1e-8), r"eps must be a finite number >= 0, got -1e-08"),
        (lambda p: LogTimeAdEMAMix(p, delta=0.0), r"delta must be a finite number > 0 or None, got 0.0"),
        (lambda p: LogTimeAdEMAMix(p, kappa=-1), r"kappa must be a finite number >= 0, got -1"),
        (lambda p: LogTimeAdEMAMix(p, decay_time="10"), r"decay_time must be a finite number >= 0, got '10'"),
        (lambda p: SimplifiedAdEMAMix(p, betas=(0.9, 0.99, 0.999)), r"betas must be 2 numbers in \[0, 1\), got "),
        (lambda p: SimplifiedAdEMAMix(p, alpha=math.nan), r"alpha must be a finite number >= 0, got nan"),
        (lambda p: SimplifiedAdEMAMix(p, beta1_start=1.0), r"beta1_start must be a number in \[0, 1\), got 1.0"),
        (lambda p: AggMo(p, betas=()), r"betas must be one or more numbers in \[0, 1\), got \(\)"),
        (lambda p: AggMo(p, betas=0.9), r"betas must be one or more numbers in \[0, 1\), got 0.9"),
        (lambda p: AggMo(p, betas=(0.9, 2.0)), r"beta2 must be a number in \[0, 1\), got 2.0"),
        (lambda p: AdMetaS(p, betas=(0.0, 0.1)), r"beta1 must be a number in \(0, 1\), got 0.0"),
        (lambda p: AdMetaS(p, weight_decay=math.inf), r"weight_decay must be a finite number >= 0, got inf"),
        (lambda p: Lion(p, alpha=1.0), r"alpha must be a number in \[0, 1\), got 1.0"),
        (lambda p: Lion(p, beta="0.99"), r"beta must be a number in \[0, 1\), got '0.99'"),
        (lambda p: Lion([{"params": p, "weight_decay": -1}]), r"weight_decay must be a finite number >= 0, got -1"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make([torch.ones(2)])


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"adamw", "ademamix"}))
def test_low_precision_is_refused(name):
    groups = [{"params": [torch.ones(2), torch.ones(2, dtype=torch.bfloat16)]}]
    with pytest.raises(ConfigError, match=rf"optimizer '{name}': \w+ takes fp32 and fp64 parameters, got torch.bfloat"):
        build(Optimizer(name=name, lr=0.1), groups, total_steps=10)
    optimizer = build(Optimizer(name=name, lr=0.1), [{"params": [torch.ones(2)]}], total_steps=10)
    with pytest.raises(ValueError, match=r"got torch\.float16"):
        optimizer.add_param_group({"params": [torch.ones(2, dtype=torch.float16)]})
    assert len(optimizer.param_groups) == 1
