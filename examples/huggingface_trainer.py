"""Hugging Face's Trainer with AdEMAMix: two epochs with gradient accumulation, whose steps the Trainer counts."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from ademamix.pytorch.integrations.huggingface import use_ademamix

TEXT = "the slow average remembers what the fast one forgets. " * 160
WINDOW = 32

set_seed(0)
characters = sorted(set(TEXT))
tokens = torch.tensor([characters.index(character) for character in TEXT])
windows = tokens[: len(tokens) // WINDOW * WINDOW].view(-1, WINDOW)
dataset = [{"input_ids": window, "labels": window} for window in windows]
size = {"n_positions": WINDOW, "n_embd": 32, "n_layer": 1, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(vocab_size=len(characters), bos_token_id=None, eos_token_id=None, **size))

with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        folder,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        weight_decay=0.1,
        lr_scheduler_type="cosine",
        optim_args="alpha=8, state_storage=compact",
        logging_steps=17,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model, args, train_dataset=dataset)
    use_ademamix(trainer)
    trainer.train()

group = trainer.optimizer.param_groups[0]
losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
assert group["total_steps"] == trainer.state.global_step == 68
assert losses[-1] < 0.5 * losses[0]
print(f"{group['total_steps']} steps, beta3 {group['betas'][2]:.3f}, loss from {losses[0]:.2f} to {losses[-1]:.2f}")
