"""Runs that begin alike: first steps are trained once, and what follows has the bits of a run trained on its own."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from ademamix.lab.config import ConstantThenLinear, Optimizer, Run, Text
from ademamix.lab.execution.options import Options
from ademamix.lab.execution.runner import Status, run_all
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.optimizers.construction import constructor
from ademamix.lab.runs import beginnings
from ademamix.lab.runs.beginnings import Beginnings, Plan
from ademamix.lab.train import train
from lab_runs import DOCS, TINY, changed, outcome

ADAMW = changed(TINY, optimizer=Optimizer(name="adamw", lr=1e-2))
ADEMAMIX = Optimizer(name="ademamix", lr=5e-3)
LINEAR = ConstantThenLinear(kind="constant", warmup=4, decay=6)
FOLLOW = {"kind": "follow-batch", "every": 5}
HELD_OUT = {"data": Text(kind="text", source=DOCS, held_out_batches=1)}

TRUNKS_AND_BRANCHES: dict[str, tuple[Run, Run]] = {
    "another optimizer": (ADAMW, ADAMW.then(12, ADEMAMIX)),
    "another beta1": (ADAMW, ADAMW.then(12, Optimizer(name="adamw", lr=1e-2, settings={"betas": [0.99, 0.999]}))),
    "a beta1 that rises": (
        ADAMW,
        ADAMW.then(12, Optimizer(name="adamw-scheduled-beta1", lr=1e-2, settings={"betas": [0.999, 0.999]})),
    ),
    "back to AdamW": (TINY, TINY.then(12, Optimizer(name="adamw", lr=1e-2))),
    "other settings": (TINY, TINY.then(12, Optimizer(name="ademamix", lr=1e-2, settings={"alpha": 2.0}))),
    "another schedule": (ADAMW, ADAMW.then(12, schedule=LINEAR)),
    "a decay": (
        changed(ADAMW, schedule=ConstantThenLinear(kind="constant", warmup=4)),
        changed(ADAMW, schedule=LINEAR, steps=18),
    ),
    "a batch put in": (
        changed(TINY, **HELD_OUT, probes=[FOLLOW]),
        changed(TINY, **HELD_OUT, probes=[FOLLOW, {"kind": "inject-batch", "step": 13}]),
    ),
    "a batch followed": (TINY, changed(TINY, probes=[{"kind": "follow-training-batch", "step": 14, "every": 2}])),
    "a probe that remembers": (
        changed(ADAMW, probes=[{"kind": "update-norms", "span": 9}]),
        changed(ADAMW.then(12, ADEMAMIX), probes=[{"kind": "update-norms", "span": 9}]),
    ),
}


@pytest.mark.parametrize("name", TRUNKS_AND_BRANCHES)
def test_a_branch_has_the_bits_of_a_run_trained_on_its_own(name: str, tmp_path: Path) -> None:
    trunk, branch = TRUNKS_AND_BRANCHES[name]
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    train(branch, Options(alone))
    plan = Plan({"trunk": trunk, "branch": branch}, Beginnings(shared / "beginnings"))
    assert plan.to_keep("trunk") == [12]
    train(trunk, Options(shared), keep_at=plan.to_keep("trunk"))
    assert Beginnings(shared / "beginnings").has(branch, 12)
    reports: list[int] = []
    train(branch, Options(shared), report=lambda progress: reports.append(progress.step))
    assert min(reports) > 12, "its first steps were trained again"
    assert outcome(branch, shared) == outcome(branch, alone)


@pytest.mark.usefixtures("quick_workers")
def test_runs_at_once_train_what_they_share_once(tmp_path: Path) -> None:
    runs = {
        "AdamW": ADAMW,
        "from 8": ADAMW.then(8, ADEMAMIX),
        "from 16": ADAMW.then(16, ADEMAMIX),
        "other seed": changed(ADAMW, seed=1),
    }
    torch.set_num_threads(1)  # as those of `run_all` have: sums over several threads are rounded differently
    first: dict[str, int] = {}

    def watch(statuses: Any) -> None:
        for name, status in statuses.items():
            if isinstance(status, Status) and status.progress is not None:
                first.setdefault(name, status.progress.step)

    results = run_all(runs, Options(tmp_path), processes=2, watch=watch)
    assert set(results) == set(runs)
    assert first["from 8"] > 8
    assert first["from 16"] > 16
    for name in ("from 8", "from 16"):
        train(runs[name], Options(tmp_path / "alone"))
        assert outcome(runs[name], tmp_path) == outcome(runs[name], tmp_path / "alone")


def _switched(*steps: int) -> dict[str, Run]:
    return {f"from {step}": ADAMW.then(step, ADEMAMIX) for step in steps}


@pytest.mark.parametrize("order", list(itertools.permutations((4, 8, 12))))
def test_of_runs_that_begin_alike_the_last_to_change_goes_first(order: tuple[int, ...], tmp_path: Path) -> None:
    runs = _switched(*order)  # the run that never changes is finished, and gone
    plan = Plan(runs, Beginnings(tmp_path))
    assert {name: plan.shared_steps(name) for name in runs} == {"from 4": 4, "from 8": 8, "from 12": 0}
    assert plan.to_keep("from 12") == [4, 8]
    assert [name for name in runs if not plan.waits(name, runs)] == ["from 12"]


def test_runs_that_change_several_times_share_as_many_steps_as_they_can(tmp_path: Path) -> None:
    twice = {f"from 4 and {step}": ADAMW.then(4, ADEMAMIX).then(step, ADAMW.optimizer) for step in (8, 12)}
    runs = {**twice, **_switched(6, 4), "AdamW": ADAMW}
    plan = Plan(runs, Beginnings(tmp_path))
    shared = {name: plan.shared_steps(name) for name in runs}
    assert shared == {"from 4 and 8": 8, "from 4 and 12": 12, "from 6": 6, "from 4": 4, "AdamW": 0}


def test_a_run_that_continues_from_a_later_step_leaves_no_earlier_one(tmp_path: Path) -> None:
    kept, runs = Beginnings(tmp_path), _switched(12, 4, 8)
    kept.save(ADAMW, "data", {"step": 12, "probes": []}, rows=[])
    plan = Plan(runs, kept)
    assert {name: plan.shared_steps(name) for name in runs} == {"from 12": 12, "from 8": 0, "from 4": 4}
    assert (plan.to_keep("from 12"), plan.to_keep("from 8")) == ([], [4])
    assert [name for name in runs if not plan.waits(name, runs)] == ["from 12", "from 8"]


def test_a_probe_that_keeps_something_from_the_start_takes_no_beginning_without_it(tmp_path: Path) -> None:
    branch = changed(ADAMW.then(12, ADEMAMIX), probes=[{"kind": "update-norms", "span": 20}])
    train(branch, Options(tmp_path / "alone"))
    train(ADAMW, Options(tmp_path), keep_at=[12])
    train(branch, Options(tmp_path))
    assert outcome(branch, tmp_path) == outcome(branch, tmp_path / "alone")


def test_a_branch_survives_a_damaged_beginning_and_other_data(tmp_path: Path) -> None:
    branch = ADAMW.then(12, ADEMAMIX)
    train(branch, Options(tmp_path / "alone"))
    train(ADAMW, Options(tmp_path), keep_at=[12])
    kept = Beginnings(tmp_path / "beginnings")
    assert kept.load(branch, "other data") is None
    (file,) = (tmp_path / "beginnings").rglob("*.pt")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="is damaged"), pytest.warns(UserWarning, match="starts again from step 0"):
        train(branch, Options(tmp_path))
    assert outcome(branch, tmp_path) == outcome(branch, tmp_path / "alone")


def _constant(**fields: Any) -> Run:
    return changed(ADAMW, schedule=ConstantThenLinear(kind="constant", warmup=4), **fields)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (ADAMW, changed(ADAMW, seed=1), False),
        (ADAMW, changed(ADAMW, steps=48), False),  # a cosine depends on the length
        (_constant(), _constant(steps=48), True),
        (_constant(optimizer=ADEMAMIX), _constant(optimizer=ADEMAMIX, steps=48), False),  # so do alpha and beta3
        (
            _constant(optimizer=Optimizer(name="ademamix", lr=1e-2, settings={"total_steps": 20})),
            _constant(optimizer=Optimizer(name="ademamix", lr=1e-2, settings={"total_steps": 20}), steps=48),
            True,
        ),
        (ADAMW, ADAMW.then(12, ADEMAMIX), True),
        (ADAMW, ADAMW.then(11, ADEMAMIX), False),
        (ADAMW, changed(ADAMW, probes=[{"kind": "follow-training-batch", "step": 13}]), False),
        (ADAMW, changed(ADAMW, probes=[{"kind": "update-norms", "span": 20}]), False),
        (ADAMW, changed(ADAMW, record_every=8), False),
    ],
)
def test_beginnings_are_the_same_only_if_all_that_decides_them_is(one: Run, other: Run, same: bool) -> None:
    assert (beginnings.key(one, 12) == beginnings.key(other, 12)) is same


def test_optimizers_that_follow_the_length_of_a_run_are_known() -> None:
    takers = {name for name in OPTIMIZERS if "total_steps" in inspect.signature(constructor(name)).parameters}
    assert takers == {name for name, row in OPTIMIZERS.items() if row.has_schedules}
