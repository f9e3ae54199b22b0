"""The 8- and 16-bit codes: exact where they promise it, unbiased, and each block on its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ademamix.formats import BLOCK, FAST, LAST_WIDE_SCALE, SLOW, SQUARE, WELL_RESOLVED, WIDE_SQUARE
from ademamix.pytorch import block_codes
from ademamix.pytorch.block_codes import decode, dtype_of, encode

CODES = {"m1": FAST, "m2": SLOW, "nu": SQUARE}
GREATEST = {"m1": 112, "m2": 28704, "nu": 240}  # the code of 1.0 in a block of scale 1, rounded to nearest
every_code = pytest.mark.parametrize("name", CODES)


def spacing(values, scale, code):
    """Distance of neighbouring codes at `values`: that of floats of M mantissa bits at value / scale + 2^-K."""
    return scale * 2.0 ** (np.floor(np.log2(np.abs(values) / scale + 2.0**-code.octaves)) - code.mantissa_bits)


@every_code
def test_every_code_is_the_code_of_its_value(name):
    """Whatever the random word is: what is stored stays as it is until something is added to it."""
    code = CODES[name]
    magnitudes = torch.arange(GREATEST[name] + 1)
    # lower codes of nu, but for 0, are those of wide blocks
    codes = magnitudes[magnitudes != 0][4:] if code is SQUARE else torch.cat([-magnitudes.flip(0), magnitudes])
    top = codes.abs().max()  # in each block, so that its scale stays
    rows = torch.stack([codes, top.expand_as(codes)], dim=1).reshape(-1, 2).to(dtype_of(code))
    scale = torch.full((len(rows), 1), 130, dtype=torch.uint8)
    values = decode(rows, scale)
    for random in (0, (1 << code.shift) - 1, None):
        words = None if random is None else torch.full((len(rows), 2), random, dtype=torch.int32)
        again, same_scale = encode(values, code, words)
        assert torch.equal(again, rows)
        assert torch.equal(same_scale, scale)


@pytest.mark.parametrize("wide_scale", [2, 3, 11, 26])
def test_every_code_of_a_wide_block_is_the_code_of_its_value(wide_scale):
    top = 4 * WIDE_SQUARE.octaves
    small = torch.arange(1, top - 4 * WELL_RESOLVED + 1)  # one that makes the block wide
    rows = torch.stack([small, torch.full_like(small, top)], dim=1).to(torch.uint8)
    scale = torch.full((len(rows), 1), wide_scale, dtype=torch.uint8)
    values = decode(rows, scale)
    assert (values[:, 1] == 2.0 ** (45 + 8 * wide_scale - 127)).all()
    for random in (0, (1 << SQUARE.shift) - 1, None):
        words = None if random is None else torch.full((len(rows), 2), random, dtype=torch.int32)
        again, same_scale = encode(values, SQUARE, words)
        assert torch.equal(again, rows)
        assert torch.equal(same_scale, scale)


@pytest.mark.parametrize("exponent", [-99, -30, 0, 60, 126])
def test_values_far_apart_have_two_bits_each(exponent):
    """A block is wide from 17 octaves on: until then its values are rounded by an eighth of themselves at most."""
    for octaves in range(1, 52):
        exact = torch.tensor([[1.7, 1.3 * 2.0**-octaves]]).double() * 2.0 ** (exponent - 1)
        if exact.min() < 2.0**-122:  # the last octaves of fp32
            break
        codes, scale = encode(exact.float(), SQUARE)
        assert (scale.item() <= LAST_WIDE_SCALE) == (octaves >= WELL_RESOLVED)
        values = decode(codes, scale).double()
        assert ((values / exact - 1).abs() <= 0.125 * (1 + 1e-6)).all(), octaves


@every_code
def test_codes_use_the_whole_range_of_the_block(name):
    code = CODES[name]
    for exponent in (-80, -3, 0, 5, 100):
        codes, scale = encode(torch.tensor([[2.0**exponent, 0.0]]), code)
        assert codes.tolist() == [[GREATEST[name], 0]]
        assert scale.item() == 127 + exponent
        largest, zero = (decode(codes, scale)[0] / 2.0**exponent).tolist()
        assert largest == pytest.approx(1.0, abs=2.0 ** -(code.mantissa_bits + 1))
        assert zero == 0.0
        above = float(np.nextafter(np.float32(2.0**exponent), np.float32(np.inf)))
        assert encode(torch.tensor([[above]]), code)[1].item() == 128 + exponent


@given(
    name=st.sampled_from(sorted(CODES)),
    rows=st.integers(1, 5),
    row_size=st.integers(1, 300),
    spread=st.floats(0, 8),
    exponent=st.integers(-80, 80),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=100, deadline=None)
def test_a_value_becomes_one_of_its_neighbours(name, rows, row_size, spread, exponent, seed):
    code, rng = CODES[name], np.random.default_rng(seed)
    exact = rng.standard_normal((rows, row_size)) * 10 ** rng.uniform(-spread, 0, (rows, row_size)) * 2.0**exponent
    exact = torch.tensor(exact if code is not SQUARE else np.abs(exact), dtype=torch.float32)
    blocks = -(-row_size // BLOCK)
    random = torch.tensor(rng.integers(0, 1 << code.shift, (rows, row_size)), dtype=torch.int32)
    stochastic, scale = encode(exact, code, random)
    nearest, _ = encode(exact, code)
    assert stochastic.dtype == dtype_of(code)
    assert scale.shape == (rows, blocks) == block_codes.scale_shape(exact.shape)
    is_wide = (scale <= LAST_WIDE_SCALE) & (code is SQUARE)
    exponents = torch.where(is_wide, 45 + 8 * scale.double(), scale.double())
    per_element = [x.repeat_interleave(BLOCK, 1)[:, :row_size].numpy() for x in (2.0 ** (exponents - 127), is_wide)]
    unit, wide_unit = (spacing(exact.double().numpy(), per_element[0], form) for form in (code, WIDE_SQUARE))
    unit = np.where(per_element[1], wide_unit, unit)
    for codes, most in ((stochastic, 1.0), (nearest, 0.5)):
        values = decode(codes, scale).double().numpy()
        close = np.abs(values - exact.double().numpy()) <= most * unit * (1 + 1e-3)
        if code is SQUARE:  # never rounded to 0
            close |= (codes == 1).numpy() & (exact.double().numpy() < unit)
            assert ((codes > 0) == (exact > 0)).all()
        assert close.all()


@every_code
def test_stochastic_rounding_has_the_right_mean(name):
    code = CODES[name]
    generator = torch.Generator().manual_seed(0)
    exact = torch.tensor([[1.0, 0.7312, 0.2718, 0.0931, 0.01234, 3.3e-4]])
    random = torch.randint(0, 1 << code.shift, (200_000, 6), generator=generator, dtype=torch.int32)
    values = decode(*encode(exact.expand(len(random), -1), code, random)).double()
    error = (values.mean(0) - exact.double()[0]).abs()
    deviation = values.std(0) / len(random) ** 0.5
    assert (error <= 5 * deviation + 1e-9).all()
    assert (values.std(0)[1:] > 0).all()


@every_code
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_nonfinite_value_is_stored_as_zero_and_leaves_its_block_alone(name, bad):
    code = CODES[name]
    values = torch.rand(2, 3 * BLOCK, generator=torch.Generator().manual_seed(0)) + 0.1
    expected_codes, expected_scale = encode(values.index_fill(1, torch.tensor([BLOCK + 7]), 0.0), code)
    values[:, BLOCK + 7] = bad
    codes, scale = encode(values, code)
    assert torch.equal(codes, expected_codes)
    assert torch.equal(scale, expected_scale)
    assert (codes[:, BLOCK + 7] == 0).all()


@every_code
def test_extremes_saturate(name):
    code = CODES[name]
    huge = torch.tensor([[3e38, 2.0**126, 2.0**120, 1.0]])
    values = decode(*encode(huge, code))
    assert torch.equal(values, decode(*encode(huge.clamp(max=2.0**126), code)))
    assert values.isfinite().all()
    tiny = torch.tensor([[1e-45, 1e-38]])
    assert (decode(*encode(tiny, code)) < 2.0**-100).all()
    assert decode(*encode(torch.zeros(1, 5), code)).tolist() == [[0.0] * 5]


def test_fresh_zeros_decode_to_zeros():
    for code in CODES.values():
        codes, scale = torch.zeros(3, 200, dtype=dtype_of(code)), torch.zeros(3, 2, dtype=torch.uint8)
        assert torch.equal(decode(codes, scale), torch.zeros(3, 200))
