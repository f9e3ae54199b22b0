"""Switch from AdamW to AdEMAMix in the middle of a run; the lr scheduler continues, and so do all moments."""

import torch

from ademamix import AdEMAMix

STEPS, SWITCH = 300, 100

torch.manual_seed(0)
inputs = torch.randn(512, 16)
targets = torch.tanh(inputs @ torch.randn(16, 1))
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)

for step in range(STEPS):
    if step == SWITCH:
        optimizer = AdEMAMix.from_adamw(optimizer, total_steps=STEPS - SWITCH)
        print(f"step {step}: switched, {optimizer.schedule()[0]}")
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()

print(f"step {STEPS}: loss {loss.item():.5f}, lr {optimizer.param_groups[0]['lr']:.1e}, {optimizer.schedule()[0]}")
