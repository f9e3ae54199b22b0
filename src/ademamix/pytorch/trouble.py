"""Signs that a run is about to go wrong, read from what the optimizer says of itself, and what to do about each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ademamix.pytorch.shards import local

GROWTH = 2.0
"""An update that has grown so much early in a run is a sign; docs/diagnostics.md has what healthy runs of ours did."""
EARLY_SHARE = 0.1
"""Of the run; or as long as the slow average fills, if that is longer."""
DOMINANT = 2.0
"""The ratio of alpha m2 to m1 above which the slow average decides the update; below 0.6 in healthy runs of ours."""
ALIGNED = 0.2
"""A cosine between m1 and m2 above this means that the slow average agrees with recent gradients."""
IDLE = 30.0
"""A slow step that no element reached whose gradients keep coming, with the paper's alpha; see `docs/idle.md`."""
IDLE_ALPHAS = 4.0
"""The same for a larger alpha, in units of it."""


@dataclass(frozen=True)
class Sign:
    """A sign of trouble: what was seen, and what to do."""

    name: str
    """One of "growing-updates", "stale-average", "idle-elements", "skipped-elements", "not-finite"."""
    group: int
    """The parameter group, counted from 0."""
    step: int
    message: str

    def __str__(self) -> str:
        return f"AdEMAMix, group {self.group}, step {self.step:,}: {self.message}"


class Watch:
    """Looks at the diagnostics of one group of parameters, and remembers what it has seen.

    >>> watch = Watch(0)
    >>> found = {"step": 900, "alpha_m2_norm": 1.0, "largest_slow_step": 1764.0, "skipped": 0, "alpha": 8.0}
    >>> group = {"params": [], "lr": 0.0, "betas": (0.9, 0.999, 0.9999)}
    >>> [sign.name for sign in watch.signs(group, found | {"m1_norm": 1.0, "update_norm": 1.0, "cosine": 0.9})]
    ['idle-elements']
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._smallest, self._smallest_step = math.inf, 0  # of the update, in units of lr (1 + alpha)
        self._was_stale = False

    def signs(self, group: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Sign]:
        """Yield the signs in `found`, what :meth:`~ademamix.AdEMAMix.diagnostics` gives for `group`."""
        checks = {
            "growing-updates": self._growing,
            "stale-average": self._stale,
            "idle-elements": _idle,
            "skipped-elements": _skipped,
        }
        if not math.isfinite(found["alpha_m2_norm"]):
            checks = {"not-finite": _not_finite}
        for name, check in checks.items():
            if message := check(group, found):
                yield Sign(name, self._number, found["step"], message)

    def _growing(self, group: Mapping[str, Any], found: Mapping[str, Any]) -> str:
        """Compare the update, in units of lr (1 + alpha), with the smallest yet: the paper's figure exploding-norm."""
        elements = sum(local(param).numel() for param in group["params"])
        scale = float(group["lr"]) * (1 + found["alpha"]) * math.sqrt(elements)
        if not scale or not math.isfinite(found["update_norm"]):
            return ""
        update = found["update_norm"] / scale
        if update < self._smallest:
            self._smallest, self._smallest_step = update, found["step"]
        if update <= GROWTH * self._smallest or not _is_early(group, found):
            return ""
        return (
            f"updates grow early in the run: in units of lr (1 + alpha), the last one is "
            f"{update / self._smallest:.1f} times that of step {self._smallest_step:,}. Runs that diverge begin like "
            f"this. {_slower(group)}"
        )

    def _stale(self, group: Mapping[str, Any], found: Mapping[str, Any]) -> str:
        """Ask whether the slow average decides the update and disagrees with recent gradients, twice in a row."""
        dominant = found["alpha_m2_norm"] > DOMINANT * found["m1_norm"]
        was_stale, self._was_stale = self._was_stale, dominant and found["cosine"] < ALIGNED
        if not (was_stale and self._was_stale):
            return ""
        ratio = found["alpha_m2_norm"] / found["m1_norm"] if found["m1_norm"] else math.inf
        return (
            f"alpha m2 is {ratio:.1f} times as large as m1, and their cosine is {found['cosine']:.2f}: the update "
            f"follows old gradients, not recent ones. {_slower(group)} `reset_slow()` empties m2 at once."
        )


def _idle(group: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    limit = max(IDLE, IDLE_ALPHAS * found["alpha"])
    if not found["largest_slow_step"] > limit:
        return ""
    return (
        f"the slow part moves an element by {found['largest_slow_step']:,.0f} times the learning rate in a step: its "
        "gradients have stayed away for long, and the second moment decays before m2 does. Pass "
        f"slow_clip={limit:g}, or beta3 <= sqrt(beta2) for this group (docs/idle.md)."
    )


def _skipped(group: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    if not found["skipped"]:
        return ""
    return (
        f"{found['skipped']:,} elements of gradients were infinite or not a number so far, and were skipped. A few are "
        "harmless. If their number keeps growing, find the batches that cause them, lower the learning rate, or clip "
        "gradients."
    )


def _not_finite(group: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    return (
        "m2 is not finite: a gradient was infinite or not a number, and no average forgets that. Return to a "
        "checkpoint from before, and pass nonfinite='skip'."
    )


def _is_early(group: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    horizon = group["total_steps"]
    tenth = EARLY_SHARE * horizon if isinstance(horizon, int) else 0.0
    return bool(found["slow_step"] < max(tenth, 1 / (1 - found["beta3"])))


def _slower(group: Mapping[str, Any]) -> str:
    """Say how the slow average gains influence more slowly, given what the group does now."""
    if group["alpha_warmup"] and group["beta3_warmup"]:
        first = "Lengthen alpha_warmup and beta3_warmup"
    elif group["total_steps"]:
        first = "Leave out alpha_warmup and beta3_warmup, so that alpha and beta3 rise over total_steps"
    else:
        first = "Pass total_steps=<steps of the run>, so that alpha and beta3 rise over all of it"
    return f"{first}; or lower alpha or the learning rate, or clip gradients."
