"""Mamba."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from ademamix.lab.fields import ModelConfig, Positive

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Mamba(ModelConfig):
    """A Mamba language model, embeddings not tied (Hugging Face's code, with a scan of ours on CPU)."""

    kind: Literal["mamba"]
    width: Positive
    layers: Positive
    state: Positive = 16
    expansion: Positive = 2
    context: Positive = 1024

    @property
    def positions(self) -> int:
        """It predicts a token at each of a window."""
        return self.context


PRESETS = {
    "mamba-tiny": Mamba(kind="mamba", width=64, layers=2, context=64),
    "mamba-168m": Mamba(kind="mamba", width=768, layers=24, state=16, expansion=2, context=1024),
}


def build(config: Mamba, vocabulary: int) -> PreTrainedModel:
    """Build a Mamba language model with random weights, and with a scan of ours on a CPU."""
    import torch
    from transformers import MambaConfig, MambaForCausalLM

    from ademamix.lab.models.mamba_scan import use_cpu_scan

    model = MambaForCausalLM(
        MambaConfig(
            vocab_size=vocabulary,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            state_size=config.state,
            expand=config.expansion,
            initializer_range=0.02,  # as in the Mamba paper's code; the library's default is 0.1
            tie_word_embeddings=False,
            use_cache=False,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    with torch.no_grad():  # as in the paper's code; the library's own option also rescales weights that are loaded
        for name, parameter in model.named_parameters():
            if name.endswith("out_proj.weight"):
                parameter.div_(math.sqrt(config.layers))
    use_cpu_scan(model)
    return model
