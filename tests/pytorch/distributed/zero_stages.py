"""Models under DeepSpeed's ZeRO 1, 2 and 3, whose slices of flattened parameters are on a CPU.

Each run is compared with an unsharded one of the same batches, and each step of a slice with that of a plain tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import Tensor, distributed
from torch.distributed.tensor.debug import CommDebugMode
from unsharded_runs import (
    ACCUMULATED,
    BYTES,
    CLIP,
    SETTINGS,
    STEPS,
    Model,
    Watched,
    batch,
    distance,
    loss_of,
    states_of,
    tolerance,
    unsharded,
)

from ademamix.pytorch.integrations.deepspeed import ademamix_of
from cases import make

deepspeed.utils.logger.setLevel("ERROR")
# Beside the stage: what is to be trained in bf16, with fp32 copies in the slices, and what is offloaded.
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
    },
    "offload": {"zero_force_ds_cpu_optimizer": False},
}


def started(stage: int, way: str, storage: str, seed: int = 0) -> Any:
    model = Model(seed)
    zero: dict[str, Any] = {"stage": stage}
    if way == "offload":
        zero["offload_optimizer"] = {"device": "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": ACCUMULATED,
        "gradient_clipping": CLIP,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": zero,
        **WAYS[way],
    }
    optimizer = make(model.groups(), state_storage=storage, **SETTINGS)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def step(engine: Any, number: int) -> int:
    """Take a step, and return the number of collectives that follow the backward pass."""
    dtype = engine.module[0].weight.dtype
    for part in range(ACCUMULATED):
        engine.backward(loss_of(engine, batch(number, part, distributed.get_rank()).to(dtype)))
        with CommDebugMode() as communication:
            engine.step()
    return communication.get_total_counts()


def parameters_of(engine: Any) -> list[Tensor]:
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return [param.detach().float().clone() for param in engine.module.parameters()]


def cells() -> Iterator[tuple[int, str, str]]:
    is_small = distributed.get_world_size() < 4  # larger groups have fewer cells, which take longer
    for stage, way, storage in itertools.product((1, 2, 3), WAYS, BYTES):
        if way == "plain" or (storage != "bf16" and is_small):
            yield stage, way, storage


def trained(folder: Path) -> None:
    """Every stage takes the steps of an unsharded run, and the optimizer those of plain tensors, on its own."""
    runs = {way: unsharded(torch.bfloat16 if way == "bf16" else torch.float32) for way in WAYS}
    for stage, way, storage in cells():
        what = (stage, way, storage)
        before, after, reference = runs[way]
        engine = started(stage, way, storage)
        watched = Watched(engine.basic_optimizer)
        around_it = sum(step(engine, number) for number in range(STEPS))
        assert around_it > 0 or distributed.get_world_size() == 1, what
        assert (watched.steps, watched.collectives) == (2 * STEPS, 0), what
        assert distance(parameters_of(engine), after, before) < tolerance(storage, in_bf16=way == "bf16"), what
        with ademamix_of(engine) as optimizer:
            assert optimizer.schedule() == reference.schedule(), what
            elements = sum(param.numel() for param, _ in states_of(optimizer))
            assert all(param.dim() == 1 for param, _ in states_of(optimizer)), what
            found = optimizer.diagnostics()
        assert sum(group["reduced_bytes"] + group["full_bytes"] for group in found) <= BYTES[storage] * elements, what
        assert (found[0]["full_bytes"] == 0) == (storage != "fp32"), what
        engine.destroy()


def resumed(folder: Path) -> None:
    """DeepSpeed's checkpoint continues with the same bits, in another engine that began with other parameters."""
    for stage, way, storage in cells():
        what = (distributed.get_world_size(), stage, way, storage)
        tag = "-".join(map(str, what))
        engine, other = (started(stage, way, storage, seed) for seed in (0, 1))
        for number in range(STEPS):
            step(engine, number)
        engine.save_checkpoint(str(folder), tag=tag)
        other.load_checkpoint(str(folder), tag=tag)
        for number in range(STEPS, 2 * STEPS):
            step(engine, number)
            step(other, number)
        assert all(map(torch.equal, parameters_of(engine), parameters_of(other))), what
        with ademamix_of(engine) as optimizer, ademamix_of(other) as continued:
            for (param, state), (same, same_state) in zip(states_of(optimizer), states_of(continued), strict=True):
                assert torch.equal(param, same), what
                assert state["slow_step"] == 2 * STEPS, what
                assert state.keys() == same_state.keys(), what
                assert all(torch.equal(state[key], same_state[key]) for key in state), what
        engine.destroy()
        other.destroy()


def forgotten(folder: Path) -> None:
    """The slow average can be emptied, also under ZeRO-3, whose groups are empty between steps."""
    for stage in (2, 3):
        engine = started(stage, "plain", "compact")
        step(engine, 0)
        with ademamix_of(engine) as optimizer:
            optimizer.reset_slow()
        step(engine, 1)
        with ademamix_of(engine) as optimizer:
            clocks = {(group["step"], group["slow_step"]) for group in optimizer.schedule()}
        assert clocks == {(2, 1)}, stage
        assert any(group["params"] for group in engine.basic_optimizer.param_groups) == (stage == 2)
        engine.destroy()
