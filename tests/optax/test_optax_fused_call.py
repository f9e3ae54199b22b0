"""The core as XLA calls it: what it declares of XLA's interface, and what it refuses if it is called directly."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from ademamix.optax import fused_step
from ademamix.optax.fused_call import TARGET
from test_optax import equal, make

ROOT = Path(__file__).parents[2]


def test_the_core_declares_what_jaxlib_does():
    compiler = os.environ.get("CXX", "c++")
    options = ["-std=c++17", "-fsyntax-only", f"-I{ROOT / 'csrc'}", f"-I{jax.ffi.include_dir()}"]
    command = [compiler, *options, ROOT / "tests" / "csrc" / "xla_layout.cpp"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ROW = [0.1, 1e-3, 1e-3, 5.0, 1e-2, 1e-8, 1e-4, 0.0, jnp.inf]  # coefficients of a step


def call(arrays, replaced, rows=1, dtype=jnp.float32):
    """Call the core on the arrays of one parameter, of which those at `replaced` are returned; nothing is aliased."""
    fused_step(make())  # registers it
    results = [jax.ShapeDtypeStruct(arrays[i].shape, arrays[i].dtype) for i in replaced]
    return jax.ffi.ffi_call(TARGET, results)(jnp.array([ROW] * rows, dtype), *arrays)


def arrays_of(count, shape=(3, 5)):
    return [jnp.full(shape, 0.5 + i) for i in range(count)]


@pytest.mark.parametrize("count", [4, 5])
def test_results_that_share_no_memory_with_arguments_are_written_whole(count):
    arrays = arrays_of(count)
    found = call(arrays, range(count - 1))
    donated = [array + 0 for array in arrays]
    step = jax.jit(
        lambda *arrays: jax.ffi.ffi_call(
            TARGET,
            [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays[:-1]],
            input_output_aliases={i + 1: i for i in range(count - 1)},
        )(jnp.array([ROW]), *arrays),
        donate_argnums=tuple(range(count - 1)),
    )
    assert equal(found, step(*donated))
    assert all(bool((new != old).all()) for new, old in zip(found, arrays, strict=False))


@pytest.mark.parametrize(
    ("call_it", "message"),
    [
        (lambda: call(arrays_of(3), [0, 1]), "called with another number of arrays"),
        (lambda: call(arrays_of(4), [0, 1]), "called with another number of arrays"),
        (lambda: call(arrays_of(4), [0, 1, 2], rows=2), "called with another number of arrays"),
        (lambda: call([*arrays_of(3), jnp.ones(3)], [0, 1, 2]), "arrays of parameter 0: they have different sizes"),
        (lambda: call([*arrays_of(2), jnp.ones(3), jnp.ones((3, 5))], [0, 1, 2]), "they have different sizes"),
        (lambda: call([*arrays_of(3), jnp.ones((3, 5), jnp.int32)], [0, 1, 2]), "a dtype that the kernels do not know"),
        (lambda: call([jnp.ones((3, 5), jnp.int8), *arrays_of(3)], [0, 1, 2]), "a dtype that the kernels do not know"),
        (
            lambda: call([jnp.ones((3, 5)), jnp.ones((3, 5), jnp.bfloat16), *arrays_of(2)], [0, 1, 2]),
            "a moment has another dtype than the arithmetic",
        ),
        (lambda: call(arrays_of(4), [0, 1, 2], dtype=jnp.float16), "coefficients are neither float32 nor float64"),
    ],
)
def test_calls_that_it_refuses(call_it, message):
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(call_it())
