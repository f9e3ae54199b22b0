"""AdEMAMix under DeepSpeed's ZeRO-2, with compact state, on one process or with `torchrun --nproc-per-node 2`.

`make test-deepspeed` has an environment for this, without a GPU. On a CPU, set DS_ACCELERATOR=cpu.
"""

import os
import tempfile

import deepspeed
import torch

from ademamix import AdEMAMix
from ademamix.pytorch.integrations.deepspeed import ademamix_of

EPOCHS, ACCUMULATED, BATCH = 10, 2, 16
CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": ACCUMULATED,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,  # untested by DeepSpeed
}

if "RANK" in os.environ:
    deepspeed.init_distributed()
else:  # one process, not started by torchrun
    os.environ.setdefault("LOCAL_RANK", "0")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
inputs = torch.linspace(-2, 2, 256)[torch.randperm(256)].unsqueeze(1)
dataset = torch.utils.data.TensorDataset(inputs, torch.sin(3 * inputs))


def started():
    model = torch.nn.Sequential(torch.nn.Linear(1, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512))
    model.append(torch.nn.Tanh()).append(torch.nn.Linear(512, 1))
    in_a_step = BATCH * ACCUMULATED * torch.distributed.get_world_size()
    steps = EPOCHS * (len(dataset) // in_a_step)
    optimizer = AdEMAMix(model.parameters(), lr=1e-3, total_steps=steps, state_storage="compact")
    engine, _, dataloader, _ = deepspeed.initialize(
        model=model, optimizer=optimizer, training_data=dataset, config=CONFIG
    )
    return engine, dataloader


engine, dataloader = started()
losses = []
for _ in range(EPOCHS):
    for batch, targets in dataloader:
        loss = (engine(batch.to(engine.device)) - targets.to(engine.device)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())

with tempfile.TemporaryDirectory() as folder:
    engine.save_checkpoint(folder)
    resumed, _ = started()
    resumed.load_checkpoint(folder)

with ademamix_of(engine) as optimizer, ademamix_of(resumed) as other:
    (found,) = optimizer.diagnostics()
    assert other.schedule() == optimizer.schedule()
assert found["slow_step"] == optimizer.param_groups[0]["total_steps"]
assert losses[-1] < 0.5 * losses[0]
elements = sum(param.numel() for param in engine.module.parameters()) / torch.distributed.get_world_size()
print(f"{found['slow_step']} steps: loss from {losses[0]:.2f} to {losses[-1]:.2f}, alpha {found['alpha']}")
print(f"{(found['reduced_bytes'] + found['full_bytes']) / elements:.2f} bytes of state per parameter")
torch.distributed.destroy_process_group()
