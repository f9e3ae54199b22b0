"""The formats that moments are stored in and values are rounded by: every number that the kernels agree on.

Nothing but numbers, and no framework: `pytorch/`, its Triton kernels and `optax/` take them from here. `csrc/formats.h`
has them once more for the C++ core, which reports its own as ``FORMATS``; a test compares them one by one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

# Each row of dimension 0 is cut into blocks, of which the last may be shorter. A block shares a scale and a random key.
# A vector is one row.
BLOCK = 128
# Scales are kept where neither they, nor their reciprocals, nor the smallest steps are subnormal or infinite.
LEAST_EXPONENT, GREATEST_EXPONENT = 27, 253
# Smaller tensors have no memory to save, and precision matters most in them: biases, norms, small heads. A vector that
# is larger than a bias is a slice of many parameters, made to be sharded.
LEAST_ROW, LEAST_SIZE, LEAST_VECTOR = 64, 4096, 1 << 17


def is_large(shape: Sequence[int]) -> bool:
    """Tell whether the moments of a parameter of this shape are worth storing in fewer bits."""
    if len(shape) < 2:
        return math.prod(shape) >= LEAST_VECTOR
    return math.prod(shape) >= max(LEAST_SIZE, LEAST_ROW * shape[0])


# The largest magnitude of finite gradients in fp32 arithmetic: its square is finite, and has a code.
GRADIENT_LIMIT = 2.0**62

# Random words are those of a counter-based generator, with the constants of "lowbias32" (C. Wellons, hash-prospector).
FIRST_MIXER, SECOND_MIXER = 0x7FEB352D, 0x846CA68B
FIRST_KEY, SECOND_KEY = 0x243F6A88, 0x85A308D3  # where keys begin: digits of pi
MOMENT_DOMAIN = 1  # absorbed by the keys of moments, to keep their words apart from those of their parameter
LANE_STEP = 0x9E3779B9  # between the words of neighbours in a block: 2^32 over the golden ratio

# Rounding to bf16 takes as many random bits as it drops: the upper ones of a word for the slow average, the lower ones
# for the fast one and for parameters, and the upper ones of a second word for squares.
BF16_SHIFT = 16
BF16_MASK = (1 << BF16_SHIFT) - 1

# A bf16 parameter and its correction, a signed byte, are the upper 24 bits of an fp32 number, their master:
#     bits(master) = (bits(parameter) << BF16_SHIFT) + (correction << MASTER_SHIFT)
# The correction is the last byte of the three, and the parameter is the bf16 number nearest to the master. Only a
# parameter that is 0 is its own master, whatever its correction: someone may have written it, as masks do. Rounding to
# 24 bits takes the lowest of the bits that round a parameter.
MASTER_SHIFT = 8
MASTER_MASK = (1 << MASTER_SHIFT) - 1
CORRECTION = "int8"


class BlockCode(NamedTuple):
    """An offset float: :mod:`ademamix.pytorch.block_codes` explains it."""

    dtype: str  # of its integers
    mantissa_bits: int  # those that it keeps
    octaves: int  # K, those that it resolves below the scale of its block
    first_random_bit: int  # of the bits that round this moment, in a word that serves all moments
    random_bits: int

    @property
    def shift(self) -> int:
        """The mantissa bits of an fp32 number that are dropped."""
        return 23 - self.mantissa_bits

    @property
    def base(self) -> int:
        """The bits of the offset 2^-K."""
        return (127 - self.octaves) << 23

    @property
    def random_left(self) -> int:
        """How far to shift a word left, or right if negative, so that its random bits become the upper ones."""
        return self.shift - self.random_bits - self.first_random_bit

    @property
    def random_mask(self) -> int:
        """Where the random bits are after that shift."""
        return ((1 << self.random_bits) - 1) << (self.shift - self.random_bits)

    @property
    def random_rest(self) -> int:
        """The value of the dropped bits that are not random: half of the last random one."""
        return 1 << (self.shift - self.random_bits) >> 1


FAST = BlockCode("int8", mantissa_bits=4, octaves=7, first_random_bit=9, random_bits=10)
SLOW = BlockCode("int16", mantissa_bits=12, octaves=7, first_random_bit=21, random_bits=11)
SQUARE = BlockCode("uint8", mantissa_bits=4, octaves=15, first_random_bit=0, random_bits=9)

# Some second moments of a block may be so much smaller than its largest that they would keep hardly a digit. Such a
# block is wide: its codes are coarser and reach as far down as fp32 does. Otherwise a gradient that was large once
# would keep its neighbours from moving for thousands of steps. Scales that no other block has mark it; they stand for
# every eighth power of two.
WIDE_SQUARE = BlockCode("uint8", mantissa_bits=2, octaves=60, first_random_bit=0, random_bits=9)
FIRST_WIDE_SCALE, LAST_WIDE_SCALE = 2, 26
WIDE_BASE, WIDE_SHIFT = 45, 3  # the biased exponent that the scale 0 would stand for, and log2 of the distance
WELL_RESOLVED = 17  # octaves below the scale of a block in which steps are at most a quarter of the value


def wide_exponent(scale: Any) -> Any:
    """Return the biased exponent that the scale of a wide block stands for."""
    return WIDE_BASE + (scale << WIDE_SHIFT)


class Storage(NamedTuple):
    """The dtypes that the moments of large parameters are stored in."""

    fast: str
    slow: str
    square: str

    @property
    def coded(self) -> tuple[bool, ...]:
        """Which of them are codes, with a scale for each block."""
        return tuple(dtype in (FAST.dtype, SLOW.dtype, SQUARE.dtype) for dtype in self)


# By the values of `state_storage`.
STORAGES = {
    "fp32": Storage("float32", "float32", "float32"),
    "bf16": Storage("bfloat16", "bfloat16", "bfloat16"),
    "compact": Storage(FAST.dtype, SLOW.dtype, SQUARE.dtype),
}


def bytes_of(dtype: str) -> int:
    """Return the bytes of a number, whose bits are in the name of its dtype.

    >>> bytes_of("bfloat16"), bytes_of("int8")
    (2, 1)
    """
    return int(re.findall(r"\d+", dtype)[0]) // 8
