"""How far the neighbours of one large gradient travel in compact storage, over what they travel in fp32.

After 2,000 ordinary steps, one element of each block of 128 has, once, a gradient that is 10^4 to 10^8 times as large
as usual. The other 127 continue as before. What they cover in the next 500 steps is compared with moments in fp32;
"without wide blocks" stores second moments that lie far apart like the others, as compact storage did at first.

    python benchmarks/spike.py            # three minutes
    python benchmarks/spike.py --quick    # seconds
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ademamix import AdEMAMix, formats
from study import Progress, Results, markdown, parse

SPIKES = (1e4, 1e5, 1e6, 1e8)
ARMS = ("compact", "compact, without wide blocks")
ROWS = 32


@contextlib.contextmanager
def without_wide_blocks() -> Iterator[None]:
    """Let no block be wide: fp32 has no values 255 octaves apart."""
    octaves, formats.WELL_RESOLVED = formats.WELL_RESOLVED, 255
    try:
        yield
    finally:
        formats.WELL_RESOLVED = octaves


def distances(spike: float, beta2: float, before: int, after: int) -> list[float]:
    """Return the mean distance of the neighbours after the spike, with moments in fp32 and in compact storage."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.zeros(ROWS, formats.BLOCK) for _ in range(2)]
    optimizers = [
        AdEMAMix(
            [param],
            betas=(0.9, beta2),
            total_steps=10_000,
            weight_decay=0.0,
            foreach=True,
            state_storage=storage,
            rounding_seed=0,
        )
        for param, storage in zip(params, ("fp32", "compact"), strict=True)
    ]
    starts: list[torch.Tensor] = []
    for step in range(before + after):
        gradient = 0.5 * torch.randn(ROWS, formats.BLOCK, generator=generator) + 0.3
        if step == before:
            gradient[:, 0] *= spike
            starts = [param.clone() for param in params]
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = gradient
            optimizer.step()
    return [(param - start)[:, 1:].mean().item() for param, start in zip(params, starts, strict=True)]


def main() -> None:
    options = parse(__doc__ or "")
    before, after = (20, 10) if options.quick else (2000, 500)
    results = Results(options.results, "spike", {"before": before, "after": after}, quick=options.quick)
    parts = [(spike, beta2, arm) for beta2 in (0.999, 0.95) for spike in SPIKES for arm in ARMS]
    progress = Progress(len(parts), "runs")
    for spike, beta2, arm in parts:
        name = f"{arm}, {spike:g}, beta2 {beta2}"
        if name in results:
            progress.skip(1)
            continue
        with contextlib.nullcontext() if arm == ARMS[0] else without_wide_blocks():
            exact, compact = distances(spike, beta2, before, after)
        results[name] = compact / exact
        progress.advance(name)
    header = ["beta2", "storage", *(f"{spike:g}" for spike in SPIKES)]
    rows = [
        [str(beta2), arm, *(f"{results[f'{arm}, {spike:g}, beta2 {beta2}']:.3f}" for spike in SPIKES)]
        for beta2 in (0.999, 0.95)
        for arm in ARMS
    ]
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
