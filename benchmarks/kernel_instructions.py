"""The instructions that the C++ core executes for 16 parameters: the table of docs/speed.md.

In a step on a tensor of some blocks, the processor stops after every instruction, so that what is counted is what it
executes: the path that most blocks take, without those that need other scales. Linux on x86-64; needs objdump and a C++
compiler.
With an llvm-mca that knows the Zen 4 (16 or later; Debian: llvm-19), it also computes the cycles.

    .venv/bin/python benchmarks/kernel_instructions.py
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ademamix import AdEMAMix
from ademamix.lab.bench.rows import LEARNING_RATE, NO_FAST, SLOW_START, STEPS
from ademamix.native import core
from ademamix.pytorch import step_cpu
from study import markdown

BLOCKS, BLOCK = 32, 128  # of elements: the least tensor whose moments are kept in fewer bits
VECTORS_OF_16 = BLOCK // 16  # in a block
WARM_STEPS = 30
PROCESSOR = "znver4"  # the last that llvm-mca has a model of its own for

# Has the processor stop after every instruction (bit 8 of its flags), and notes the addresses of those in a range.
TRACER = r"""
#include <csignal>
#include <ucontext.h>

static unsigned long *noted, first, last;
static long count, room;

static void note(int, siginfo_t*, void* context) {
  const unsigned long address = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
  if (first <= address && address < last && count < room) noted[count++] = address;
}

extern "C" void begin(unsigned long* addresses, long size, unsigned long from, unsigned long to) {
  noted = addresses, room = size, count = 0, first = from, last = to;
  struct sigaction action = {};
  action.sa_sigaction = note;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTRAP, &action, nullptr);
  asm volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "cc", "memory");
}

extern "C" long end() {
  asm volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "cc", "memory");
  return count;
}
"""
ROOM = 1 << 20  # for addresses

BF16: dict[str, Any] = {"dtype": torch.bfloat16}
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fp32 state": ({}, {"state_storage": "fp32"}),
    "fp32 state, beta1 = 0": ({}, {"state_storage": "fp32", "betas": NO_FAST}),
    "bf16 state": ({}, {"state_storage": "bf16"}),
    "bf16 state, beta1 = 0": ({}, {"state_storage": "bf16", "betas": NO_FAST}),
    "compact state": ({}, {"state_storage": "compact"}),
    "compact state, beta1 = 0": ({}, {"state_storage": "compact", "betas": NO_FAST}),
    "bf16 parameters, fp32 state": (BF16, {"state_storage": "fp32"}),
    "bf16 parameters, bf16 state": (BF16, {"state_storage": "bf16"}),
    "bf16 parameters, compact state": (BF16, {"state_storage": "compact"}),
    "bf16 parameters, compact state, 24-bit master": (BF16, {"state_storage": "compact", "master": "24bit"}),
}


class Instruction(NamedTuple):
    """An instruction as objdump writes it."""

    mnemonic: str
    text: str

    @property
    def is_vector(self) -> bool:
        """Those on vectors and on their masks."""
        return self.mnemonic[0] in "vk"


def disassembled(file: Path) -> dict[int, Instruction]:
    """Return the instructions of a library by their addresses in it."""
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(file)], capture_output=True, text=True, check=True
    )
    found = {}
    for line in listing.stdout.splitlines():
        if match := re.match(r"\s*([0-9a-f]+):\s+([a-z]\S*)(.*)", line):
            operands = re.sub(r"\s*(#|<).*", "", match[3])
            operands = re.sub(r"^\s*(?=[0-9a-f]+$)", " 0x", operands)  # the target of a jump
            found[int(match[1], 16)] = Instruction(match[2], match[2] + operands)
    return found


def tracer() -> ctypes.CDLL:
    """Compile the tracer and load it."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "tracer.so"
        compiler = [os.environ.get("CXX", "c++"), "-O1", "-mno-red-zone", "-shared", "-fPIC"]  # flags go to the stack
        subprocess.run([*compiler, "-x", "c++", "-", "-o", str(library)], input=TRACER, text=True, check=True)
        loaded = ctypes.CDLL(str(library))
    loaded.begin.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong]
    loaded.end.restype = ctypes.c_long
    return loaded


def range_of(file: Path) -> range:
    """Return where a library is in the memory of this process."""
    parts = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(file))]
    spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in parts]
    return range(spans[0][0], spans[-1][1])


def executed(row: str, memory: range, trace: ctypes.CDLL) -> list[int]:
    """Return the places in the core of the instructions that it executes in a step, in their order."""
    torch.manual_seed(0)
    tensor, settings = ROWS[row]
    param = torch.zeros(1, BLOCKS * BLOCK, **tensor)
    optimizer = AdEMAMix([param], lr=LEARNING_RATE, total_steps=STEPS, beta3_start=SLOW_START, fused=True, **settings)
    for _ in range(WARM_STEPS):
        param.grad = torch.randn_like(param)
        optimizer.step()
    noted, count = (ctypes.c_ulong * ROOM)(), 0
    taken_at_once = step_cpu.update_at

    def traced(*arguments: Any, **more: Any) -> None:
        trace.begin(noted, ROOM, memory.start, memory.stop)
        taken_at_once(*arguments, **more)
        nonlocal count
        count = trace.end()

    step_cpu.update_at = traced
    optimizer.step()
    step_cpu.update_at = taken_at_once
    return [address - memory.start for address in noted[:count]]


def usual_path(addresses: list[int]) -> tuple[int, ...]:
    """Return the instructions that most blocks take, from one that each of them takes once to the same of the next."""
    times = Counter(addresses)
    first = next(address for address in addresses if times[address] == BLOCKS)
    begins = [i for i, address in enumerate(addresses) if address == first]
    paths = Counter(tuple(addresses[i:j]) for i, j in pairwise(begins))
    return paths.most_common(1)[0][0]


def computed_cycles(path: Iterable[Instruction]) -> float | None:
    """Return the cycles of a block, one of many, by llvm-mca; None if there is none that knows the processor."""
    names = ["llvm-mca", *(f"llvm-mca-{version}" for version in range(16, 30))]
    # Calls are left out, as the tool has no model of what they go to, which is in the path.
    code = "\n".join(instruction.text for instruction in path if instruction.mnemonic not in ("call", "ret"))
    for tool in filter(None, map(shutil.which, reversed(names))):
        command = [tool, "-mtriple=x86_64", f"-mcpu={PROCESSOR}", "-iterations=100"]
        done = subprocess.run(command, input=code, capture_output=True, text=True)
        if match := re.search(r"Total Cycles:\s+(\d+)", done.stdout):
            return int(match[1]) / 100
    return None


def main() -> None:
    """Print the table."""
    if core is None:
        raise SystemExit("the C++ core is missing")
    file = Path(core.__file__).resolve()
    instructions, memory, trace = disassembled(file), range_of(file), tracer()
    torch.set_num_threads(1)
    instruction_sets = [name for name in core.instruction_sets() if name != "portable"]
    table = []
    for row in ROWS:
        cells = []
        for instruction_set in instruction_sets:
            core.use_instruction_set(instruction_set)
            path = [instructions[place] for place in usual_path(executed(row, memory, trace))]
            vector = sum(instruction.is_vector for instruction in path)
            cycles = computed_cycles(path)
            cells.append(f"{vector / VECTORS_OF_16:.0f} + {(len(path) - vector) / VECTORS_OF_16:.0f}")
            cells.append("" if cycles is None else f"{cycles / VECTORS_OF_16:.0f}")
        table.append([row, *cells])
    head = [f"{name}: {what}" for name in instruction_sets for what in ("vector + other", "cycles, computed")]
    print(markdown(["16 parameters", *head], table))


if __name__ == "__main__":
    main()
