"""torch's AdamW as Inductor compiles it for a GPU that is not here, for comparison.

Inductor is given what `torch.compile` would give it: the operations of `torch.optim.AdamW(foreach=True,
capturable=True)`, without side effects, on fake CUDA tensors. It asks the driver for the properties of the GPU, which
are stated here instead. The Triton source that it writes is compiled like ours.
"""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim.adamw import adamw
from triton.compiler import ASTSource

from gpu_machine_code import TARGETS, MachineCode, read

COUNT = 2  # parameters; Inductor puts them into one kernel, in branches
ELEMENTS = 1024  # that a program of that kernel takes
THREADS = 256  # of such a program
MULTIPROCESSORS = {"sm_80": 108, "sm_90": 132, "sm_100": 148}  # of A100, H100 and B200


def compile_adamw(dtype: torch.dtype, target: str) -> MachineCode:
    """Return the machine code of a step on parameters of a dtype."""
    with _shown_as_gpu(target), tempfile.TemporaryDirectory() as folder:
        kernels = re.findall(r"async_compile\.triton\('(\w+)', '''(.*?)'''", _source_of_step(dtype), re.DOTALL)
        name, source = kernels[-1]  # the one before it advances the clocks
        kernel = getattr(_imported(source, Path(folder) / f"{name}.py"), name)
        (config,) = kernel.configs
        assert config.num_warps * TARGETS[target].warp_size == THREADS
        meta = kernel.triton_meta
        compiled = triton.compile(
            ASTSource(kernel.fn, meta["signature"], meta["constants"], meta["configs"][0]),
            target=TARGETS[target],
            options={"num_warps": config.num_warps, "num_stages": config.num_stages},
        )
        return read(compiled, target)


@contextmanager
def _shown_as_gpu(target: str) -> Iterator[None]:
    """Answer what Inductor asks about the GPU that it compiles for."""
    gpu = TARGETS[target]
    major, minor = divmod(int(gpu.arch), 10)
    properties = DeviceProperties("cuda", 0, MULTIPROCESSORS[target], int(gpu.arch), major, 1 << 16, 2048, 1024, 32)
    asked = SimpleNamespace(major=major, minor=minor, multi_processor_count=properties.multi_processor_count)
    driver = SimpleNamespace(get_current_target=lambda: gpu, get_current_device=lambda: 0)
    with (
        mock.patch.object(triton.runtime.driver, "_active", driver),
        mock.patch.object(DeviceProperties, "create", return_value=properties),
        mock.patch("torch._inductor.scheduler.has_triton", return_value=True),
        mock.patch("torch._inductor.compile_fx._check_triton_bf16_support"),  # all of them have it
        mock.patch("torch.cuda.get_device_properties", return_value=asked),
        mock.patch("torch.cuda.get_device_capability", return_value=(major, minor)),
    ):
        yield


class _Written(Exception):
    """Inductor has written its code, which is not to be loaded."""


def _source_of_step(dtype: torch.dtype) -> str:
    """Return the program that Inductor writes."""
    source = ""

    def keep(graph: GraphLowering) -> Any:
        nonlocal source
        source = graph.codegen()[0].value
        raise _Written

    with FakeTensorMode(), torch.no_grad(), mock.patch.object(GraphLowering, "compile_to_module", keep):
        shaped = [torch.empty(1024, 1024, dtype=dtype, device="cuda") for _ in range(4 * COUNT)]
        inputs = [*shaped, *(torch.empty((), device="cuda") for _ in range(COUNT))]
        pure_step = torch.func.functionalize(_step, remove="mutations")
        with mock.patch("torch.compiler.is_compiling", return_value=True):
            graph = make_fx(pure_step, decomposition_table=select_decomp_table())(*inputs)
        graph.graph.set_codegen(torch.fx.graph.CodeGen())  # with inputs and outputs as plain lists
        graph.recompile()
        try:
            compile_fx_inner(graph, inputs)
        except Exception as error:
            if not source:
                raise error
    return source


def _step(*tensors: Tensor) -> list[Tensor]:
    params, grads, fasts, squares, steps = [list(tensors[i : i + COUNT]) for i in range(0, len(tensors), COUNT)]
    flags = {"foreach": True, "capturable": True, "amsgrad": False, "maximize": False}
    adamw(
        params, grads, fasts, squares, [], steps, **flags,
        beta1=0.9, beta2=0.999, lr=1e-3, weight_decay=1e-2, eps=1e-8,
    )  # fmt: skip
    return []


def _imported(source: str, file: Path) -> ModuleType:
    """Import Python source from a file, where Triton finds it."""
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
