"""The bytes that a step moves, and how long some GPUs take for that at least, by what their makers publish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ademamix import memory_plan


class Setting(NamedTuple):
    """What is stepped: parameters and gradients of one precision, and a state."""

    precision: str  # of memory_plan.PRECISIONS
    state: str  # of memory_plan.STATE_FORMATS

    @property
    def title(self) -> str:
        """The state in words."""
        return memory_plan.STATE_FORMATS[self.state].title

    @property
    def dtype(self) -> str:
        """The format of parameters and gradients: bf16 with 24-bit masters."""
        return "bf16" if self.precision == "24bit" else self.precision

    @property
    def adamw(self) -> Setting:
        """What it is compared with: AdamW on such parameters."""
        return Setting(self.dtype, "adamw")

    def traffic(self, shapes: Sequence[Sequence[int]]) -> int:
        """Return the bytes of a step on parameters of these shapes: it reads everything, and writes all but gradients.

        >>> Setting("fp32", "adamw").traffic([(1024, 1024)]) / 1024**2
        28.0
        >>> Setting("fp32", "compact").traffic([(1024, 1024)]) / 1024**2
        20.046875
        >>> Setting("24bit", "compact").traffic([(1024, 1024)]) / 1024**2
        16.046875
        """
        plan = memory_plan.plan(shapes, self.state, devices=1, shard="ddp", precision=self.precision)
        return 2 * (plan.parameters + plan.master + plan.state) + plan.gradients


STATES = ("fp32", "fp32-beta1-0", "bf16", "bf16-beta1-0", "compact", "compact-beta1-0")
SETTINGS = (
    *(Setting(precision, state) for precision in ("fp32", "bf16") for state in ("adamw", *STATES)),
    *(Setting("24bit", state) for state in ("fp32", "bf16", "compact")),
)


class Card(NamedTuple):
    """A GPU. `instructions` are those of single threads that its vector units take in a second."""

    name: str  # a part of what torch.cuda.get_device_name says
    target: str
    bandwidth: float  # bytes per second
    instructions: float
    source: str

    def bounds(self, traffic: float, instructions: float) -> tuple[float, float]:
        """Return the least seconds in which the card moves bytes, and issues instructions.

        >>> CARDS[1].bounds(3.35e9, 67e9)
        (0.001, 0.002)
        """
        return traffic / self.bandwidth, instructions / self.instructions


# A multiprocessor of NVIDIA takes 128 instructions of threads per clock. That is half of the published operations in
# fp32, which counts multiplication and addition; but an A100 has vector units for half as many in fp32.
CARDS = (
    Card("A100", "sm_80", 2.039e12, 19.5e12, "NVIDIA A100 Tensor Core GPU data sheet: 80 GB SXM, 2,039 GB/s"),
    Card("H100", "sm_90", 3.35e12, 67e12 / 2, "NVIDIA H100 Tensor Core GPU data sheet: SXM, 3.35 TB/s"),
    Card("B200", "sm_100", 8e12, 80e12 / 2, "NVIDIA Blackwell architecture technical brief: HGX B200, 8 TB/s"),
    # Its operations in fp32 are counted twice more, as pairs.
    Card("MI300X", "gfx942", 5.3e12, 163.4e12 / 4, "AMD Instinct MI300X accelerator data sheet: 5.3 TB/s"),
)
