"""The lab's models: sizes, checkpoints, losses, groups, and Mamba's scan against its equation and the library's."""

from __future__ import annotations

import copy
import logging
import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoModelForImageClassification
from transformers.activations import ACT2FN
from transformers.models.mamba.modeling_mamba import MambaMixer

from ademamix.lab.config import GPT, ViT
from ademamix.lab.models import build_model, cross_entropy, logits, mamba_scan, parameter_groups
from ademamix.lab.models import save as save_model
from ademamix.lab.presets import PRESETS

TINY = ("gpt-tiny", "mamba-tiny", "vit-tiny")
OUTPUTS = 32


def built(name, dropout=0.0, seed=0, **changes):
    config = PRESETS[name]
    if not name.startswith("mamba"):
        changes["dropout"] = dropout
    torch.manual_seed(seed)
    return build_model(config.model_copy(update=changes), OUTPUTS)


def batch(name, size=3):
    generator = torch.Generator().manual_seed(1)
    config = PRESETS[name]
    if isinstance(config, ViT):
        images = torch.randn(size, config.channels, config.image, config.image, generator=generator)
        return images, torch.randint(OUTPUTS, (size,), generator=generator)
    tokens = torch.randint(OUTPUTS, (size, config.context + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss_and_gradients(model, inputs, targets):
    model.zero_grad()
    loss = cross_entropy(logits(model, inputs), targets)
    loss.backward()
    return {"loss": loss.detach()} | {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def relative_errors(given, expected):
    return [((given[name] - value).norm() / value.norm()).item() for name, value in expected.items()]


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
    names = [name for name, _ in model.named_parameters()]
    assert config.layers == sum(name.endswith(("ln_1.weight", "mixer.D", "layernorm_before.weight")) for name in names)
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


def recurrence(u, dt, A, B, C):
    state = torch.zeros(u.shape[0], *A.shape, dtype=u.dtype)
    outputs = []
    for t in range(u.shape[1]):
        state = (dt[:, t, :, None] * A).exp() * state + (dt[:, t] * u[:, t])[:, :, None] * B[:, t, None, :]
        outputs.append((state * C[:, t, None, :]).sum(-1))
    return torch.stack(outputs, dim=1)


def scan_inputs(batch=2, length=7, inner=3, state=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    u, dt, B, C = (
        torch.randn(batch, length, size, generator=generator, dtype=dtype) for size in (inner, inner, state, state)
    )
    A = -torch.rand(inner, state, generator=generator, dtype=dtype).exp()
    return [tensor.requires_grad_() for tensor in (u, F.softplus(dt).detach(), A, B, C)]


@pytest.mark.parametrize("moments", [1, 2, 3, 7, 100])
def test_scan_is_the_recurrence_however_it_is_cut_into_spans(moments, monkeypatch):
    monkeypatch.setattr(mamba_scan, "SPAN_ELEMENTS", moments * 2 * 3 * 4)
    inputs = scan_inputs()
    y_grad = torch.randn(2, 7, 3, dtype=torch.float64)
    given, expected = mamba_scan.selective_scan(*inputs), recurrence(*inputs)
    assert_close(given, expected, rtol=1e-12, atol=1e-14)
    assert_close(
        torch.autograd.grad(given, inputs, y_grad),
        torch.autograd.grad(expected, inputs, y_grad),
        rtol=1e-12,
        atol=1e-14,
    )
    assert torch.autograd.gradcheck(mamba_scan.selective_scan, inputs)


def test_scan_of_a_long_sequence_in_fp32():
    inputs = scan_inputs(batch=2, length=300, inner=16, state=16, dtype=torch.float32)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    given, expected = mamba_scan.selective_scan(*inputs), recurrence(*exact)
    y_grad = torch.randn_like(given)
    gradients = torch.autograd.grad(given, inputs, y_grad), torch.autograd.grad(expected, exact, y_grad.double())
    for one, other in zip((given, *gradients[0]), (expected, *gradients[1]), strict=True):
        assert (one - other).norm() / other.norm() < 1e-6


def test_scan_survives_steps_that_forget_everything():
    inputs = scan_inputs(dtype=torch.float32)
    with torch.no_grad():
        inputs[1][:, 3] = 1e4  # exp(dt A) is 0
    y = mamba_scan.selective_scan(*inputs)
    assert_close(y, recurrence(*inputs))
    y.sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in inputs)


def test_scan_is_in_fp32_under_autocast_and_for_bf16():
    narrow = scan_inputs(dtype=torch.bfloat16)
    wide = [tensor.detach().float().requires_grad_() for tensor in narrow]
    expected = mamba_scan.selective_scan(*wide)
    expected_grads = torch.autograd.grad(expected.sum(), wide)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for inputs in (narrow, wide):
            given = mamba_scan.selective_scan(*inputs)
            assert_close(given, expected, rtol=0, atol=0)
            for one, other in zip(torch.autograd.grad(given.sum(), inputs), expected_grads, strict=True):
                assert_close(one, other.to(one.dtype), rtol=0, atol=0)


def test_scan_has_no_second_derivative():
    inputs = scan_inputs()
    (gradient,) = torch.autograd.grad(mamba_scan.selective_scan(*inputs).square().sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def librarys(model):
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, MambaMixer):
            module.__class__ = MambaMixer
    return model


def test_mamba_on_cpu_is_the_librarys():
    model, (inputs, targets) = built("mamba-tiny"), batch("mamba-tiny")
    mixers = [module for module in model.modules() if isinstance(module, MambaMixer)]
    assert len(mixers) == 2
    assert all(type(mixer) is mamba_scan.CPUMambaMixer for mixer in mixers)
    for mode in (model.train(), model.eval()):
        given = loss_and_gradients(mode, inputs, targets)
        assert max(relative_errors(given, loss_and_gradients(librarys(mode), inputs, targets))) < 1e-5
    hidden = torch.randn(2, 20, 64)
    assert_close(mixers[0](hidden), MambaMixer.forward(mixers[0], hidden), rtol=1e-5, atol=1e-7)


def test_mamba_with_bf16_parameters_and_under_autocast():
    model, (inputs, targets) = built("mamba-tiny"), batch("mamba-tiny")
    exact = loss_and_gradients(model, inputs, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        given = loss_and_gradients(model, inputs, targets)
    assert max(relative_errors(given, exact)) < 0.05
    given = loss_and_gradients(copy.deepcopy(model).bfloat16(), inputs, targets)
    assert given["backbone.layers.0.mixer.A_log"].dtype == torch.bfloat16
    assert max(relative_errors(given, exact)) < 0.05


def test_mamba_leaves_caches_and_padding_to_the_library():
    model, (inputs, _) = built("mamba-tiny").eval(), batch("mamba-tiny")
    mask = torch.ones_like(inputs)
    mask[1, :9] = 0
    with torch.no_grad():
        expected = logits(model, inputs)
        assert_close(model(inputs, use_cache=True).logits, expected, rtol=1e-5, atol=1e-6)
        masked = model(inputs, attention_mask=mask).logits
        assert torch.equal(masked, librarys(model)(inputs, attention_mask=mask).logits)
        assert not torch.allclose(masked[1], expected[1], atol=1e-3)


def test_other_models_keep_their_classes():
    model = built("gpt-tiny")
    before = [type(module) for module in model.modules()]
    mamba_scan.use_cpu_scan(model)
    assert [type(module) for module in model.modules()] == before
