"""Run by test_optax_sharding.py in a process of its own, where the host appears as 8 devices."""

from __future__ import annotations

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from ademamix.optax import ademamix

COLLECTIVES = r"all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"


def params_of(seed):
    rng = np.random.default_rng(seed)
    shapes = {"matrix": (64, 192), "cube": (16, 4, 100), "bias": (64,), "scale": ()}
    return {name: jnp.asarray(rng.standard_normal(shape), jnp.float32) for name, shape in shapes.items()}


def main(slow_dtype: str | None, b1: float) -> None:
    assert jax.device_count() == 8
    mesh = jax.make_mesh((8,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    optimizer = ademamix(1e-2, b1, total_steps=50, slow_dtype=slow_dtype)

    @jax.jit
    def step(params, state, gradients):
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    def put(tree):
        def sharding(leaf):
            return NamedSharding(mesh, PartitionSpec("rows") if leaf.ndim else PartitionSpec())

        return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding(leaf)), tree)

    def manual(params, state, gradients):
        """Take the same step in programs of their own on the devices, each of which sees its rows alone."""
        specs = jax.tree.map(lambda leaf: PartitionSpec("rows") if leaf.ndim else PartitionSpec(), (params, state))
        per_device = jax.shard_map(step, mesh=mesh, in_specs=(*specs, specs[0]), out_specs=specs)
        return jax.jit(per_device)(params, state, gradients)

    results = {}
    for name, place, advance in (("alone", lambda tree: tree, step), ("jit", put, step), ("shard_map", put, manual)):
        params = place(params_of(0))
        state = optimizer.init(params)
        if place is put:
            check_shardings(params, state[0])
            text = step.lower(params, state, place(params_of(1))).compile().as_text()
            assert not re.search(COLLECTIVES, text), re.search(COLLECTIVES, text)
        for seed in range(1, 6):
            params, state = advance(params, state, place(params_of(seed)))
        if place is put:
            check_shardings(params, state[0])
        results[name] = jax.tree.leaves(jax.tree.map(np.asarray, (params, state)))
    for name in ("jit", "shard_map"):
        for alone, sharded in zip(results["alone"], results[name], strict=True):
            assert np.array_equal(alone, sharded), f"{name}: {(alone != sharded).sum()} of {alone.size} differ"
    print("same bits, no collectives")


def check_shardings(params, state):
    for tree in (params, state.mu, state.nu, state.slow):
        for name, leaf in (tree or {}).items():
            assert leaf.sharding.is_equivalent_to(params[name].sharding, leaf.ndim), name
            assert leaf.ndim == 0 or leaf.addressable_shards[0].data.shape[0] == leaf.shape[0] // 8
    for blocks in (state.slow_scale, state.slow_block):
        for name, leaf in (blocks or {}).items():
            assert leaf is None or leaf.addressable_shards[0].data.shape[0] == params[name].shape[0] // 8


if __name__ == "__main__":
    main(None if sys.argv[1] == "None" else sys.argv[1], float(sys.argv[2]))
