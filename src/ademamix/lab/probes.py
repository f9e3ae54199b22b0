"""Probes observe a run, or intervene in it: callbacks of the training loop, named in the config of a run.

A probe has settings and no state. It keeps values from one step to the next in a memory, which is part of the
checkpoint, so that a run that was killed continues with it. A new probe is a class here, and its name in `Probe`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ademamix.lab.fields import Config, NotNegative, Positive

if TYPE_CHECKING:  # a config is read without torch
    from ademamix.lab.data import Batch
    from ademamix.lab.training import Training

Memory = dict[str, Any]


class _Probe(Config):
    """A probe that does nothing; others override parts of it. `training.step` is the number of steps done."""

    @property
    def first_step(self) -> int:
        """The first step, counted from 1, in which it does anything, be it to keep something for later.

        A run that has it and one that does not share the steps before.
        """
        return 1

    @property
    def first_effect(self) -> int:
        """The first step, counted from 1, that it changes or after which it records: a run must get there."""
        return self.first_step

    @property
    def forks(self) -> bool:
        """Whether a run that has it is to continue, at its first step, from one that is the same but for it.

        That is worth it if the first step may be far into the run.
        """
        return False

    @property
    def held_out_batches(self) -> int:
        """How many batches the data must hold out for it."""
        return 0

    def prepare(self, training: Training) -> None:
        """Refuse, before the first step, what could otherwise fail after hours."""

    def chosen_batch(self, training: Training, batch: Batch) -> Batch:
        """Return the batch that the coming step trains on in place of `batch`."""
        return batch

    def before_step(self, training: Training, memory: Memory) -> None:
        """Look at the run before the optimizer's step, with its gradients."""

    def after_step(self, training: Training, memory: Memory) -> dict[str, float]:
        """Look at the run after the step, and return what to record."""
        return {}


class _Regular(_Probe):
    """A probe that records after every `every` steps."""

    every: Positive

    @property
    def first_step(self) -> int:
        """The first multiple of `every`."""
        return self.every


class FollowBatch(_Regular):
    """Record the loss on a batch that was held out of the training data."""

    kind: Literal["follow-batch"]
    batch: NotNegative = 0

    @property
    def held_out_batches(self) -> int:
        """All up to its own."""
        return self.batch + 1

    def after_step(self, training: Training, memory: Memory) -> dict[str, float]:
        """Return the loss on the batch, if this step is one of those that count."""
        if training.step % self.every:
            return {}
        return {f"loss_on_batch_{self.batch}": training.loss_on(training.data.held_out(self.batch))}


class FollowTrainingBatch(_Probe):
    """Record the loss on the batch that the run trains on at `step` (counted from 1), from just before to `until`.

    Reference: figure app_forgetting of the paper.
    """

    kind: Literal["follow-training-batch"]
    step: Positive
    every: Positive = 1
    until: Positive | None = None
    """The last step that is recorded; None for the end of the run."""

    @property
    def first_step(self) -> int:
        """The step before the one that trains on the batch, if there is one."""
        return max(1, self.step - 1)

    @property
    def forks(self) -> bool:
        """It is about one step."""
        return True

    def after_step(self, training: Training, memory: Memory) -> dict[str, float]:
        """Return the loss on the batch, if this step is one of those that count."""
        since = training.step - self.first_step
        if since < 0 or since % self.every or (self.until is not None and training.step > self.until):
            return {}
        return {f"loss_on_training_batch_{self.step}": training.loss_on(training.data.batch(self.step - 1))}


class InjectBatch(_Probe):
    """Train on a batch that was held out, in place of the batch of this step (counted from 1)."""

    kind: Literal["inject-batch"]
    batch: NotNegative = 0
    step: Positive

    @property
    def first_step(self) -> int:
        """The only one that it changes."""
        return self.step

    @property
    def forks(self) -> bool:
        """It is about one step."""
        return True

    @property
    def held_out_batches(self) -> int:
        """All up to its own."""
        return self.batch + 1

    def chosen_batch(self, training: Training, batch: Batch) -> Batch:
        """Return the held-out batch at its step."""
        return training.data.held_out(self.batch) if training.step + 1 == self.step else batch


class UpdateNorms(_Probe):
    r"""Record, after every `span` steps, the norm of the change of the parameters over these steps.

    .. math:: \|\theta^{(t+n)} - \theta^{(t)}\|_2

    Here n is the span, and t is every multiple of it. Weight decay is included. A copy of the parameters is kept in
    between.

    Reference: the paper's appendix, "Miscellaneous results", figure exploding-norm (a), with n = 1000.
    """

    kind: Literal["update-norms"]
    span: Positive = 1000

    @property
    def first_effect(self) -> int:
        """The end of the first span, which begins with the run."""
        return self.span

    def before_step(self, training: Training, memory: Memory) -> None:
        """Keep the parameters, if a span begins here."""
        if training.step % self.span == 0:
            memory["origin"] = [parameter.detach().clone() for parameter in training.model.parameters()]

    def after_step(self, training: Training, memory: Memory) -> dict[str, float]:
        """Return the norm of the change, if a span ends here."""
        if training.step % self.span:
            return {}
        from torch.nn.utils import get_total_norm

        from ademamix.lab.distribution import replicas

        changes = [
            parameter.detach().float() - replicas.like(parameter, origin).float()
            for parameter, origin in zip(training.model.parameters(), memory["origin"], strict=True)
        ]
        return {f"norm_of_{self.span}_updates": replicas.whole(get_total_norm(changes)).item()}


class TrainingLoss(_Regular):
    """Record the mean loss on a fixed part of the training examples, measured as the validation loss is.

    The two can then be compared; the loss of the steps is one of augmented images, with dropout.
    """

    kind: Literal["training-loss"]
    examples: Positive
    """How many, spread evenly over all; all, if there are fewer."""

    def after_step(self, training: Training, memory: Memory) -> dict[str, float]:
        """Return the loss, if this step is one of those that count."""
        return {} if training.step % self.every else {"training_loss": training.training_loss(self.examples)}


class Evaluate(_Regular):
    """Record the share of right answers in tasks of lm-eval, after every `every` steps and after the last.

    The tasks are lm-eval's by name, and those of :mod:`ademamix.lab.evaluation`.

    Reference: the paper's appendix, "In-Context Learning (ICL) results".
    """

    kind: Literal["evaluate"]
    tasks: Annotated[tuple[str, ...], Field(min_length=1)]

    def prepare(self, training: Training) -> None:
        """Load the tasks: a name may be wrong, a data set or lm-eval itself missing."""
        from ademamix.lab import evaluation

        evaluation.load(self.tasks, training.data)

    def after_step(self, training: Training, memory: Memory) -> dict[str, float]:
        """Return the accuracies, if this step is one of those that count."""
        if training.step % self.every and training.step != training.config.steps:
            return {}
        from ademamix.lab import evaluation

        found = evaluation.accuracies(training.logits, training.data, self.tasks, batch=training.validation_chunk)
        return {evaluation.metric(task): accuracy for task, accuracy in found.items()}


Probe = Annotated[
    FollowBatch | FollowTrainingBatch | InjectBatch | UpdateNorms | TrainingLoss | Evaluate, Field(discriminator="kind")
]
"""Every probe that a config can name."""


def memory_of(kept: Any) -> Memory:
    """Return a probe's memory from a checkpoint; version 0.1 kept the parameters of `UpdateNorms` bare.

    >>> memory_of({"origin": []}), memory_of(None), memory_of([])
    ({'origin': []}, {}, {'origin': []})
    """
    return kept if isinstance(kept, dict) else {} if kept is None else {"origin": kept}
