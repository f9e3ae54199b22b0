"""What `ademamix bench` measures: optimizers, a row of its tables each, and scenarios, a table each.

This module imports an optimizer only when it is made, and little else: `ademamix --help` loads it for the names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[int, ...]

LEARNING_RATE = 1e-4  # bf16 parameters move, and thousands of steps leave them finite
STEPS = 100_000  # the horizon of the schedules, which are on for every optimizer that has them
NO_FAST = (0.0, 0.999)  # betas
SLOW_CLIP = 30.0
SLOW_START = 0.999
"""Where beta3 starts. From beta1 on, the slow average of the few steps that are measured would be a fast one, whose
scales change in many blocks of each step; in a run they do so only at its beginning."""


@dataclass(frozen=True)
class Row:
    """An optimizer of the table; `factory` makes it from a list of parameters."""

    name: str
    baseline: str  # name of the row that its time is divided by
    factory: Callable[[list[Any]], Any]
    package: str | None = None  # the peer that it comes from, or is compared with; None for ours and torch's own
    parameters: str = "float32"  # their dtype, and that of their gradients
    one_pass: bool = False  # a step reads and writes every array once, so that bytes over time is a speed
    one_gradient: bool = False  # the same in all steps; it makes most blocks of compact state wide


def _make(module: str, name: str, **settings: Any) -> Callable[[list[Any]], Any]:
    """Return a factory that imports the optimizer only when it is called."""
    return lambda params: getattr(importlib.import_module(module), name)(params, lr=LEARNING_RATE, **settings)


def _ademamix(**settings: Any) -> Callable[[list[Any]], Any]:
    return _make("ademamix", "AdEMAMix", total_steps=STEPS, beta3_start=SLOW_START, **settings)


def _fused(storage: str = "fp32", **settings: Any) -> Callable[[list[Any]], Any]:
    return _ademamix(fused=True, state_storage=storage, **settings)


def _peer(module: str, name: str, **settings: Any) -> Row:
    package = module.partition(".")[0]
    return Row(f"{package} {name}", ADAMW_FUSED, _make(module, name, **settings), package=package)


ADAMW_FUSED = "torch AdamW fused"
ADAMW_FOREACH = "torch AdamW foreach"
ADAMW_BF16 = "torch AdamW fused, bf16 params"
FUSED = "ademamix fused"
FUSED_NO_FAST = "ademamix fused, beta1=0"
BF16 = "ademamix fused, bf16 state"
COMPACT = "ademamix fused, compact state"
COMPACT_NO_FAST = "ademamix compact, beta1=0"
COMPACT_WIDE = "ademamix compact, wide blocks"
BF16_PARAMETERS = "bfloat16"
FUSED_BF16 = "ademamix fused, bf16 params"
BF16_BF16 = "ademamix bf16 state, bf16 params"
COMPACT_BF16 = "ademamix compact, bf16 params"
COMPACT_MASTER = "ademamix compact, 24-bit master"
FUSED_CLIPPED = "ademamix fused, slow_clip"
COMPACT_CLIPPED = "ademamix compact, slow_clip"
FOREACH = "ademamix foreach"
CPU_ADAM = "deepspeed DeepSpeedCPUAdam"
OVER_CPU_ADAM, COMPACT_OVER_CPU_ADAM = f"{FUSED}, to CPUAdam", f"{COMPACT}, to CPUAdam"

ROWS = (
    Row(ADAMW_FUSED, ADAMW_FUSED, _make("torch.optim", "AdamW", fused=True), one_pass=True),
    Row(FUSED, ADAMW_FUSED, _fused(), one_pass=True),
    Row(FUSED_NO_FAST, ADAMW_FUSED, _fused(betas=NO_FAST), one_pass=True),
    Row(BF16, ADAMW_FUSED, _fused("bf16"), one_pass=True),
    Row(COMPACT, ADAMW_FUSED, _fused("compact"), one_pass=True),
    Row(COMPACT_NO_FAST, ADAMW_FUSED, _fused("compact", betas=NO_FAST), one_pass=True),
    Row(COMPACT_WIDE, ADAMW_FUSED, _fused("compact"), one_pass=True, one_gradient=True),
    Row(FUSED_CLIPPED, FUSED, _fused(slow_clip=SLOW_CLIP), one_pass=True),
    Row(COMPACT_CLIPPED, COMPACT, _fused("compact", slow_clip=SLOW_CLIP), one_pass=True),
    Row(ADAMW_FOREACH, ADAMW_FUSED, _make("torch.optim", "AdamW", foreach=True)),
    Row(FOREACH, ADAMW_FOREACH, _ademamix(foreach=True)),
    Row("ademamix single", ADAMW_FOREACH, _ademamix(foreach=False, fused=False)),
    Row(ADAMW_BF16, ADAMW_BF16, _make("torch.optim", "AdamW", fused=True), parameters=BF16_PARAMETERS, one_pass=True),
    Row(FUSED_BF16, ADAMW_BF16, _fused(), parameters=BF16_PARAMETERS, one_pass=True),
    Row(BF16_BF16, ADAMW_BF16, _fused("bf16"), parameters=BF16_PARAMETERS, one_pass=True),
    Row(COMPACT_BF16, ADAMW_BF16, _fused("compact"), parameters=BF16_PARAMETERS, one_pass=True),
    Row(COMPACT_MASTER, ADAMW_BF16, _fused("compact", master="24bit"), parameters=BF16_PARAMETERS, one_pass=True),
    Row(
        CPU_ADAM,
        ADAMW_FUSED,
        _make("deepspeed.ops.adam", "DeepSpeedCPUAdam", weight_decay=1e-2, adamw_mode=True),
        package="deepspeed",
        one_pass=True,
    ),
    Row(OVER_CPU_ADAM, CPU_ADAM, _fused(), package="deepspeed", one_pass=True),
    Row(COMPACT_OVER_CPU_ADAM, CPU_ADAM, _fused("compact"), package="deepspeed", one_pass=True),
    _peer("heavyball", "AdEMAMix", weight_decay=1e-2, alpha=5.0, alpha_warmup=STEPS, beta3_warmup=STEPS),
    _peer("pytorch_optimizer", "AdEMAMix", weight_decay=1e-2, weight_decouple=True, t_alpha_beta3=STEPS),
    _peer("bitsandbytes.optim", "AdEMAMix", t_alpha=STEPS, t_beta3=STEPS),
    _peer("bitsandbytes.optim", "AdEMAMix8bit", t_alpha=STEPS, t_beta3=STEPS),
    _peer("torchao.optim", "AdamW8bit"),
    _peer("torchao.optim", "AdamWFp8"),
)


@dataclass(frozen=True)
class Scenario:
    """Parameters to step, and how."""

    title: str
    shapes: tuple[Shape, ...]
    quick_shapes: tuple[Shape, ...]
    seconds: float  # for which each optimizer is stepped in each process
    targets: Mapping[str, float]  # the time ratios of rows should be at most this
    intel: Mapping[str, float] = field(default_factory=dict)  # other targets on a CPU of Intel
    in_cache: bool = False  # the cost of the kernels alone: one thread, steps that find their arrays in the cache

    def target(self, name: str, cpu: str) -> float | None:
        """Return the target of a row on a CPU; None if it has none.

        >>> gpt2 = SCENARIOS["gpt2"]
        >>> gpt2.target(COMPACT, "AMD EPYC"), gpt2.target(COMPACT, "Intel(R) Xeon(R)"), gpt2.target(ADAMW_FUSED, "")
        (1.25, 1.05, None)
        """
        return {**self.targets, **(self.intel if "Intel" in cpu else {})}.get(name)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The optimizers of its table."""
        return tuple(row for row in ROWS if (row.one_pass if self.in_cache else not row.one_gradient))

    @property
    def threads(self) -> int | None:
        """How many it needs; None for as many as the user wants."""
        return 1 if self.in_cache else None

    @property
    def turn(self) -> int:
        """The steps that an optimizer takes before the next has its turn: the first finds the cache cold."""
        return 10 if self.in_cache else 1


def gpt2_shapes(
    *, layers: int = 12, width: int = 768, vocabulary: int = 50257, context: int = 1024
) -> tuple[Shape, ...]:
    """Return the shapes of the parameters of GPT-2 in its own order; the defaults are those of the 124M model."""
    norm: tuple[Shape, ...] = ((width,), (width,))
    attention: tuple[Shape, ...] = ((width, 3 * width), (3 * width,), (width, width), (width,))
    mlp: tuple[Shape, ...] = ((width, 4 * width), (4 * width,), (4 * width, width), (width,))
    return ((vocabulary, width), (context, width), *layers * (*norm, *attention, *norm, *mlp), *norm)


CLIPPED = {FUSED_CLIPPED: 1.03, COMPACT_CLIPPED: 1.03}
IN_MEMORY = CLIPPED | {
    FUSED: 1.38,
    FUSED_NO_FAST: 1.03,
    BF16: 1.15,
    COMPACT: 1.25,
    COMPACT_NO_FAST: 1.0,
    COMPACT_BF16: 1.4,
    COMPACT_MASTER: 1.4,
    FOREACH: 1.5,
    OVER_CPU_ADAM: 1.4,
    COMPACT_OVER_CPU_ADAM: 1.25,
}
IN_MEMORY_OF_INTEL = {
    FUSED: 1.25,
    BF16: 1.0,
    COMPACT: 1.05,
    COMPACT_NO_FAST: 0.9,
    OVER_CPU_ADAM: 1.35,
    COMPACT_OVER_CPU_ADAM: 1.05,
}
SCENARIOS = {
    "gpt2": Scenario(
        "GPT-2 124M",
        gpt2_shapes(),
        gpt2_shapes(layers=2, width=48, vocabulary=101, context=64),
        seconds=3.0,
        targets=IN_MEMORY,
        intel=IN_MEMORY_OF_INTEL,
    ),
    "large": Scenario(
        "one large tensor",
        ((1 << 13, 1 << 12),),
        ((1 << 6, 1 << 10),),
        seconds=2.0,
        targets=IN_MEMORY,
        intel=IN_MEMORY_OF_INTEL,
    ),
    "cache": Scenario(
        "one tensor in cache",
        ((1 << 10, 1 << 10),),
        ((1 << 6, 1 << 10),),
        seconds=0.5,
        targets=CLIPPED | {FUSED: 1.15, BF16: 1.10, COMPACT: 1.20, COMPACT_NO_FAST: 1.05},
        in_cache=True,
    ),
    "small": Scenario(
        "200 tensors of 1k",
        200 * ((1024,),),
        20 * ((1024,),),
        seconds=1.0,
        targets=dict.fromkeys((FUSED, FUSED_NO_FAST, BF16, COMPACT, COMPACT_NO_FAST), 1.0) | {FOREACH: 1.5},
    ),
}
QUICK_SECONDS = 0.1

IMPORT = "import"  # the scenario that steps nothing
OPTAX = "optax"  # measured by optax_steps
NAMES = (*SCENARIOS, OPTAX, IMPORT)
PEERS = tuple(dict.fromkeys(row.package for row in ROWS if row.package is not None))
