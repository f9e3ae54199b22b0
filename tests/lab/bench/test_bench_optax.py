"""`ademamix bench --only optax`. As in test_bench.py, nothing looks at a time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ademamix import native
from ademamix.cli import main
from ademamix.lab.bench import optax_steps
from ademamix.lab.bench.optax_steps import ADAMW, BARE_LOOPS, CONTRIB, DEFAULTS, FUSED, FUSED_STEPS, FUSION_FLAG, OURS


def test_the_command(capsys, tmp_path):
    file = tmp_path / "bench.json"
    assert main(["bench", "--quick", "--only", "optax", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    report = json.loads(file.read_text())["optax"]
    assert report["arrays"] == 2
    assert "(2 arrays, 8,320 parameters)" in printed
    assert report["targets"] == {
        DEFAULTS: {OURS: {ADAMW: 1.35, CONTRIB: 1.03}, "fused_step": {ADAMW: 0.7}},
        FUSED: {OURS: {ADAMW: 1.35, CONTRIB: 1.03}},
    }
    assert {name: measured["flag"] for name, measured in report["compilations"].items()} == {
        DEFAULTS: "",
        FUSED: FUSION_FLAG,
    }
    for measured in report["compilations"].values():
        assert measured["ratios"][ADAMW][ADAMW] == 1.0
        assert {*FUSED_STEPS, *BARE_LOOPS} < set(measured["ratios"])
        assert all(ratio > 0 for row in measured["ratios"].values() for ratio in row.values())
        assert all(printed.count(f"\n  {name} ") == 2 for name in measured["ratios"])
    assert f"\n {DEFAULTS}: " in printed
    assert f"\n XLA_FLAGS={FUSION_FLAG}: " in printed
    assert printed.count("(1.35 ") == printed.count("(1.03 ") == 2
    assert printed.count("(0.70 ") == 1


def test_the_median_is_of_ratios_within_a_process():
    runs = [
        {ADAMW: 1.0, CONTRIB: 2.0, OURS: 2.0},
        {ADAMW: 4.0, CONTRIB: 4.0, OURS: 6.0},
        {ADAMW: 2.0, CONTRIB: 1.0, OURS: 2.0},
    ]
    found = optax_steps.summary(runs)
    assert found["seconds"] == 1.0
    assert found["ratios"][OURS] == {ADAMW: 1.5, CONTRIB: 1.5}


def test_a_target_is_met_up_to_itself():
    assert optax_steps.cell(1.35, 1.35) == "1.35 (1.35 met)"
    assert optax_steps.cell(1.36, 1.35) == "1.36 (1.35 not met)"


def test_without_the_core_there_are_no_fused_steps(monkeypatch):
    monkeypatch.setattr(native, "core", None)
    assert list(optax_steps.steps()) == list(optax_steps.optimizers())
    assert optax_steps.bare_loops(((3,),)) == {}


def test_flags_that_are_set_stay_and_fusion_is_only_where_it_is_asked_for(monkeypatch):
    other = "--xla_force_host_platform_device_count=2"
    monkeypatch.setenv("XLA_FLAGS", f"{other} {FUSION_FLAG}")
    assert optax_steps.environment("")["XLA_FLAGS"] == other
    assert optax_steps.environment(FUSION_FLAG)["XLA_FLAGS"].split() == [other, FUSION_FLAG]
    monkeypatch.delenv("XLA_FLAGS")
    assert optax_steps.environment(FUSION_FLAG)["XLA_FLAGS"] == FUSION_FLAG
    assert optax_steps.environment("")["XLA_FLAGS"] == ""


LOOPS_OF_A_STEP = """
import jax, jax.numpy as jnp, optax
from ademamix.lab.bench.optax_steps import OURS, optimizers

optimizer, params = optimizers()[OURS], jnp.ones((64, 128))

def step(params, state, gradients):
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state

compiled = jax.jit(step, donate_argnums=(0, 1)).lower(params, optimizer.init(params), params).compile()
entry = compiled.as_text().partition("ENTRY")[2]
print(sum("f32[64,128]" in line.partition(" fusion(")[0] and " fusion(" in line for line in entry.splitlines()))
"""


@pytest.mark.parametrize(("flag", "loops"), [("", 4), (FUSION_FLAG, 2)])
def test_the_flag_makes_one_loop_of_the_three_that_write_moments(flag, loops):
    environment = optax_steps.environment(flag)
    done = subprocess.run(
        [sys.executable, "-c", LOOPS_OF_A_STEP], capture_output=True, text=True, check=True, env=environment
    )
    assert int(done.stdout) == loops


def test_without_jax_it_says_so(monkeypatch):
    monkeypatch.setattr(optax_steps.importlib.util, "find_spec", lambda name: None)
    report = optax_steps.run(quick=True, processes=1)
    assert optax_steps.table(report)[0] == (
        "optax: not measured: JAX and Optax are not installed: pip install 'ademamix[jax]'"
    )


def test_a_process_that_fails_is_reported(monkeypatch):
    monkeypatch.setattr(optax_steps, "__name__", "ademamix.no_such_module")
    error = optax_steps.run(quick=True, processes=1)["error"]
    assert error.startswith(f"with {DEFAULTS}: ")
    assert "No module named" in error
