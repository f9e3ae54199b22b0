"""How far each path, storage and dtype ends from the oracle, which computes in double precision.

All take 2,000 steps with a parameter of 256 x 256 elements along the same random gradients, whose scales spread over
two decades, with beta3 = 0.9999, alpha = 8 and both warm-ups over all steps. The distance of the parameter is relative
to the distance that the oracle moves, that of the slow average to its norm.

    python benchmarks/precision.py            # a minute
    python benchmarks/precision.py --quick    # seconds
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

from ademamix import AdEMAMix, alpha_at, beta3_at
from ademamix.optax import ademamix
from ademamix.pytorch.storage import read_moment
from ademamix.reference import ReferenceAdEMAMix
from study import Progress, Results, markdown, parse

SHAPE = (256, 256)
LR, BETAS, ALPHA, WEIGHT_DECAY = 1e-3, (0.9, 0.999, 0.9999), 8.0, 0.1


class End(NamedTuple):
    """A parameter and its slow average, after the last step."""

    theta: np.ndarray
    slow: np.ndarray


def start() -> np.ndarray:
    """Return the parameter before the first step, in values that bf16 has too."""
    values = np.random.default_rng(0).normal(size=SHAPE)
    return torch.tensor(values).bfloat16().double().numpy()


def gradients(steps: int) -> Iterator[np.ndarray]:
    """Yield the gradients of all steps: a direction that stays, and ten times as much noise."""
    random = np.random.default_rng(1)
    scales = 10 ** random.uniform(-2, 0, SHAPE)
    signal = random.normal(size=SHAPE)
    for _ in range(steps):
        yield (scales * (signal + 10 * random.normal(size=SHAPE))).astype(np.float32)


def oracle(steps: int) -> End:
    warmups = {"T_alpha": steps, "T_beta3": steps}
    optimizer = ReferenceAdEMAMix(start(), LR, BETAS, ALPHA, **warmups, weight_decay=WEIGHT_DECAY)
    for gradient in gradients(steps):
        optimizer.update(gradient)
    return End(optimizer.theta, optimizer.m2)


def in_torch(steps: int, dtype: torch.dtype = torch.float32, **more: Any) -> End:
    """Descend with a path, a storage or a dtype of the parameter; gradients are fp32."""
    param = torch.tensor(start(), dtype=dtype)
    param.grad_dtype = None
    warmups = {"alpha_warmup": steps, "beta3_warmup": steps}
    optimizer = AdEMAMix([param], LR, BETAS, alpha=ALPHA, **warmups, weight_decay=WEIGHT_DECAY, **more)
    for gradient in gradients(steps):
        param.grad = torch.tensor(gradient)
        optimizer.step()
    state = optimizer.state[param]
    slow = read_moment(state["exp_avg_slow"], state.get("exp_avg_slow_scale"))
    (master,) = optimizer.master_parameters()
    return End(master.double().numpy(), slow.double().numpy())


def in_jax(steps: int) -> End:
    params = jnp.array(start(), jnp.float32)
    warmups = {"alpha_warmup": steps, "beta3_warmup": steps}
    optimizer = ademamix(LR, b3=BETAS[2], alpha=ALPHA, weight_decay=WEIGHT_DECAY, **warmups)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for gradient in gradients(steps):
        updates, state = update(jnp.array(gradient), state, params)
        params = optax.apply_updates(params, updates)
    return End(np.asarray(params, np.float64), np.asarray(state[0].slow, np.float64))


def as_written(steps: int, slow_dtype: torch.dtype) -> End:
    """Descend in fp32 by the paper's lines as they stand, beta m + (1 - beta) g, with m2 in a dtype."""
    theta = torch.tensor(start(), dtype=torch.float32)
    m1, nu = torch.zeros_like(theta), torch.zeros_like(theta)
    m2 = torch.zeros_like(theta, dtype=slow_dtype)
    beta1, beta2 = (torch.tensor(beta) for beta in BETAS[:2])
    for t, gradient in enumerate(map(torch.tensor, gradients(steps)), 1):
        beta3 = torch.tensor(beta3_at(t, BETAS[2], BETAS[0], steps))
        m1 = beta1 * m1 + (1 - beta1) * gradient
        m2 = (beta3 * m2.float() + (1 - beta3) * gradient).to(slow_dtype)
        nu = beta2 * nu + (1 - beta2) * gradient**2
        mixed = m1 / (1 - beta1**t) + alpha_at(t, ALPHA, steps) * m2.float()
        theta = theta - LR * (mixed / ((nu / (1 - beta2**t)).sqrt() + 1e-8) + WEIGHT_DECAY * theta)
    return End(theta.double().numpy(), m2.double().numpy())


BF16 = torch.bfloat16
CASES: dict[str, Callable[[int], End]] = {
    "PyTorch, single": lambda steps: in_torch(steps, foreach=False, fused=False),
    "PyTorch, `foreach`": lambda steps: in_torch(steps, foreach=True),
    "PyTorch, `fused`": lambda steps: in_torch(steps, fused=True),
    "Optax": in_jax,
    "the paper's lines as written, in fp32": lambda steps: as_written(steps, torch.float32),
    "the same, m2 in bf16 to nearest": lambda steps: as_written(steps, BF16),
    '`state_storage="compact"`': lambda steps: in_torch(steps, state_storage="compact"),
    '`state_storage="bf16"`': lambda steps: in_torch(steps, state_storage="bf16"),
    "bf16 parameter": lambda steps: in_torch(steps, BF16),
    'bf16 parameter, `state_storage="compact"`': lambda steps: in_torch(steps, BF16, state_storage="compact"),
    "bf16 parameter, `stochastic_rounding=False`": lambda steps: in_torch(steps, BF16, stochastic_rounding=False),
    'bf16 parameter, `master="24bit"`: its master': lambda steps: in_torch(steps, BF16, master="24bit"),
}


def main() -> None:
    options = parse(__doc__ or "")
    steps = 20 if options.quick else 2000
    results = Results(options.results, "precision", {"steps": steps}, quick=options.quick)
    exact = oracle(steps)
    sizes = End(exact.theta - start(), exact.slow)
    progress = Progress(len(CASES), "descents")
    for name, descend in CASES.items():
        if name in results:
            progress.skip(1)
            continue
        found = descend(steps)
        errors = [np.linalg.norm(a - b) / np.linalg.norm(c) for a, b, c in zip(found, exact, sizes, strict=True)]
        results[name] = dict(zip(End._fields, map(float, errors), strict=True))
        progress.advance(name)
    rows = [[name, *(f"{error:.1e}" for error in results[name].values())] for name in CASES]
    print(markdown(["fp32 parameter, unless stated", "parameter", "slow average"], rows))


if __name__ == "__main__":
    main()
