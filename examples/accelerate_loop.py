"""A loop with Accelerate, on one process or with `torchrun --nproc-per-node 2 examples/accelerate_loop.py` on two.

A batch has 16 examples on all processes together, so that the losses are the same, apart from rounding.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from ademamix import AdEMAMix
from ademamix.pytorch.integrations.accelerate import total_steps

EPOCHS = 8

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(0)
inputs = torch.linspace(-2, 2, 256)[torch.randperm(256)].unsqueeze(1)
dataset = torch.utils.data.TensorDataset(inputs, torch.sin(3 * inputs))
model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))

batch = 16 // accelerator.num_processes
dataloader = accelerator.prepare(torch.utils.data.DataLoader(dataset, batch))
steps = total_steps(accelerator, dataloader, EPOCHS)
optimizer = AdEMAMix(model.parameters(), lr=1e-2, total_steps=steps)
model, optimizer = accelerator.prepare(model, optimizer)

losses = []
for _ in range(EPOCHS):
    for batch_inputs, targets in dataloader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(batch_inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())

taken = optimizer.optimizer.schedule()[0]["step"]
first, last = sum(losses[:16]) / 16, sum(losses[-16:]) / 16
assert taken == steps
assert last < 0.5 * first
accelerator.print(f"{taken} steps on {accelerator.num_processes} process(es): loss from {first:.4f} to {last:.4f}")
accelerator.end_training()
