"""`ademamix bench --only optax`. As in test_bench.py, nothing looks at a time."""

from __future__ import annotations

import json

from ademamix.cli import main
from ademamix.lab import bench_optax


def test_the_command(capsys, tmp_path):
    file = tmp_path / "bench.json"
    assert main(["bench", "--quick", "--only", "optax", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    ratios = json.loads(file.read_text())["optax"]["ratios"]
    assert all(name in printed for name in ratios)
    assert ratios["optax.adamw"]["optax.adamw"] == 1.0
    assert all(ratio > 0 for row in ratios.values() for ratio in row.values())
    assert "1.35" in printed
    assert "1.03" in printed


def test_without_jax_it_says_so(monkeypatch):
    monkeypatch.setattr(bench_optax.importlib.util, "find_spec", lambda name: None)
    report = bench_optax.run(quick=True, processes=1)
    assert bench_optax.table(report)[0] == (
        "optax: not measured: JAX and Optax are not installed: pip install 'ademamix[jax]'"
    )


def test_a_process_that_fails_is_reported(monkeypatch):
    monkeypatch.setattr(bench_optax, "__name__", "ademamix.no_such_module")
    assert "No module named" in bench_optax.run(quick=True, processes=1)["error"]
