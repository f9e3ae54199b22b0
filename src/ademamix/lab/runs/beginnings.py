"""Runs that begin alike: their first steps are trained once.

A run is deterministic, so its state after t steps is that of every run whose first t steps are the same. One that
changes at a step (another optimizer or schedule, an injected batch, the start of a decay) can continue from there. The
state is kept in a folder that is named by a hash of everything that decides those steps.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from ademamix.lab.config import FORMAT, ConstantThenLinear, Optimizer, Run
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.runs import checkpoints

if TYPE_CHECKING:
    import torch


def fork_steps(run: Run) -> list[int]:
    """Return after which steps a run may leave the path that it shares with others, the last first.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> fork_steps(DEFAULT.then(5000, Optimizer(name="ademamix", lr=4e-3)))
    [5000]
    """
    steps = {phase.step for phase in run.phases}
    steps |= {probe.first_step - 1 for probe in run.probes if probe.forks}
    if isinstance(run.schedule, ConstantThenLinear) and run.schedule.decay:
        steps.add(run.steps - run.schedule.decay)
    return sorted(steps - {0}, reverse=True)


def key(run: Run, step: int) -> str:
    """Return a hash of all that decides the first `step` steps of a run and their records.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> switched = DEFAULT.then(5000, Optimizer(name="ademamix", lr=4e-3))
    >>> key(switched, 5000) == key(DEFAULT, 5000), key(switched, 5001) == key(DEFAULT, 5001)
    (True, False)
    """
    phases = tuple(phase for phase in run.phases if phase.step < step)
    probes = tuple(probe for probe in run.probes if probe.first_step <= step)
    fields = run.model_copy(update={"phases": phases, "probes": probes}).model_dump(mode="json", exclude_defaults=True)
    schedules = [run.schedule, *(phase.schedule for phase in phases if phase.schedule is not None)]
    constant = all(isinstance(each, ConstantThenLinear) and step <= run.steps - each.decay for each in schedules)
    optimizers = [run.optimizer, *(phase.optimizer for phase in phases if phase.optimizer is not None)]
    if constant:
        for part in (fields, *fields.get("phases", [])):
            part["schedule"] = {name: part["schedule"][name] for name in ("kind", "warmup") if name in part["schedule"]}
    if constant and not any(map(_follows_length, optimizers)):
        del fields["steps"]
    text = json.dumps({"format": FORMAT, "steps of the beginning": step, **fields}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _follows_length(optimizer: Optimizer) -> bool:
    return OPTIMIZERS[optimizer.name].has_schedules and "total_steps" not in optimizer.settings


@dataclass(frozen=True)
class Beginning:
    """The state of a run after its first steps, and the records of those."""

    state: dict[str, Any]
    rows: list[dict[str, Any]]


class Beginnings:
    """The beginnings that are kept in a folder.

    >>> import tempfile
    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> switched = DEFAULT.then(5000, Optimizer(name="ademamix", lr=4e-3))
    >>> with tempfile.TemporaryDirectory() as root:
    ...     kept = Beginnings(Path(root))
    ...     kept.save(DEFAULT, "data", {"step": 5000, "probes": []}, rows=[])
    ...     kept.load(switched, "data").state["step"]
    5000
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def has(self, run: Run, step: int) -> bool:
        """Tell whether the first `step` steps of a run are kept."""
        return checkpoints.any_in(self._root / key(run, step))

    def save(self, run: Run, data: str, state: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep the state that a run on the data of this fingerprint is in, and the rows recorded until now."""
        content = {
            "state": dict(state),
            "rows": [dict(row) for row in rows],
            "probes": [probe.model_dump_json() for probe in run.probes],
            "data": data,
        }
        folder = self._root / key(run, state["step"])
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):  # another command may have trained the same steps
            if not checkpoints.any_in(folder):
                checkpoints.save(folder, state["step"], content)

    def load(self, run: Run, data: str, device: torch.device | str = "cpu") -> Beginning | None:
        """Return the longest beginning that is kept of a run; probes that have not acted in it start afresh."""
        for step in fork_steps(run):
            found = checkpoints.load(self._root / key(run, step), device)
            if found is None or found[1]["data"] != data:
                continue
            content = found[1]
            memories = dict(zip(content["probes"], content["state"]["probes"], strict=True))
            own = [memories.get(probe.model_dump_json()) for probe in run.probes]
            return Beginning({**content["state"], "probes": own}, content["rows"])
        return None


class Plan:
    """Which of several unfinished runs leave a beginning to the others, and which wait for one.

    Of runs that begin alike, the one that leaves the common path last goes first, wherever it stands among `runs`.
    """

    def __init__(self, runs: Mapping[str, Run], kept: Beginnings) -> None:
        self._runs, self._kept = runs, kept
        self._wanted = {name: {step: key(run, step) for step in fork_steps(run)} for name, run in runs.items()}
        self._order = {name: place for place, name in enumerate(sorted(runs, key=self._forks, reverse=True))}
        self._begins = {name: self._kept_steps(name) for name in runs}
        self._keys: dict[tuple[str, int], str] = {}

    def to_keep(self, name: str) -> list[int]:
        """Return after which steps a run is to keep its state, since others begin in the same way."""
        return sorted(
            {
                step
                for other, wanted in self._wanted.items()
                for step, wanted_key in wanted.items()
                if other != name and self._leaves(name, step, wanted_key)
            }
        )

    def shared_steps(self, name: str) -> int:
        """Return how many of its first steps a run need not train, since they are kept or a run before it leaves them.

        >>> from ademamix.lab.comparison.defaults import DEFAULT
        >>> runs = {"AdamW": DEFAULT, "switched": DEFAULT.then(5000, Optimizer(name="ademamix", lr=4e-3))}
        >>> plan = Plan(runs, Beginnings(Path("nowhere")))
        >>> plan.shared_steps("AdamW"), plan.shared_steps("switched")
        (0, 5000)
        """
        before = [other for other in self._runs if self._order[other] < self._order[name]]
        left = (
            step
            for step, wanted_key in self._wanted[name].items()
            if any(self._leaves(other, step, wanted_key) for other in before)
        )
        return max(self._begins[name], next(left, 0))

    def waits(self, name: str, unfinished: Collection[str]) -> bool:
        """Tell whether a run that comes before this one will leave it a beginning, but has not yet.

        >>> from ademamix.lab.comparison.defaults import DEFAULT
        >>> runs = {"AdamW": DEFAULT, "switched": DEFAULT.then(5000, Optimizer(name="ademamix", lr=4e-3))}
        >>> plan = Plan(runs, Beginnings(Path("nowhere")))
        >>> plan.to_keep("AdamW"), plan.waits("switched", unfinished=runs), plan.waits("switched", unfinished=())
        ([5000], True, False)
        """
        for step, wanted_key in self._wanted[name].items():
            if self._kept.has(self._runs[name], step):
                return False
            before = (other for other in unfinished if self._order[other] < self._order[name])
            if any(self._leaves(other, step, wanted_key) for other in before):
                return True
        return False

    def _forks(self, name: str) -> list[float]:
        """Return after which steps a run may leave a path, the first first, and that it stays on the last one."""
        return [*sorted(self._wanted[name]), math.inf]

    def _kept_steps(self, name: str) -> int:
        """Return how many first steps of a run are kept."""
        return next((step for step in self._wanted[name] if self._kept.has(self._runs[name], step)), 0)

    def _leaves(self, name: str, step: int, wanted_key: str) -> bool:
        if not self._begins[name] < step < self._runs[name].steps:
            return False
        if (name, step) not in self._keys:  # asked for again and again while runs are in progress
            self._keys[name, step] = key(self._runs[name], step)
        return self._keys[name, step] == wanted_key
