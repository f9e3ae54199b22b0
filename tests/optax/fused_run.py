"""Run by test_optax_sharding.py in a process of its own, where the host appears as 8 devices."""

from __future__ import annotations

import contextlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from ademamix.optax import ademamix, fused_step
from sharded_run import COLLECTIVES, params_of

SPECS = {"matrix": P("rows", "columns"), "cube": P("rows"), "bias": P("columns"), "scale": P()}
STEPS = 3


def mesh_of(kind):
    return jax.make_mesh((4, 2), ("rows", "columns"), axis_types=(kind, kind))


def put(tree, mesh):
    return {name: jax.device_put(leaf, NamedSharding(mesh, SPECS[name])) for name, leaf in tree.items()}


def addresses(tree):
    return [shard.data.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]


def sharded(optimizer, kind):
    """Take steps on sharded arrays: in place on each device, without communication."""
    mesh = mesh_of(kind)
    with jax.set_mesh(mesh) if kind == AxisType.Explicit else contextlib.nullcontext():
        params = put(params_of(0), mesh)
        state = optimizer.init(params)
        step = jax.jit(fused_step(optimizer), donate_argnums=(0, 2))
        text = step.lower(params, put(params_of(1), mesh), state).compile().as_text()
        assert not re.search(COLLECTIVES, text), re.search(COLLECTIVES, text)
        found = []
        for seed in range(1, STEPS + 1):
            params, state = step(params, put(params_of(seed), mesh), state)
            found.append(addresses((params, state)))
        assert found[1:] == found[:-1]  # before the first step, devices may share the memory of what was put there
    for name in SPECS:
        for tree in (params, state[0].nu, state[0].slow):
            assert tree[name].sharding.is_equivalent_to(NamedSharding(mesh, SPECS[name]), tree[name].ndim), name
    return params, state


def in_shard_map(optimizer):
    """Take the steps in programs of their own on the devices, each of which sees its part alone."""
    mesh = mesh_of(AxisType.Auto)
    params = put(params_of(0), mesh)
    state = optimizer.init(params)
    state_specs = (state[0]._replace(count=P(), slow_count=P(), nu=SPECS, slow=SPECS), *state[1:])
    if state[0].mu is not None:
        state_specs = (state_specs[0]._replace(mu=SPECS), *state[1:])
    series = [put(params_of(seed), mesh) for seed in range(1, STEPS + 1)]

    def steps(params, state, series):
        gradients = jax.tree.map(lambda *leaves: jnp.stack(leaves), *series)
        step = fused_step(optimizer)
        return jax.lax.scan(lambda carry, each: (step(carry[0], each, carry[1]), None), (params, state), gradients)[0]

    in_specs = (SPECS, state_specs, [SPECS] * STEPS)
    return jax.jit(jax.shard_map(steps, mesh=mesh, in_specs=in_specs, out_specs=(SPECS, state_specs)))(
        params, state, series
    )


def refused_in_shard_map(optimizer):
    """Gradients that differ from device to device would make parameters differ that are said to be the same."""
    mesh, params = mesh_of(AxisType.Auto), {"w": jnp.ones(4)}

    def step(params, state, inputs):
        return fused_step(optimizer)(params, {"w": inputs[0]}, state)

    program = jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), P("rows")), out_specs=P())
    with pytest.raises(ValueError, match="out_specs which require replication"):
        jax.jit(program)(params, optimizer.init(params), jnp.arange(16.0).reshape(4, 4))


def main(b1: float) -> None:
    assert jax.device_count() == 8
    optimizer = ademamix(1e-2, b1, total_steps=50, weight_decay=0.1)
    params = params_of(0)
    state = optimizer.init(params)
    for seed in range(1, STEPS + 1):
        params, state = jax.jit(fused_step(optimizer))(params, params_of(seed), state)
    alone = jax.tree.leaves((params, state))
    for name, found in {
        "auto": sharded(optimizer, AxisType.Auto),
        "explicit": sharded(optimizer, AxisType.Explicit),
        "shard_map": in_shard_map(optimizer),
    }.items():
        for one, other in zip(alone, jax.tree.leaves(found), strict=True):
            assert np.array_equal(np.asarray(one), np.asarray(other)), name
    refused_in_shard_map(optimizer)
    print("same bits, in place, no collectives")


if __name__ == "__main__":
    main(float(sys.argv[1]))
