"""The time of a fused step on parameters sharded by FSDP2, over that of the same parts as plain tensors.

Two processes that talk through gloo have half of a block of GPT-2 124M each. They take steps on their DTensors and on
plain copies of the local parts, in turns; the fastest of each counts. A step does not communicate, so that what remains
is the work of finding the local parts, per parameter.

    torchrun --nproc-per-node 2 benchmarks/sharded_step.py            # a minute
    torchrun --nproc-per-node 2 benchmarks/sharded_step.py --quick    # seconds
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

from ademamix import AdEMAMix
from ademamix.lab.distribution import process_group
from ademamix.lab.runs.machine import processor

STORAGES = ("fp32", "bf16", "compact")


def block(width: int) -> nn.Sequential:
    """The matrices, biases and norms of a layer of GPT-2."""
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, 3 * width),
        nn.Linear(3 * width, width),
        nn.LayerNorm(width),
        nn.Linear(width, 4 * width),
        nn.Linear(4 * width, width),
    )


def optimizers(storage: str, width: int) -> list[AdEMAMix]:
    """Return an optimizer of sharded parameters, and one of their local parts, after two steps."""
    model = fully_shard(block(width))
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    parts = [nn.Parameter(param.to_local().detach().clone()) for param in model.parameters()]  # type: ignore[attr-defined]
    for part in parts:
        part.grad = torch.ones_like(part)
    made = [
        AdEMAMix(params, lr=1e-3, total_steps=10_000, state_storage=storage, fused=True)
        for params in (model.parameters(), parts)
    ]
    for optimizer in 2 * made:
        optimizer.step()
    return made


def ratio(storage: str, width: int, repeats: int) -> float:
    """Return the time of a step on sharded parameters over that on their parts."""
    sharded, plain = optimizers(storage, width)
    fastest = {sharded: float("inf"), plain: float("inf")}
    for _ in range(repeats):
        for optimizer in fastest:
            distributed.barrier()  # so that both processes move memory at the same time
            start = time.perf_counter()
            optimizer.step()
            fastest[optimizer] = min(fastest[optimizer], time.perf_counter() - start)
    return fastest[sharded] / fastest[plain]


def main() -> None:
    """Print a table, with the larger ratio of the processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats of small tensors, whose ratios mean nothing")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    width, repeats = (64, 2) if quick else (768, 100)
    for storage in STORAGES:
        largest = torch.tensor(ratio(storage, width, repeats))
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
        if distributed.get_rank() == 0:
            print(f"{storage}: {largest.item():.3f}")
    if distributed.get_rank() == 0:
        print(f"{processor()}, {distributed.get_world_size()} processes, torch {torch.__version__}")
    distributed.destroy_process_group()
    process_group.leave(0)


if __name__ == "__main__":
    main()
