"""A small Flax model on meshes of devices. Run by test_optax_meshes.py in processes where the host appears as 8.

Bits are compared given the same gradients, those of the sharded model: devices sum gradients in another order than one
alone does, so that its own would differ in their last digits.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from test_optax import make

COLLECTIVES = r"all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
STEPS = 3
INPUTS, HIDDEN, OUTPUTS = 96, 1024, 512


class Layout(NamedTuple):
    """A mesh, and how kernels of shape (inputs, outputs), biases and batches are spread over it."""

    axes: dict[str, int]
    kernels: tuple[P, P]
    biases: tuple[P, P]
    batch: P
    cuts_blocks: bool = False  # of 128 columns

    def mesh(self) -> Mesh:
        count = int(np.prod(list(self.axes.values())))
        kinds = (AxisType.Auto,) * len(self.axes)
        return jax.make_mesh(
            tuple(self.axes.values()), tuple(self.axes), axis_types=kinds, devices=jax.devices()[:count]
        )


def tensor_parallel(devices: int, **options: Any) -> Layout:
    """The first layer is cut by columns, the second by rows: one sum over devices for both."""
    return Layout({"tensor": devices}, (P(None, "tensor"), P("tensor")), (P("tensor"), P()), P(), **options)


def fully_sharded(devices: int) -> Layout:
    return Layout({"data": devices}, (P("data"), P("data")), (P("data"), P("data")), P("data"))


LAYOUTS = {
    "fsdp": fully_sharded(8),
    "tensor": tensor_parallel(8),
    "fsdp x tensor": Layout(
        {"data": 4, "tensor": 2}, (P("data", "tensor"), P("tensor", "data")), (P("tensor"), P()), P("data")
    ),
    "cut blocks": Layout({"tensor": 8}, (P(), P(None, "tensor")), (P(), P()), P(), cuts_blocks=True),
}


def model_on(layout: Layout | None) -> nnx.Module:
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(INPUTS, HIDDEN, rngs=rngs), nnx.relu, nnx.Linear(HIDDEN, OUTPUTS, rngs=rngs))
    if layout is not None:
        mesh = layout.mesh()
        for layer, kernel, bias in zip(model.layers[::2], layout.kernels, layout.biases, strict=True):
            for variable, spec in ((layer.kernel, kernel), (layer.bias, bias)):
                variable.set_value(jax.device_put(variable.get_value(), NamedSharding(mesh, spec)))
    return model


def batch(step: int, layout: Layout | None) -> jax.Array:
    values = np.random.default_rng(step).standard_normal((16, INPUTS)).astype(np.float32)
    return values if layout is None else jax.device_put(values, NamedSharding(layout.mesh(), layout.batch))


def loss_of(model: nnx.Module, inputs: jax.Array) -> jax.Array:
    return jnp.mean((model(inputs) - 1.0) ** 2)


value_and_gradients = nnx.jit(nnx.value_and_grad(loss_of))


@nnx.jit
def update(model: nnx.Module, optimizer: nnx.Optimizer, gradients: Any) -> None:
    optimizer.update(model, gradients)


def on_one_device(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), tree)


def assert_same_bits(found: Any, expected: Any, what: str) -> None:
    pairs = zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True)
    for (path, leaf), other in pairs:
        assert leaf.dtype == other.dtype, (what, path)
        assert np.array_equal(np.asarray(leaf), np.asarray(other)), (what, jax.tree_util.keystr(path))


def check_shardings(model: nnx.Module, optimizer: nnx.Optimizer, layout: Layout) -> None:
    params, state = nnx.state(model, nnx.Param), nnx.as_pure(optimizer.opt_state)[0]
    for moments in (state.nu, state.slow) if state.mu is None else (state.mu, state.nu, state.slow):
        for param, moment in zip(jax.tree.leaves(params), jax.tree.leaves(moments), strict=True):
            assert moment.sharding.is_equivalent_to(param.sharding, moment.ndim)
    for blocks in jax.tree.leaves((state.slow_scale, state.slow_block)):
        parts = blocks.size // blocks.addressable_shards[0].data.size
        assert parts == (1 if layout.cuts_blocks else layout.mesh().size), blocks.sharding


def same_as_one_device(format: str) -> None:
    for name, layout in LAYOUTS.items():
        what = f"{name}, {format}"
        model, alone, free = model_on(layout), model_on(None), model_on(None)
        optimizer, reference, own = (nnx.Optimizer(x, make(format), wrt=nnx.Param) for x in (model, alone, free))
        check_shardings(model, optimizer, layout)
        for step in range(STEPS):
            loss, gradients = value_and_gradients(model, batch(step, layout))
            update(model, optimizer, gradients)
            update(alone, reference, on_one_device(gradients))
            compare(nnx.state((model, optimizer)), nnx.state((alone, reference)), what)
            own_loss, own_gradients = value_and_gradients(free, batch(step, None))
            update(free, own, own_gradients)
            assert np.isclose(loss, own_loss, rtol=1e-5), (what, loss, own_loss)
        check_shardings(model, optimizer, layout)
        text = update.lower(model, optimizer, gradients).compile().as_text()
        assert bool(re.search(COLLECTIVES, text)) == (layout.cuts_blocks and "int16" in format), what


def compare(found: Any, expected: Any, what: str) -> None:
    """Compare bits; but XLA compiles a loop over 64 columns of plain moments in another way, and last digits differ."""
    if what in ("cut blocks, plain", "cut blocks, beta1-zero", "cut blocks, mu-bf16"):
        for leaf, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            digits = 2**-7 if leaf.dtype == jnp.bfloat16 else 1e-6
            size = np.abs(np.float64(other)).max(initial=0)
            assert np.allclose(np.float64(leaf), np.float64(other), rtol=0, atol=digits * size), what
    else:
        assert_same_bits(found, expected, what)


def resharded(format: str) -> None:
    """What 8 devices saved is restored on 8, 4 and 1 in other layouts, and continues with the same bits."""
    layout = LAYOUTS["fsdp x tensor"]
    model = model_on(layout)
    optimizer = nnx.Optimizer(model, make(format), wrt=nnx.Param)
    for step in range(STEPS):
        update(model, optimizer, value_and_gradients(model, batch(step, layout))[1])
    gradients = on_one_device(value_and_gradients(model, batch(STEPS, layout))[1])
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(folder) / "saved", nnx.as_pure(nnx.state((model, optimizer))))
        checkpointer.wait_until_finished()
        restored = {}
        for name, other in OTHERS.items():
            there = model_on(other)
            optimizer_there = nnx.Optimizer(there, make(format), wrt=nnx.Param)
            empty = nnx.as_pure(nnx.state((there, optimizer_there)))
            found = checkpointer.restore(Path(folder) / "saved", on_the_mesh(empty, other))
            nnx.update((there, optimizer_there), found)
            assert_same_bits(nnx.state((there, optimizer_there)), nnx.state((model, optimizer)), name)
            if other is not None:
                check_shardings(there, optimizer_there, other)
            restored[name] = there, optimizer_there
    update(model, optimizer, put_like(gradients, model))
    for name, (there, optimizer_there) in restored.items():
        update(there, optimizer_there, put_like(gradients, there))
        assert_same_bits(nnx.state((there, optimizer_there)), nnx.state((model, optimizer)), f"{name}, a step later")


OTHERS = {"fsdp on 4": fully_sharded(4), "tensor on 8": tensor_parallel(8), "1 device": None}


def on_the_mesh(tree: Any, layout: Layout | None) -> Any:
    """Return what to restore: counts, which are on no mesh yet, would be bound to one device, as in any Optax state."""
    everywhere = None if layout is None else NamedSharding(layout.mesh(), P())

    def described(leaf: jax.Array) -> jax.ShapeDtypeStruct:
        sharding = leaf.sharding if leaf.committed or everywhere is None else everywhere
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(described, tree)


def put_like(gradients: Any, model: nnx.Module) -> Any:
    """Return gradients that are spread like the parameters of a model."""
    return jax.tree.map(
        lambda grad, param: jax.device_put(grad, param.sharding), gradients, nnx.state(model, nnx.Param)
    )


if __name__ == "__main__":
    assert jax.device_count() == 8
    {"same_as_one_device": same_as_one_device, "resharded": resharded}[sys.argv[1]](sys.argv[2])
