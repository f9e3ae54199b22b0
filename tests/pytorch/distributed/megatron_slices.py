"""Models under Megatron-Core's data parallelism and its optimizers, the distributed one above all, on CPU processes.

Megatron's own classes train here; `cpu_as_cuda` alone stands between them and the CPU.
"""

from __future__ import annotations

import copy
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from torch import Tensor, distributed
from unsharded_runs import (
    ACCUMULATED,
    BYTES,
    CLIP,
    DECAY,
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
    usual_distance,
)

from ademamix import AdEMAMix
from ademamix.pytorch.integrations.megatron import use_ademamix
from cpu_as_cuda import cpu_as_cuda

LR = SETTINGS["lr"]


class Chunk(MegatronModule):
    def __init__(self, config: TransformerConfig, seed: int) -> None:
        super().__init__(config)
        self.layers = Model(seed)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


class Run(NamedTuple):
    chunk: Any
    optimizer: Any
    scheduler: Any

    @property
    def ademamix(self) -> AdEMAMix:
        return self.optimizer.chained_optimizers[0].optimizer

    @property
    def parameters(self) -> list[Tensor]:
        return [param.detach().float().clone() for param in self.chunk.parameters()]


def on_cpu(scenario: Callable[[Path], None]) -> Callable[[Path], None]:
    @wraps(scenario)
    def carried_out(folder: Path) -> None:
        with cpu_as_cuda():
            if not parallel_state.is_initialized():
                parallel_state.initialize_model_parallel()
            try:
                scenario(folder)
            finally:
                for process in multiprocessing.active_children():  # which Megatron keeps to write checkpoints
                    process.kill()

    return carried_out


def built(*, sliced: bool = True, bf16: bool = False, seed: int = 0, **options: Any) -> Run:
    """Return a model and its optimizer as Megatron builds them, still with Adam."""
    config = TransformerConfig(num_layers=1, hidden_size=768, num_attention_heads=1, bf16=bf16)
    chunk = Chunk(config, seed).to(torch.bfloat16 if bf16 else torch.float32)
    data_parallel = DistributedDataParallelConfig(use_distributed_optimizer=sliced, grad_reduce_in_fp32=True)
    chunk = DistributedDataParallel(config, data_parallel, chunk)
    settings = {"optimizer": "adam", "lr": LR, "weight_decay": DECAY, "clip_grad": CLIP, "bf16": bf16, **options}
    optimizer = get_megatron_optimizer(OptimizerConfig(use_distributed_optimizer=sliced, **settings), [chunk])
    steady = {"lr_warmup_steps": 0, "lr_decay_steps": 10, "lr_decay_style": "constant", "wd_incr_steps": 0}
    steady |= {"init_lr": LR, "max_lr": LR, "min_lr": LR, "wd_incr_style": "constant"}
    scheduler = OptimizerParamScheduler(optimizer, start_wd=DECAY, end_wd=DECAY, **steady)
    return Run(chunk, optimizer, scheduler)


def started(storage: str, **options: Any) -> Run:
    run = built(**options)
    settings = {name: value for name, value in SETTINGS.items() if name != "lr"}  # which is Megatron's
    use_ademamix(run.optimizer, state_storage=storage, **settings)
    run.scheduler.step(0)
    return run


def step(run: Run, number: int) -> None:
    dtype = next(run.chunk.parameters()).dtype
    run.chunk.zero_grad_buffer()
    run.optimizer.zero_grad()
    for part in range(ACCUMULATED):
        with run.chunk.no_sync() if part < ACCUMULATED - 1 else nullcontext():
            loss = loss_of(run.chunk, batch(number, part, distributed.get_rank()).to(dtype))
            (loss / ACCUMULATED).backward()
    run.chunk.finish_grad_sync()
    run.optimizer.step()
    run.scheduler.step(1)


@on_cpu
def trained(folder: Path) -> None:
    """Each of Megatron's optimizers takes the steps of an unsharded run, and AdEMAMix those of plain tensors."""
    runs = {bf16: unsharded(torch.bfloat16 if bf16 else torch.float32) for bf16 in (False, True)}
    for sliced, bf16, storage in itertools.product((True, False), (False, True), BYTES):
        what = (sliced, bf16, storage)
        before, after, reference = runs[bf16]
        run = started(storage, sliced=sliced, bf16=bf16)
        watched = Watched(run.ademamix)
        for number in range(STEPS):
            step(run, number)
        states = list(states_of(run.ademamix))
        assert (watched.steps, watched.collectives) == (STEPS * len(states), 0), what
        assert distance(run.parameters, after, before) < tolerance(storage, in_bf16=bf16), what
        assert run.ademamix.schedule()[0] == reference.schedule()[0], what
        assert all(param.dim() == 1 for param, _ in states) == sliced, what
        elements, found = sum(param.numel() for param, _ in states), run.ademamix.diagnostics()
        assert sum(group["reduced_bytes"] + group["full_bytes"] for group in found) <= BYTES[storage] * elements, what


def with_file(run: Run, path: Path, *, load: bool) -> None:
    """Save or load as Megatron's older format does: a process gathers the slices of all, and writes them to a file."""
    if load:
        model, state = torch.load(path.with_suffix(".model"), weights_only=False)
        run.chunk.load_state_dict(model)
        run.optimizer.load_state_dict(state)
        run.optimizer.load_parameter_state(str(path))
        return
    if distributed.get_rank() == 0:
        torch.save((run.chunk.state_dict(), run.optimizer.state_dict()), path.with_suffix(".model"))
    run.optimizer.save_parameter_state(str(path))
    distributed.barrier()


def with_shards(sharding: str) -> Callable[..., None]:
    """Save or load with Megatron's distributed checkpoints, in one of their layouts of optimizer state."""

    def carried_out(run: Run, path: Path, *, load: bool) -> None:
        path.mkdir(exist_ok=True)
        metadata = {"distrib_optim_sharding_type": sharding}
        model = run.chunk.module.sharded_state_dict()
        optimizer = run.optimizer.sharded_state_dict(model, is_loading=load, metadata=metadata)
        state = {"model": model, "optimizer": optimizer}
        if not load:
            dist_checkpointing.save(state, str(path))
            return
        loaded = dist_checkpointing.load(state, str(path))
        run.chunk.load_state_dict(loaded["model"])
        run.optimizer.load_state_dict(loaded["optimizer"])

    return carried_out


FORMATS = {"file": with_file} | {name: with_shards(name) for name in ("fully_reshardable", "dp_reshardable")}


def checkpoints() -> Iterator[tuple[str, str, float]]:
    yield from itertools.product(FORMATS, BYTES, (0.9, 0.0))


def name_of(what: tuple[Any, ...]) -> str:
    return "-".join(map(str, what)).replace(".", "_")


def whole_state(run: Run) -> list[dict[str, Any]]:
    """Return parameters and moments of all processes, as fp32 values, in the first of them."""
    whole = run.optimizer.chained_optimizers[0].get_parameter_state_dp_zero() or {}
    return [tensors for key, by_dtype in whole.items() if isinstance(key, int) for tensors in by_dtype.values()]


def assert_same_state(found: list[dict[str, Any]], expected: list[dict[str, Any]], storage: str, what: Any) -> None:
    for tensors, others in zip(found, expected, strict=True):
        assert tensors.keys() == others.keys(), what
        moments = [key for key in others if key.startswith("exp_avg")]
        assert len(moments) == (2 if what[-1] == 0 else 3), what
        for key in ("param", *moments):
            missed = (tensors[key] - others[key]).norm() / others[key].norm()
            assert missed <= (0.01 if storage == "compact" and key != "param" else 0), (what, key, missed)


@on_cpu
def resumed(folder: Path) -> None:
    """A checkpoint continues with the same bits. Only compact moments are rounded once more when they are loaded."""
    if distributed.get_world_size() > 2:
        return  # minutes; `resharded` loads there
    for name, storage, beta1 in checkpoints():
        what = (distributed.get_world_size(), name, storage, beta1)
        path = folder / name_of(what)
        run, other = (started(storage, bf16=True, adam_beta1=beta1, seed=seed) for seed in (0, 1))
        for number in range(STEPS):
            step(run, number)
        FORMATS[name](run, path, load=False)
        FORMATS[name](other, path, load=True)
        assert other.ademamix.schedule() == run.ademamix.schedule(), what
        state = whole_state(run)
        assert_same_state(whole_state(other), state, storage, what)
        torch.save(state, path.with_suffix(f".{distributed.get_rank()}"))
        before = run.parameters
        for number in range(STEPS, 2 * STEPS):
            step(run, number)
            step(other, number)
        assert {int(state["slow_step"]) for _, state in states_of(other.ademamix)} == {2 * STEPS}, what
        measure, bound = (usual_distance, 0.005) if storage == "compact" else (distance, 0.0)
        missed = measure(other.parameters, run.parameters, before)
        assert missed <= bound, (what, missed)


@on_cpu
def resharded(folder: Path) -> None:
    """What two processes have saved loads on any other number of them."""
    for name, storage, beta1 in checkpoints():
        what = (distributed.get_world_size(), name, storage, beta1)
        path = folder / name_of((2, *what[1:]))
        run = started(storage, bf16=True, adam_beta1=beta1, seed=1)
        FORMATS[name](run, path, load=True)
        found = whole_state(run)
        assert bool(found) == (distributed.get_rank() == 0)
        if found:
            assert_same_state(found, torch.load(path.with_suffix(".0")), storage, what)
        assert run.ademamix.schedule()[0]["slow_step"] == STEPS, what


@on_cpu
def resumed_in_whole(folder: Path) -> None:
    """Optimizers that are not distributed save the state_dict of AdEMAMix, and continue with the same bits."""
    for bf16, storage in itertools.product((False, True), BYTES):
        run, other = (started(storage, sliced=False, bf16=bf16, seed=seed) for seed in (0, 1))
        step(run, 0)
        saved = copy.deepcopy((run.chunk.state_dict(), run.optimizer.state_dict()))
        other.chunk.load_state_dict(saved[0])
        other.optimizer.load_state_dict(saved[1])
        for same in (run, other):
            step(same, 1)
        assert all(map(torch.equal, run.parameters, other.parameters)), (bf16, storage)
        with pytest.raises(AssertionError, match="does not match model shape"):  # Megatron knows one clock, `step`
            run.optimizer.sharded_state_dict(run.chunk.module.sharded_state_dict())


@on_cpu
def refused(folder: Path) -> None:
    def attempt(run: Run) -> None:
        use_ademamix(run.optimizer, total_steps=10)

    for name in ("optimizer_cpu_offload", "use_precision_aware_optimizer"):
        run = built()
        setattr(run.optimizer.chained_optimizers[0].config, name, True)  # Megatron cannot build these on a CPU
        with pytest.raises(ValueError, match=f"set {name}=False"):
            attempt(run)
    with pytest.raises(ValueError, match="set decoupled_weight_decay=True"):
        attempt(built(decoupled_weight_decay=False))
    with pytest.raises(ValueError, match="set optimizer='adam'"):
        attempt(built(optimizer="sgd", sliced=False))
    run = started("fp32")
    step(run, 0)
    with pytest.raises(ValueError, match="call use_ademamix before"):
        attempt(run)
