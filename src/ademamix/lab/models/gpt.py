"""GPT-2's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ademamix.lab.fields import Positive, Share, Transformer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class GPT(Transformer):
    """A decoder-only transformer with learnt positions and tied embeddings (GPT-2's form, Hugging Face's code)."""

    kind: Literal["gpt"]
    context: Positive = 1024
    dropout: Share = 0.0

    @property
    def positions(self) -> int:
        """It predicts a token at each of a window."""
        return self.context


PRESETS = {
    "gpt-nano": GPT(kind="gpt", width=32, layers=2, heads=2, context=64),
    "gpt-tiny": GPT(kind="gpt", width=64, layers=3, heads=2, context=128),
    "gpt-mini": GPT(kind="gpt", width=128, layers=4, heads=4, context=128),
    "gpt-110m": GPT(kind="gpt", width=768, layers=12, heads=12, context=1024),
    "gpt-330m": GPT(kind="gpt", width=1024, layers=24, heads=16, context=1024),
    "gpt-1.3b": GPT(kind="gpt", width=2048, layers=24, heads=16, context=1024),
}


def build(config: GPT, vocabulary: int) -> PreTrainedModel:
    """Build a GPT-2 with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

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
