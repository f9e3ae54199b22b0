"""A model in training: what a step does, and what there is to know of the model in between.

Nothing random is carried from one step to the next: the batch, dropout and stochastic rounding of a step are functions
of the run's config and the step. So parameters, optimizer state and the step are all that a checkpoint needs.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ademamix.lab import probes
from ademamix.lab.config import ConfigError, Phase, Run
from ademamix.lab.data import Batch, Dataset
from ademamix.lab.distribution import replicas
from ademamix.lab.distribution.process_group import ALONE, Group
from ademamix.lab.distribution.whole_dropout import WholeBatchDropout
from ademamix.lab.execution.options import LOGITS_BYTES
from ademamix.lab.models import networks
from ademamix.lab.optimizers import construction, transitions
from ademamix.lab.optimizers.learning_rate import learning_rate

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BYTES_PER_LOGIT = 16  # in bf16 and fp32, its logarithmic probability, and both gradients
VALIDATION_CHUNK = 32  # examples at once; more are no faster
VALIDATION_LOGITS = 1 << 27  # or as many examples as have so many logits, half a gigabyte


class Training:
    """A model in training: all that changes during a run.

    The processes of a `group` have a part of each batch each, and all methods are called on all of them. They have
    copies of the model or, with `shard`, parts of it.
    """

    def __init__(
        self,
        config: Run,
        dataset: Dataset,
        device: str,
        logits_bytes: int = LOGITS_BYTES,
        *,
        group: Group = ALONE,
        shard: bool = False,
    ) -> None:
        self.config, self.data, self._device, self.group = config, dataset, torch.device(device), group
        self.step = 0
        self.seconds = 0.0
        self._memories: list[probes.Memory] = [{} for _ in config.probes]
        torch.manual_seed(config.seed)
        self.model = networks.build_model(config.model, dataset.outputs)
        nn.Module.to(self.model, self._device, networks.DTYPES[config.parameters])
        self._parts = parts_of_a_batch(config, dataset.outputs, logits_bytes, group.count)
        self._averaging: nn.Module = self.model  # the module to call where gradients follow
        if group.count > 1 and shard:
            replicas.shard(self.model)
        elif group.count > 1:
            self._averaging = replicas.copied(self.model)
            self._settle()
        self._parameters = list(self.model.parameters())
        self.optimizer = construction.build(
            config.optimizer, networks.parameter_groups(self.model), total_steps=config.steps
        )
        self._peak, self._schedule = config.optimizer.lr, config.schedule
        self._loss_sum = torch.zeros((), device=self._device)
        # depends only on the model and the data: with another size the loss would be rounded differently
        per_example = networks.logits_per_example(config.model, dataset.outputs)
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
        for number, part in enumerate(_split(batch, self._parts), start=1):
            with replicas.averages(self._averaging, now=number == self._parts):
                loss = self._loss(part) / self._parts
                loss.backward()
            self._loss_sum += self.group.mean(loss.detach())
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
                row["gradient_norm"] = replicas.whole(norm).item()
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
        own: list[tuple[int, float, int]] = []  # of each batch: examples, the sum of their losses, right answers
        self.model.eval()
        for batch, is_own in self.group.taken_in_turns(batches):
            batch = self._placed(batch)
            with torch.no_grad(), self._autocast():
                logits = networks.logits(self.model, batch.inputs)
                loss = len(batch.inputs) * networks.cross_entropy(logits, batch.targets).item()
            images = self.config.data.kind == "images"
            right = int((logits.argmax(-1) == batch.targets).sum()) if images else 0
            if is_own:
                own.append((len(batch.inputs), loss, right))
        found = [each for of_process in self.group.gathered(own) for each in of_process]
        examples = sum(count for count, _, _ in found)
        row = {"loss": math.fsum(loss for _, loss, _ in found) / examples}  # exact, so in any order
        if self.config.data.kind == "images":
            row["accuracy"] = sum(right for _, _, right in found) / examples
        return row

    def loss_on(self, batch: Batch) -> float:
        """Return the loss on a batch, as in validation."""
        self.model.eval()
        with torch.no_grad():
            own = math.fsum(self._loss(part).item() for part in _split(batch, self._parts)) / self._parts
        return float(self.group.mean(own))

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits of inputs, as in validation."""
        self.model.eval()
        with torch.no_grad(), self._autocast():
            return networks.logits(self.model, inputs.to(self._device))

    def state_dict(self) -> dict[str, Any]:
        """Return all that a checkpoint needs, on process 0: whole tensors."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "loss_sum": self._loss_sum,
            "seconds": self.seconds,
            "probes": self._memories,
        }
        return state if self.group.count == 1 else dict(replicas.whole(state, keep=self.group.is_first))

    def whole_model(self) -> PreTrainedModel:
        """Return the model as one process has it, on process 0."""
        if self._averaging is not self.model or self.group.count == 1:
            return self.model
        state = replicas.whole(self.model.state_dict(), keep=self.group.is_first)
        model = networks.build_model(self.config.model, self.data.outputs)
        nn.Module.to(model, dtype=networks.DTYPES[self.config.parameters])
        if self.group.is_first:
            model.load_state_dict(state)
        return model

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        for phase in self.config.phases:
            if phase.step < state["step"]:
                self._begin(phase)
        replicas.load_model(self.model, state["model"])
        replicas.load_optimizer(self.optimizer, state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        self._loss_sum = state["loss_sum"]
        self._memories = [probes.memory_of(kept) for kept in state["probes"]]

    def _settle(self) -> None:
        """Let DDP see a backward pass, after which it lays out its buffers anew.

        How the sum over processes is rounded depends on that: a run that continues would otherwise take its first step
        with other roundings than one that was never stopped.
        """
        self._loss(next(_split(self.data.batch(0), self._parts))).backward()
        self.model.zero_grad()

    def _loss(self, batch: Batch) -> torch.Tensor:
        """Return the mean loss on this process's part of a batch."""
        batch = self._placed(self.group.own(batch))
        model = self._averaging if self.model.training else self.model
        with self._autocast(), self._dropout():
            return networks.cross_entropy(networks.logits(model, batch.inputs), batch.targets)

    def _begin(self, phase: Phase) -> None:
        if phase.optimizer is not None:
            groups = networks.parameter_groups(self.model)
            self.optimizer = transitions.switch(
                self.optimizer, phase.optimizer, groups, step=phase.step, steps=self.config.steps
            )
            self._peak = phase.optimizer.lr
        if phase.schedule is not None:
            self._schedule = phase.schedule

    def _placed(self, batch: Batch) -> Batch:
        inputs, targets = batch.inputs.to(self._device), batch.targets.to(self._device)
        if inputs.is_floating_point():
            inputs = inputs.to(networks.DTYPES[self.config.parameters])
        return Batch(inputs, targets)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self.config.autocast)

    def _dropout(self) -> contextlib.AbstractContextManager[object]:
        drops = self.model.training and self.group.count > 1 and _drops(self.config)
        return WholeBatchDropout(self.group) if drops else contextlib.nullcontext()


def parts_of_a_batch(config: Run, outputs: int, logits_bytes: int, processes: int = 1) -> int:
    """Return the number of equal parts in which to process a batch, so that the logits of one fit into `logits_bytes`.

    Logits take the most memory of a batch: batch x context x vocabulary, 16 bytes each. Each part is divided among the
    processes. Parts change the numbers of a run by rounding alone. A model with dropout, which would drop other
    elements, is not divided further than its config says.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> from ademamix.lab.models import PRESETS
    >>> large = DEFAULT.model_copy(update={"model": PRESETS["gpt-1.3b"], "batch": 128})
    >>> parts_of_a_batch(large, 32_000, LOGITS_BYTES), parts_of_a_batch(DEFAULT, 256, LOGITS_BYTES)
    (16, 1)
    """
    divided = processes * (config.accumulate if _drops(config) else 1)
    if config.batch % divided:
        raise ConfigError(
            f"a batch of {config.batch} cannot be divided among {processes} processes"
            + (f" in {config.accumulate} parts (--accumulate), which dropout must keep" if divided > processes else "")
            + f": give a --batch that is a multiple of {divided}, or start another number of processes"
        )
    if _drops(config):
        return config.accumulate
    own = config.batch // processes
    fit = max(1, logits_bytes // (BYTES_PER_LOGIT * networks.logits_per_example(config.model, outputs)))
    enough = range(-(-config.accumulate // processes), own + 1)
    return next(parts for parts in enough if own % parts == 0 and own // parts <= fit)


def _drops(config: Run) -> bool:
    return bool(getattr(config.model, "dropout", 0.0))  # not every model has it


def _split(batch: Batch, parts: int) -> Iterator[Batch]:
    for inputs, targets in zip(batch.inputs.chunk(parts), batch.targets.chunk(parts), strict=True):
        yield Batch(inputs, targets)
