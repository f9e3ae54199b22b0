"""AdEMAMix in torchtitan: its Llama 3, its container of optimizers and its schedulers, trained and resumed on a CPU.

torchtitan's own loop needs a GPU, so this is that loop by hand. torchtitan needs Triton: `make test-triton` runs this.
"""

import tempfile

import torch
import torch.distributed.checkpoint as dcp
from torchtitan.config import JobConfig
from torchtitan.models.llama3.model.args import TransformerModelArgs
from torchtitan.protocols.train_spec import get_train_spec

from ademamix.pytorch.integrations.torchtitan import with_ademamix

STEPS, WINDOW = 60, 32
TEXT = "the slow average remembers what the fast one forgets. " * 40

spec = with_ademamix(get_train_spec("llama3"), alpha=8.0)
job = JobConfig()
job.training.steps = STEPS
job.optimizer.lr = 1e-2
job.optimizer.implementation = "foreach"
job.lr_scheduler.warmup_steps = 5
characters = sorted(set(TEXT))
tokens = torch.tensor([characters.index(character) for character in TEXT])


def build():
    torch.manual_seed(0)
    size = {"dim": 32, "n_layers": 1, "n_heads": 2, "multiple_of": 32, "max_seq_len": WINDOW}
    model = spec.model_cls(TransformerModelArgs(vocab_size=len(characters), **size))
    with torch.no_grad():
        model.init_weights(buffer_device=torch.device("cpu"))
    optimizers = spec.build_optimizers_fn([model], job.optimizer, None)
    return model, optimizers, spec.build_lr_schedulers_fn(optimizers, job.lr_scheduler, job.training.steps)


def train(model, optimizers, schedulers, steps):
    losses = []
    for step in steps:
        starts = torch.randint(len(tokens) - WINDOW, (8,), generator=torch.Generator().manual_seed(step))
        windows = torch.stack([tokens[start : start + WINDOW + 1] for start in starts])
        logits = model(windows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizers.zero_grad()
        loss.backward()
        optimizers.step()
        schedulers.step()
        losses.append(loss.item())
    return losses


with tempfile.TemporaryDirectory() as folder:
    model, optimizers, schedulers = build()
    losses = train(model, optimizers, schedulers, range(STEPS // 2))
    dcp.save({"model": model, "optimizer": optimizers, "schedulers": schedulers}, checkpoint_id=folder, no_dist=True)
    losses += train(model, optimizers, schedulers, range(STEPS // 2, STEPS))

    resumed, *rest = build()
    dcp.load({"model": resumed, "optimizer": rest[0], "schedulers": rest[1]}, checkpoint_id=folder, no_dist=True)
    train(resumed, *rest, range(STEPS // 2, STEPS))

(ademamix,) = optimizers
assert ademamix.param_groups[0]["total_steps"] == ademamix.schedule()[0]["slow_step"] == STEPS
assert losses[-1] < 0.5 * losses[0]
for one, other in zip(model.parameters(), resumed.parameters(), strict=True):
    assert torch.equal(one, other)
print(f"{type(ademamix).__name__}, {STEPS} steps: loss from {losses[0]:.2f} to {losses[-1]:.2f}; the same bits resumed")
