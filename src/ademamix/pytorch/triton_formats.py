"""The stored formats in Triton's language: codes, bf16 and random words, for a tile whose rows are blocks.

The numbers are those of :mod:`ademamix.formats`, and the bits those of block_codes.py, rounding.py and storage.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ademamix import formats

# A compiled function sees globals only if they are constexpr.
LANES = tl.constexpr(formats.BLOCK)
LEAST_EXPONENT, GREATEST_EXPONENT = tl.constexpr(formats.LEAST_EXPONENT), tl.constexpr(formats.GREATEST_EXPONENT)
FAST_SHIFT, FAST_BASE = tl.constexpr(formats.FAST.shift), tl.constexpr(formats.FAST.base)
SLOW_SHIFT, SLOW_BASE = tl.constexpr(formats.SLOW.shift), tl.constexpr(formats.SLOW.base)
SQUARE_SHIFT, SQUARE_BASE = tl.constexpr(formats.SQUARE.shift), tl.constexpr(formats.SQUARE.base)
WIDE_SQUARE_SHIFT, WIDE_SQUARE_BASE = tl.constexpr(formats.WIDE_SQUARE.shift), tl.constexpr(formats.WIDE_SQUARE.base)
FIRST_WIDE_SCALE, LAST_WIDE_SCALE = tl.constexpr(formats.FIRST_WIDE_SCALE), tl.constexpr(formats.LAST_WIDE_SCALE)
WIDE_BASE, WIDE_SHIFT = tl.constexpr(formats.WIDE_BASE), tl.constexpr(formats.WIDE_SHIFT)
WIDE_CEILING = tl.constexpr((1 << formats.WIDE_SHIFT) - 1)  # makes the shift round up
SIGN = tl.constexpr(-(1 << 31))  # the sign bit, as an int32
WELL_RESOLVED = tl.constexpr(formats.WELL_RESOLVED)

# The bits of a random word that round each code.
FAST_LEFT, SLOW_LEFT = tl.constexpr(formats.FAST.random_left), tl.constexpr(formats.SLOW.random_left)
FAST_MASK, SLOW_MASK = tl.constexpr(formats.FAST.random_mask), tl.constexpr(formats.SLOW.random_mask)
FAST_REST, SLOW_REST = tl.constexpr(formats.FAST.random_rest), tl.constexpr(formats.SLOW.random_rest)
SQUARE_LEFT = tl.constexpr(formats.SQUARE.random_left)
SQUARE_MASK = tl.constexpr(formats.SQUARE.random_mask)
SQUARE_REST = tl.constexpr(formats.SQUARE.random_rest)

FIRST_MIXER, SECOND_MIXER = tl.constexpr(formats.FIRST_MIXER), tl.constexpr(formats.SECOND_MIXER)
FIRST_KEY, SECOND_KEY = tl.constexpr(formats.FIRST_KEY), tl.constexpr(formats.SECOND_KEY)
MOMENT_DOMAIN, LANE_STEP = tl.constexpr(formats.MOMENT_DOMAIN), tl.constexpr(formats.LANE_STEP)
BF16_SHIFT, BF16_MASK = tl.constexpr(formats.BF16_SHIFT), tl.constexpr(formats.BF16_MASK)
MASTER_SHIFT, MASTER_MASK = tl.constexpr(formats.MASTER_SHIFT), tl.constexpr(formats.MASTER_MASK)
MASTER_HALF = tl.constexpr(1 << (formats.MASTER_SHIFT - 1))


@triton.jit
def decode_fast(codes, scale):
    """Return the values of fast averages."""
    return _units(codes, FAST_SHIFT, FAST_BASE) * _power_of_two(scale)[:, None]


@triton.jit
def decode_slow(codes, scale):
    """Return the values of slow averages."""
    return _units(codes, SLOW_SHIFT, SLOW_BASE) * _power_of_two(scale)[:, None]


@triton.jit
def encode_fast(values, words):
    """Return the codes and scales of fast averages."""
    return _encode(values, _random_part(words, FAST_LEFT, FAST_MASK, FAST_REST), FAST_SHIFT, FAST_BASE)


@triton.jit
def encode_slow(values, words):
    """Return the codes and scales of slow averages."""
    return _encode(values, _random_part(words, SLOW_LEFT, SLOW_MASK, SLOW_REST), SLOW_SHIFT, SLOW_BASE)


@triton.jit
def decode_squares(codes, scale):
    """Return the values of second moments, of which some blocks are wide."""
    scale = scale.to(tl.int32)
    is_wide = (scale >= FIRST_WIDE_SCALE) & (scale <= LAST_WIDE_SCALE)
    shift, base = _square_code(is_wide)
    units = _magnitudes(codes.to(tl.int32), shift, base)
    return units * _power_of_two(tl.where(is_wide, _wide_exponent(scale), scale))[:, None]


@triton.jit
def _units(codes, SHIFT: tl.constexpr, BASE: tl.constexpr):
    """Return the values that codes stand for in a block with the scale 1."""
    wide = codes.to(tl.int32)
    magnitude = _magnitudes(tl.abs(wide), SHIFT, tl.full((), BASE, tl.int32))
    return (magnitude.to(tl.int32, bitcast=True) | (wide & SIGN)).to(tl.float32, bitcast=True)


@triton.jit
def _magnitudes(codes, shift, base):
    """Return the values of codes that are not negative; the offset that `base` are the bits of is subtracted."""
    return ((codes << shift) + base).to(tl.float32, bitcast=True) - base.to(tl.float32, bitcast=True)


@triton.jit
def _random_part(words, LEFT: tl.constexpr, MASK: tl.constexpr, REST: tl.constexpr):
    """Return the random bits that round a code: its share of words that serve all moments."""
    moved = words << LEFT if LEFT > 0 else words >> -LEFT
    return (moved & MASK) | REST


@triton.jit
def _encode(values, noise, SHIFT: tl.constexpr, BASE: tl.constexpr):
    """Return the codes of a tile and the scales of its blocks; masked elements must be 0."""
    finite = tl.where(tl.abs(values) < float("inf"), values, 0.0)
    magnitude = tl.abs(finite)
    scale = _scales(magnitude)
    codes = _codes(magnitude, scale, noise.to(tl.int32), SHIFT, tl.full((), BASE, tl.int32))
    return tl.where(finite < 0, -codes, codes), scale


@triton.jit
def encode_squares(values, words):
    """Return the codes and scales of second moments: some blocks are wide, and none that is not 0 becomes 0."""
    noise = _random_part(words, SQUARE_LEFT, SQUARE_MASK, SQUARE_REST)
    squares = tl.where(values < float("inf"), values, 0.0)
    scale = _scales(squares)
    smallest = tl.min(tl.where(squares > 0, squares.to(tl.int32, bitcast=True), 0x7FFFFFFF), axis=1)
    is_wide = smallest <= (scale - WELL_RESOLVED) << 23
    wide_scale = (scale - WIDE_BASE + WIDE_CEILING) >> WIDE_SHIFT
    wide_scale = tl.maximum(wide_scale, FIRST_WIDE_SCALE)
    shift, base = _square_code(is_wide)
    noise = noise.to(tl.int32) << (shift - SQUARE_SHIFT)
    codes = _codes(squares, tl.where(is_wide, _wide_exponent(wide_scale), scale), noise, shift, base)
    return tl.where((codes == 0) & (squares > 0), 1, codes), tl.where(is_wide, wide_scale, scale)


@triton.jit
def _scales(magnitude):
    """Return the biased exponents of the blocks of a tile."""
    exponent = (tl.max(magnitude, axis=1).to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23
    return tl.minimum(tl.maximum(exponent, LEAST_EXPONENT), GREATEST_EXPONENT)


@triton.jit
def _codes(magnitude, exponent, noise, shift, base):
    """Return the codes of magnitudes; the offset that `base` are the bits of is added."""
    unit = tl.minimum(magnitude * _power_of_two(254 - exponent)[:, None], 1.0)
    return ((unit + base.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True) - base + noise) >> shift


@triton.jit
def _square_code(is_wide):
    """Return the shift and the base of the codes of each block."""
    shift = tl.where(is_wide, WIDE_SQUARE_SHIFT, SQUARE_SHIFT)[:, None]
    return shift, tl.where(is_wide, WIDE_SQUARE_BASE, SQUARE_BASE)[:, None]


@triton.jit
def _wide_exponent(scale):
    """Return the biased exponent that the scale of a wide block stands for."""
    return (scale << WIDE_SHIFT) + WIDE_BASE


@triton.jit
def _power_of_two(exponent):
    """Return the fp32 number of a biased exponent; 0 for 0."""
    return (exponent.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def to_bf16(values, random):
    """Round fp32 `values` to bf16, up or down by 16 `random` bits; NaN stays NaN."""
    bits = (values.to(tl.uint32, bitcast=True) + random) >> BF16_SHIFT
    return tl.where(values == values, bits, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def fast_to_bf16(values, words):
    """Round fast averages to bf16."""
    return to_bf16(values, words & BF16_MASK)


@triton.jit
def slow_to_bf16(values, words):
    """Round slow averages to bf16."""
    return to_bf16(values, words >> BF16_SHIFT)


@triton.jit
def squares_to_bf16(values, words):
    """Round second moments to bf16, by a second random word."""
    second = words * SECOND_MIXER
    return to_bf16(values, (second ^ (second >> 16)) >> BF16_SHIFT)


@triton.jit
def param_to_bf16(values, words):
    """Round parameters to bf16."""
    return to_bf16(values, words & BF16_MASK)


@triton.jit
def to_nearest_bf16(values):
    """Round fp32 `values` to the nearest bf16, ties to even. A cast does the same, but not in the interpreter."""
    return to_bf16(values, ((values.to(tl.uint32, bitcast=True) >> BF16_SHIFT) & 1) + (BF16_MASK >> 1))


@triton.jit
def join_master(params, corrections):
    """Return the masters of bf16 parameters, in fp32."""
    bits = params.to(tl.int16, bitcast=True).to(tl.int32) << BF16_SHIFT
    corrections = tl.where((bits & 0x7FFFFFFF) == 0, 0, corrections.to(tl.int32) << MASTER_SHIFT)
    return (bits + corrections).to(tl.float32, bitcast=True)


@triton.jit
def divide_master(values, words, STOCHASTIC: tl.constexpr):
    """Return the bf16 parameters and the corrections of fp32 `values`, rounded to 24 bits."""
    bits = tl.where(values == values, values.to(tl.int32, bitcast=True), 0x7FC00000)
    to_even = MASTER_HALF - 1 + ((bits >> MASTER_SHIFT) & 1)
    noise = (words & MASTER_MASK).to(tl.int32) if STOCHASTIC else to_even
    master = (bits + noise) >> MASTER_SHIFT
    params = (master + MASTER_HALF) >> MASTER_SHIFT
    return params.to(tl.int16).to(tl.bfloat16, bitcast=True), master.to(tl.int8)


@triton.jit
def keys(seed, index, step):
    """Return the key of a parameter's random words; the key of its moments continues it."""
    key0 = tl.full((), FIRST_KEY, tl.uint32)
    key1 = tl.full((), SECOND_KEY, tl.uint32)
    key0, key1 = _absorb(key0, key1, seed)
    key0, key1 = _absorb(key0, key1, index)
    return _absorb(key0, key1, step)


@triton.jit
def _absorb(key0, key1, word):
    low, high = word.to(tl.uint32), (word >> 32).to(tl.uint32)
    return _mix(_mix(key0 ^ low) ^ high), _mix(_mix(key1 + low) + high)


@triton.jit
def moment_words(block, key0, key1):
    """Return a 32-bit word for each element of each block: a strong hash of the block, a cheap one inside it."""
    of_block = random_words(block, _mix(key0 ^ MOMENT_DOMAIN), _mix(key1 + MOMENT_DOMAIN))
    words = of_block[:, None] + tl.arange(0, LANES).to(tl.uint32)[None, :] * LANE_STEP
    words = (words ^ (words >> 16)) * FIRST_MIXER
    return words ^ (words >> 15)


@triton.jit
def random_words(element, key0, key1):
    """Return a 32-bit word for each element, by its index in the whole parameter."""
    return _mix(_mix(element.to(tl.uint32) ^ key0) + ((element >> 32).to(tl.uint32) ^ key1))


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * FIRST_MIXER
    x = (x ^ (x >> 15)) * SECOND_MIXER
    return x ^ (x >> 16)
