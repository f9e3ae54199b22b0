"""The config of a run: what names it, and what is said of one that cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ademamix.lab import config
from ademamix.lab.config import ConfigError, Optimizer, Run, read
from lab_runs import TINY, changed


def _mistake(**changes: Any) -> str:
    fields = TINY.model_dump(mode="json")
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(fields[name], dict) if name in fields else False
        fields[name] = {**fields[name], **value} if both else value
    with pytest.raises(ConfigError) as caught:
        read(Run, json.dumps(fields))
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"depth": 3}}, "model has no setting 'depth': it takes width, layers, heads, context, dropout"),
        ({"model": {"width": "wide"}}, "model.width must be a whole number, got 'wide'"),
        ({"model": {"width": 2.5}}, "model.width must be a whole number, got 2.5"),
        ({"model": {"width": 0}}, "model.width must be above 0, got 0"),
        ({"model": {"dropout": 1}}, "model.dropout must be below 1, got 1"),
        ({"model": {"dropout": -1}}, "model.dropout must be at least 0, got -1"),
        ({"model": {"kind": "rnn"}}, "model.kind must be gpt, mamba or vit, got 'rnn'"),
        ({"model": 3}, "model must be an object with settings, got 3"),
        ({"optimizer": {"name": "sgd"}}, "optimizer.name must be adamw, ademamix, "),
        ({"optimizer": {"lr": None}}, "optimizer.lr must be a number, got None"),
        ({"optimizer": {"momentum": 0.9}}, "optimizer has no setting 'momentum': it takes name, lr, settings"),
        ({"schedule": {"kind": "cosin"}}, "schedule.kind must be cosine or constant, got 'cosin'"),
        ({"schedule": {"decay": 5}}, "schedule has no setting 'decay': it takes warmup, final"),
        ({"learning_rate": 1}, "the run has no setting 'learning_rate': it takes model, data, optimizer, "),
        ({"autocast": "perhaps"}, "autocast must be true or false, got 'perhaps'"),
        ({"parameters": "fp8"}, "parameters must be fp32 or bf16, got 'fp8'"),
        ({"data": {"source": 3}}, "data.source must be text, got 3"),
        ({"probes": [{"kind": "count"}]}, "probes.0.kind must be follow-batch, follow-training-batch, inject"),
        ({"probes": [{"kind": "inject-batch"}]}, "probes.0.step is missing"),
        ({"probes": 3}, "probes must be a list, got 3"),
        ({"phases": [{"step": 3, "optimiser": 1}]}, "phases.0 has no setting 'optimiser': it takes step, optimizer"),
        ({"batch": 3, "accumulate": 2}, "batch must be a multiple of accumulate, got 3 and 2"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_plain_words(changes: dict[str, Any], message: str) -> None:
    said = _mistake(**changes)
    assert message in said
    for jargon in ("Input", "Extra inputs", "Value error", "valid integer", "tag", "discriminator"):
        assert jargon not in said


def test_every_mistake_has_a_line() -> None:
    assert len(_mistake(steps=0, batch="two").splitlines()) == 2


def test_what_is_no_json_is_said() -> None:
    with pytest.raises(ConfigError, match="is not JSON"):
        read(Run, "{")


def test_the_key_depends_on_what_decides_the_numbers() -> None:
    assert TINY.key == Run.model_validate_json(TINY.model_dump_json()).key
    assert TINY.key == changed(TINY, seed=0).key
    others = [
        changed(TINY, seed=1),
        changed(TINY, optimizer=Optimizer(name="adamw", lr=1e-2)),
        changed(TINY, clip=None),
    ]
    assert len({TINY.key, *(other.key for other in others)}) == 4


def test_the_key_depends_on_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    before = TINY.key
    monkeypatch.setattr(config, "FORMAT", config.FORMAT + 1)
    assert TINY.key != before


def test_the_key_does_not_depend_on_how_a_number_is_spelled() -> None:
    spellings = [
        Optimizer(name="ademamix", lr=1e-2, settings={"alpha": alpha, "betas": betas})
        for alpha, betas in [(8, [0, 0.999]), (8.0, (0.0, 0.999))]
    ]
    assert len({changed(TINY, optimizer=optimizer).key for optimizer in spellings}) == 1
