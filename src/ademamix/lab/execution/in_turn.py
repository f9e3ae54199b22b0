"""Several runs, one after another in this process; those of a group of processes carry out each together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ademamix.lab.config import Run
from ademamix.lab.execution import notices
from ademamix.lab.execution.options import Options, Progress
from ademamix.lab.execution.runner import Status
from ademamix.lab.optimizers import transitions
from ademamix.lab.runs import beginnings, environment
from ademamix.lab.runs.record import Result, RunError, RunFolder
from ademamix.lab.train import MISTAKES, Broken, train


def carried_out(status: Status, options: Options, show: Callable[[], None], *, keep_at: Collection[int] = ()) -> Result:
    """Carry out a run; its status is kept up to date, and `show()` is called when that has changed."""

    def note(
        *, progress: Progress | None = None, waits: bool = False, read: tuple[int, int | None] | None = None
    ) -> None:
        status.progress, status.waits, status.read = progress, waits, read
        show()

    def notice(text: str) -> None:
        status.notices.append(text)
        show()

    with notices.told(notice):
        return train(
            status.config,
            options,
            keep_at=keep_at,
            report=lambda progress: note(progress=progress),
            on_wait=lambda: note(waits=True),
            on_read=lambda count, wanted: note(read=(count, wanted)),
        )


def run_in_turn(
    runs: Mapping[str, Run],
    options: Options,
    *,
    kept: Mapping[str, Result],
    watch: Callable[[Mapping[str, Status]], None],
    keep_going: bool = False,
) -> dict[str, Result]:
    """Carry out all runs that are not finished, and return the results by name, as :func:`.runner.run_all` does."""
    folders = {name: RunFolder(options.runs, config) for name, config in runs.items()}
    statuses = {name: Status(config, result=kept.get(name)) for name, config in runs.items()}
    waiting = {name: status.config for name, status in statuses.items() if status.result is None}
    for config in waiting.values():
        transitions.check(config)
    environment.check_kept((folders[name] for name in kept), options.data)
    plan = beginnings.Plan(waiting, beginnings.Beginnings(options.beginnings))
    while waiting:
        name = next(each for each in waiting if not plan.waits(each, waiting))
        status = statuses[name]
        try:
            status.result = carried_out(status, options, lambda: watch(statuses), keep_at=plan.to_keep(name))
        except Broken as error:
            raise RunError(f"{name}: {error}") from error
        except MISTAKES as error:
            if not keep_going:
                raise RunError(f"{name}: {error}") from error
            status.failure = str(error)
            status.notices.append(f"failed: {error}")
        del waiting[name]
        environment.check_same_data(folders.values())
        watch(statuses)
    return {name: status.result for name, status in statuses.items() if status.result is not None}
