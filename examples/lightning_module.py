"""A LightningModule with AdEMAMix, whose horizon is Lightning's estimate of its steps; stopped and resumed."""

import tempfile

import lightning
import torch

from ademamix import AdEMAMix

EPOCHS = 12


class Sine(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
        self.losses = []

    def training_step(self, batch):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), targets)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        steps = self.trainer.estimated_stepping_batches
        optimizer = AdEMAMix(self.parameters(), lr=1e-2, total_steps=steps)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class StopAfter(lightning.Callback):
    """Ends a run early, as a cluster would."""

    def __init__(self, epochs):
        self.epochs = epochs

    def on_train_epoch_end(self, trainer, module):
        trainer.should_stop = trainer.current_epoch + 1 == self.epochs


def train(callbacks=None, checkpoint=None):
    lightning.seed_everything(0, verbose=False)
    inputs = torch.linspace(-2, 2, 256)[torch.randperm(256)].unsqueeze(1)
    dataset = torch.utils.data.TensorDataset(inputs, torch.sin(3 * inputs))
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    model = Sine()
    trainer.fit(model, torch.utils.data.DataLoader(dataset, 16), ckpt_path=checkpoint)
    return model, trainer


whole, trainer = train()
group = trainer.optimizers[0].param_groups[0]
assert group["total_steps"] == trainer.global_step == 96
first, last = sum(whole.losses[:16]) / 16, sum(whole.losses[-16:]) / 16
assert last < 0.5 * first
print(f"{group['total_steps']} steps: loss from {first:.4f} to {last:.4f}")

with tempfile.TemporaryDirectory() as folder:
    _, stopped = train([StopAfter(5)])
    stopped.save_checkpoint(f"{folder}/checkpoint.ckpt")
    resumed, _ = train(checkpoint=f"{folder}/checkpoint.ckpt")
assert len(resumed.losses) < len(whole.losses)
for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
    assert torch.equal(one, other)
print("the resumed run has the same bits as the uninterrupted one")
