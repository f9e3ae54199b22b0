"""The bytes that processes keep and send, compared with those of the plan."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from sharded_models import Model, batch, fully_sharded
from torch import Tensor, distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from ademamix.memory_plan import STATE_FORMATS, plan
from ademamix.pytorch.shards import local
from test_memory_plan import measured, optimizer_of


class Sent(TorchDispatchMode):
    """Counts the bytes that rings would send: all parts of a collective's whole but one."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        world, name = distributed.get_world_size(), str(function)
        if "allgather_base" in name:
            self.bytes["all_gather"] += args[1].nbytes * (world - 1)
        elif "reduce_scatter_base" in name:
            self.bytes["reduce_scatter"] += args[0].nbytes * (world - 1)
        return function(*args, **(kwargs or {}))


def kept(tensors: list[Tensor | None]) -> int:
    return sum(local(tensor).nbytes for tensor in tensors if tensor is not None)


def fsdp(folder: Path) -> None:
    world = distributed.get_world_size()
    line = init_device_mesh("cpu", (world,))
    in_bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    cases = {
        "fp32": (torch.float32, MixedPrecisionPolicy()),
        "bf16": (torch.bfloat16, MixedPrecisionPolicy()),
        "24bit": (torch.bfloat16, MixedPrecisionPolicy()),
        "mixed": (torch.float32, in_bf16),
    }
    for precision, (dtype, policy) in cases.items():
        master = precision if precision == "24bit" else None
        for state in STATE_FORMATS:
            if state == "adamw" and master:
                continue  # it has none
            whole = Model(dtype)
            shapes = [tuple(param.shape) for param in whole.parameters()]
            model = fully_sharded(whole, line, mp_policy=policy)
            optimizer = optimizer_of(model.parameters(), state, master)
            with Sent() as sent:
                model(batch(0, dtype)).float().square().mean().backward()
            optimizer.step()
            params = list(model.parameters())
            planned = plan(shapes, state, devices=world, shard="fsdp", precision=precision)
            # The first process has the largest parts, also of what is not divided evenly.
            if distributed.get_rank() == 0:
                assert kept([param.grad for param in params]) == planned.gradients, (precision, state)
                weights = kept([param.detach() for param in params]) + measured(optimizer, "correction")
                assert weights == planned.parameters + planned.master, (precision, state)
                assert measured(optimizer) == planned.state, (precision, state)
            assert sent.bytes["reduce_scatter"] == planned.reduce_scatter, (precision, state)
            assert sent.bytes["all_gather"] == planned.all_gather, (precision, state)


def ddp(folder: Path) -> None:
    world, reduced = distributed.get_world_size(), []

    def counted(state, bucket):  # DDP refuses annotations that are not evaluated
        reduced.append(bucket.buffer().nbytes)
        return allreduce_hook(state, bucket)

    model = DistributedDataParallel(Model())
    model.register_comm_hook(None, counted)
    model(batch(0)).square().mean().backward()
    shapes = [param.shape for param in model.parameters()]
    planned = plan(shapes, "fp32", devices=world, shard="ddp", precision="fp32")
    part = 4 * -(-sum(reduced) // (4 * world))  # of whole elements
    assert planned.all_reduce == 2 * (world - 1) * part
    assert kept([param.grad for param in model.parameters()]) == planned.gradients
