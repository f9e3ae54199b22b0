"""The studies of benchmarks/ run, write what they print, go on where they were stopped, and compare the right codes."""

from __future__ import annotations

import importlib
import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest
import torch

from ademamix import formats, native
from ademamix.pytorch import block_codes

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def _one_thread_and_importable_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run_quickly(monkeypatch, capsys, tmp_path):
    """Return a function that runs a study, and returns what it prints, what it tells on stderr and what it stores."""

    def run(name):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--quick", "--results", str(tmp_path)])
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
        captured = capsys.readouterr()
        return captured.out, captured.err, json.loads((tmp_path / f"{name}-quick.json").read_text())

    return run


def cells_of(printed):
    """Return the cells of the tables in `printed`, by the first cell of their line; a later table wins."""
    lines = [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("| ")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_moment_codes(run_quickly):
    printed, told, stored = run_quickly("moment_codes")
    rows = cells_of(printed)
    assert set(stored["parts"]) == {"m2 0", "m2 1", "m2 10", "nu 0.999", "nu 0.95", "m1 0", "m1 1", "m1 10"}
    for moment, condition in (("m2", "1"), ("nu", "0.95"), ("m1", "1")):
        assert set(stored["parts"][f"{moment} {condition}"]) <= set(rows)
    compact = "**16-bit offset float 12/7, stochastic, block 128**"
    assert rows[compact][0] == "2.008"
    assert rows[compact][3] == f"{stored['parts']['m2 1'][compact]['cosine']:.6f}"
    assert "left" in told


def test_spike(run_quickly):
    printed, told, stored = run_quickly("spike")
    assert len(stored["parts"]) == 16
    assert f"{stored['parts']['compact, 1e+06, beta2 0.999']:.3f}" in printed
    assert stored["parts"]["compact, without wide blocks, 1e+06, beta2 0.999"] < 0.5
    assert "left" in told


def test_block_scales(run_quickly):
    printed, _, stored = run_quickly("block_scales")
    assert list(stored["parts"]) == ["language model", "bench", "one gradient"]
    last = {name: found["6"] for name, found in stored["parts"].items()}
    assert last["bench"]["wide"] == 0.0
    assert last["one gradient"]["wide"] > 0.5
    assert all(0 <= share <= 1 for found in last.values() for share in found.values())
    assert f"| {100 * last['one gradient']['wide']:.2f}%" in printed


def test_live_gradients(run_quickly):
    printed, _, stored = run_quickly("live_gradients")
    last = stored["parts"]["6"]["cosines"]
    assert cells_of(printed)["6"][1:] == [f"{cosines['all']:.6f}" for cosines in last.values()]
    assert last["compact"]["all"] > 0.99999
    assert "embedding.weight" in last["compact"]


def test_live_gradients_go_on_from_a_checkpoint(tmp_path):
    module = importlib.import_module("live_gradients")
    whole = module.Experiment(module.QUICK)
    for _ in range(2):
        whole.advance()
    whole.save(tmp_path / "checkpoint")
    continued = module.Experiment(module.QUICK)
    continued.load(tmp_path / "checkpoint")
    assert whole.advance() == continued.advance()
    assert whole.cosines() == continued.cosines()


def test_storage_quality(run_quickly):
    printed, _, stored = run_quickly("storage_quality")
    arms = {"fp32", "compact", "bf16", "8-bit m2", "no m2"}
    assert set(stored["parts"]) == {f"{arm} {seed}" for arm in arms for seed in (0, 1)}
    assert all(part["coded_share"] > 0.9 for part in stored["parts"].values())
    assert arms <= set(cells_of(printed))


def test_finished_parts_are_not_repeated(run_quickly, tmp_path):
    path = tmp_path / "storage_quality-quick.json"
    _, _, stored = run_quickly("storage_quality")
    del stored["parts"]["8-bit m2 1"]
    stored["parts"]["fp32 0"]["validation"] = 1.0
    path.write_text(json.dumps(stored))
    _, _, again = run_quickly("storage_quality")
    assert again["parts"]["fp32 0"]["validation"] == 1.0
    assert "8-bit m2 1" in again["parts"]
    stored["settings"]["steps"] = 11
    path.write_text(json.dumps(stored))
    with pytest.raises(SystemExit, match="other settings"):
        run_quickly("storage_quality")


def test_interval_of_a_mean():
    module = importlib.import_module("storage_quality")
    mean, half_width = module.mean_and_half_width([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    assert half_width == pytest.approx(1.9632, abs=1e-3)  # scipy.stats.t.interval
    assert module.verdict_of(0.02, 0.005) == "worse"
    assert module.verdict_of(0.002, 0.005) == "within 0.01"
    assert module.verdict_of(0.002, 0.05) == "cannot tell"


@pytest.mark.parametrize("code", [formats.SLOW, formats.FAST, formats.SQUARE], ids=str)
def test_the_general_offset_float_is_the_one_of_the_optimizer(code):
    values = torch.randn(8, 512, generator=torch.Generator().manual_seed(0)) ** 5
    values[0, :200] = 0.0
    is_square = code is formats.SQUARE
    values = values.abs() if is_square else values
    general = importlib.import_module("other_codes").offset_float(
        code.mantissa_bits, code.octaves, size=formats.BLOCK, stochastic=False, keeps_positive=is_square
    )
    codes, scale = block_codes.encode(values, code)
    is_ordinary = block_codes.per_element(scale > formats.LAST_WIDE_SCALE, values.shape[1])
    assert is_ordinary.all() or (is_square and is_ordinary.any())  # the studies are of ordinary blocks
    assert torch.equal(general(values)[is_ordinary], block_codes.decode(codes, scale)[is_ordinary])


def test_stochastic_codes_are_unbiased():
    codes = importlib.import_module("other_codes")
    torch.manual_seed(0)
    values = torch.linspace(-0.99, 1, 256).expand(4000, -1)  # the dynamic code ends before -1
    for code in (
        codes.offset_float(4, 7, size=256, stochastic=True, keeps_positive=False),
        codes.companded(1, 127, size=256, stochastic=True),
        codes.companded(2, 127, size=256, stochastic=True),
        codes.bf16(stochastic=True),
        codes.dynamic(stochastic=True),
    ):
        # four standard errors and more of the coarsest code's steps of 1/16
        torch.testing.assert_close(code(values).mean(0), values[0], rtol=0, atol=3e-3)


@pytest.mark.parametrize("signed", [True, False])
def test_fast_bucketize_agrees_with_torch(signed):
    codes = importlib.import_module("other_codes")
    levels = codes.dynamic_levels(signed)
    for boundaries in (levels, (levels[1:] + levels[:-1]) / 2):
        beside = [boundaries.nextafter(torch.tensor(end)) for end in (-2.0, 2.0)]
        values = torch.cat([boundaries, *beside, torch.tensor([0.0, -0.0, 1.0, -1.0]), torch.randn(10_000)])
        assert torch.equal(codes.fast_bucketize(boundaries)(values), torch.bucketize(values, boundaries))


def test_dynamic_levels_are_those_of_bitsandbytes():
    levels = importlib.import_module("other_codes").dynamic_levels
    assert len(levels(True)) == len(levels(False)) == 256
    assert len(levels(True).unique()) == len(levels(False).unique()) == 256
    assert levels(True).min() > -1 == -levels(True).max()  # there is a 1, and no -1
    assert levels(False)[:2].tolist() == [0.0, pytest.approx(3.25e-7)]


def test_precision(run_quickly):
    printed, told, stored = run_quickly("precision")
    errors = {name: part["theta"] for name, part in stored["parts"].items()}
    assert f"{errors['Optax']:.1e}" in printed
    assert (
        max(errors[name] for name in errors if name.startswith(("PyTorch", "Optax"))) < 1e-4
    )  # of the way of 20 steps
    assert errors["bf16 parameter, `stochastic_rounding=False`"] > 0.05
    assert "left" in told


def test_the_usual_path_of_blocks(monkeypatch):
    kernel_instructions = importlib.import_module("kernel_instructions")
    monkeypatch.setattr(kernel_instructions, "BLOCKS", 4)
    usual, other = [10, 11, 12, 11, 12], [10, 11, 99]
    assert kernel_instructions.usual_path([1, 2, *usual, *other, *usual, *usual, 3]) == tuple(usual)


@pytest.mark.skipif(not shutil.which("objdump"), reason="needs objdump")
@pytest.mark.skipif(native.core is None or "avx2" not in native.core.instruction_sets(), reason="x86-64 alone")
def test_instructions_are_read_from_the_core():
    kernel_instructions = importlib.import_module("kernel_instructions")
    instructions = kernel_instructions.disassembled(Path(kernel_instructions.core.__file__)).values()
    assert any(instruction.is_vector and instruction.mnemonic == "vdivps" for instruction in instructions)
    assert not any(instruction.is_vector for instruction in instructions if instruction.mnemonic in ("mov", "ret"))
