"""Every run of every recipe at paper scale, against the numbers of the paper, which stand here with their labels.

Runs on images are left to the test of their own recipe.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from ademamix.lab.config import Model, Run
from ademamix.lab.models.networks import build_model
from ademamix.lab.optimizers import transitions
from ademamix.lab.recipes import OF_THE_PAPER, RECIPES, load, step_time
from ademamix.lab.report.kinds import setting_of
from ademamix.lab.reproduction.scale import SCALES

SIZES = ("110M", "330M", "1.3B", "Mamba")

MODELS: dict[str, tuple[Any, ...]] = {
    # tab:llm_models and app:mamba_exp
    "width": (768, 1024, 2048, 768),  # hidden size; embedding dimension
    "layers": (12, 24, 24, 24),  # layers; depth
    "heads": (12, 16, 16, None),  # attention heads
    "expansion": (4, 4, 4, 2),  # FFW expansion factor; expansion factor
    "state": (None, None, None, 16),  # state size
    "context": (1024, 1024, 1024, 1024),  # sequence length, in the tables of hyperparameters
    # app:llm_exp gives the vocabulary; the one of app:mamba_exp's tokenizer has so many entries
    "vocabulary": (32_000, 32_000, 32_000, 50_277),
    # the counts of tab:llm_models and fig:mamba are met with these; the paper does not say which embeddings are tied
    "tied": (True, True, True, False),
    "parameters": (110e6, 336e6, 1.28e9, 168e6),
}
SETTINGS: dict[str, tuple[Any, ...]] = {
    # tab:110_hyper, tab:330_hyper, tab:1300_hyper, the values in bold; app:mamba_exp
    "lr of adamw": (1e-3, 5e-4, 5e-4, 6e-4),  # learning rate eta (for AdamW)
    "lr of ademamix": (1e-3, 5e-4, 3e-4, 6e-4),  # learning rate eta (for AdEMAMix)
    "warmup": (3000, 3000, 3000, 3000),  # number of warmup steps
    "schedule": ("cosine", "cosine", "cosine", "cosine"),  # learning rate decay scheduler
    "final": (1e-5, 1e-5, 1e-5, 1e-5),  # sec:llm-results, app:mamba_exp
    "weight_decay": (0.1, 0.1, 0.1, 0.1),  # weight decay lambda
    "batch": (64, 96, 128, 120),  # batch size
    "clip": (0.5, 0.1, 0.1, 1.0),  # gradient clipping
    "beta1": (0.9, 0.9, 0.9, 0.9),  # AdamW beta1, AdEMAMix beta1
    "beta2": (0.999, 0.999, 0.999, 0.999),  # AdamW beta2, AdEMAMix beta2
    "beta3": (0.9999, 0.9999, 0.9999, 0.9999),  # AdEMAMix beta3
    "alpha": ({8, 10}, 8, 5, 8),  # AdEMAMix alpha
    "total_steps": (None, None, None, None),  # app:llm_exp: T_alpha = T_beta3 = T, which is the default
    "alpha_warmup": (None, None, None, None),
    "beta3_warmup": (None, None, None, None),
    "source": ("hub:redpajama-v2", "hub:redpajama-v2", "hub:redpajama-v2", "hub:fineweb"),  # sec:results
    "tokenizer": (*3 * ("sentencepiece:32000",), "hub:EleutherAI/gpt-neox-20b"),  # app:llm_exp, app:mamba_exp
    "steps": (256_000, 256_000, 770_000, {64_000, 128_000}),  # fig:llm_results, app:mamba_exp; 330M: not stated
    "autocast": (True, True, True, True),  # app:llm_exp: bfloat16
    "parameters": ("fp32", "fp32", "fp32", "fp32"),  # app:llm_exp: optimizer states and operations in float32
}
OTHERWISE: dict[str, dict[str, set[Any]]] = {
    "lm-comparison": {"steps": {256_000, 400_000, 500_000, 770_000, 1_500_000}},  # fig:llm_results, sec:llm-results
    "constant-lr": {  # fig:constant_lr, fig:200k_lin_decay
        "lr": {1e-4},
        "schedule": {"constant"},
        "final": {0.0},
        "decay": {100_000, 200_000},
        "steps": {1_100_000, 1_200_000, 1_400_000, 1_500_000},
        "beta3": {0.9999, 0.99999},
        "total_steps": {500_000},
    },
    "forgetting-constant-lr": {  # fig:forgetting_const_lr: 3k + 247k + 50k
        "schedule": {"constant"},
        "final": {0.0},
        "decay": {50_000},
        "steps": {300_000},
    },
    "step-time": {"steps": {256_000, 500_000}, "beta1": {0, 0.9}},  # fig:time_resume_time, fig:llm_results, sec:method
    "switch-from-adamw": {"steps": {500_000, 770_000}},  # that of 110M is ours: it is above the last switch, at 300k
    "switch-schedules": {"steps": {500_000}},  # fig:from_adamw_warmup: the same runs
    "switch-to-adamw": {"batch": {32}, "alpha_warmup": {90_000}, "beta3_warmup": {90_000}},  # fig:adema_to_adamw
    "single-ema": {  # fig:single-ema
        "beta1": {0.9, 0.99, 0.999, 0.9999, 0.99999},
        "beta2": {0.999, 0.9999},
    },
    "single-ema-resume": {"steps": {500_000}},  # fig:single-ema-resume: 300k, then T_beta1 = 200k
    "no-schedules": {  # fig:exploding-norm; alpha is not stated
        "batch": {32},
        "weight_decay": {0},
        "alpha": {1, 2, 5, 8},
        "alpha_warmup": {0},
        "beta3_warmup": {0},
    },
    "sensitivity-alpha-beta3": {  # fig:alpha_beta_hyp
        "alpha": {2, 6, 10, 15, 20, 30, 40},
        "beta3": {0.99, 0.999, 0.9999, 0.99999, 0.999995},
    },
    "sensitivity-warmup": {  # fig:a_b3_warmup_hyp; which warm-ups is not stated
        "alpha_warmup": {0, 8_000, 32_000, 64_000, 128_000},
        "beta3_warmup": {0, 8_000, 32_000, 64_000, 128_000},
    },
    "no-alpha-schedule": {  # fig:small_alpha_no_sc: 1.3B has alpha 1 and 5, and a schedule over 256k; 110M: not stated
        "alpha": {1, 2, 4, 5, 6, 8, 10},
        "alpha_warmup": {0, 256_000},
    },
    "sensitivity-clip-beta1": {  # tab:110_hyper, fig:clip_b1_hyp
        "clip": {None, 5.0, 1.0, 0.5},
        "beta1": {0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99},
    },
    "fewer-iterations": {  # fig:fewer_iters, fig:fewer_iters_0999
        "batch": {64, 128, 256, 512},
        "steps": {32_000, 64_000, 128_000, 256_000},
        "beta3": {0.999, 0.9999},
    },
    "convex-mix": {  # fig:convex-vs-nconvex, in units of 1e-3
        "lr": {4e-4, 6e-4, 8e-4, 1e-3, 1.2e-3, 1.4e-3, 1.6e-3},
        "alpha": {2, 4, 6, 8, 10, 12, 14},
        "layers": {6},
    },
    "lion": {"lr": {1e-3, 4e-4}, "weight_decay": {0.1, 0.25}},  # tab:110_hyper, tab:110_hyper_lion
    "beta1-zero": {"batch": {4, 8, 16, 32, 64, 128}, "beta1": {0, 0.9}},  # fig:b1_0_bs, fig:b1_0_1300
    "in-context": {"steps": {1_000_000}},  # app:icl_results
}
"""What a figure does otherwise, or also, by the recipe; its label stands beside it."""


@functools.cache
def paper_runs(recipe: str) -> tuple[Run, ...]:
    """The runs of all panels and arms, and those that are only timed."""
    panels = load(recipe)(SCALES["paper"])
    timed = [run for pair in step_time.timed(SCALES["paper"]).values() for run in pair if recipe == "step-time"]
    runs = {run.key: run for panel in panels for run in [*panel.arms.values(), *timed]}
    return tuple(run for run in runs.values() if run.data.kind == "text")


def size_of(run: Run) -> int:
    """The column of the tables that a run belongs to."""
    return 3 if run.model.kind == "mamba" else MODELS["width"].index(run.model.width)


def built(run: Run) -> torch.nn.Module:
    return _built(run.model, MODELS["vocabulary"][size_of(run)])


@functools.cache
def _built(model: Model, vocabulary: int) -> torch.nn.Module:
    with torch.device("meta"):
        return build_model(model, vocabulary)


def test_no_figure_is_forgotten() -> None:
    assert set(OTHERWISE) <= set(OF_THE_PAPER)


@pytest.mark.parametrize("column", range(len(SIZES)), ids=SIZES)
def test_models_are_the_papers(column: int) -> None:
    runs = {run.model: run for recipe in OF_THE_PAPER for run in paper_runs(recipe) if size_of(run) == column}
    runs = {model: run for model, run in runs.items() if model.layers == MODELS["layers"][column]}
    ((config, run),) = runs.items()  # one model of each size
    for name in ("width", "layers", "heads", "state", "context"):
        assert getattr(config, name, None) == MODELS[name][column], name
    model = built(run)
    assert model.num_parameters() == pytest.approx(MODELS["parameters"][column], rel=0.03)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == MODELS["tied"][column]
    assert model.get_output_embeddings().weight.shape == (MODELS["vocabulary"][column], config.width)
    matrix = "out_proj.weight" if column == 3 else "c_fc.weight"
    (inner,) = {parameter.shape[1] for name, parameter in model.named_parameters() if name.endswith(matrix)}
    assert inner == MODELS["expansion"][column] * config.width
    assert run.data.tokenizer == SETTINGS["tokenizer"][column]


@pytest.mark.parametrize("recipe", RECIPES)
def test_models_and_optimizers_can_be_built(recipe: str) -> None:
    for run in paper_runs(recipe):
        transitions.check(run)
        model = built(run)
        assert (
            sum(name.endswith(("ln_1.weight", "mixer.D")) for name, _ in model.named_parameters()) == run.model.layers
        )


@pytest.mark.parametrize("recipe", OF_THE_PAPER)
def test_settings_are_the_papers(recipe: str) -> None:
    found = {}
    for run in paper_runs(recipe):
        for name, value in stated(run).items():
            if value not in allowed(run, name) | OTHERWISE.get(recipe, {}).get(name, set()):
                found[run.optimizer.described] = (name, value)
    assert not found


@pytest.mark.parametrize("recipe", OTHERWISE)
def test_every_value_of_a_figure_is_tried(recipe: str) -> None:
    tried = [stated(run) for run in paper_runs(recipe)]
    for name, values in OTHERWISE[recipe].items():
        assert values <= {values_of[name] for values_of in tried if name in values_of}, name


@pytest.mark.parametrize("recipe", RECIPES)
def test_nothing_is_read_twice(recipe: str) -> None:
    for run in paper_runs(recipe):
        if run.data.tokens is not None:  # those that are only timed read a local text
            held_out = run.data.held_out_batches * run.batch
            read = run.steps * run.batch + held_out + 2  # windows, of which an epoch leaves out two
            assert run.data.tokens >= read * (run.model.context + 1)


def stated(run: Run) -> dict[str, Any]:
    """The settings of a run by the names of the table, as far as its optimizer has them."""
    optimizer = run.optimizer.name
    names = ["lr", "weight_decay", "batch", "clip", "steps", "autocast", "parameters"]
    if optimizer in ("adamw", "ademamix", "adamw-scheduled-beta1"):
        names += ["beta1", "beta2"]
    if optimizer == "ademamix":
        names += ["beta3", "alpha", "total_steps", "alpha_warmup", "beta3_warmup"]
    schedule, data = run.schedule, run.data
    return {
        **{name: setting_of(run, name) for name in names},
        "layers": run.model.layers,
        "schedule": schedule.kind,
        "warmup": schedule.warmup,
        "final": schedule.final,
        **({"decay": schedule.decay} if schedule.kind == "constant" else {}),
        **({"source": data.source} if data.tokens is not None else {}),
        "tokenizer": data.tokenizer,
    }


def allowed(run: Run, name: str) -> set[Any]:
    """The values of the tables for the size of a run."""
    if name == "lr":
        name = "lr of adamw" if run.optimizer.name == "adamw" else "lr of ademamix"
    value = {**MODELS, **SETTINGS}.get(name, [set()] * len(SIZES))[size_of(run)]
    return value if isinstance(value, set) else {value}
