"""Hugging Face's Mamba."""

from __future__ import annotations

import math

import torch
from transformers import MambaConfig, MambaForCausalLM, PreTrainedModel

from ademamix.lab.config import Mamba
from ademamix.lab.models.mamba_scan import use_cpu_scan


def build(config: Mamba, vocabulary: int) -> PreTrainedModel:
    """Build a Mamba language model with random weights, and with a scan of ours on a CPU."""
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
