"""The training loop: batch, loss, backward, clip, step, record.

Nothing random is carried from one step to the next: the batch, dropout and stochastic rounding of a step are functions
of the run's config and the step. So parameters, optimizer state and the step are all that a checkpoint needs.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ademamix.lab import data, models, probes
from ademamix.lab.config import Phase, Run
from ademamix.lab.data import Batch, Dataset, OnRead
from ademamix.lab.learning_rate import learning_rate
from ademamix.lab.optimizers import construction, transitions
from ademamix.lab.optimizers.memory import state_bytes
from ademamix.lab.runs import environment, sinks
from ademamix.lab.runs.beginnings import Beginnings
from ademamix.lab.runs.execution import LOGITS_BYTES, Options, Progress
from ademamix.lab.runs.interrupt import Interrupted, asked_to_stop
from ademamix.lab.runs.pace import Pace, Saves
from ademamix.lab.runs.record import Result, RunError, RunFolder

__all__ = ["Options", "Progress", "Training", "train"]

BYTES_PER_LOGIT = 16  # in bf16 and fp32, its logarithmic probability, and both gradients
VALIDATION_CHUNK = 32  # examples at once; more are no faster
VALIDATION_LOGITS = 1 << 27  # or as many examples as have so many logits, half a gigabyte


class Training:
    """A model in training: all that changes during a run."""

    def __init__(self, config: Run, dataset: Dataset, device: str, logits_bytes: int = LOGITS_BYTES) -> None:
        self.config, self.data, self._device = config, dataset, torch.device(device)
        self.step = 0
        self.seconds = 0.0
        self._memories: list[probes.Memory] = [{} for _ in config.probes]
        torch.manual_seed(config.seed)
        self.model = models.build_model(config.model, dataset.outputs)
        nn.Module.to(self.model, self._device, models.DTYPES[config.parameters])
        self._parameters = list(self.model.parameters())
        self.optimizer = construction.build(
            config.optimizer, models.parameter_groups(self.model), total_steps=config.steps
        )
        self._peak, self._schedule = config.optimizer.lr, config.schedule
        self._loss_sum = torch.zeros((), device=self._device)
        self._parts = parts_of_a_batch(config, dataset.outputs, logits_bytes)
        # depends only on the model and the data: with another size the loss would be rounded differently
        per_example = models.logits_per_example(config.model, dataset.outputs)
        self.validation_chunk = max(1, min(VALIDATION_CHUNK, VALIDATION_LOGITS // per_example))
        for probe in config.probes:
            probe.prepare(self)

    def advance(self) -> dict[str, float]:
        """Take a step, and return what there is to record after it."""
        config = self.config
        start = time.perf_counter()
        for phase in config.phases:
            if phase.step == self.step:
                self._begin(phase)
        batch = self.data.batch(self.step)
        for probe in config.probes:
            batch = probe.chosen_batch(self, batch)
        self.seed_step()
        if not self.model.training:  # the call visits every module
            self.model.train()
        for part in _split(batch, self._parts):
            loss = self._loss(part) / self._parts
            loss.backward()
            self._loss_sum += loss.detach()
        norm = None if config.clip is None else torch.nn.utils.clip_grad_norm_(self._parameters, config.clip)
        rate = learning_rate(self._schedule, self._peak, self.step + 1, config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for probe, memory in zip(config.probes, self._memories, strict=True):
            probe.before_step(self, memory)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        row = {}
        if self.step % config.record_every == 0:
            row = {"loss": self._loss_sum.item() / config.record_every, "lr": rate}
            if norm is not None:
                row["gradient_norm"] = norm.item()
            self._loss_sum.zero_()
        self.seconds += time.perf_counter() - start
        for probe, memory in zip(config.probes, self._memories, strict=True):
            row |= probe.after_step(self, memory)
        return row

    def seed_step(self) -> None:
        """Make the dropout of the coming step a function of the seed and the step."""
        # mixed, since torch's generator on CPU drops all but the lowest 32 bits of its seed
        seed = int(np.random.SeedSequence([self.config.seed, self.step]).generate_state(1, np.uint64)[0])
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 0.8 ms, for devices that are not there
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def validate(self) -> dict[str, float]:
        """Return the mean loss on the validation split and, for images, the share of right answers."""
        found = self._evaluated(self.data.validation(self.config.validation_examples, chunk=self.validation_chunk))
        return {"validation_loss": found.pop("loss"), **found}

    def training_loss(self, examples: int) -> float:
        """Return the mean loss on so many training examples, as in validation: neither augmented nor with dropout."""
        return self._evaluated(self.data.training(examples, chunk=self.validation_chunk))["loss"]

    def _evaluated(self, batches: Iterator[Batch]) -> dict[str, float]:
        losses, right, examples = [], 0, 0
        self.model.eval()
        for batch in batches:
            batch = self._placed(batch)
            with torch.no_grad(), self._autocast():
                logits = models.logits(self.model, batch.inputs)
                losses.append(len(batch.inputs) * models.cross_entropy(logits, batch.targets).item())
            examples += len(batch.inputs)
            if self.config.data.kind == "images":
                right += int((logits.argmax(-1) == batch.targets).sum())
        row = {"loss": math.fsum(losses) / examples}
        return row | {"accuracy": right / examples} if self.config.data.kind == "images" else row

    def loss_on(self, batch: Batch) -> float:
        """Return the loss on a batch, as in validation."""
        self.model.eval()
        with torch.no_grad():
            return math.fsum(self._loss(part).item() for part in _split(batch, self._parts)) / self._parts

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits of inputs, as in validation."""
        self.model.eval()
        with torch.no_grad(), self._autocast():
            return models.logits(self.model, inputs.to(self._device))

    def state_dict(self) -> dict[str, Any]:
        """Return all that a checkpoint needs."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "loss_sum": self._loss_sum,
            "seconds": self.seconds,
            "probes": self._memories,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        for phase in self.config.phases:
            if phase.step < state["step"]:
                self._begin(phase)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        self._loss_sum = state["loss_sum"]
        self._memories = [probes.memory_of(kept) for kept in state["probes"]]

    def _loss(self, batch: Batch) -> torch.Tensor:
        batch = self._placed(batch)
        with self._autocast():
            return models.cross_entropy(models.logits(self.model, batch.inputs), batch.targets)

    def _begin(self, phase: Phase) -> None:
        if phase.optimizer is not None:
            groups = models.parameter_groups(self.model)
            self.optimizer = transitions.switch(
                self.optimizer, phase.optimizer, groups, step=phase.step, steps=self.config.steps
            )
            self._peak = phase.optimizer.lr
        if phase.schedule is not None:
            self._schedule = phase.schedule

    def _placed(self, batch: Batch) -> Batch:
        inputs, targets = batch.inputs.to(self._device), batch.targets.to(self._device)
        if inputs.is_floating_point():
            inputs = inputs.to(models.DTYPES[self.config.parameters])
        return Batch(inputs, targets)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self.config.autocast)


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
    before, this run continues from there.
    """
    folder = RunFolder(options.runs, config)
    if (result := folder.result()) is not None:
        environment.check_kept([folder], options.data)
        return result
    with folder.locked(on_wait=on_wait):
        if (result := folder.result()) is not None:  # the process that held the folder has finished the run
            return result
        dataset = data.load(
            config.data,
            model=config.model,
            batch=config.batch,
            seed=config.seed,
            cache=options.data,
            on_read=on_read,
        )
        environment.check_data(folder, dataset.fingerprint)
        with _memory_explained():
            return _carry_out(config, dataset, folder, options, _Watch(report, frozenset(keep_at)))


class _Watch(NamedTuple):
    """What others want from a run while it is trained."""

    report: Callable[[Progress], None]
    keep_at: frozenset[int]


def _carry_out(config: Run, dataset: Dataset, folder: RunFolder, options: Options, watch: _Watch) -> Result:
    training = Training(config, dataset, options.device, options.logits_bytes)
    rows: list[dict[str, Any]] = []  # recorded before this run left the path of another
    if (saved := folder.load_checkpoint(options.device)) is not None:
        training.load_state_dict(saved[1])
    elif found := Beginnings(options.beginnings).load(config, dataset.fingerprint, options.device):
        training.load_state_dict(found.state)
        rows = found.rows
    environment.describe(folder, dataset.fingerprint, step=training.step, device=options.device)
    folder.keep_metrics_until(0 if rows else training.step)
    with (
        folder.open_metrics() as append,
        sinks.opened(folder, 0 if rows else training.step, options.wandb) as sink,
        asked_to_stop() as stop,
    ):
        for row in rows:
            append(row)
            sink(row)
        result = _loop(training, folder, options, [append, sink], watch, stop)
        folder.finish(result, lambda path: models.save(training.model, path))
    return result


@contextlib.contextmanager
def _memory_explained() -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch has a class only for CUDA
        if isinstance(error, RuntimeError) and not re.search("out of memory|can't allocate memory", str(error)):
            raise
        reason = str(error).partition("\n")[0] or "for Python itself"
        raise RunError(
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
    config = training.config
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
            with folder.explained("keep the first steps of"):
                Beginnings(options.beginnings).save(
                    config, training.data.fingerprint, training.state_dict(), folder.metrics()
                )
        if stop.is_set() or saves.due:
            with saves.measured(), pace.measured("save"):
                folder.save_checkpoint(training.step, training.state_dict())
        if stop.is_set():
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


def parts_of_a_batch(config: Run, outputs: int, logits_bytes: int) -> int:
    """Return the number of equal parts in which to process a batch, so that the logits of one fit into `logits_bytes`.

    Logits take the most memory of a batch: batch x context x vocabulary, 16 bytes each. Parts change the numbers of a
    run by rounding alone. A model with dropout, which would drop other elements, is not divided further than its config
    says.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> from ademamix.lab.presets import PRESETS
    >>> large = DEFAULT.model_copy(update={"model": PRESETS["gpt-1.3b"], "batch": 128})
    >>> parts_of_a_batch(large, 32_000, LOGITS_BYTES), parts_of_a_batch(DEFAULT, 256, LOGITS_BYTES)
    (16, 1)
    """
    if getattr(config.model, "dropout", 0.0):  # not every model has it
        return config.accumulate
    fit = max(1, logits_bytes // (BYTES_PER_LOGIT * models.logits_per_example(config.model, outputs)))
    enough = range(config.accumulate, config.batch + 1)
    return next(parts for parts in enough if config.batch % parts == 0 and config.batch // parts <= fit)


def _split(batch: Batch, parts: int) -> Iterator[Batch]:
    for inputs, targets in zip(batch.inputs.chunk(parts), batch.targets.chunk(parts), strict=True):
        yield Batch(inputs, targets)
