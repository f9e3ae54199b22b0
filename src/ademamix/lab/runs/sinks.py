"""Where a run's metrics go besides its own file: TensorBoard always, Weights & Biases if asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch.utils.tensorboard import SummaryWriter

from ademamix.lab.runs.record import RunError, RunFolder

Sink = Callable[[dict[str, float]], None]


@contextlib.contextmanager
def opened(folder: RunFolder, step: int, wandb_project: str | None) -> Iterator[Sink]:
    """Give a function that forwards a row; rows sent after `step`, where the run continues, are replaced."""
    with contextlib.ExitStack() as stack:
        sinks = [stack.enter_context(_tensorboard(folder, step))]
        if wandb_project is not None:
            sinks.append(stack.enter_context(_wandb(folder, wandb_project)))

        def send(row: dict[str, float]) -> None:
            for sink in sinks:
                sink(row)

        yield send


@contextlib.contextmanager
def _tensorboard(folder: RunFolder, step: int) -> Iterator[Sink]:
    with folder.explained("write to"):
        writer = SummaryWriter(str(folder.path / "tensorboard"), purge_step=step + 1)

    def send(row: dict[str, float]) -> None:
        with folder.explained("write to"):
            for name, value in row.items():
                if name != "step":
                    writer.add_scalar(name, value, int(row["step"]))

    try:
        yield send
    finally:
        with folder.explained("write to"):
            writer.close()


@contextlib.contextmanager
def _wandb(folder: RunFolder, project: str) -> Iterator[Sink]:
    try:
        import wandb
    except ModuleNotFoundError as error:
        if error.name != "wandb":
            raise
        raise RunError("--wandb needs the package wandb, which is not installed: pip install wandb") from None
    config = folder.config
    name = f"{config.optimizer.described} seed={config.seed}"
    with wandb.init(
        project=project,
        id=config.key,
        resume="allow",
        name=name,
        config=config.model_dump(mode="json"),
        dir=folder.path,
    ) as run:

        def send(row: dict[str, float]) -> None:
            # if a run continues from before its last row, W&B drops the rows that it already has: they are the same
            run.log({name: value for name, value in row.items() if name != "step"}, step=int(row["step"]))

        yield send
