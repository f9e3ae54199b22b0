"""The lab's models: sizes, checkpoints, losses and groups."""

from __future__ import annotations

import logging
import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoModelForImageClassification
from transformers.activations import ACT2FN

from ademamix.lab.config import GPT
from ademamix.lab.models import PRESETS, mamba_scan
from ademamix.lab.models.networks import build_model, cross_entropy, logits, parameter_groups
from ademamix.lab.models.networks import save as save_model
from small_models import OUTPUTS, batch, built, layers_of, loss_and_gradients

TINY = ("gpt-tiny", "mamba-tiny", "vit-tiny")


@pytest.fixture
def log(caplog):
    """What transformers logs, with those messages again that it gives once in a process."""
    logging.Logger.warning_once.cache_clear()
    library = logging.getLogger("transformers")
    library.addHandler(caplog.handler)
    yield caplog
    library.removeHandler(caplog.handler)


# Sizes


@pytest.mark.parametrize(
    ("name", "outputs", "count", "stated"),
    [
        ("gpt-110m", 32_000, 110_418_432, 110e6),
        ("gpt-330m", 32_000, 336_128_000, 336e6),
        ("gpt-1.3b", 32_000, 1_276_235_776, 1.28e9),
        ("mamba-168m", 50_277, 167_745_792, 167.7e6),  # the entries of gpt-neox-20b's tokenizer
        ("vit-24m", 10_450, 25_688_914, None),  # the paper's two counts fit no head: 21.7M and 85.8M without one
        ("vit-86m", 10_450, 93_834_706, None),
    ],
)
def test_models_of_the_paper_have_its_sizes(name, outputs, count, stated):
    with torch.device("meta"):
        model = build_model(PRESETS[name], outputs)
    assert model.num_parameters() == count
    if stated is not None:
        assert abs(count / stated - 1) < 0.005
    if name.startswith("vit"):
        assert model.base_model.num_parameters() == {"vit-24m": 21_665_664, "vit-86m": 85_798_656}[name]


@pytest.mark.parametrize("name", PRESETS)
def test_models_have_the_shape_of_their_config(name):
    config = PRESETS[name]
    with torch.device("meta"):
        model = build_model(config, OUTPUTS)
    assert layers_of(model) == config.layers
    if hasattr(config, "heads"):
        assert model.config.num_attention_heads == config.heads
        assert model.config._attn_implementation == "sdpa"
    if isinstance(config, GPT):
        assert model.config.n_positions == config.context
    tied = model.get_output_embeddings() and model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert bool(tied) == isinstance(config, GPT)


def test_dropout_is_that_of_the_config():
    gpt, vit = built("gpt-tiny", dropout=0.3), built("vit-tiny", dropout=0.3)
    assert {module.p for module in gpt.modules() if isinstance(module, torch.nn.Dropout)} == {0.3}
    assert gpt.transformer.h[0].attn.attn_dropout.p == 0.3
    assert vit.config.hidden_dropout_prob == 0.3
    assert vit.config.attention_probs_dropout_prob == 0.0


def test_gpt_activation_is_gpt2s():
    x = torch.linspace(-8, 8, 10_001, dtype=torch.float64)
    assert built("gpt-tiny").config.activation_function == "gelu_pytorch_tanh"
    assert_close(ACT2FN["gelu_pytorch_tanh"](x), ACT2FN["gelu_new"](x), rtol=1e-12, atol=1e-14)


def test_mamba_starts_from_the_weights_of_its_paper():
    mixer = built("mamba-tiny", layers=4).backbone.layers[0].mixer
    assert mixer.in_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert mixer.out_proj.weight.abs().max().item() == pytest.approx(1 / math.sqrt(128) / math.sqrt(4), rel=0.01)


# Checkpoints, determinism


@pytest.mark.parametrize("name", TINY)
def test_checkpoints_are_hugging_faces(name, tmp_path, log):
    model, (inputs, targets) = built(name).eval(), batch(name)
    cross_entropy(logits(model, inputs), targets).backward()
    save_model(model, tmp_path)
    assert log.messages == []
    auto = AutoModelForImageClassification if name == "vit-tiny" else AutoModelForCausalLM
    loaded = auto.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    with torch.no_grad():
        if name == "mamba-tiny":  # loaded, it has the library's own scan
            assert_close(logits(loaded, inputs), logits(model, inputs), rtol=1e-5, atol=1e-6)
            mamba_scan.use_cpu_scan(loaded)
        assert torch.equal(logits(loaded, inputs), logits(model, inputs))


@pytest.mark.parametrize("name", TINY)
def test_equal_seeds_give_equal_bits(name):
    results = []
    for seed in (5, 5, 6):
        model = built(name, dropout=0.2, seed=seed).train()
        results.append(loss_and_gradients(model, *batch(name)))
    first, again, other = results
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["loss"], other["loss"])


@pytest.mark.parametrize("name", ["gpt-tiny", "vit-tiny"])
def test_gradients_are_slopes_of_the_loss(name):
    model, (inputs, targets) = built(name).double(), batch(name)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    gradients = loss_and_gradients(model, inputs, targets)
    directions = {key: torch.randn_like(parameter) for key, parameter in model.named_parameters()}
    step, losses = 1e-5, []
    for sign in (1, -2):  # one step ahead, then one behind
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter += sign * step * directions[key]
            losses.append(F.cross_entropy(logits(model, inputs).flatten(0, -2), targets.flatten()).item())
    slope = sum((gradients[key] * direction).sum().item() for key, direction in directions.items())
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(slope, rel=1e-5)


# The loss


@pytest.mark.parametrize("name", TINY)
def test_untrained_models_know_nothing(name):
    model, (inputs, targets) = built(name), batch(name)
    predicted = logits(model, inputs)
    assert predicted.shape == (*targets.shape, OUTPUTS)
    assert cross_entropy(predicted, targets).item() == pytest.approx(math.log(OUTPUTS), rel=0.05)


def test_loss_is_the_mean_over_all_positions():
    predicted = torch.randn(2, 5, 7)
    targets = torch.randint(7, (2, 5))
    by_hand = [-predicted[i, j].log_softmax(0)[targets[i, j]] for i in range(2) for j in range(5)]
    assert_close(cross_entropy(predicted, targets), torch.stack(by_hand).mean())


def test_loss_of_mixed_classes_is_the_mixed_loss():
    predicted = torch.randn(6, 10)
    one, other = torch.randint(10, (2, 6))
    mixed = 0.3 * F.one_hot(one, 10) + 0.7 * F.one_hot(other, 10)
    expected = 0.3 * cross_entropy(predicted, one) + 0.7 * cross_entropy(predicted, other)
    assert_close(cross_entropy(predicted, mixed), expected)


def test_loss_of_bf16_logits_is_in_fp32():
    predicted, targets = torch.randn(50, 10, dtype=torch.bfloat16), torch.randint(10, (50,))
    loss = cross_entropy(predicted, targets)
    assert loss.dtype == torch.float32
    assert_close(loss, F.cross_entropy(predicted.float(), targets), rtol=0, atol=0)


# Groups


@pytest.mark.parametrize("name", TINY)
def test_matrices_decay_and_the_rest_does_not(name):
    model = built(name)
    optimizer = torch.optim.AdamW(parameter_groups(model), weight_decay=0.1)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters())) == len(decay)
    for parameter_name, parameter in model.named_parameters():
        weights = parameter.dim() >= 2 and not parameter_name.endswith("A_log")
        assert decay[id(parameter)] == (0.1 if weights else 0.0), parameter_name


def test_empty_groups_are_left_out():
    assert [set(group) for group in parameter_groups(torch.nn.Linear(2, 2, bias=False))] == [{"params"}]
    assert [set(group) for group in parameter_groups(torch.nn.LayerNorm(2))] == [{"params", "weight_decay"}]


# Mamba's scan
