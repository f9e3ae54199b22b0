"""How the blocks of compact state behave in training, and under the gradients that `ademamix bench` steps with.

The time of a compact step depends on its blocks: wide ones take longer, and a kernel may have more to do where a scale
changes. Counted after some steps: the share of blocks whose second moments are wide, and the share of blocks whose
scale is not that of the step before, for each moment.

language model    the small transformer of small_lm.py, with the matrices of a wider one
bench             one tensor under the gradients of `ademamix bench`, which differ from step to step
one gradient      the same tensor under one of these gradients, in all steps

    python benchmarks/block_scales.py            # five minutes
    python benchmarks/block_scales.py --quick    # seconds
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ademamix import AdEMAMix, formats
from ademamix.lab.bench.measure import Gradients
from small_lm import Shape, SmallTransformer, coded_parameters, learning_rate_schedule, training_batches
from study import Progress, Results, markdown, parse

MOMENTS = ("exp_avg", "exp_avg_slow", "exp_avg_sq")
SHARES = ("wide", *(f"{moment} rescaled" for moment in MOMENTS))
Scales = dict[str, Tensor]


def scales_of(optimizer: AdEMAMix, parameters: list[torch.nn.Parameter]) -> Scales:
    """Return the scales of all blocks, for each moment."""
    states = [optimizer.state[parameter] for parameter in parameters]
    return {moment: torch.cat([state[f"{moment}_scale"].flatten() for state in states]) for moment in MOMENTS}


def shares(before: Scales, after: Scales) -> dict[str, float]:
    """Return what is counted, from the scales of two steps that follow each other."""
    squares = after["exp_avg_sq"]
    wide = (squares >= formats.FIRST_WIDE_SCALE) & (squares <= formats.LAST_WIDE_SCALE)
    changed = {f"{moment} rescaled": (before[moment] != after[moment]) for moment in MOMENTS}
    return {name: share.double().mean().item() for name, share in {"wide": wide, **changed}.items()}


def language_model(shape: Shape, steps: int) -> Iterator[Scales]:
    """Train, and yield the scales after each step."""
    torch.manual_seed(0)
    model = SmallTransformer(shape)
    optimizer = AdEMAMix(model.parameters(), lr=1e-3, total_steps=steps, state_storage="compact")
    schedule = learning_rate_schedule(optimizer, steps)
    coded = list(coded_parameters(model).values())
    for _, window in zip(range(steps), training_batches(shape, seed=0), strict=False):
        optimizer.zero_grad()
        model.loss(window).backward()
        optimizer.step()
        schedule.step()
        yield scales_of(optimizer, coded)


def bench(size: int, steps: int, *, one_gradient: bool) -> Iterator[Scales]:
    """Step as `ademamix bench` does, and yield the scales after each step."""
    parameter = torch.nn.Parameter(torch.zeros(size, size))
    gradients = Gradients([(size, size)], torch.float32, torch.Generator().manual_seed(0))
    optimizer = AdEMAMix([parameter], lr=1e-4, total_steps=100_000, state_storage="compact")
    for step in range(steps):
        (parameter.grad,) = gradients.of_step(0 if one_gradient else step)
        optimizer.step()
        yield scales_of(optimizer, [parameter])


def main() -> None:
    options = parse(__doc__ or "")
    shape = Shape(width=64, layers=1, batch=2) if options.quick else Shape(width=256)
    at = (2, 4, 6) if options.quick else (3, 10, 30, 100, 300, 1000)
    arms: dict[str, Callable[[int], Iterator[Scales]]] = {
        "language model": lambda steps: language_model(shape, steps),
        "bench": lambda steps: bench(2 * shape.width, steps, one_gradient=False),
        "one gradient": lambda steps: bench(2 * shape.width, steps, one_gradient=True),
    }
    results = Results(options.results, "block_scales", {"width": shape.width, "steps": at}, quick=options.quick)
    progress = Progress(len(arms) * at[-1], "steps")
    for name, arm in arms.items():
        if name in results:
            progress.skip(at[-1])
            continue
        counted, before = {}, {}
        for step, scales in enumerate(arm(at[-1]), 1):
            if step in at:
                counted[step] = shares(before, scales)
            before = scales
            progress.advance(name)
        results[name] = counted
    header = ["gradients", "step", *SHARES]
    rows = [
        [name, step, *(f"{100 * found[share]:.2f}%" for share in SHARES)]
        for name in arms
        for step, found in results[name].items()
    ]
    print(markdown(header, [[str(cell) for cell in row] for row in rows]))


if __name__ == "__main__":
    main()
