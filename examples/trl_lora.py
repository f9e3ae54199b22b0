"""LoRA fine-tuning with TRL's SFTTrainer, PEFT and AdEMAMix: in a run this short, the horizon matters most."""

import tempfile

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

from ademamix.pytorch.integrations.huggingface import use_ademamix

SENTENCES = [f"we {verb} the {kind} average" for verb in ("keep", "drop", "mix") for kind in ("fast", "slow")]
STEPS = 60  # 300 to 500 for a real model

set_seed(0)
words = ["<pad>", "<eos>", *sorted({word for sentence in SENTENCES for word in sentence.split()})]
words_to_tokens = Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}))
words_to_tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words_to_tokens, pad_token="<pad>", eos_token="<eos>")
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        initializer_range=0.3,  # large enough for an adapter to work with, since nothing has been learned before
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
)

with tempfile.TemporaryDirectory() as folder:
    trainer = SFTTrainer(
        model,
        SFTConfig(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=3,
            learning_rate=1e-2,
            lr_scheduler_type="cosine",
            logging_steps=15,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=Dataset.from_dict({"text": SENTENCES}),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, target_modules="all-linear"),
    )
    use_ademamix(trainer)
    trainer.train()

groups = trainer.optimizer.param_groups
trained = sum(parameter.numel() for group in groups for parameter in group["params"])
losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
assert {group["total_steps"] for group in groups} == {STEPS}
assert all("lora" in name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad)
assert losses[-1] < 0.7 * losses[0]
print(f"{STEPS} steps of {trained:,} LoRA parameters: loss from {losses[0]:.2f} to {losses[-1]:.2f}")
