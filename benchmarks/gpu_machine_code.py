"""What a compiled Triton kernel takes of a GPU, read from its machine code. No GPU is needed for that.

Triton brings what it takes: its compiler, ptxas, cuobjdump and nvdisasm for NVIDIA, LLVM for AMD.
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import triton.backends.nvidia
from triton.backends.compiler import GPUTarget

TOOLS = Path(triton.backends.nvidia.__file__).parent / "bin"


class Multiprocessor(NamedTuple):
    """What the warps that are resident on a multiprocessor share: CUDA C++ Programming Guide, compute capabilities."""

    registers: int = 1 << 16
    warps: int = 64
    programs: int = 32
    shared: int = 228 << 10  # bytes


PARTITIONS = 4  # of a multiprocessor; each has a quarter of its registers, and of the warps of a program
REGISTERS_AT_ONCE = 256  # are allocated to a warp
SHARED_AT_ONCE, SHARED_BY_SYSTEM = 128, 1024  # bytes, for a program
WAVES_PER_SIMD = 8  # of gfx942 at most

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
MULTIPROCESSORS = {"sm_80": Multiprocessor(shared=164 << 10), "sm_90": Multiprocessor(), "sm_100": Multiprocessor()}

SIZES = {"i8": 1, "i16": 2, "bf16": 2, "f16": 2, "f32": 4, "i64": 8, "f64": 8}


class MachineCode(NamedTuple):
    """A compiled kernel. Accesses are those to global memory: how many a thread makes, by their bits."""

    registers: int
    spills: int  # accesses of a thread to memory that stands in for registers
    shared: int  # bytes, of a program
    occupancy: float  # the share of the warps that could be resident which are, as far as registers and shared go
    loads: dict[int, int]
    stores: dict[int, int]
    instructions: int  # of a thread; loops once, what is only for special values not at all
    inexact: int  # operations that are not those of IEEE 754: approximate ones, or such that flush subnormals
    bytes_read: int  # by a program, in tensors
    bytes_written: int


def read(compiled: Any, target: str) -> MachineCode:
    """Read what Triton has compiled for a target."""
    if TARGETS[target].backend == "hip":
        return _read_amd(compiled)
    return _read_nvidia(compiled, MULTIPROCESSORS[target])


def _traffic(ttgir: str) -> Counter[str]:
    """Return the bytes of tensors that a program loads and stores, from the last form that still has tensors."""
    traffic: Counter[str] = Counter()
    for access, shape, dtype in re.findall(r"tt\.(load|store) .*?: tensor<([\dx]+)x!tt\.ptr<(\w+)>", ttgir):
        traffic[access] += math.prod(map(int, shape.split("x"))) * SIZES[dtype]
    return traffic


def _read_nvidia(compiled: Any, limits: Multiprocessor) -> MachineCode:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(compiled.asm["cubin"])
        usage = _run("cuobjdump", "-res-usage", str(file))
        assembly = _run("nvdisasm", "-c", str(file))
    registers, shared = int(_one(r"REG:(\d+)", usage)), compiled.metadata.shared
    traffic = _traffic(compiled.asm["ttgir"])
    instructions = _usual_path(assembly)
    return MachineCode(
        registers=registers,
        spills=sum(_is(name, "LDL", "STL") for name in instructions),
        shared=shared,
        occupancy=_occupancy(limits, registers, shared, compiled.metadata.num_warps),
        loads=_by_bits(_nvidia_bits(name) for name in instructions if _is(name, "LDG")),
        stores=_by_bits(_nvidia_bits(name) for name in instructions if _is(name, "STG")),
        instructions=len(instructions),
        inexact=len(re.findall(r"\bftz\b|\bapprox\b|\bdiv\.full\b", compiled.asm["ptx"])),
        bytes_read=traffic["load"],
        bytes_written=traffic["store"],
    )


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run([str(TOOLS / tool), *arguments], capture_output=True, text=True, check=True).stdout


def _one(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return found[1]


def _is(instruction: str, *names: str) -> bool:
    return instruction.partition(".")[0] in names


def _usual_path(assembly: str) -> list[str]:
    """Return the instructions of a kernel, without subroutines, and without the blocks that only call one.

    Division and square root call one for subnormal numbers and overflows.
    """
    blocks: list[list[str]] = [[]]
    for line in assembly.splitlines():
        if line.startswith("$__internal"):
            break  # the first subroutine
        if line.startswith(".L_"):
            blocks.append([])
        found = re.search(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", line)
        if found and found[1] != "NOP":
            blocks[-1].append(found[1])
            if _is(found[1], "BRA", "CALL", "EXIT"):
                blocks.append([])
    return [name for block in blocks if block and not _is(block[-1], "CALL") for name in block]


def _nvidia_bits(instruction: str) -> int:
    """Return the bits that a thread moves: LDG.E.128 moves 128, LDG.E.U8 8, LDG.E 32."""
    found = re.search(r"\.[US]?(8|16|64|128)\b", instruction)
    return int(found[1]) if found else 32


def _occupancy(limits: Multiprocessor, registers: int, shared: int, warps: int) -> float:
    """Return the share of resident warps, as NVIDIA's occupancy calculator does."""
    of_warp = _up(registers * 32, REGISTERS_AT_ONCE)
    by_registers = limits.registers // PARTITIONS // of_warp * PARTITIONS // warps
    by_shared = limits.shared // _up(shared + SHARED_BY_SYSTEM, SHARED_AT_ONCE)
    return min(by_registers, by_shared, limits.programs, limits.warps // warps) * warps / limits.warps


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


AMD_BITS = {"byte": 8, "ubyte": 8, "sbyte": 8, "short": 16, "ushort": 16, "sshort": 16}
AMD_BITS |= {"dword": 32, "dwordx2": 64, "dwordx3": 96, "dwordx4": 128}


def _read_amd(compiled: Any) -> MachineCode:
    assembly, traffic = compiled.asm["amdgcn"], _traffic(compiled.asm["ttgir"])

    def of_kernel(name: str) -> int:
        return int(_one(rf"\.{name}: +(\d+)", assembly))

    accesses = re.findall(r"^\s+global_(load|store)_([a-z]+\d?)(?:_d16)?(?:_hi)?\b", assembly, re.MULTILINE)
    return MachineCode(
        registers=of_kernel("vgpr_count"),
        spills=of_kernel("vgpr_spill_count") + of_kernel("sgpr_spill_count") + of_kernel("private_segment_fixed_size"),
        shared=compiled.metadata.shared,
        occupancy=int(_one(r"; Occupancy: (\d+)", assembly)) / WAVES_PER_SIMD,  # LLVM's own
        loads=_by_bits(AMD_BITS[name] for access, name in accesses if access == "load"),
        stores=_by_bits(AMD_BITS[name] for access, name in accesses if access == "store"),
        instructions=len(re.findall(r"^\s+(?:v|global|ds)_", assembly, re.MULTILINE)),
        inexact=len(re.findall(r"float_denorm_mode_(?:32|16_64) [^3]", assembly)),
        bytes_read=traffic["load"],
        bytes_written=traffic["store"],
    )


def _by_bits(bits: Iterable[int]) -> dict[int, int]:
    return dict(sorted(Counter(bits).items()))
