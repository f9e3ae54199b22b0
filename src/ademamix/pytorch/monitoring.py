"""Diagnostics while a run lasts: logged at an interval that a share of the time pays for, with a warning at trouble."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from ademamix.pytorch.optimizer import AdEMAMix
from ademamix.pytorch.trouble import Sign, Watch

LOGGED = (
    *("alpha", "beta3", "m1_norm", "alpha_m2_norm", "update_norm", "cosine"),
    *("largest_slow_step", "large_slow_steps", "skipped"),
)
"""What is logged of :meth:`ademamix.AdEMAMix.diagnostics`."""

EVERY, SHARE = 50, 0.01

Send = Callable[[dict[str, float], int], object]
"""Takes values by name, and the step that they are of."""


class Monitor:
    """Logs the diagnostics of an optimizer while it trains, and warns at signs of trouble.

    From its construction to :meth:`close` it follows the steps of `optimizer` by itself; the loop stays as it is. It
    looks after every `every` steps, as long as all looks together take at most `share` of the time: a look reads the
    whole state, which can take longer than a step. The first look comes once one training step would fit into that
    share.

    >>> import torch
    >>> point = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = AdEMAMix([point], lr=0.1, total_steps=100)
    >>> monitor = Monitor(optimizer, lambda values, step: print(step, sorted(values)[:2]), every=2, share=math.inf)
    >>> for _ in range(4):
    ...     point.square().sum().backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    2 ['ademamix/alpha', 'ademamix/alpha_m2_norm']
    4 ['ademamix/alpha', 'ademamix/alpha_m2_norm']
    >>> monitor.signs
    []

    Signs of trouble are those of the paper's appendix, that updates grow early in a run and that the slow average
    outweighs the fast one, and three more: elements without gradients whose slow step has become large, elements that
    ``nonfinite="skip"`` has passed over, and averages that are not finite. Each is a :class:`UserWarning` that says
    what to do, once per parameter group; `signs` keeps them.

    Args:
        optimizer: the one to follow.
        log: where values go: a TensorBoard ``SummaryWriter``, a run of Weights & Biases, any function of
            (values, step), or None to warn only.
        every: the number of steps between two looks, at least. None looks only when :meth:`look` is called.
        share: of the time of training, which looks may take. ``math.inf`` looks after every `every` steps.
        prefix: the first part of the names that are logged. With several groups their number follows.
    """

    def __init__(
        self,
        optimizer: AdEMAMix,
        log: Any = None,
        *,
        every: int | None = EVERY,
        share: float = SHARE,
        prefix: str = "ademamix",
    ) -> None:
        if not isinstance(optimizer, AdEMAMix):
            raise TypeError(f"optimizer must be an ademamix.AdEMAMix, got {type(optimizer).__name__}")
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1, or None, got {every}")
        if not share > 0:
            raise ValueError(f"share must be above 0, got {share}")
        self.signs: list[Sign] = []
        self._optimizer, self._send, self._prefix = optimizer, sender(log), prefix
        self._budget = Budget(share)
        self._steps = 0
        self._watches: list[Watch] = []
        self._following = ExitStack()
        if every is not None:
            hook = optimizer.register_step_post_hook(lambda *_: self._after_step(every))
            self._following.callback(hook.remove)

    def look(self) -> dict[str, float]:
        """Look now: log, warn, and return what was logged; values that are not numbers are left out."""
        groups = self._optimizer.diagnostics()
        self._watches += [Watch(number) for number in range(len(self._watches), len(groups))]
        values: dict[str, float] = {}
        for number, found in enumerate(groups):
            place = f"{self._prefix}/{number}" if len(groups) > 1 else self._prefix
            values |= {f"{place}/{name}": float(found[name]) for name in LOGGED if not math.isnan(found[name])}
        self._send(values, max(found["step"] for found in groups))
        self._warn(groups)
        return values

    def close(self) -> None:
        """Stop following the optimizer."""
        self._following.close()

    def _after_step(self, every: int) -> None:
        self._steps += 1
        now = time.perf_counter()
        if self._budget.allows(now, self._steps) and self._steps % every == 0:
            self.look()
            self._budget.spend(time.perf_counter() - now)

    def _warn(self, groups: list[dict[str, Any]]) -> None:
        known = {(sign.name, sign.group) for sign in self.signs}
        for watch, group, found in zip(self._watches, self._optimizer.param_groups, groups, strict=True):
            for sign in watch.signs(group, found):
                if (sign.name, sign.group) not in known:
                    self.signs.append(sign)
                    warnings.warn(str(sign), stacklevel=2)


class DelayedRows:
    """Monitors optimizers, and keeps what there is to log until the trainer is done with the step.

    Diagnostics belong to the end of an optimizer step, when gradients and learning rate are still those of the step.
    Trainers count that step, and log, a little later.
    """

    def __init__(self, optimizers: Iterable[Any], every: int, share: float) -> None:
        found = [optimizer for optimizer in map(unwrapped, optimizers) if isinstance(optimizer, AdEMAMix)]
        if not found:
            raise ValueError("the trainer has no AdEMAMix to follow: its optimizer must be an ademamix.AdEMAMix")
        self._rows: list[dict[str, float]] = []
        names = ["ademamix"] if len(found) == 1 else [f"ademamix-{number}" for number in range(len(found))]
        self._monitors = [
            Monitor(optimizer, lambda values, step: self._rows.append(values), every=every, share=share, prefix=name)
            for optimizer, name in zip(found, names, strict=True)
        ]

    def take(self) -> dict[str, float]:
        """Return what there is to log, and forget it."""
        rows, self._rows = self._rows, []
        return {name: value for row in rows for name, value in row.items()}

    def close(self) -> None:
        """Stop following."""
        for monitor in self._monitors:
            monitor.close()


def unwrapped(optimizer: Any) -> Any:
    """Return the optimizer under the wrappers of trainers, which keep it in `optimizer`."""
    while not isinstance(optimizer, AdEMAMix) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


class Budget:
    """Tells when something may be done that must not take more than a share of the time.

    It costs what it cost the last time, or at first as much as a step of the run.

    >>> budget = Budget(share=0.01)
    >>> next(step for step in range(1, 2000) if budget.allows(now=step, steps=step))  # a step takes a second
    101
    >>> budget.spend(5.0)
    >>> next(step for step in range(102, 2000) if budget.allows(now=step, steps=step))
    1001
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._begun: float | None = None
        self._spent = 0.0
        self._cost: float | None = None

    def allows(self, now: float, steps: int) -> bool:
        """Tell whether it may be done at the time `now`, after so many steps; the first call begins the run."""
        if self._share == math.inf:
            return True
        if self._begun is None:
            self._begun = now
            return False
        elapsed = now - self._begun
        cost = elapsed / (steps - 1) if self._cost is None else self._cost
        return self._spent + cost <= self._share * elapsed

    def spend(self, seconds: float) -> None:
        """Take note of what it took."""
        self._spent += seconds
        self._cost = seconds


def sender(log: Any) -> Send:
    """Return a function that sends values to `log`, which is any of what :class:`Monitor` takes."""
    if log is None:
        return lambda values, step: None
    if hasattr(log, "add_scalar"):

        def to_tensorboard(values: Mapping[str, float], step: int) -> None:
            for name, value in values.items():
                log.add_scalar(name, value, step)

        return to_tensorboard
    if hasattr(log, "define_metric"):
        return _WandbRows(log).send
    if not callable(log):
        raise TypeError(
            f"log must be a SummaryWriter, a run of wandb or a function of (values, step), got {type(log).__name__}"
        )
    send: Send = log
    return send


class _WandbRows:
    """Sends rows to Weights & Biases over a step of their own, without moving the step that the loop logs with."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._left_open_at: int | None = None

    def send(self, values: Mapping[str, float], step: int) -> None:
        """Add a row that the next one of the loop completes."""
        if self._left_open_at is None:
            name = next(iter(values)).partition("/")[0]
            self._axis = f"{name}/step"
            self._run.define_metric(f"{name}/*", step_metric=self._axis)
        elif self._run.step == self._left_open_at:  # the loop logs nothing: this row would overwrite the last one
            self._run.log({}, commit=True)
        self._left_open_at = self._run.step
        self._run.log({**values, self._axis: step}, commit=False)
