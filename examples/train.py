"""Train a small network with AdEMAMix: the one line that differs from AdamW is the constructor."""

import torch

from ademamix import AdEMAMix

STEPS = 400

torch.manual_seed(0)
inputs = torch.linspace(-2, 2, 256).unsqueeze(1)
targets = torch.sin(3 * inputs)
model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))

optimizer = AdEMAMix(model.parameters(), lr=1e-2, total_steps=STEPS)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)

for step in range(1, STEPS + 1):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        report = optimizer.diagnostics()[0]
        print(
            f"step {step}: loss {loss.item():.5f}  alpha {report['alpha']:.2f}  beta3 {report['beta3']:.4f}  "
            f"|m1| {report['m1_norm']:.2e}  |alpha m2| {report['alpha_m2_norm']:.2e}  cosine {report['cosine']:+.2f}"
        )
    optimizer.zero_grad()
    scheduler.step()
