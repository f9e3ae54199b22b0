"""Lightning: its estimate of the number of steps is a horizon, also where it has none."""

from __future__ import annotations

import math

import lightning
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ademamix import AdEMAMix
from ademamix.pytorch.integrations.lightning import diagnostics_callback


class Stream(IterableDataset):
    """Data whose length nobody knows."""

    def __iter__(self):
        return iter([(torch.ones(4),)] * 20)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return AdEMAMix(self.parameters(), lr=1e-2, total_steps=self.trainer.estimated_stepping_batches)


def trained(folder, dataset=None, module=None, **arguments):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, **arguments}
    trainer = lightning.Trainer(accelerator="cpu", enable_model_summary=False, default_root_dir=folder, **quiet)
    trainer.fit(module or Module(), DataLoader(dataset or TensorDataset(torch.randn(20, 4)), 4))
    return trainer


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({"max_epochs": 2}, 10),
        ({"max_epochs": 2, "accumulate_grad_batches": 2, "gradient_clip_val": 1.0}, 6),
        ({"max_epochs": 9, "max_steps": 7}, 7),
        ({"max_epochs": -1, "max_steps": 7}, 7),
        ({"max_epochs": 9, "max_steps": 7, "dataset": Stream()}, 7),
        ({"max_epochs": 2, "precision": "bf16-mixed"}, 10),
    ],
    ids=["epochs", "accumulation", "max_steps", "no epochs", "stream", "bf16"],
)
def test_the_horizon_is_what_the_trainer_estimates(tmp_path, arguments, steps):
    trainer = trained(tmp_path, **arguments)
    optimizer = trainer.optimizers[0]
    assert trainer.global_step == steps
    assert optimizer.param_groups[0]["total_steps"] == steps
    assert optimizer.schedule()[0]["slow_step"] == steps


def test_a_run_without_an_end_has_an_open_horizon(tmp_path):
    trainer = trained(tmp_path, max_epochs=-1, max_time={"seconds": 0})
    assert trainer.optimizers[0].param_groups[0]["total_steps"] == "open"


def test_a_stream_without_max_steps_is_refused(tmp_path):
    with pytest.raises(ValueError, match="total_steps must be an integer >= 1 or None, got -1"):
        trained(tmp_path, dataset=Stream(), max_epochs=1)  # Lightning's estimate for it


def test_diagnostics_go_to_the_loggers(tmp_path):
    arguments = {"max_epochs": 4, "accumulate_grad_batches": 2, "log_every_n_steps": 3}
    callback = diagnostics_callback(share=math.inf)
    trainer = trained(tmp_path, logger=TensorBoardLogger(tmp_path), callbacks=[callback], **arguments)
    events = EventAccumulator(trainer.logger.log_dir)
    events.Reload()
    shown = events.Scalars("ademamix/alpha")
    assert [event.step for event in shown] == [3, 6, 9, 12]  # optimizer steps, not batches
    assert [event.value for event in shown] == pytest.approx([5.0 * step / 12 for step in (3, 6, 9, 12)])
    assert not trainer.optimizers[0]._optimizer_step_post_hooks


class TwoOptimizers(Module):
    """One that takes steps by hand, as those with a generator and a critic do."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.other = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        for optimizer, layer in zip(self.optimizers(), (self.layer, self.other), strict=True):
            optimizer.zero_grad()
            self.manual_backward(layer(batch[0]).square().mean())
            optimizer.step()

    def configure_optimizers(self):
        return [AdEMAMix(layer.parameters(), total_steps=10) for layer in (self.layer, self.other)]


def test_diagnostics_of_two_optimizers(tmp_path):
    logger, callback = TensorBoardLogger(tmp_path), diagnostics_callback(every=2, share=math.inf)
    trained(tmp_path, module=TwoOptimizers(), logger=logger, callbacks=[callback], max_epochs=1, log_every_n_steps=1)
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    assert {"ademamix-0/update_norm", "ademamix-1/update_norm"} <= set(events.Tags()["scalars"])


def test_diagnostics_of_another_optimizer(tmp_path):
    module = Module()
    module.configure_optimizers = lambda: torch.optim.AdamW(module.parameters())
    with pytest.raises(ValueError, match="has no AdEMAMix to follow"):
        trained(tmp_path, module=module, max_epochs=1, callbacks=[diagnostics_callback()])
