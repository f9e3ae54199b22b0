"""Plans on paper, compared with the bytes that torch really allocates; sharded ones are in pytorch/distributed."""

from __future__ import annotations

import pytest
import torch

from ademamix.memory_plan import PRECISIONS, SHARDINGS, STATE_FORMATS, part_of, plan, state_bytes, weights_of
from ademamix.pytorch.shards import local
from cases import make

# Coded with full and with shorter last blocks, three dimensions, few rows; small rows, a bias, a scalar; a long vector.
SHAPES = [(66, 512), (65, 300), (12, 4, 128), (3, 2048), (512, 32), (9,), (), (1 << 17,), ((1 << 17) + 5,)]


def measured(optimizer, keys="exp_avg"):
    """The bytes of all moments and scales in this process, or of what else has such keys."""
    states = optimizer.state.values()
    return sum(local(value).nbytes for state in states for key, value in state.items() if key.startswith(keys))


def optimizer_of(params, state, master=None):
    if state == "adamw":
        return torch.optim.AdamW(params)
    storage, _, without_fast = state.partition("-")
    return make(params, betas=(0.0 if without_fast else 0.9, 0.999, 0.9999), state_storage=storage, master=master)


def stepped(shapes, state, dtype, master=None):
    params = [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    optimizer = optimizer_of(params, state, master)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("state", STATE_FORMATS)
def test_the_state_of_one_device_is_that_of_the_plan(state, dtype):
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    for shapes in (SHAPES, *([shape] for shape in SHAPES)):
        planned = plan(shapes, state, devices=1, shard="ddp", precision=precision).state
        assert measured(stepped(shapes, state, dtype)) == planned, shapes


@pytest.mark.parametrize("state", [state for state in STATE_FORMATS if state != "adamw"])
def test_masters_of_24_bits_take_a_byte_beside_each_parameter(state):
    planned = plan(SHAPES, state, devices=1, shard="ddp", precision="24bit")
    optimizer = stepped(SHAPES, state, torch.bfloat16, master="24bit")
    assert (measured(optimizer), measured(optimizer, "correction")) == (planned.state, planned.master)


def test_seven_bytes_a_parameter_and_what_adamw_takes_with_fp32_masters():
    """Without gradients, which gradient release frees."""
    elements = 1 << 20
    found = {}
    for state in ("compact", "adamw"):
        device = plan(weights_of(elements), state, devices=1, shard="ddp", precision="24bit")
        found[state] = (device.memory - device.gradients) / elements
    assert found["adamw"] == 14
    assert 7 < found["compact"] < 7.03


@pytest.mark.parametrize("state", STATE_FORMATS)
def test_zero_has_the_state_of_a_slice_of_all_parameters(state):
    shapes = [(1 << 17, 3), (7,)]
    part = torch.tensor_split(torch.empty(3 * (1 << 17) + 7), 2)[0].shape
    for shard in ("zero1", "zero2"):
        planned = plan(shapes, state, devices=2, shard=shard, precision="mixed").state
        assert measured(stepped([part], state, torch.float32)) == planned


def test_a_device_alone_keeps_and_sends_the_same_under_every_sharding():
    for precision in ("fp32", "bf16"):
        plans = {plan(SHAPES, "fp32", devices=1, shard=shard, precision=precision) for shard in SHARDINGS}
        (device,) = plans
        assert device.all_gather == device.reduce_scatter == device.all_reduce == 0


@pytest.mark.parametrize(("precision", "whole", "divided"), [("fp32", 8, 8), ("mixed", 6, 12)])
def test_zero1_keeps_the_bytes_that_megatron_states(precision, whole, divided):
    """Its guide to the distributed optimizer has bytes per parameter with Adam: 8 + 8/d in fp32, 6 + 12/d in bf16."""
    parameters, devices = 1 << 20, 16
    device = plan([(parameters,)], "adamw", devices=devices, shard="zero1", precision=precision)
    assert device.memory == (whole + divided / devices) * parameters


def test_the_master_copy_is_the_only_one_that_fsdp_keeps():
    devices = {
        shard: plan(weights_of(1 << 20), "fp32", devices=4, shard=shard, precision="mixed") for shard in SHARDINGS
    }
    assert {shard: (device.parameters >> 18, device.master >> 18) for shard, device in devices.items()} == {
        "ddp": (8, 16),
        "zero1": (8, 4),
        "zero2": (8, 4),
        "fsdp": (0, 4),
    }


def test_more_devices_never_need_more_memory():
    for shard in SHARDINGS:
        for precision in PRECISIONS:
            for state in STATE_FORMATS:
                sizes = [
                    plan(weights_of(10**9), state, devices=devices, shard=shard, precision=precision).memory
                    for devices in (1, 2, 3, 8, 1000)
                ]
                assert sizes == sorted(sizes, reverse=True)


def test_vectors_that_are_cut_through_blocks_stay_fp32():
    assert state_bytes((1 << 17,), "compact", devices=2) == (1 << 16) * 4 + 3 * (1 << 9)
    assert state_bytes((1 << 17,), "compact", devices=3) == part_of((1 << 17,), 3) * 12
