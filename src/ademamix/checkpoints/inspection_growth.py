r"""Elements that get no gradient, and whose slow step grows for that: docs/idle.md says why. For torch and NumPy alike.

No checkpoint has gradients, but an exact m1 shows the last ones. Where m1 has codes, or is not stored since beta1 = 0,
what remains is a ratio, :math:`|m_2| / (\sqrt{\hat\nu} + \epsilon)`: it is below 1 where gradients keep their size, and
without them grows without a bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ademamix.checkpoints.inspection import some
from ademamix.pytorch.diagnostics import LARGE_SLOW_STEP

# An m1 of this part of m2 has had no gradient for 150 steps at beta1 = 0.9. Live ones pass through 0, but not so near.
IDLE = 2.0**-24
# Above 1, since gradients shrink in a run: in small language models the ratio was up to 3.4 in the first 30 steps, and
# below 2.5 after 100.
BEYOND_LIVE = 8.0


def grows(beta2: float, beta3: float) -> float:
    """Return the logarithm of what the slow step of an element without gradients grows by in a step.

    >>> grows(0.999, 0.9999) > 0 > grows(0.999, 0.999)
    True
    """
    return math.log(beta3) - math.log(beta2) / 2 if beta2 > 0 and beta3 > 0 else -math.inf


def idle_elements(slow: Any, root: Any, fast: Any = math.inf, *, is_exact: bool = False) -> int:
    """Count elements that have had no gradient for long, given m2, sqrt(nu_hat) + eps, and what |m1| is at most.

    If `is_exact`, that is |m1| itself, and decides alone.
    """
    found = abs(slow) * IDLE > fast
    if not is_exact:
        found |= abs(slow) > BEYOND_LIVE * root
    return int(found.sum())


def about_to_grow(counts: Mapping[str, int], growth: float) -> list[str]:
    """Warn of idle elements, given their number by parameter, and what :func:`grows` returns where it is fastest."""
    counts = {name: count for name, count in counts.items() if count}
    if not counts:
        return []
    text = (
        f"idle elements: {sum(counts.values()):,}, in {some(list(counts))}. Their slow step doubles about every "
        f"{math.log(2) / growth:,.0f} steps, since beta3 > sqrt(beta2). slow_clip=30 bounds it (docs/idle.md)."
    )
    return [text]


def grown(count: int) -> list[str]:
    """Warn of so many elements without a bound whose slow step is large already."""
    if not count:
        return []
    text = (
        f"elements with a slow step above {LARGE_SLOW_STEP:g} times lr: {count:,}. Their gradients have shrunk, or "
        "stay away. slow_clip=30 bounds it (docs/idle.md)."
    )
    return [text]
