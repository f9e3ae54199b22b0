"""Simulate codes for the three moments of AdEMAMix on gradients whose exact averages are known.

Each moment is averaged in float64, and beside it in each code: read, updated in fp32, rounded, 20,000 times over.
Inside each block the elements have scales spread over two decades, so that a code which serves the large elements
only is found out. That is the hard case: elements that are alike are easy for every code.

m2  beta3 = 0.9999. The signal is reversed half way, and noise of 0, 1 or 10 times the signal is added. Reported is
    the cosine to the exact average at the end, of the elements as they are and divided by their scales.
nu  beta2 = 0.999 and 0.95. The gradients become ten times smaller half way. Reported are the relative error of the
    root, and the worst understatement of it: an update is divided by the root, and multiplied by that.
m1  beta1 = 0.9. Reported is the relative error of the elements divided by their scales.

    python benchmarks/moment_codes.py            # about ten minutes on one core
    python benchmarks/moment_codes.py --quick    # seconds
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ademamix import formats
from ademamix.pytorch import block_codes
from other_codes import RoundTrip, bf16, companded, dynamic, fp16, offset_float
from study import Progress, Results, markdown, parse

SHAPE = (16, 512)
NOISES = (0.0, 1.0, 10.0)
BETA2S = (0.999, 0.95)
BETA1, BETA3 = 0.9, 0.9999
REVERSED, REDUCED = -1.0, 0.1  # the factor of the signal in the second half, for m1 and m2 and for nu


class Candidate(NamedTuple):
    """A code in a table: what it is, how values come back out of it, and the bits of a value and of a block's scale."""

    name: str
    round_trip: RoundTrip
    bits: int
    scale_bits: int = 0
    block: int = formats.BLOCK

    @property
    def bytes_per_parameter(self) -> float:
        return (self.bits + self.scale_bits / self.block) / 8


def chosen(name: str, code: formats.BlockCode, *, stochastic: bool = True) -> Candidate:
    """Return a code of the optimizer itself."""

    def round_trip(values: Tensor) -> Tensor:
        random = torch.randint(1 << code.shift, values.shape, dtype=torch.int32)
        return block_codes.decode(*block_codes.encode(values, code, random if stochastic else None))

    return Candidate(name, round_trip, torch.iinfo(block_codes.dtype_of(code)).bits, scale_bits=8)


def offset(bits: int, mantissa: int, octaves: int, *, block: int = 128, positive: bool = False) -> Candidate:
    """Return a stochastic offset float that was not chosen."""
    code = offset_float(mantissa, octaves, size=block, stochastic=True, keeps_positive=positive)
    return Candidate(f"{bits}-bit offset float {mantissa}/{octaves}, stochastic, block {block}", code, bits, 8, block)


def of_root(code: Candidate) -> Candidate:
    """Return the code of the root of a second moment."""
    return code._replace(name=f"root in {code.name}", round_trip=lambda nu: code.round_trip(nu.sqrt()).square())


def slow_candidates() -> list[Candidate]:
    linear = {stochastic: companded(1, 32767, size=128, stochastic=stochastic) for stochastic in (False, True)}
    square = {stochastic: companded(2, 32767, size=128, stochastic=stochastic) for stochastic in (False, True)}
    return [
        chosen("**16-bit offset float 12/7, stochastic, block 128**", formats.SLOW),
        chosen("16-bit offset float 12/7, nearest, block 128", formats.SLOW, stochastic=False),
        offset(16, 13, 3),
        offset(16, 11, 15),
        *(offset(16, 12, 7, block=block) for block in (64, 256, 1024)),
        Candidate("int16 linear, nearest, block 128", linear[False], 16, 32),
        Candidate("int16 linear, stochastic, block 128", linear[True], 16, 32),
        Candidate("int16 square-companded, nearest, block 128", square[False], 16, 32),
        Candidate("int16 square-companded, stochastic, block 128", square[True], 16, 32),
        Candidate("fp16 times a power of two, nearest, block 128", fp16(size=128), 16, 8),
        Candidate("bf16, nearest", bf16(stochastic=False), 16),
        Candidate("bf16, stochastic", bf16(stochastic=True), 16),
        Candidate("8-bit dynamic, nearest, block 256", dynamic(), 8, 32, 256),
        Candidate("8-bit dynamic, stochastic, block 256", dynamic(stochastic=True), 8, 32, 256),
        offset(8, 4, 7),
    ]


def square_candidates() -> list[Candidate]:
    linear = companded(1, 255, size=128, stochastic=False)
    return [
        chosen("**8-bit offset float 4/15, stochastic, block 128**", formats.SQUARE),
        chosen("8-bit offset float 4/15, nearest, block 128", formats.SQUARE, stochastic=False),
        of_root(offset(8, 5, 7, positive=True)),
        Candidate("8-bit dynamic unsigned, nearest, block 256", dynamic(signed=False), 8, 32, 256),
        Candidate("8-bit dynamic unsigned, stochastic, block 256", dynamic(signed=False, stochastic=True), 8, 32, 256),
        Candidate("8-bit linear, nearest, block 128", linear, 8, 32),
    ]


def fast_candidates() -> list[Candidate]:
    return [
        chosen("**8-bit offset float 4/7, stochastic, block 128**", formats.FAST),
        chosen("8-bit offset float 4/7, nearest, block 128", formats.FAST, stochastic=False),
        Candidate("8-bit dynamic, nearest, block 256", dynamic(), 8, 32, 256),
        Candidate("8-bit dynamic, stochastic, block 256", dynamic(stochastic=True), 8, 32, 256),
        Candidate("int8 linear, nearest, block 128", companded(1, 127, size=128, stochastic=False), 8, 32),
        Candidate("int8 linear, stochastic, block 128", companded(1, 127, size=128, stochastic=True), 8, 32),
    ]


class Gradients:
    """Gradients of elements of many scales: a signal, multiplied by `change` in the second half, and noise."""

    def __init__(self, steps: int, signal: float, noise: float, change: float) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self.scales = 10 ** (2 * torch.rand(SHAPE, generator=self._generator) - 2)
        self._signal = signal * torch.randn(SHAPE, generator=self._generator)
        self._steps, self._noise, self._change = steps, noise, change

    def __iter__(self) -> Iterator[Tensor]:
        for step in range(self._steps):
            # the noise of a second moment is the signal, and so changes too
            noise = self._noise * torch.randn(SHAPE, generator=self._generator)
            factor = 1.0 if step < self._steps // 2 else self._change
            yield self.scales * (factor * self._signal + noise * abs(factor))


class Run:
    """Averages of the same gradients, exact and in each code; iterating takes the steps, and yields their numbers."""

    def __init__(
        self, candidates: list[Candidate], beta: float, gradients: Gradients, *, squares: bool = False
    ) -> None:
        torch.manual_seed(0)  # of stochastic rounding
        self.exact = torch.zeros(SHAPE, dtype=torch.float64)
        self.averages = {candidate.name: torch.zeros(SHAPE) for candidate in candidates}
        self._candidates, self._beta, self._gradients, self._squares = candidates, beta, gradients, squares

    def __iter__(self) -> Iterator[int]:
        for step, gradient in enumerate(self._gradients, start=1):
            target = gradient.square() if self._squares else gradient
            self.exact.lerp_(target.double(), 1 - self._beta)
            for candidate in self._candidates:
                average = self.averages[candidate.name]
                self.averages[candidate.name] = candidate.round_trip(average.lerp(target, 1 - self._beta))
            yield step


def cosine(a: Tensor, b: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(a.double().flatten(), b.double().flatten(), dim=0).item()


def simulate_slow(noise: float, steps: int, progress: Progress) -> dict[str, Any]:
    """Return, of each code, the cosine of m2 to the exact one, plain and with each element divided by its scale."""
    gradients = Gradients(steps, signal=1.0, noise=noise, change=REVERSED)
    run = Run(slow_candidates(), BETA3, gradients)
    for _ in run:
        progress.advance(f"m2, noise {noise:g}")
    scales = gradients.scales
    return {
        name: {"cosine": cosine(average, run.exact), "scaled": cosine(average / scales, run.exact / scales)}
        for name, average in run.averages.items()
    }


def simulate_square(beta2: float, steps: int, progress: Progress) -> dict[str, Any]:
    """Return, of each code, the relative error of the root of nu, and the least ratio to the exact root, over time."""
    run = Run(square_candidates(), beta2, Gradients(steps, signal=0.0, noise=1.0, change=REDUCED), squares=True)
    ratios: dict[str, list[Tensor]] = {name: [] for name in run.averages}
    for step in run:
        if step % max(1, steps // 100) == 0:
            for name, average in run.averages.items():
                ratios[name].append(average.double().sqrt() / run.exact.sqrt())
        progress.advance(f"nu, beta2 {beta2:g}")
    return {name: _errors_of_root(torch.stack(over_time)) for name, over_time in ratios.items()}


def _errors_of_root(ratios: Tensor) -> dict[str, float]:
    return {
        "error": (ratios - 1).square().mean().sqrt().item(),
        "bias": (ratios - 1).mean().item(),
        "least_ratio": ratios.min().item(),
    }


def simulate_fast(noise: float, steps: int, progress: Progress) -> dict[str, Any]:
    """Return, of each code, the root mean square error of m1 relative to m1, over the second half of the time."""
    gradients = Gradients(steps, signal=1.0, noise=noise, change=REVERSED)
    run = Run(fast_candidates(), BETA1, gradients)
    errors = dict.fromkeys(run.averages, 0.0)
    size = 0.0
    for step in run:
        if step > steps // 2:
            size += (run.exact / gradients.scales).square().sum().item()
            for name, average in run.averages.items():
                errors[name] += ((average - run.exact) / gradients.scales).square().sum().item()
        progress.advance(f"m1, noise {noise:g}")
    return {name: {"error": (error / size) ** 0.5} for name, error in errors.items()}


def main() -> None:
    options = parse(__doc__)
    steps = {"m2": 20_000, "nu": 10_000, "m1": 2_000} if not options.quick else {"m2": 40, "nu": 40, "m1": 40}
    results = Results(options.results, "moment_codes", {"steps": steps, "shape": SHAPE}, quick=options.quick)
    simulations = [
        *(("m2", simulate_slow, noise) for noise in NOISES),
        *(("nu", simulate_square, beta2) for beta2 in BETA2S),
        *(("m1", simulate_fast, noise) for noise in NOISES),
    ]
    progress = Progress(sum(steps[moment] for moment, _, _ in simulations), "steps")
    for moment, simulate, condition in simulations:
        part = f"{moment} {condition:g}"
        if part in results:
            progress.skip(steps[moment])
        else:
            results[part] = simulate(condition, steps[moment], progress)
    print(tables(results))


def tables(results: Results) -> str:
    slow = [
        [f"{results[f'm2 {noise:g}'][code.name][kind]:.6f}" for noise in NOISES for kind in ("cosine", "scaled")]
        for code in slow_candidates()
    ]
    slow_header = [f"{kind}noise {noise:g}" for noise in NOISES for kind in ("", "scaled, ")]
    square = [
        [cell for beta2 in BETA2S for cell in _cells_of_root(results[f"nu {beta2:g}"][code.name])]
        for code in square_candidates()
    ]
    square_header = [f"{kind}, beta2 {beta2:g}" for beta2 in BETA2S for kind in ("error", "mean", "worst")]
    fast = [[f"{results[f'm1 {noise:g}'][code.name]['error']:.2%}" for noise in NOISES] for code in fast_candidates()]
    fast_header = [f"error, noise {noise:g}" for noise in NOISES]
    return "\n\n".join(
        [
            f"m2: cosine to the exact average, beta3 = {BETA3:g}; noise is relative to the signal",
            _table(slow_candidates(), slow_header, slow),
            "nu: relative error of the root, its mean, and the worst factor by which an update is too large",
            _table(square_candidates(), square_header, square),
            f"m1: relative error, beta1 = {BETA1:g}",
            _table(fast_candidates(), fast_header, fast),
        ]
    )


def _cells_of_root(result: dict[str, float]) -> list[str]:
    least = result["least_ratio"]
    return [
        f"{result['error']:.1%}",
        f"{result['bias']:+.1%}",
        f"{1 / least:.2f}" if least > 0 else "infinite",
    ]


def _table(codes: list[Candidate], header: list[str], cells: list[list[str]]) -> str:
    rows = [[code.name, f"{code.bytes_per_parameter:.3f}", *line] for code, line in zip(codes, cells, strict=True)]
    return markdown(["code", "bytes", *header], rows)


if __name__ == "__main__":
    main()
