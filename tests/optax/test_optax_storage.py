"""Stored moments in JAX: the same bits as PyTorch's, and a slow average that remembers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from ademamix import formats
from ademamix.optax import scale_by_ademamix, storage
from ademamix.pytorch import block_codes
from ademamix.pytorch.rounding import Rounding, to_bf16
from ademamix.pytorch.tensors import Place

SHAPES = [(5, 300), (64, 128), (3, 7, 50), (4, 1), (300,)]


def values_of(shape, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * 10 ** rng.uniform(-9, 1, shape)
    values.flat[3] = np.nan
    values.flat[1] = 0.0
    return values.astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("index", "step"), [(0, 1), (7, 123_456), (1 << 20, (1 << 31) - 1)])
def test_codes_words_and_bf16_have_the_bits_of_pytorch(shape, index, step):
    values = values_of(shape)
    as_tensor = torch.tensor(values)
    words = Rounding(0, True).moment_words(as_tensor, Place(index), step)
    block = storage.block_positions(jnp.zeros(shape))
    own_words = storage.random_words(block, index, jnp.int32(step))
    assert np.array_equal(storage._unblocked(own_words, shape), words.view(shape).numpy())

    for random, own_random in (((words >> 21).to(torch.int32), own_words >> 21), (None, None)):
        codes, scale = block_codes.encode(as_tensor, formats.SLOW, random)
        own_codes, own_scale = jax.jit(storage.encode)(values, own_random)
        assert np.array_equal(own_codes, codes.numpy())
        assert np.array_equal(own_scale, scale.numpy())
        decoded = jax.jit(storage.decode)(own_codes, own_scale)
        assert np.array_equal(decoded, block_codes.decode(codes, scale).numpy())

    rounded, _ = storage.write_slow(jnp.asarray(values), jnp.bfloat16, block, (index, jnp.int32(step)))
    expected = to_bf16(as_tensor, (words >> 16).view(shape)).float().numpy()
    assert np.array_equal(rounded.astype(jnp.float32), expected, equal_nan=True)


def test_extremes():
    values = jnp.array([[3e38, -(2.0**126), 1e-45, jnp.inf, -jnp.inf, 0.0]])
    codes, scale = storage.encode(values, None)
    expected, expected_scale = block_codes.encode(torch.tensor(np.array(values)), formats.SLOW)
    assert np.array_equal(codes, expected.numpy())
    assert np.array_equal(scale, expected_scale.numpy())


@pytest.mark.parametrize(
    ("shape", "dtype", "is_reduced"),
    [
        ((64, 64), "float32", True),
        ((64, 64), "bfloat16", True),
        ((2, 32, 64), "float16", True),
        ((formats.LEAST_VECTOR,), "float32", True),
        ((formats.LEAST_VECTOR - 1,), "float32", False),
        ((65, 63), "float32", False),
        ((128, 32), "float32", False),
        ((64, 64), "complex64", False),
    ],
)
@pytest.mark.parametrize("slow_dtype", [jnp.bfloat16, "bfloat16", jnp.int16, "int16"])
def test_what_is_reduced(shape, dtype, is_reduced, slow_dtype):
    state = scale_by_ademamix(total_steps=10, slow_dtype=slow_dtype).init(jnp.ones(shape, dtype))
    full = "complex64" if dtype == "complex64" else "float32"
    assert state.slow.dtype == (slow_dtype if is_reduced else full)
    assert state.slow.shape == shape
    assert state.mu.dtype == full
    assert state.nu.dtype == "float32"
    is_coded = is_reduced and jnp.dtype(slow_dtype) == jnp.int16
    for stored, is_there in ((state.slow_block, is_reduced), (state.slow_scale, is_coded)):
        expected = block_codes.scale_shape(torch.Size(shape)) if is_there else None
        assert (None if stored is None else stored.shape) == expected


@pytest.mark.parametrize("slow_dtype", ["int8", "float16", "complex64", "nonsense", 3.5])
def test_other_formats_are_refused(slow_dtype):
    with pytest.raises(ValueError, match="slow_dtype must be None or one of float32, bfloat16, int16"):
        scale_by_ademamix(total_steps=10, slow_dtype=slow_dtype)


@pytest.mark.parametrize(("slow_dtype", "least_cosine"), [("int16", 0.9995), ("bfloat16", 0.96)])
def test_a_reduced_slow_average_follows_a_change_of_direction(slow_dtype, least_cosine):
    """With rounding to nearest, bf16 would stand still: a step is a tenth of half its last place."""
    rng = np.random.default_rng(0)
    scales = jnp.asarray(10 ** rng.uniform(-2, 0, (64, 64)), jnp.float32)
    steps = 3000

    def slow_of(transformation):
        def step(state, t):
            noise = jax.random.normal(jax.random.key(t), (64, 64))
            gradient = scales * (jnp.where(t < steps // 2, 1.0, -1.0) + noise)
            return transformation.update(gradient, state)[1], None

        state = transformation.init(jnp.zeros((64, 64)))
        state, _ = jax.lax.scan(step, state, jnp.arange(steps))
        return storage.read_slow(state.slow, state.slow_scale, jnp.float32)

    settings = {"b3": 0.9995, "alpha_warmup": 0, "beta3_warmup": 0}
    exact = slow_of(scale_by_ademamix(**settings)) / scales
    stored = slow_of(scale_by_ademamix(**settings, slow_dtype=slow_dtype)) / scales
    cosine = (exact * stored).sum() / jnp.sqrt((exact**2).sum() * (stored**2).sum())
    assert cosine > least_cosine


@pytest.mark.parametrize("slow_dtype", ["int16", "bfloat16"])
def test_rounding_differs_from_leaf_to_leaf_and_step_to_step(slow_dtype):
    transformation = scale_by_ademamix(b3=0.999, alpha_warmup=0, beta3_warmup=0, slow_dtype=slow_dtype)
    gradients = {"a": jnp.full((64, 64), 0.3), "b": jnp.full((64, 64), 0.3)}
    _, first = transformation.update(gradients, transformation.init(gradients))
    _, again = transformation.update(gradients, transformation.init(gradients))
    assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), first, again))
    assert not (first.slow["a"] == first.slow["b"]).all()
    later = transformation.init(gradients)._replace(count=jnp.int32(5))
    assert not (transformation.update(gradients, later)[1].slow["a"] == first.slow["a"]).all()
    assert optax.tree_utils.tree_get(first, "slow_scale") is None or slow_dtype == "int16"
