"""What can look into a run, or step into it: callbacks of the training loop.

What a probe keeps from one step to the next is in the checkpoint, so that a run that was killed continues with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ademamix.lab import config
from ademamix.lab.data import Batch

if TYPE_CHECKING:
    from ademamix.lab.train import Training


class Probe(Protocol):
    """Called around each step; `training.step` is the number of steps done."""

    def batch(self, training: Training, batch: Batch) -> Batch:
        """Return what the coming step trains on."""
        ...

    def before(self, training: Training) -> Any:
        """Look at the run before the optimizer's step, with its gradients; what this returns goes to `after`."""
        ...

    def after(self, training: Training, seen: Any) -> dict[str, float]:
        """Look at the run after the step, and return what to record."""
        ...

    def state(self) -> Any:
        """Return what the probe keeps, for a checkpoint."""
        ...

    def restore(self, state: Any) -> None:
        """Continue with what :meth:`state` returned."""
        ...


class _Nothing:
    """A probe that does nothing, for the others to change one part of."""

    def batch(self, training: Training, batch: Batch) -> Batch:
        return batch

    def before(self, training: Training) -> Any:
        return None

    def after(self, training: Training, seen: Any) -> dict[str, float]:
        return {}

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None:
        pass


class FollowBatch(_Nothing):
    """Records the loss on a held-out batch."""

    def __init__(self, settings: config.FollowBatch) -> None:
        self._settings = settings

    def after(self, training: Training, seen: Any) -> dict[str, float]:
        """Return the loss on the batch, if this step is one of those that count."""
        if training.step % self._settings.every:
            return {}
        index = self._settings.batch
        return {f"loss_on_batch_{index}": training.loss_on(training.data.held_out(index))}


class InjectBatch(_Nothing):
    """Puts a held-out batch into the training data, at one step."""

    def __init__(self, settings: config.InjectBatch) -> None:
        self._settings = settings

    def batch(self, training: Training, batch: Batch) -> Batch:
        """Return the held-out batch at its step."""
        return training.data.held_out(self._settings.batch) if training.step + 1 == self._settings.step else batch


class UpdateNorms(_Nothing):
    r"""Records :math:`\|\theta^{(t+n)} - \theta^{(t)}\|_2` of n = `span` consecutive updates, at step t + n.

    Weight decay is included, and t is every multiple of n. One copy of the parameters is kept meanwhile.

    Reference: the paper's appendix, "Miscellaneous results", figure exploding-norm (a), with n = 1000.
    """

    def __init__(self, settings: config.UpdateNorms) -> None:
        self._span = settings.span
        self._origin: list[Tensor] = []

    def before(self, training: Training) -> Any:
        """Keep the parameters, if a span begins here."""
        if training.step % self._span == 0:
            self._origin = [parameter.detach().clone() for parameter in training.model.parameters()]

    def after(self, training: Training, seen: Any) -> dict[str, float]:
        """Return the norm of the change, if a span ends here."""
        if training.step % self._span:
            return {}
        changes = [
            parameter.detach().float() - origin.float()
            for parameter, origin in zip(training.model.parameters(), self._origin, strict=True)
        ]
        return {f"norm_of_{self._span}_updates": torch.nn.utils.get_total_norm(changes).item()}

    def state(self) -> Any:
        """Return the parameters that the span began with."""
        return self._origin

    def restore(self, state: Any) -> None:
        """Take them back."""
        self._origin = state


PROBES: dict[type[config.Config], Any] = {
    config.FollowBatch: FollowBatch,
    config.InjectBatch: InjectBatch,
    config.UpdateNorms: UpdateNorms,
}


def build(settings: tuple[config.Config, ...]) -> list[Probe]:
    """Return the probes that a config names."""
    return [PROBES[type(part)](part) for part in settings]
