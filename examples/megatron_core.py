"""AdEMAMix in Megatron-Core's distributed optimizer, on one GPU or with `torchrun --nproc-per-node 2` on two.

Megatron-Core allocates on GPUs only. `make test-deepspeed` runs this on a CPU that it is shown as one.
"""

import os
import tempfile

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule

from ademamix.pytorch.integrations.megatron import use_ademamix

STEPS = 60

if "RANK" in os.environ:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group()
else:  # one process, not started by torchrun
    torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel()


class Network(MegatronModule):
    def __init__(self, config):
        super().__init__(config)
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1))

    def forward(self, inputs):
        return self.layers(inputs)


def started():
    torch.manual_seed(0)
    config = TransformerConfig(num_layers=1, hidden_size=512, num_attention_heads=1, bf16=True)
    data_parallel = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
    model = DistributedDataParallel(config, data_parallel, Network(config).bfloat16().cuda())
    settings = OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, use_distributed_optimizer=True, adam_beta1=0.0)
    optimizer = get_megatron_optimizer(settings, [model])
    use_ademamix(optimizer, total_steps=STEPS)
    return model, optimizer


def train(model, optimizer, steps):
    losses = []
    for step in steps:
        inputs = torch.rand(64, 1, generator=torch.Generator().manual_seed(step)).cuda().bfloat16() * 4 - 2
        model.zero_grad_buffer()
        optimizer.zero_grad()
        loss = (model(inputs) - torch.sin(inputs)).float().square().mean()
        loss.backward()
        model.finish_grad_sync()
        optimizer.step()
        losses.append(loss.item())
    return losses


model, optimizer = started()
losses = train(model, optimizer, range(STEPS // 2))
with tempfile.TemporaryDirectory() as folder:
    optimizer.save_parameter_state(f"{folder}/slices.pt")
    resumed, other = started()
    resumed.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    other.load_parameter_state(f"{folder}/slices.pt")
losses += train(model, optimizer, range(STEPS // 2, STEPS))
train(resumed, other, range(STEPS // 2, STEPS))

ademamix = optimizer.chained_optimizers[0].optimizer
assert ademamix.schedule()[0]["slow_step"] == ademamix.param_groups[0]["total_steps"] == STEPS
assert all("exp_avg" not in state for state in ademamix.state.values())  # beta1 is 0
assert losses[-1] < 0.5 * losses[0]
for one, another in zip(model.parameters(), resumed.parameters(), strict=True):
    assert torch.equal(one, another)
print(f"{type(ademamix).__name__}, {STEPS} steps: loss from {losses[0]:.2f} to {losses[-1]:.2f}; the same bits resumed")
parallel_state.destroy_model_parallel()
torch.distributed.destroy_process_group()
