"""Nested EMAs, DEMA and AdMeta against a mixture of EMAs: the paper's figure dema.

The paper gives AdMeta's beta1 = 0.9 and beta2 from 0.1 to 0.4; the other betas, which methods are drawn, and how their
weights are scaled are ours. EMAs, nested EMAs and DEMA have weights that sum to 1. So have AdMeta's here: its learning
rate takes up their scale, 51 with beta1 = 0.9. AdEMAMix is m1 + alpha m2 as it is added, for m1 has in it the
weight that it has in Adam; the table gives shares of the total as well, of which the newest gradient has less than in a
single EMA, since the tail comes on top. All have seen 10,000 steps, and DEMA's window is as long as that. The figure
draws AdMeta-S with beta2 = 0.4, the one that gives old gradients more.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ademamix.lab.recipes.formulas.averages import ALPHA, BETA, SLOW_BETA, methods
from ademamix.lab.report.charts import Lines, Series
from ademamix.lab.reproduction.claims import Claim, every, lower, measured
from ademamix.lab.reproduction.panel import Panel, Panels, Table
from ademamix.lab.reproduction.scale import Scale

RECENT, OLD = 60, 1000
LOWEST = 1e-10  # where the figure ends


def plan(at: Scale) -> Panels:
    """Yield the paper's two panels: recent weights on a linear scale, and all on a logarithmic one."""
    found = methods()
    drawn = {name: weights[: OLD + 1] for name, weights in found.items() if name != "AdMeta-S, beta2 = 0.1"}
    age = "age of the gradient (steps)"
    recent = [Series.of(name, range(RECENT + 1), weights[: RECENT + 1]) for name, weights in drawn.items()]
    all_seen = {name: np.flatnonzero(abs(weights) >= LOWEST) for name, weights in drawn.items()}
    sizes = [Series.of(name, seen, abs(drawn[name][seen])) for name, seen in all_seen.items()]
    old_name = f"over {OLD:,} steps"
    header = ["method", "on the newest", old_name, "total", "share of the newest", f"share {old_name}"]
    rows = []
    for name, weights in found.items():
        total, old = weights.sum(), weights[OLD + 1 :].sum()
        shares = [f"{weights[0] / total:.4f}", f"{old / total:.2g}"]
        rows.append([name, f"{weights[0]:.4f}", f"{old:.2g}", f"{total:.2f}", *shares])
    yield Panel(
        "The weights of nested averages",
        charts=[
            Lines("(a) Linear scale: the last steps", age, "weight", recent),
            Lines("(b) Logarithmic scale", age, "absolute weight", sizes, logarithmic="y", y_range=(LOWEST, 0.5)),
        ],
        tables=[Table(header, rows, "Weight on gradients by their age")],
        claims=list(_claims(found)),
        caption=f"EMA, EMA of EMA and DEMA: beta = {BETA:g}. AdMeta-S: beta1 = {BETA:g}. AdEMAMix: beta1 = {BETA:g}, "
        f"beta3 = {SLOW_BETA:g}, alpha = {ALPHA:g}.",
    )


def _claims(found: dict[str, NDArray[np.float64]]) -> Iterator[Claim]:
    newest = {name: measured(f"{name} on the newest", weights[0]) for name, weights in found.items()}
    old = {name: measured(f"{name} over {OLD:,} steps", weights[OLD + 1 :].sum()) for name, weights in found.items()}
    yield Claim("Two nested EMAs decrease the influence of recent steps", lower(newest["EMA of EMA"], newest["EMA"]))
    negative = int(np.flatnonzero(found["DEMA"] < -LOWEST)[0])
    yield Claim(
        "DEMA increases the sensitivity to recent gradients by subtracting nested EMAs",
        every(
            lower(newest["EMA"], newest["DEMA"]),
            lower(measured("the age from which on its weights are negative", negative), 100.0),
        ),
    )
    yield Claim(
        "AdMeta gives older gradients a negligible weight",
        every(*(lower(old[name], 1e-9) for name in found if "AdMeta" in name)),
    )
    yield Claim(
        "AdMeta gives recent gradients less weight than a single EMA",
        every(*(lower(newest[name], newest["EMA"]) for name in found if "AdMeta" in name)),
        source="using nested EMAs is not the right candidate as it reduces the influence of recent gradients",
    )
    yield Claim(
        "AdEMAMix keeps the weight of recent gradients and gives non-negligible weights to old ones",
        every(lower(newest["EMA"], newest["AdEMAMix"]), lower(1.0, old["AdEMAMix"])),
    )
