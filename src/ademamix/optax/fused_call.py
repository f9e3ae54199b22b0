"""The call of the C++ core from JAX: its target, and what JAX's transformations and partitioner do with it.

The core declares the few structures of XLA's foreign-function interface itself (csrc/xla_ffi.h), and so needs neither
jaxlib when it is built nor a compiler when it is used.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import jax
from jax.custom_batching import sequential_vmap
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning

TARGET = "ademamix_fused_step_on_cpu"  # XLA names it if it compiles for something else


@cache
def register(core: ModuleType) -> None:
    """Make the core's step known to JAX."""
    jax.ffi.register_ffi_target(TARGET, core.xla_step(), platform="cpu")


def call(coefficients: jax.Array, leaves: list[Any]) -> list[dict[str, Any]]:
    """Take a step on all parameters: `leaves` are :class:`ademamix.optax.fused.Arrays`; return their new fields."""
    fields = [name for name in leaves[0]._fields if getattr(leaves[0], name) is not None]
    new = iter(_target(len(fields))(coefficients, *(getattr(leaf, name) for leaf in leaves for name in fields)))
    return [{name: next(new) for name in fields[:-1]} for _ in leaves]


@cache
def _target(width: int) -> Any:
    """Return the call for parameters with `width` arrays each: the parameter, its moments, and the gradient.

    XLA knows nothing of what is called. Left to itself it would gather sharded arrays on every device, so it is told
    that the arrays of a parameter are cut alike and nothing is exchanged.
    """

    @custom_partitioning
    def step(*arrays: Any) -> Any:
        replaced = [i for i in range(1, len(arrays)) if i % width != 0]
        aliases = {argument: result for result, argument in enumerate(replaced)}
        results: list[Any] = jax.eval_shape(alike, *arrays)
        return tuple(jax.ffi.ffi_call(TARGET, results, input_output_aliases=aliases)(*arrays))

    def alike(_: Any, *arrays: Any) -> list[Any]:
        """Return something that is made of the same arrays element by element.

        JAX then knows how the results are sharded, and inside ``shard_map`` over which devices they differ.
        """
        rows = [arrays[i : i + width] for i in range(0, len(arrays), width)]
        totals = [sum(array.astype(row[1].dtype) for array in row) for row in rows]
        return [total.astype(array.dtype) for total, row in zip(totals, rows, strict=True) for array in row[:-1]]

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        wanted = [argument.sharding for argument in arguments[1::width] for _ in range(width)]
        replaced = [sharding for i, sharding in enumerate(wanted, 1) if i % width != 0]
        return mesh, step.fun, tuple(replaced), (arguments[0].sharding, *wanted)

    def rule(mesh: Any, arguments: Any, results: Any) -> SdyShardingRule:
        mapping: Any = ArrayMapping

        def dimensions(arrays: Any, width: int) -> tuple[ArrayMapping, ...]:
            return tuple(mapping(*(f"p{i // width}d{k}" for k in range(array.rank))) for i, array in enumerate(arrays))

        coefficients = mapping("row", "field")
        return SdyShardingRule((coefficients, *dimensions(arguments[1:], width)), dimensions(results, width - 1))

    define: Any = step.def_partition
    define(partition, sharding_rule=rule)
    underivable = jax.custom_jvp(sequential_vmap(step))  # type: ignore[no-untyped-call]
    underivable.defjvp(_refuse_derivative)
    return underivable


def _refuse_derivative(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError("the fused step has no derivative: use optimizer.update and optax.apply_updates")
