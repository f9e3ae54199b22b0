"""Hugging Face's GPT-2."""

from __future__ import annotations

from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from ademamix.lab.config import GPT


def build(config: GPT, vocabulary: int) -> PreTrainedModel:
    """Build a GPT-2 with random weights."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=config.context,
            n_embd=config.width,
            n_layer=config.layers,
            n_head=config.heads,
            activation_function="gelu_pytorch_tanh",  # the function of GPT-2's gelu_new, in one kernel
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.dropout,
            tie_word_embeddings=True,
            use_cache=False,
            bos_token_id=None,  # GPT-2's own, 50256, is outside other vocabularies
            eos_token_id=None,
        )
    )
