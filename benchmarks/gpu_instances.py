"""The instances of the Triton kernel, compiled for GPUs that are not here."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TRITON_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "triton"))  # what was compiled

import torch
import triton
from triton.compiler import ASTSource

from ademamix.formats import BLOCK
from ademamix.pytorch import triton_kernels
from ademamix.pytorch.step_triton import BLOCKS_PER_PROGRAM, VECTOR_BYTES, Bucket, Variant, threads
from gpu_machine_code import TARGETS, MachineCode, read
from study import Progress

ELEMENTS_PER_PROGRAM = BLOCKS_PER_PROGRAM * BLOCK
PARAMS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SLOWS = (torch.float32, torch.bfloat16, torch.int16)  # in fp32, bf16 and compact state
OF_BF16_ALONE = {
    "stochastic_params",
    "corrected",
}  # flags of a variant that say nothing about parameters of other dtypes


class Case(NamedTuple):
    """An instance of the kernel, and what it is compiled for."""

    target: str
    bucket: Bucket
    variant: Variant
    scaled: bool  # gradients are divided by a scale


def every_case() -> Iterator[Case]:
    """Yield all instances that steps launch, for all targets."""
    for target, param, grad in itertools.product(TARGETS, PARAMS, PARAMS):
        slows = (torch.float64,) if param == torch.float64 else SLOWS
        off = set() if param == torch.bfloat16 else OF_BF16_ALONE
        flags = [(False,) if name in off else (False, True) for name in Variant._fields]
        for slow, alignment, scaled, *chosen in itertools.product(slows, (VECTOR_BYTES, 1), (False, True), *flags):
            yield Case(target, Bucket(param, grad, slow, alignment), Variant(*chosen), scaled)


def covering(cases: Sequence[Case]) -> list[Case]:
    """Choose some cases, among which there is each combination of three values that any case has.

    A spill in half precision for one GPU with skipped elements is seen, whatever the other values are.
    """
    left = set().union(*map(_triples, cases))
    order = random.Random(0)
    chosen = []
    while left:
        best = max(order.sample(cases, 200), key=lambda case: len(_triples(case) & left))
        if not left.isdisjoint(_triples(best)):
            chosen.append(best)
            left -= _triples(best)
    return chosen


@cache
def _triples(case: Case) -> frozenset[Any]:
    values = (case.target, *case.bucket, *case.variant, case.scaled)
    return frozenset(itertools.combinations(enumerate(values), 3))


def compile_case(case: Case) -> MachineCode:
    """Compile an instance as a launch would, and read its machine code."""
    names = triton_kernels.step.arg_names
    types = {"table": "*i64", "count": "i32", "coefficients": "*fp64"}
    constants: dict[str, Any] = {"INSTANCE": triton_kernels.instance(case.bucket, case.variant)}
    if case.scaled:
        types["grad_scale"] = "*fp32"
    else:
        constants["grad_scale"] = None
    signature = {name: types.get(name, "constexpr") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in ("table", "coefficients")}
    source = ASTSource(triton_kernels.step, signature, constants, aligned)
    gpu = TARGETS[case.target]
    compiled = triton.compile(
        source, target=gpu, options={"num_warps": threads(case.bucket, case.variant) // gpu.warp_size}
    )
    return read(compiled, case.target)


def compile_all(cases: Sequence[Case], processes: int) -> list[MachineCode]:
    """Compile cases in some processes, telling how far they are."""
    progress = Progress(len(cases), "instances")
    codes = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for code in pool.map(compile_case, cases, chunksize=4):
            codes.append(code)
            progress.advance()
    return codes
