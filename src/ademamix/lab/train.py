"""Carrying out a run: the training loop, with its records and checkpoints.

In a group of processes, all of them take the same way through this module. Process 0 alone writes.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ademamix.lab import data
from ademamix.lab.config import ConfigError, Run
from ademamix.lab.data import DataError, Dataset, OnRead
from ademamix.lab.distribution import process_group
from ademamix.lab.distribution.process_group import FailedTogether
from ademamix.lab.execution.interrupt import Interrupted, asked_to_stop
from ademamix.lab.execution.options import Options, Progress
from ademamix.lab.execution.pace import Pace, Saves
from ademamix.lab.models import networks
from ademamix.lab.optimizers.memory import state_bytes
from ademamix.lab.runs import environment, sinks
from ademamix.lab.runs.beginnings import Beginnings
from ademamix.lab.runs.record import Result, RunError, RunFolder
from ademamix.lab.training import Training

__all__ = ["Broken", "Lost", "Options", "Progress", "assist", "train"]

MISTAKES = (ConfigError, DataError, RunError)
"""Errors that end a run, not the command, if other runs are to continue without it."""


class Broken(RunError):
    """A run of several processes has failed on one of them alone: they cannot carry out another together."""


class Lost(Broken):
    """Another process of the group is gone."""

    def __init__(self) -> None:
        super().__init__(
            "another process of this run has ended, and it cannot continue without. The same command continues from "
            "the last checkpoint; with `torchrun --max-restarts N`, torchrun gives it by itself"
        )


def train(
    config: Run,
    options: Options,
    *,
    keep_at: Collection[int] = (),
    report: Callable[[Progress], None] = lambda progress: None,
    on_wait: Callable[[], None] | None = None,
    on_read: OnRead = lambda count, wanted: None,
) -> Result:
    """Carry a run to its end, from where it stands, and return its result; a finished run is not trained again.

    After the steps `keep_at` its state is kept for other runs that begin in the same way. If another has done so
    before, this run continues from there. In a group of processes this is for process 0; the others :func:`assist`.
    """
    folder = RunFolder(options.runs, config)
    if (result := folder.result()) is not None:
        environment.check_kept([folder], options.data)
        return result
    with folder.locked(on_wait=on_wait):
        if (result := folder.result()) is not None:  # the process that held the folder has finished the run
            return result
        with _failures_explained():
            process_group.current().announce((config, options, frozenset(keep_at), torch.get_num_threads()))
        return _carry_out(config, options, _Watch(report, frozenset(keep_at), on_read))


def assist() -> None:
    """Take part in the runs that process 0 of this group carries out, until there are no more."""
    with _failures_explained():
        while (task := process_group.current().awaited()) is not None:
            config, options, keep_at, threads = task
            torch.set_num_threads(threads)
            with contextlib.suppress(FailedTogether):
                _carry_out(config, options, _Watch(keep_at=keep_at))


class _Watch(NamedTuple):
    """What others want from a run while it is trained."""

    report: Callable[[Progress], None] = lambda progress: None
    keep_at: frozenset[int] = frozenset()
    on_read: OnRead = lambda count, wanted: None


def _carry_out(config: Run, options: Options, watch: _Watch) -> Result:
    group, folder = process_group.current(), RunFolder(options.runs, config)
    device = process_group.device_of(options.device)
    with _failures_explained():
        dataset = group.in_turn(lambda: _loaded(config, options, folder, watch.on_read), *MISTAKES)
        training = group.agreed(
            lambda: Training(config, dataset, device, options.logits_bytes, group=group, shard=options.shard), *MISTAKES
        )
        state, rows = group.in_turn(lambda: _where_it_stands(config, dataset, folder, options), *MISTAKES)
        if state is not None:
            training.load_state_dict(state)
        group.agreed(functools.partial(_check_same_start, group.gathered(training.step), folder), *MISTAKES)
    with (
        _failures_explained(alone=group.count > 1),
        _recorded(training, folder, options, rows) as recorders,
        asked_to_stop() as stop,
    ):
        result = _loop(training, folder, options, recorders, watch, stop)
        model = training.whole_model()
        if group.is_first:
            folder.finish(result, lambda path: networks.save(model, path))
    return result


def _loaded(config: Run, options: Options, folder: RunFolder, on_read: OnRead) -> Dataset:
    dataset = data.load(
        config.data, model=config.model, batch=config.batch, seed=config.seed, cache=options.data, on_read=on_read
    )
    environment.check_data(folder, dataset.fingerprint)
    return dataset


def _where_it_stands(
    config: Run, dataset: Dataset, folder: RunFolder, options: Options
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the state to continue from, if there is one, and what was recorded before it left the path of another."""
    device = process_group.device_of(options.device)
    if (saved := folder.load_checkpoint(device)) is not None:
        return saved[1], []
    if found := Beginnings(options.beginnings).load(config, dataset.fingerprint, device):
        return found.state, found.rows
    return None, []


def _check_same_start(steps: Sequence[int], folder: RunFolder) -> None:
    if len(set(steps)) > 1:
        raise RunError(
            f"the processes each find a different checkpoint in {str(folder.path)!r}, after the steps "
            f"{', '.join(map(str, steps))}: give a folder that all machines share (--out DIR)"
        )


@contextlib.contextmanager
def _recorded(
    training: Training, folder: RunFolder, options: Options, rows: Sequence[dict[str, Any]]
) -> Iterator[list[sinks.Sink]]:
    """Give the functions that record a row, after they have recorded `rows`; none on processes that do not write."""
    if not training.group.is_first:
        yield []
        return
    step = 0 if rows else training.step
    environment.describe(folder, training.data.fingerprint, step=training.step, device=options.device)
    folder.keep_metrics_until(step)
    with folder.open_metrics() as append, sinks.opened(folder, step, options.wandb) as sink:
        for row in rows:
            append(row)
            sink(row)
        yield [append, sink]


@contextlib.contextmanager
def _failures_explained(*, alone: bool = False) -> Iterator[None]:
    """If there is not enough memory, or another process is gone, say what to do; say if this process fails `alone`."""
    try:
        yield
    except MISTAKES as error:
        if alone and not isinstance(error, Broken):
            raise Broken(str(error)) from error
        raise
    except (MemoryError, RuntimeError) as error:  # torch has a class only for CUDA
        if process_group.current().count > 1 and process_group.is_loss(error):
            raise Lost from error
        if isinstance(error, RuntimeError) and not re.search("out of memory|can't allocate memory", str(error)):
            raise
        reason = str(error).partition("\n")[0] or "for Python itself"
        # no other process may know of it: they may be waiting for this one
        raise (Broken if process_group.current().count > 1 else RunError)(
            f"there is not enough memory ({reason}): give a smaller model or batch, or have each batch processed in "
            "more parts (--logits-memory GIB, below the default of 4)"
        ) from error


def _loop(
    training: Training,
    folder: RunFolder,
    options: Options,
    recorders: Sequence[Callable[[dict[str, float]], None]],
    watch: _Watch,
    stop: threading.Event,
) -> Result:
    config, group = training.config, training.group
    latest: dict[str, float] = {}
    for row in folder.metrics():
        latest |= row
    pace, saves = Pace(config), Saves(every=options.save_every, share=options.save_share)
    diverged = False
    while training.step < config.steps:
        with pace.measured("step"):
            row = training.advance()
        if training.step % config.validate_every == 0 or training.step == config.steps:
            with pace.measured("validation"):
                row |= training.validate()
        diverged = not math.isfinite(row.get("loss", 0.0) + row.get("validation_loss", 0.0))
        if row:
            latest |= {name: value for name, value in row.items() if math.isfinite(value)}
            for record in recorders:
                record({"step": training.step, **row})
            times = pace.steps_per_second, pace.seconds_left(training.step)
            watch.report(Progress(training.step, latest.get("loss"), latest.get("validation_loss"), *times))
        if diverged:
            break  # not saved: continuing from here would only diverge again
        if training.step in watch.keep_at:
            state = training.state_dict()
            if group.is_first:
                with folder.explained("keep the first steps of"):
                    Beginnings(options.beginnings).save(config, training.data.fingerprint, state, folder.metrics())
        stopping, due = group.any(stop.is_set(), group.is_first and saves.due)
        if stopping or due:
            with saves.measured(), pace.measured("save"):
                state = training.state_dict()
                if group.is_first:
                    folder.save_checkpoint(training.step, state)
        if stopping:
            raise Interrupted(saved=True)
    return Result(
        steps=training.step,
        validation_loss=latest.get("validation_loss", math.nan),
        accuracy=latest.get("accuracy"),
        seconds=training.seconds,
        parameters=sum(parameter.numel() for parameter in training.model.parameters()),
        state_bytes=state_bytes(training.optimizer),
        diverged=diverged,
    )
