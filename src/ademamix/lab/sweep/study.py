"""The trials of a sweep in a database that several workers share: Optuna's, in SQLite or on a server.

All trials are queued at the start, those of a grid with their values, so that each worker takes the next one and none
is taken twice. A worker that is alive says so from time to time; the trial of one that was killed is queued again, with
the same values, and its run continues from its checkpoint. Such a retry stands for the trial that it repeats.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import Engine, event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from ademamix.lab.config import ConfigError, Run
from ademamix.lab.data import DataError
from ademamix.lab.runs.record import RunError
from ademamix.lab.sweep.space import Point, Space

Search = Literal["grid", "tpe"]
Outcome = Literal["finished", "diverged", "pruned", "failed", "running", "waiting"]

CONNECT_TIMEOUT = 5  # seconds
CONNECT_ARGUMENTS = {
    "sqlite": {"timeout": 60},  # until another process has written
    "postgresql": {"connect_timeout": CONNECT_TIMEOUT},
    "mysql": {"connect_timeout": CONNECT_TIMEOUT},
}
PATIENCE = 60  # seconds without a sign of life after which a worker is taken for dead
SIGNS_OF_LIFE = 5  # in that time
DESCRIPTION, DATA, TRIALS, SURPLUS = "ademamix_sweep", "data", "trials", "surplus"
"""Attributes: of a study what it sweeps, a hash of its data and how many trials it has; of a trial that it is one too
many, queued by two workers at the same moment."""


@dataclass(frozen=True)
class Plan:
    """What is swept, and how."""

    base: Run
    space: Space
    search: Search
    trials: int

    @property
    def description(self) -> dict[str, Any]:
        """All that trials of one study must have in common."""
        base = self.base.model_dump(mode="json", exclude_defaults=True)
        return {"run": base, "space": str(self.space), "search": self.search}

    @property
    def name(self) -> str:
        """The name of its study, unless another is stated."""
        text = json.dumps(self.description, sort_keys=True)
        return f"{self.base.optimizer.name}-{self.search}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Trial:
    """A trial, and how it ended or how far it is."""

    number: int
    point: Point
    outcome: Outcome
    loss: float
    """The last validation loss; infinite if it diverged, NaN if there is none."""
    step: int
    """Of the last validation."""
    run: str = ""
    """The key of its run."""
    worker: str = ""
    reason: str = ""
    """Why it failed."""
    attempts: int = 1


@dataclass(frozen=True)
class Book:
    """The study of a plan: who does what, and what came out."""

    plan: Plan
    study: optuna.Study
    address: str
    """Of the storage, without a password."""
    again: Callable[[optuna.Study, FrozenTrial], None]
    """Queues a trial again."""

    def trials(self) -> list[Trial]:
        """Return all trials; of one that was tried again, the last attempt."""
        attempts: dict[int, list[FrozenTrial]] = {}
        for trial in self._all():
            if SURPLUS not in trial.user_attrs:
                attempts.setdefault(_root(trial), []).append(trial)
        return [self._trial(root, tried) for root, tried in sorted(attempts.items())]

    def number(self, attempt: int) -> int:
        """Return the number of the trial that an attempt belongs to."""
        return _root(self._attempt(attempt))

    def best(self) -> Trial | None:
        """Return the trial with the lowest loss of those that finished, if any did."""
        finished = [trial for trial in self.trials() if trial.outcome == "finished"]
        return min(finished, key=lambda trial: trial.loss, default=None)

    def count(self, state: TrialState) -> int:
        """Return how many trials wait or are being carried out, by any worker."""
        return sum(trial.state == state for trial in self._all())

    def fill(self) -> None:
        """Queue the trials that are missing: all at first, more if more are wanted than before."""
        if self.plan.trials > self.study.user_attrs.get(TRIALS, 0):
            self.study.set_user_attr(TRIALS, self.plan.trials)
        queued = [_queued_values(trial) for trial in self._all() if _root(trial) == trial.number]
        if self.plan.search == "grid":
            wanted = [point for point in self.plan.space.grid() if point not in queued]
        else:
            wanted = [{}] * (self.plan.trials - len(queued))
        for point in wanted:
            self.study.enqueue_trial(point)

    def retry_failed(self) -> None:
        """Queue the trials that failed again."""
        numbers = [trial.number for trial in self.trials() if trial.outcome == "failed"]
        for trial in reversed(self._all()):  # the last attempt of each
            if trial.state == TrialState.FAIL and _root(trial) in numbers:
                numbers.remove(_root(trial))
                self.give_back(trial.number)

    def take_over(self) -> None:
        """Queue again the trials of workers that are dead."""
        optuna.storages.fail_stale_trials(self.study)

    def give_back(self, number: int) -> None:
        """Queue a trial again that this worker does not finish."""
        self.again(self.study, copy.deepcopy(self._attempt(number)))

    def is_surplus(self, number: int) -> bool:
        """Say whether a trial was queued once too often, or not at all because the queue had just become empty."""
        own = self._attempt(number)
        if _root(own) != number:
            return False
        before = [_queued_values(trial) for trial in self._all() if _root(trial) == trial.number < number]
        values = _queued_values(own)
        if values is None:
            return True
        if self.plan.search == "grid":
            return values in before
        return len(before) >= int(self.study.user_attrs.get(TRIALS, self.plan.trials))

    def check_data(self, fingerprint: str) -> None:
        """Refuse trials on other data than that of the first."""
        known = self.study.user_attrs.get(DATA)
        if known is None:
            self.study.set_user_attr(DATA, fingerprint)
        elif known != fingerprint:
            raise DataError(
                f"the data {self.plan.base.data.source!r} of this machine is not that of the other trials of "
                f"{self.study.study_name!r}, so they could not be compared: bring the same data, or begin another "
                "study with --study NAME"
            )

    def _all(self) -> list[FrozenTrial]:
        return sorted(self.study.get_trials(deepcopy=False), key=lambda trial: trial.number)

    def _attempt(self, number: int) -> FrozenTrial:
        return next(trial for trial in self._all() if trial.number == number)

    def _trial(self, root: int, attempts: list[FrozenTrial]) -> Trial:
        last = attempts[-1]
        step = last.last_step or 0
        loss = last.value if last.value is not None else last.intermediate_values.get(step, math.nan)
        attributes = last.user_attrs
        return Trial(
            number=root,
            point=self.plan.space.point(last.params or _queued_values(last) or {}),
            outcome=_outcome(last),
            loss=loss,
            step=step,
            run=attributes.get("run", ""),
            worker=attributes.get("worker", ""),
            reason=attributes.get("reason", "") if last.state == TrialState.FAIL else "",
            attempts=len(attempts),
        )


def open_book(plan: Plan, url: str, name: str, *, pruner: optuna.pruners.BasePruner, patience: int = PATIENCE) -> Book:
    """Begin the study of a plan, or join it; one of another plan is refused."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"the name of a study has letters, digits and . _ - only, got {name!r}")
    try:
        place = sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):  # the second, if the port is not a number
        raise _no_url(url) from None
    if place.drivername == "postgresql":  # the package of the extra; SQLAlchemy's default depends on its version
        place = place.set(drivername="postgresql+psycopg2")
    address = place.set(drivername=place.get_backend_name()).render_as_string()  # without the password
    with storage_explained(address), warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        optuna.logging.set_verbosity(optuna.logging.CRITICAL)  # what it would say is shown, or raised, here
        again = RetryHeartbeatStaleTrialCallback()
        storage = RDBStorage(
            place.render_as_string(hide_password=False),
            engine_kwargs={
                "connect_args": CONNECT_ARGUMENTS.get(place.get_backend_name(), {}),
                "pool_pre_ping": True,
            },
            heartbeat_interval=max(1, patience // SIGNS_OF_LIFE),
            grace_period=patience,
            heartbeat_stale_trial_callback=again,
        )
        if place.get_backend_name() == "sqlite":
            _lock_early(storage.engine)
        study = optuna.create_study(
            storage=storage,
            study_name=name,
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler() if plan.search == "tpe" else optuna.samplers.RandomSampler(),
            pruner=pruner,
        )
        _agree(study, plan)
        return Book(plan, study, address, again)


def _lock_early(engine: Engine) -> None:
    """Have every transaction lock the file when it begins: SQLite cannot lock a row, and two workers took one trial."""
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    engine.dispose()  # connections that were opened before


def _no_url(address: str) -> ConfigError:
    given = re.sub(r":[^:@/]*@", ":***@", address)  # without the password
    return ConfigError(
        f"--storage must be a URL such as postgresql://USER@HOST/DATABASE or sqlite:///FILE, got {given!r}"
    )


@contextlib.contextmanager
def storage_explained(address: str) -> Iterator[None]:
    """Say in a sentence that a storage does not answer, and what to do."""
    try:
        yield
    except (NoSuchModuleError, ArgumentError):
        raise _no_url(address) from None
    except ImportError as error:
        missing = error.__cause__ or error
        raise ConfigError(
            f"the storage {address!r} needs a package that is not installed ({missing}): for PostgreSQL, pip install "
            "'ademamix[postgresql]'"
        ) from None
    except (SQLAlchemyError, StorageInternalError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        reason = " ".join(str(getattr(cause, "orig", None) or cause or error).split())
        raise RunError(
            f"the storage {address!r} cannot be used ({reason}). Runs are intact: once it answers, the same command "
            "continues"
        ) from None


def _agree(study: optuna.Study, plan: Plan) -> None:
    """Write down what a new study sweeps; refuse one that sweeps something else."""
    known = study.user_attrs.get(DESCRIPTION)
    if known is None and study.get_trials(deepcopy=False):
        raise ConfigError(
            f"the study {study.study_name!r} is not one of ademamix sweep: choose another name with --study"
        )
    if known is None:
        study.set_user_attr(DESCRIPTION, plan.description)
    elif known != plan.description:
        raise ConfigError(
            f"the study {study.study_name!r} is another sweep, with {_difference(known, plan.description)}: repeat its "
            "options to join it, or choose another name with --study"
        )


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Say what another study has that this one has not.

    >>> _difference({"space": "lr=1,2", "run": {"steps": 10}}, {"space": "lr=1,2", "run": {"steps": 20}})
    'steps 10 and not 20'
    """
    for name in ("space", "search"):
        if theirs.get(name) != ours.get(name):
            return f"the {name} {theirs.get(name)} and not {ours.get(name)}"
    their_run, our_run = theirs["run"], ours["run"]
    names = [name for name in {**their_run, **our_run} if their_run.get(name) != our_run.get(name)]
    return ", ".join(f"{name} {their_run.get(name)} and not {our_run.get(name)}" for name in names)


def _root(trial: FrozenTrial) -> int:
    """Return the number of the trial that this one repeats, or its own."""
    return int(trial.system_attrs.get("failed_trial", trial.number))


def _queued_values(trial: FrozenTrial) -> dict[str, Any] | None:
    return trial.system_attrs.get("fixed_params")


def _outcome(trial: FrozenTrial) -> Outcome:
    if trial.state == TrialState.COMPLETE:
        return "finished" if math.isfinite(trial.value or 0.0) else "diverged"
    outcomes: dict[TrialState, Outcome] = {
        TrialState.PRUNED: "pruned",
        TrialState.FAIL: "failed",
        TrialState.RUNNING: "running",
    }
    return outcomes.get(trial.state, "waiting")
