"""The steps of two runs in turns. No test asserts a time."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from ademamix.lab.bench import runs_in_turns
from ademamix.lab.bench.runs_in_turns import WARM_UP, measure
from ademamix.lab.config import Optimizer
from ademamix.lab.training import Training
from lab_runs import TINY, changed

ADAMW = changed(TINY, optimizer=Optimizer(name="adamw", lr=1e-2))
ROUNDS = 5


def test_both_take_all_steps_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    class Watched(Training):
        def advance(self) -> dict[str, float]:
            taken.append((self.config.optimizer.name, self.step, torch.get_num_threads(), gc.isenabled()))
            return super().advance()

    monkeypatch.setattr(runs_in_turns, "Training", Watched)
    threads = torch.get_num_threads()
    costs = measure(ADAMW, TINY, ROUNDS, tmp_path)
    rounds = [sorted(taken[start : start + 2]) for start in range(0, len(taken), 2)]
    assert rounds == [[(name, step, 1, False) for name in ("adamw", "ademamix")] for step in range(WARM_UP + ROUNDS)]
    assert len({name for name, *_ in taken[::2]}) == 2  # neither is always the first
    assert torch.get_num_threads() == threads
    assert gc.isenabled()
    assert all(cost.seconds > 0 for cost in costs)
    assert costs.added == costs.second.seconds / costs.first.seconds - 1


def test_the_fastest_parts_count_and_the_first_steps_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {  # of the optimizer and of the rest, after steps that were faster
        "adamw": [*[(0.1, 0.1)] * WARM_UP, (3.0, 30.0), (2.0, 40.0), (4.0, 10.0)],
        "ademamix": [*[(0.1, 0.1)] * WARM_UP, (9.0, 8.0), (8.0, 20.0), (5.0, 30.0)],
    }

    class Given(runs_in_turns._Watch):
        def take_step(self) -> None:
            optimizer, rest = times[self.training.config.optimizer.name][len(self.rest)]
            self.optimizer.append(optimizer)
            self.rest.append(rest)

    monkeypatch.setattr(runs_in_turns, "_Watch", Given)
    costs = measure(ADAMW, TINY, 3, tmp_path)
    assert [cost.seconds for cost in costs] == [8.0 + 2.0, 8.0 + 5.0]
    assert costs.added == pytest.approx(0.3)


def test_a_step_is_the_optimizer_and_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))  # each look at it takes a second: around the step, and around the optimizer in it
    monkeypatch.setattr(runs_in_turns.time, "process_time", lambda: float(next(clock)))
    assert [cost.seconds for cost in measure(ADAMW, TINY, 1, tmp_path)] == [3.0, 3.0]


def test_failure_leaves_everything_as_it_was(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    beyond = changed(ADAMW, steps=4, schedule={"kind": "cosine", "warmup": 1}, validate_every=2)
    with pytest.raises(ValueError, match="a batch of 1000000 windows"):
        measure(changed(beyond, batch=1_000_000), TINY, ROUNDS, tmp_path)
    assert torch.get_num_threads() == threads
    assert gc.isenabled()
