"""`ademamix bench`. Nothing here looks at a time: those are for a quiet machine and for the reader of the table."""

import json
import math

import pytest
import torch

from ademamix.cli import main
from ademamix.lab.bench import measure, pytorch_steps

OWN = tuple(row for row in pytorch_steps.ROWS if row.package is None)
SHAPES = ((3, 5), (64,), ())
ELEMENTS = 15 + 64 + 1
CLOCK = 4 * len(SHAPES)


def failing(params):
    raise RuntimeError("no kernel for this CPU\nand a long explanation")


class Idle(torch.optim.SGD):
    def step(self, closure=None):
        return None


@pytest.fixture
def in_this_process(monkeypatch):
    """Let `run` measure tiny tensors here rather than in fresh processes, the rows of `peers` too."""

    def answer(job):
        rows = [row for row in pytorch_steps.ROWS if row.name in job["rows"]]
        if any(row.package == "crashing" for row in rows):
            return {"error": "the process ended with code -11: Segmentation fault"}
        return {"results": pytorch_steps.measure(rows, SHAPES, 0.001), "torch": torch.__version__, "threads": 1}

    monkeypatch.setattr(pytorch_steps, "_in_fresh_process", answer)
    monkeypatch.setattr(pytorch_steps.importlib.util, "find_spec", lambda name: None if name == "absent" else object())

    def use(*peers):
        monkeypatch.setattr(pytorch_steps, "ROWS", (*OWN, *peers))

    use()
    return use


def test_state_bytes_are_those_of_the_tensors():
    coded = 64 * 128  # and a scale of each moment for each of 64 blocks
    results = pytorch_steps.measure(OWN, (*SHAPES, (64, 128)), 0.001)
    clock = CLOCK // len(SHAPES) * (len(SHAPES) + 1)
    assert {name: result["state_bytes"] for name, result in results.items()} == {
        "torch AdamW fused": 8 * (ELEMENTS + coded) + clock,
        "torch AdamW foreach": 8 * (ELEMENTS + coded) + clock,
        "ademamix fused": 12 * (ELEMENTS + coded) + 2 * clock,
        "ademamix fused, beta1=0": 8 * (ELEMENTS + coded) + 2 * clock,
        "ademamix fused, bf16": 12 * ELEMENTS + 6 * coded + 2 * clock,
        "ademamix fused, compact": 12 * ELEMENTS + 4 * coded + 3 * 64 + 2 * clock,
        "ademamix compact, beta1=0": 8 * ELEMENTS + 3 * coded + 2 * 64 + 2 * clock,
        "ademamix foreach": 12 * (ELEMENTS + coded) + 2 * clock,
        "ademamix single": 12 * (ELEMENTS + coded) + 2 * clock,
    }
    assert all(result["seconds"] > 0 and result["steps"] >= 10 for result in results.values())


def test_state_bytes_of_shared_nested_and_wrapped_tensors():
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, (100,))

        def __init__(self, inner):
            self.inner = inner

        def __torch_dispatch__(self, *args):
            raise AssertionError("a wrapper has no memory of its own")

        def __tensor_flatten__(self):
            return ["inner"], None

    table = torch.zeros(256)
    optimizer = torch.optim.SGD([torch.zeros(1)])
    optimizer.state = {
        0: {"table": table, "half": torch.zeros(6)[:3], "step": 7},
        1: {"table": table, "nested": [{"codes": torch.zeros(10, dtype=torch.uint8)}]},
        2: {"wrapped": Wrapper(torch.zeros(50, dtype=torch.uint8))},
    }
    assert measure.state_bytes(optimizer) == 1024 + 24 + 10 + 50


def test_gpt2_shapes():
    shapes = pytorch_steps.gpt2_shapes()
    assert len(shapes) == 148
    assert sum(math.prod(shape) for shape in shapes) == 124_439_808
    assert pytorch_steps.SCENARIOS["large"].shapes == ((8192, 4096),)
    assert len(pytorch_steps.SCENARIOS["small"].shapes) == 200


def test_each_row_has_its_baseline():
    names = [row.name for row in OWN]
    assert {row.baseline for row in pytorch_steps.ROWS} <= set(names)
    assert len({row.name for row in pytorch_steps.ROWS}) == len(pytorch_steps.ROWS)


def test_a_peer_that_fails_is_reported_and_the_rest_measured(in_this_process, capsys):
    in_this_process(
        pytorch_steps.Row("broken peer", pytorch_steps.ADAMW_FUSED, failing, package="installed"),
        pytorch_steps.Row("idle peer", pytorch_steps.ADAMW_FUSED, lambda params: Idle(params), package="installed"),
        pytorch_steps.Row(
            "working peer", pytorch_steps.ADAMW_FUSED, lambda params: torch.optim.SGD(params, 0.1), package="installed"
        ),
        pytorch_steps.Row("crashing peer", pytorch_steps.ADAMW_FUSED, failing, package="crashing"),
        pytorch_steps.Row("absent peer", pytorch_steps.ADAMW_FUSED, failing, package="absent"),
    )
    assert pytorch_steps.run(quick=True, only="small") == 0
    lines = capsys.readouterr().out.splitlines()

    def line_of(name):
        return next(line for line in lines if line.strip().startswith(name))

    assert all("failed" not in line_of(row.name) for row in OWN)
    assert line_of("broken peer").endswith("failed: RuntimeError: no kernel for this CPU")
    assert line_of("idle peer").endswith("failed: RuntimeError: step() left a parameter as it was")
    assert "failed" not in line_of("working peer")
    assert line_of("crashing peer").endswith("failed: the process ended with code -11: Segmentation fault")
    assert "not installed: absent; `make bench` installs them" in lines


def test_peers_can_be_left_out(in_this_process, capsys):
    in_this_process(
        pytorch_steps.Row("broken peer", pytorch_steps.ADAMW_FUSED, failing, package="installed"),
        pytorch_steps.Row("absent peer", pytorch_steps.ADAMW_FUSED, failing, package="absent"),
    )
    assert main(["bench", "--quick", "--only", "small", "--no-peers"]) == 0
    printed = capsys.readouterr().out
    assert "broken peer" not in printed
    assert "not installed" not in printed


def test_a_row_of_ours_that_fails_makes_the_exit_code_1(in_this_process, capsys):
    in_this_process(pytorch_steps.Row("ours", pytorch_steps.ADAMW_FUSED, failing))
    assert pytorch_steps.run(quick=True, only="small") == 1
    assert "ours" in capsys.readouterr().out


def test_ratio_is_the_median_over_processes(in_this_process, monkeypatch, capsys, tmp_path):
    times = iter([1.2, 1.3, 7.0])

    def answer(job):
        results = {name: {"seconds": 1.0, "steps": 10, "state_bytes": 8000} for name in job["rows"]}
        results["ademamix fused"]["seconds"] = next(times)
        return {"results": results, "torch": "2", "threads": 1}

    monkeypatch.setattr(pytorch_steps, "_in_fresh_process", answer)
    assert pytorch_steps.run(only="small", processes=3, json_file=tmp_path / "pytorch_steps.json") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "ademamix fused  " in line)
    assert " ".join(line.split()) == "ademamix fused 1.30 1.20..7.00 torch AdamW fused 1.30 met 0.04"
    rows = json.loads((tmp_path / "pytorch_steps.json").read_text())["scenarios"]["small"]["rows"]
    assert next(row for row in rows if row["name"] == "ademamix fused")["ratios"] == [1.2, 1.3, 7.0]


def test_the_command_in_fresh_processes(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(pytorch_steps, "ROWS", OWN)  # also where `make bench` has installed the peers
    file = tmp_path / "pytorch_steps.json"
    assert main(["bench", "--quick", "--only", "small", "--threads", "1", "--json", str(file)]) == 0
    printed = capsys.readouterr()
    assert "small: ademamix and torch, process 1 of 1" in printed.err
    report = json.loads(file.read_text())
    assert report["environment"]["threads"] == 1
    assert report["environment"]["torch"] == torch.__version__
    assert report["environment"]["cpu"]
    rows = report["scenarios"]["small"]["rows"]
    assert [row["name"] for row in rows] == [row.name for row in OWN]
    for row in rows:
        assert row["error"] is None
        assert row["name"] in printed.out
        assert row["met"] is (None if row["target"] is None else row["ratio"] <= row["target"])
    bytes_each = {row["name"]: row["state_bytes_per_parameter"] for row in rows}
    assert bytes_each["ademamix fused"] == 12 + 8 / 1024
    assert bytes_each["ademamix fused, beta1=0"] == 8 + 8 / 1024
    assert bytes_each["torch AdamW fused"] == 8 + 4 / 1024


def test_importing_ademamix_loads_no_framework(capsys):
    assert main(["bench", "--quick", "--only", "import"]) == 0
    assert "loads no framework" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes", "0"], "argument --processes: must be a whole number of at least 1, got '0'"),
        (["--threads", "100000k"], "argument --threads: must be at most 1000, got '100000k'"),
        (["--threads", "two"], "argument --threads: must be a whole number of at least 1, got 'two'"),
        (["--only", "gpt3"], "argument --only: invalid choice: 'gpt3'"),
        (["--json", "no/such/folder/pytorch_steps.json"], "argument --json: must be a file that can be written"),
    ],
)
def test_bad_options(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["bench", *arguments])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_help_names_every_scenario(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in pytorch_steps.NAMES)
