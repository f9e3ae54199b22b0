"""Save and resume a bf16 run: the continued run has the same bits as the uninterrupted one."""

import io

import torch

from ademamix import AdEMAMix


def build():
    torch.manual_seed(0)
    model = torch.nn.Linear(32, 32, dtype=torch.bfloat16)
    return model, AdEMAMix(model.parameters(), lr=1e-3, total_steps=100)


def train(model, optimizer, steps):
    for step in steps:
        batch = torch.randn(8, 32, generator=torch.Generator().manual_seed(step)).bfloat16()
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


model, optimizer = build()
train(model, optimizer, range(50))
checkpoint = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
train(model, optimizer, range(50, 100))

resumed, continued = build()
checkpoint.seek(0)
saved = torch.load(checkpoint, weights_only=True)
resumed.load_state_dict(saved["model"])
continued.load_state_dict(saved["optimizer"])
train(resumed, continued, range(50, 100))

assert torch.equal(model.weight, resumed.weight)
print("the resumed run has the same bits as the uninterrupted one")
