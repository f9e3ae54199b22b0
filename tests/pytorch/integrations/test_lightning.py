"""Lightning: its estimate of the number of steps is a horizon, also where it has none."""

from __future__ import annotations

import lightning
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ademamix import AdEMAMix


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


def trained(folder, dataset=None, **arguments):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        accelerator="cpu", enable_model_summary=False, default_root_dir=folder, **quiet, **arguments
    )
    trainer.fit(Module(), DataLoader(dataset or TensorDataset(torch.randn(20, 4)), 4))
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
