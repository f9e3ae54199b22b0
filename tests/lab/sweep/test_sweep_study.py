"""The trials of a sweep in a database: queued once, taken once, and never lost."""

from __future__ import annotations

import math
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from ademamix.lab.config import ConfigError
from ademamix.lab.data import DataError
from ademamix.lab.runs.record import RunError
from ademamix.lab.sweep import study
from ademamix.lab.sweep.space import space
from ademamix.lab.sweep.study import Book, Plan, open_book
from lab_runs import TINY

GRID = Plan(TINY, space(["lr=1e-3,2e-3", "alpha=2,4"]), "grid", 4)
ADAPTIVE = Plan(TINY, space(["lr=1e-3..1e-2", "alpha=2,4"]), "tpe", 3)


def joined(folder: Path, plan: Plan = GRID, name: str = "rates", **options: Any) -> Book:
    return open_book(plan, f"sqlite:///{folder}/studies.db", name, pruner=optuna.pruners.NopPruner(), **options)


def take(book: Book, loss: float) -> dict[str, Any]:
    """Carry out the next trial in no time."""
    points = []

    def objective(trial: optuna.Trial) -> float:
        points.append(book.plan.space.suggested(trial))
        return loss

    book.study.optimize(objective, n_trials=1)
    return points[0]


@pytest.mark.parametrize("plan", [GRID, ADAPTIVE], ids=["grid", "tpe"])
def test_trials_are_queued_once(plan: Plan, tmp_path: Path) -> None:
    for _ in range(2):
        joined(tmp_path, plan).fill()
    assert [trial.outcome for trial in joined(tmp_path, plan).trials()] == ["waiting"] * plan.trials


def test_each_worker_takes_the_next_trial(tmp_path: Path) -> None:
    first, second = joined(tmp_path), joined(tmp_path)
    first.fill()
    taken = [take(book, loss) for book, loss in ((first, 3.0), (second, 1.0), (second, math.inf), (first, 2.0))]
    assert taken == [{"lr": lr, "alpha": alpha} for lr in (1e-3, 2e-3) for alpha in (2, 4)]
    assert [trial.outcome for trial in first.trials()] == ["finished", "finished", "diverged", "finished"]
    best = second.best()
    assert best is not None
    assert (best.number, best.loss, best.point) == (1, 1.0, {"lr": 1e-3, "alpha": 4})


def test_an_adaptive_search_can_be_made_longer(tmp_path: Path) -> None:
    joined(tmp_path, ADAPTIVE).fill()
    longer = Plan(ADAPTIVE.base, ADAPTIVE.space, "tpe", 5)
    joined(tmp_path, longer).fill()
    joined(tmp_path, ADAPTIVE).fill()
    assert len(joined(tmp_path, ADAPTIVE).trials()) == 5
    assert longer.name == ADAPTIVE.name


def test_what_two_workers_queue_at_the_same_moment_counts_once(tmp_path: Path) -> None:
    for plan, name, values in ((GRID, "grid", next(GRID.space.grid())), (ADAPTIVE, "tpe", {})):
        book = joined(tmp_path, plan, name)
        book.fill()
        book.study.enqueue_trial(values)
        assert not any(map(book.is_surplus, range(plan.trials)))
        assert book.is_surplus(plan.trials)


def test_a_trial_that_is_given_back_waits_again_with_the_same_values(tmp_path: Path) -> None:
    book = joined(tmp_path, ADAPTIVE)
    book.fill()
    points = []

    def interrupted(trial: optuna.Trial) -> float:
        points.append(book.plan.space.suggested(trial))
        book.give_back(trial.number)
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            book.study.optimize(interrupted, n_trials=1)
    tried = {trial.number: (trial.outcome, trial.point, trial.attempts) for trial in book.trials()}
    assert tried[0] == ("waiting", points[0], 2)
    assert tried[1] == ("waiting", points[1], 2)
    assert book.number(3) == 0
    while book.count(TrialState.WAITING):
        points.append(take(book, 1.0))
    assert points[0] in points[2:]
    assert points[1] in points[2:]
    assert len(book.trials()) == 3
    assert {trial.outcome for trial in book.trials()} == {"finished"}


def test_the_trial_of_a_silent_worker_is_taken_over(tmp_path: Path) -> None:
    book = joined(tmp_path, patience=1)
    book.fill()
    with pytest.warns(UserWarning, match="Heartbeat"):
        lost = book.study.ask()
    book.study._storage.record_heartbeat(lost._trial_id)  # its last
    assert (book.count(TrialState.RUNNING), book.count(TrialState.WAITING)) == (1, 3)
    end = time.monotonic() + 30
    while book.count(TrialState.RUNNING):
        assert time.monotonic() < end
        with pytest.warns(optuna.exceptions.ExperimentalWarning):
            book.take_over()
        time.sleep(0.2)
    assert [(trial.number, trial.outcome) for trial in book.trials()] == [(number, "waiting") for number in range(4)]
    assert len({str(take(book, 1.0)) for _ in range(4)}) == 4


def test_failed_trials_can_be_tried_again(tmp_path: Path) -> None:
    book = joined(tmp_path)
    book.fill()

    def failing(trial: optuna.Trial) -> float:
        trial.set_user_attr("reason", "no memory")
        raise RunError("no memory")

    book.study.optimize(failing, n_trials=1, catch=(RunError,))
    assert next((trial.outcome, trial.reason) for trial in book.trials()) == ("failed", "no memory")
    book.retry_failed()
    assert next((trial.outcome, trial.reason) for trial in book.trials()) == ("waiting", "")
    assert len(book.trials()) == 4


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (Plan(TINY, space(["lr=1e-3,3e-3", "alpha=2,4"]), "grid", 4), "the space lr=0.001,0.002 alpha=2,4 and not lr="),
        (Plan(TINY.changed(steps=48), GRID.space, "grid", 4), "steps 24 and not 48"),
        (Plan(TINY.changed(seed=1), GRID.space, "grid", 4), "seed None and not 1"),
        (Plan(TINY, GRID.space, "tpe", 4), "the search grid and not tpe"),
    ],
)
def test_a_study_of_another_sweep_is_refused(other: Plan, difference: str, tmp_path: Path) -> None:
    joined(tmp_path)
    with pytest.raises(ConfigError, match="the study 'rates' is another sweep, with ") as refused:
        joined(tmp_path, other)
    assert difference in str(refused.value)
    assert other.name != GRID.name
    joined(tmp_path, other, "another-name")


def test_a_study_of_another_program_is_refused(tmp_path: Path) -> None:
    foreign = optuna.create_study(storage=f"sqlite:///{tmp_path}/studies.db", study_name="rates")
    foreign.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    with pytest.raises(ConfigError, match="the study 'rates' is not one of ademamix sweep"):
        joined(tmp_path)


def test_trials_on_other_data_are_refused(tmp_path: Path) -> None:
    joined(tmp_path).check_data("0123")
    joined(tmp_path).check_data("0123")
    with pytest.raises(DataError, match="is not that of the other trials of 'rates'"):
        joined(tmp_path).check_data("4567")


def test_a_storage_that_nobody_answers_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(study.CONNECT_ARGUMENTS, "postgresql", {"connect_timeout": 2})
    assert study.CONNECT_TIMEOUT <= 10
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        closed = socket.create_server(("127.0.0.1", 0))
        ports = [silent.getsockname()[1], closed.getsockname()[1]]
        closed.close()
        for port in ports:
            url = f"postgresql://user:secret@127.0.0.1:{port}/trials"
            with pytest.raises(RunError, match="cannot be used") as refused:
                open_book(GRID, url, "rates", pruner=optuna.pruners.NopPruner())
            assert "secret" not in str(refused.value)
            assert f"127.0.0.1:{port}/trials" in str(refused.value)


@pytest.mark.parametrize("url", ["nonsense", "oracle-of-delphi://here/there", "://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--storage must be a URL such as postgresql://"):
        open_book(GRID, url, "rates", pruner=optuna.pruners.NopPruner())


def test_a_url_that_cannot_be_read_is_repeated_without_its_password() -> None:
    with pytest.raises(ConfigError) as refused:
        open_book(GRID, "postgresql://user:secret@127.0.0.1:no/trials", "rates", pruner=optuna.pruners.NopPruner())
    assert "user:***@127.0.0.1:no" in str(refused.value)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(
        ConfigError, match=r"needs a package that is not installed.*pip install 'ademamix\[postgresql\]'"
    ):
        open_book(GRID, "postgresql://user@127.0.0.1/trials", "rates", pruner=optuna.pruners.NopPruner())


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "two words"])
def test_names_of_studies_are_names_of_folders(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the name of a study has letters"):
        joined(tmp_path, name=name)


def test_workers_at_once_take_different_trials(tmp_path: Path) -> None:
    many = Plan(TINY, space([f"batch={','.join(map(str, range(1, 41)))}"]), "grid", 40)
    joined(tmp_path, many).fill()
    books = [joined(tmp_path, many) for _ in range(2)]  # of two processes, with four threads each

    taken: list[int] = []

    def objective(trial: optuna.Trial) -> float:
        taken.append(trial.number)
        return 1.0

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: books[number % 2].study.optimize(objective, n_trials=5), range(8)))
    assert sorted(taken) == list(range(40))
