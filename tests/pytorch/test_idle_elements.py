"""Elements whose gradient is 0 for long: what the algorithm does to them, how it shows, and what `slow_clip` does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ademamix import AdEMAMix
from ademamix.reference import ReferenceAdEMAMix
from cases import PATHS, STORAGES, make, on_paths

LIVE, IDLE = 3_000, 20_000
LR = 1e-3
EAGER = [path for path in PATHS if "capturable" not in path]


def largest_idle_update(**settings):
    """Train an element by the oracle, then leave it without gradients. Return the largest update, over lr."""
    oracle = ReferenceAdEMAMix([0.0], lr=LR, betas=(0.9, 0.999, 0.9999), weight_decay=0.0, **settings)
    noise = np.random.default_rng(0).standard_normal(LIVE)
    for g in 0.3 + noise:
        oracle.update([g])
    largest, before = 0.0, float(oracle.theta[0])
    for _ in range(IDLE):
        after = float(oracle.update([0.0])[0])
        largest, before = max(largest, abs(after - before) / LR), after
    return largest


def test_idle_elements_run_away_and_slow_clip_holds_them():
    assert largest_idle_update(alpha=8.0) > 1_000
    assert largest_idle_update(alpha=0.0) < 1  # AdamW
    assert largest_idle_update(alpha=8.0, slow_clip=2.0) <= 2 * 2.0


def largest_idle_step(path, **settings):
    """Do the same with the optimizer, for four elements whose gradients have other signals. Return it for each."""
    signals = torch.tensor([0.0, 0.1, -0.3, 1.0])
    param = torch.zeros(4, requires_grad=True)
    optimizer = make([param], lr=LR, betas=(0.9, 0.999, 0.9999), weight_decay=0.0, **settings, **PATHS[path])
    for gradient in signals + torch.randn(LIVE, 4, generator=torch.Generator().manual_seed(0)):
        param.grad = gradient
        optimizer.step()
    param.grad = torch.zeros(4)
    places = [param.detach().clone()]
    for _ in range(IDLE):
        optimizer.step()
        places.append(param.detach().clone())
    return torch.stack(places).diff(dim=0).abs().amax(0) / LR


@pytest.mark.parametrize("path", ["fused", "foreach", "fused-capturable"])
def test_idle_elements_of_the_optimizer_run_away_and_slow_clip_holds_them(path):
    assert largest_idle_step(path, alpha=8.0).max() > 1_000
    bounded = largest_idle_step(path, alpha=8.0, slow_clip=2.0)
    assert bounded.max() <= 2 * 2.0
    assert bounded.min() > 1.9  # all of them reach the bound


def rare_token_run(steps, idle_from, **settings):
    """Train an untied embedding on tokens with Zipf's frequencies; from a step on, the rare half does not occur.

    Return the largest change of an embedding in a step, over lr, and the optimizer.
    """
    generator = torch.Generator().manual_seed(0)
    tokens, width = 64, 8
    frequencies = 1 / torch.arange(1, tokens + 1)
    embedding = torch.nn.Embedding(tokens, width)
    targets = torch.randn(tokens, width, generator=generator)
    with torch.no_grad():
        embedding.weight.normal_(generator=generator)
    optimizer = AdEMAMix(embedding.parameters(), lr=LR, betas=(0.9, 0.95, 0.9999), weight_decay=0.0, **settings)
    largest = 0.0
    for step in range(steps):
        frequent = frequencies[: tokens // 2] if step >= idle_from else frequencies
        batch = torch.multinomial(frequent, 64, replacement=True, generator=generator)
        noise = torch.randn(64, width, generator=generator)
        loss = (embedding(batch) - targets[batch] - noise).square().sum()
        optimizer.zero_grad()
        loss.backward()
        before = embedding.weight.detach().clone()
        optimizer.step()
        largest = max(largest, float((embedding.weight.detach() - before).abs().max()) / LR)
    return largest, optimizer


def test_rare_tokens_of_an_embedding():
    settings = {"alpha": 8.0, "alpha_warmup": 0, "beta3_warmup": 0}
    largest, optimizer = rare_token_run(1_200, 600, **settings)
    (found,) = optimizer.diagnostics()
    assert largest > 100
    assert found["largest_slow_step"] > 100
    assert found["large_slow_steps"] > 64  # most of the 256 elements of tokens that do not occur any more

    bounded, optimizer = rare_token_run(1_200, 600, slow_clip=2.0, **settings)
    (found,) = optimizer.diagnostics()
    assert bounded <= 2 * 2.0
    assert found["largest_slow_step"] == pytest.approx(2.0)
    assert found["large_slow_steps"] == 0


def longest_idle_run(path, **settings):
    """Train an untied embedding on tokens with Zipf's frequencies, the rarest of which do not occur for 20,000 steps.

    They occur in the first steps, at the frequencies that they have. Return the largest change of an embedding in a
    step, over lr, and how long the rarest were idle at the end.
    """
    tokens, width, size = 512, 2, 4
    generator = torch.Generator().manual_seed(0)
    frequencies = 1 / torch.arange(1.0, tokens + 1) ** 2  # the rarest occur once in 430,000 tokens
    batches = torch.multinomial(frequencies, (LIVE + IDLE) * size, replacement=True, generator=generator)
    batches[: LIVE * size] = torch.randint(tokens, (LIVE * size,), generator=generator)
    targets = torch.randn(tokens, width, generator=generator)
    param = torch.zeros(tokens, width, requires_grad=True)
    optimizer = make([param], lr=LR, betas=(0.9, 0.999, 0.9999), weight_decay=0.0, **settings, **PATHS[path])
    last_seen = torch.zeros(tokens, dtype=torch.long)
    param.grad = torch.zeros_like(param)
    largest = 0.0
    for step, batch in enumerate(batches.view(-1, size)):
        before = param.detach().clone()
        noise = torch.randn(size, width, generator=generator)
        param.grad.zero_().index_add_(0, batch, before[batch] - targets[batch] - noise)
        last_seen[batch] = step
        optimizer.step()
        largest = max(largest, float((param.detach() - before).abs().max()) / LR)
    return largest, LIVE + IDLE - 1 - int(last_seen.min())


@pytest.mark.slow
def test_tokens_of_zipf_that_are_idle_for_20_000_steps():
    settings = {"alpha": 8.0, "alpha_warmup": 0, "beta3_warmup": 0}
    largest, idle = longest_idle_run("fused", **settings)
    assert idle >= IDLE
    assert largest > 500
    bounded, _ = longest_idle_run("fused", slow_clip=30.0, **settings)
    assert bounded <= 2 * 30.0


@pytest.mark.parametrize(("path", "storage"), on_paths(EAGER, STORAGES))
def test_a_bound_that_nothing_reaches_changes_no_bit(path, storage):
    results = []
    for slow_clip in (None, 1e30):
        param = torch.linspace(-1, 1, 64 * 130).reshape(64, 130).requires_grad_()
        optimizer = make([param], lr=LR, total_steps=20, state_storage=storage, slow_clip=slow_clip, **PATHS[path])
        for step in range(10):
            param.grad = torch.cos(torch.arange(param.numel()) + step).reshape(param.shape)
            optimizer.step()
        results.append([param, *optimizer.state[param].values()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_slow_clip_is_taken_up_in_the_middle_of_a_run():
    param = torch.ones(3, requires_grad=True)
    saved = AdEMAMix([param], total_steps=100).state_dict()
    del saved["param_groups"][0]["slow_clip"]  # as written by a version that had none
    resumed = AdEMAMix([param], slow_clip=3.0, total_steps=100)
    resumed.load_state_dict(saved)
    assert resumed.param_groups[0]["slow_clip"] == 3.0
    continued = AdEMAMix([param], total_steps=100)
    continued.load_state_dict(resumed.state_dict())
    assert continued.param_groups[0]["slow_clip"] == 3.0


def test_a_slow_step_that_is_no_number_is_shown():
    param = torch.zeros(2, requires_grad=True)
    optimizer = make([param], eps=0.0)
    param.grad = torch.tensor([0.0, 1.0])
    optimizer.step()
    assert np.isnan(optimizer.diagnostics()[0]["largest_slow_step"])
