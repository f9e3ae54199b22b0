"""Carrying out the trials of a study: each of several threads takes the next one, until there is none.

A trial is an ordinary run, which `runner` has carried out here or on a cluster. A run that is kept is read and not
trained. While one trains, its validation losses are written to the study; if they are worse than the median of the
finished trials at the same step, it is pruned: the run is stopped and saved, and another begins.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.trial import TrialState

from ademamix.lab.config import Run
from ademamix.lab.execution.display import Display
from ademamix.lab.execution.interrupt import Interrupted, asked_to_stop
from ademamix.lab.execution.laboratory import Lab
from ademamix.lab.execution.options import Options, Progress
from ademamix.lab.execution.runner import Status, run_all
from ademamix.lab.runs import environment
from ademamix.lab.runs.record import Result, RunError, RunFolder
from ademamix.lab.settings import changed
from ademamix.lab.sweep.space import described
from ademamix.lab.sweep.study import SURPLUS, Book, storage_explained

PRUNE_AFTER = 3
"""Trials are pruned after a third of their steps: before, a high learning rate or a large alpha only looks bad."""
FIRST_TRIALS = 5  # that are not pruned: the median of fewer says little
FAILURES_IN_A_ROW = 3  # of this worker, after which something is wrong with more than a trial
POLL = 1.0  # seconds between looks at the trials of other workers, when there is nothing to do


def median_pruner(base: Run) -> optuna.pruners.BasePruner:
    """Return the rule that stops trials whose best validation loss so far is above the median at the same step."""
    return optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS, n_warmup_steps=base.steps // PRUNE_AFTER)


def carry_out(book: Book, lab: Lab, title: str) -> None:
    """Carry out trials until none is left, here or with another worker; on Ctrl-C they are saved and queued again."""
    processes, devices = lab.at_once, lab.carrier.devices(lab.options.device)
    with storage_explained(book.address), warnings.catch_warnings(), asked_to_stop() as stop:
        warnings.simplefilter("ignore")  # runs warn in their own processes; threads cannot each have filters here
        with Display(title, processes) as display:
            crew = _Crew(book, lab, display, stop)
            with ThreadPoolExecutor(processes) as threads:
                members = [threads.submit(crew.work, devices[number % len(devices)]) for number in range(processes)]
            for member in members:
                member.result()
        if stop.is_set():
            raise Interrupted(saved=crew.saved)


@dataclass
class _Record:
    """The validation losses of a trial's run, written to the study."""

    trial: optuna.Trial
    folder: RunFolder
    book: Book
    written: set[int] = field(default_factory=set)
    latest: Progress | None = None

    def has_grown(self, progress: Progress) -> bool:
        """Write what is new, and say whether anything was."""
        before, self.latest = self.latest, progress
        if before is not None and before.validation_loss == progress.validation_loss:
            return False
        return self.write()

    def write(self) -> bool:
        """Write all losses that the run has recorded; from its file, since progress may have skipped some."""
        self.book.check_data((self.folder.read_json(environment.FILE) or {}).get("data", ""))
        losses = {row["step"]: row.get("validation_loss", math.nan) for row in self.folder.metrics()}
        new = {step: loss for step, loss in losses.items() if step not in self.written and math.isfinite(loss)}
        for step, loss in new.items():
            self.trial.report(loss, step)
        self.written |= set(new)
        return bool(new)


class _Stopped(Exception):
    """This worker was asked to stop."""


class _Hopeless(Exception):
    """A trial failed in a way that others would as well."""


class _Crew:
    """What the threads of a worker share."""

    def __init__(self, book: Book, lab: Lab, display: Display, stop: threading.Event) -> None:
        self._book, self._lab, self._display, self._stop = book, lab, display, stop
        self._lock = threading.Lock()
        self._statuses: dict[str, Status] = {}
        self._waiting = 0
        self._failures = 0
        self._lowest = math.inf
        self.saved = False

    def work(self, device: str) -> None:
        """Take one trial after another."""
        options = replace(self._lab.options, device=device)
        try:
            while not self._stop.is_set():
                if self._book.count(TrialState.WAITING):
                    with contextlib.suppress(UpdateFinishedTrialError):  # this worker was taken for dead, and lives
                        self._book.study.optimize(
                            lambda trial: self._loss(trial, options), n_trials=1, catch=(RunError,)
                        )
                elif self._book.count(TrialState.RUNNING):
                    self._book.take_over()
                    self._stop.wait(POLL)
                else:
                    return
        except _Stopped:
            return
        except _Hopeless as hopeless:
            self._stop.set()
            raise RunError(str(hopeless)) from None
        except BaseException:
            self._stop.set()
            raise

    def _loss(self, trial: optuna.Trial, options: Options) -> float:
        """Carry out a trial; the loss of one that diverged is infinite, higher than any other."""
        if self._book.is_surplus(trial.number):
            trial.set_user_attr(SURPLUS, True)
            raise optuna.TrialPruned
        point = self._book.plan.space.suggested(trial)
        run = changed(self._book.plan.base, **point)
        for name, value in {"run": run.key, "worker": f"{socket.gethostname()}:{os.getpid()}"}.items():
            trial.set_user_attr(name, value)
        name = f"trial {self._book.number(trial.number)} {described(point)}"
        self._waiting = self._book.count(TrialState.WAITING)
        try:
            result = self._carried_out(name, run, trial, options)
        except optuna.TrialPruned:
            self._tell(name, "pruned: worse than the median of the finished trials")
            raise
        except RunError as error:
            self._failed(trial, name, error)
            raise
        except UpdateFinishedTrialError:
            raise
        except BaseException:
            with contextlib.suppress(StorageInternalError):  # then it is found dead later
                self._book.give_back(trial.number)
            raise
        self._failures = 0
        loss = math.inf if result.diverged else result.validation_loss
        if self._is_best(loss):
            self._tell(name, "the best so far", keep=True)
        return loss

    def _carried_out(self, name: str, run: Run, trial: optuna.Trial, options: Options) -> Result:
        record = _Record(trial, RunFolder(options.runs, run), self._book)

        def watch(statuses: Mapping[str, Status]) -> None:
            status = statuses[name]
            self._show(name, status)
            if status.result is not None:
                return
            if self._stop.is_set():
                self.saved |= status.progress is not None or record.folder.has_checkpoint
                raise _Stopped
            if status.progress is not None and record.has_grown(status.progress) and trial.should_prune():
                raise optuna.TrialPruned

        lab = self._lab
        result = run_all({name: run}, options, carrier=lab.carrier, processes=1, threads=lab.threads, watch=watch)[name]
        record.write()
        return result

    def _is_best(self, loss: float) -> bool:
        """Say whether a loss is below those of all trials before, of this worker and of the others."""
        others = self._book.best()
        with self._lock:
            before = min(self._lowest, math.inf if others is None else others.loss)
            self._lowest = min(before, loss)
        return loss < before

    def _failed(self, trial: optuna.Trial, name: str, error: RunError) -> None:
        """Write down why a trial failed; if nothing shows that the next would do better, give it back and stop."""
        reason = str(error).removeprefix(f"{name}: ")
        self._failures += 1
        if self._book.best() is None or self._failures >= FAILURES_IN_A_ROW:
            self._book.give_back(trial.number)
            raise _Hopeless(f"{name}: {reason}") from error
        trial.set_user_attr("reason", reason)
        self._tell(name, f"failed: {reason}")

    def _tell(self, name: str, text: str, *, keep: bool = False) -> None:
        """Show a line about a trial, which has ended; one that has no result is not shown any longer."""
        with self._lock:
            self._statuses.setdefault(name, Status(self._book.plan.base)).notices.append(text)
            self._display(self._statuses)
            if not keep:
                del self._statuses[name]

    def _show(self, name: str, status: Status) -> None:
        with self._lock:
            self._statuses[name] = status
            queued = {f"trial {number}": Status(self._book.plan.base) for number in range(self._waiting)}
            self._display({**queued, **self._statuses})
