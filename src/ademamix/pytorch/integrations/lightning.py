"""Lightning: it needs nothing to train with AdEMAMix; this logs what the optimizer does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ademamix.pytorch.monitoring import SHARE, DelayedRows

if TYPE_CHECKING:
    from lightning.pytorch import Callback


def diagnostics_callback(*, every: int | None = None, share: float = SHARE) -> Callback:
    """Return a callback that logs the diagnostics of AdEMAMix to the loggers of the trainer, and warns at trouble.

    .. code-block:: python

        trainer = lightning.Trainer(logger=TensorBoardLogger("out"), callbacks=[diagnostics_callback()])
        trainer.fit(module)

    The names are ``ademamix/update_norm`` and so on; a module with several optimizers has ``ademamix-0`` and so on.

    Args:
        every: the number of optimizer steps between two looks, at least; by default the trainer's
            ``log_every_n_steps``.
        share: of the time of training that looks may take; see :class:`ademamix.pytorch.monitoring.Monitor`.
    """
    from lightning.pytorch import Callback

    class Diagnostics(Callback):
        rows: DelayedRows | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.rows = DelayedRows(trainer.optimizers, every or max(1, trainer.log_every_n_steps), share)

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if self.rows is not None and (values := self.rows.take()):
                for logger in trainer.loggers:
                    logger.log_metrics(values, step=trainer.global_step)

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            if self.rows is not None:
                self.rows.close()

    return Diagnostics()
