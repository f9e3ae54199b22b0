"""`ademamix bench`. Nothing here looks at a time: those are for a quiet machine and for the reader of the table."""

import json
import math

import pytest
import torch

from ademamix import formats, native
from ademamix.cli import main
from ademamix.lab.bench import measure, pytorch_steps, rows
from ademamix.lab.bench.rows import ADAMW_FUSED, BF16_PARAMETERS, Row

OWN = tuple(row for row in rows.ROWS if row.package is None)
SHAPES = ((3, 5), (64,), ())
ELEMENTS = 15 + 64 + 1


def failing(params):
    raise RuntimeError("no kernel for this CPU\nand a long explanation")


class Idle(torch.optim.SGD):
    def step(self, closure=None):
        return None


@pytest.fixture
def in_this_process(monkeypatch):
    """Let `run` measure tiny tensors here rather than in fresh processes, the rows of `peers` too."""

    def answer(job):
        chosen = [row for row in rows.ROWS if row.name in job["rows"]]
        if any(row.package == "crashing" for row in chosen):
            return {"error": "the process ended with code -11: Segmentation fault"}
        return {"results": measure.measure(chosen, SHAPES, 0.001), "torch": torch.__version__, "threads": 1}

    monkeypatch.setattr(pytorch_steps, "_in_fresh_process", answer)
    monkeypatch.setattr(pytorch_steps.importlib.util, "find_spec", lambda name: None if name == "absent" else object())

    def use(*peers):
        monkeypatch.setattr(rows, "ROWS", (*OWN, *peers))
        monkeypatch.setattr(rows, "PEERS", tuple(dict.fromkeys(peer.package for peer in peers)))

    use()
    return use


BYTES = {  # of state: for each element of a tensor that is coded, for its 64 blocks, for each element of another
    rows.ADAMW_FUSED: (8, 0, 8),
    rows.ADAMW_FOREACH: (8, 0, 8),
    rows.FUSED: (12, 0, 12),
    rows.FUSED_NO_FAST: (8, 0, 8),
    rows.BF16: (6, 0, 12),
    rows.COMPACT: (4, 3, 12),
    rows.COMPACT_NO_FAST: (3, 2, 8),
    rows.COMPACT_WIDE: (4, 3, 12),
    rows.FUSED_CLIPPED: (12, 0, 12),
    rows.COMPACT_CLIPPED: (4, 3, 12),
    rows.FOREACH: (12, 0, 12),
    "ademamix single": (12, 0, 12),
    rows.ADAMW_BF16: (4, 0, 4),
    rows.FUSED_BF16: (12, 0, 12),
    rows.BF16_BF16: (6, 0, 12),
    rows.COMPACT_BF16: (4, 3, 12),
    rows.COMPACT_MASTER: (5, 3, 13),
}


@pytest.mark.parametrize("dtype", ["float32", BF16_PARAMETERS])
def test_state_bytes_are_those_of_the_tensors(dtype):
    own = [row for row in OWN if row.parameters == dtype]
    results = measure.measure(own, (*SHAPES, (64, 128)), 0.001)
    clocks = 4 * (len(SHAPES) + 1)
    for row in own:
        coded, scales, plain = BYTES[row.name]
        total = coded * 64 * 128 + scales * 64 + plain * ELEMENTS + clocks * (2 if "ademamix" in row.name else 1)
        assert results[row.name]["state_bytes"] == total, row.name
        assert results[row.name]["seconds"] > 0
        assert results[row.name]["steps"] >= 2
        assert (results[row.name]["bare_seconds"] is not None) == row.one_pass


def test_gradients_differ_from_step_to_step_in_the_same_memory():
    gradients = measure.Gradients([(100, 30), (7,)], torch.bfloat16, torch.Generator().manual_seed(0))
    draws = [gradients.of_step(step) for step in range(2 * measure.DRAWS)]
    assert all([gradient.shape for gradient in draw] == [(100, 30), (7,)] for draw in draws)
    assert all(gradient.dtype == torch.bfloat16 and gradient.is_contiguous() for draw in draws for gradient in draw)
    for i in range(2):
        distinct = {tuple(draw[i].flatten().tolist()) for draw in draws}
        assert len(distinct) == measure.DRAWS
        assert len({draw[i].untyped_storage().data_ptr() for draw in draws}) == 1
        assert all(torch.equal(draws[k][i], draws[k + measure.DRAWS][i]) for k in range(measure.DRAWS))


@pytest.mark.parametrize("one_gradient", [False, True])
def test_blocks_are_wide_only_under_one_gradient_for_all_steps(one_gradient):
    made = []

    def factory(params):
        made.append(next(row for row in OWN if row.name == rows.COMPACT).factory(params))
        return made[0]

    row = Row("compact", "compact", factory, one_gradient=one_gradient)
    params = [torch.nn.Parameter(torch.ones(64, 1024))]
    candidate = measure.Candidate(row, params, measure.Gradients([(64, 1024)], torch.float32, torch.Generator()))
    candidate.warm_up()
    for _ in range(20):
        candidate.step()
    scales = made[0].state[params[0]]["exp_avg_sq_scale"]
    wide = (scales >= formats.FIRST_WIDE_SCALE) & (scales <= formats.LAST_WIDE_SCALE)
    assert (wide.float().mean() > 0.5) == one_gradient
    assert wide.any() == one_gradient


def test_a_bare_pass_goes_over_the_arrays_of_a_step_and_changes_nothing(monkeypatch):
    seen = []
    stream = native.core.stream

    class Core:
        @staticmethod
        def stream(arrays, sizes, threads):
            seen.extend([[len(array) for array in tensor] for tensor in arrays])
            return stream(arrays, sizes, threads)

    params = [torch.nn.Parameter(torch.randn(64, 128)), torch.nn.Parameter(torch.randn(10))]
    optimizer = next(row for row in OWN if row.name == rows.COMPACT).factory(params)
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer.step()
    held = [*params, *optimizer.state[params[0]].values(), *optimizer.state[params[1]].values()]
    before = [tensor.detach().clone() for tensor in held]
    monkeypatch.setattr(native, "core", Core)
    assert all(seconds > 0 for seconds in measure.bare_passes(optimizer, params, 3))
    assert seen == 3 * [[4 * 8192, 4 * 8192, 8192, 2 * 8192, 8192], [40, 40, 40, 40, 40]]
    assert all(torch.equal(tensor, old) for tensor, old in zip(held, before, strict=True))
    monkeypatch.setattr(native, "core", None)
    assert measure.bare_passes(optimizer, params, 3) == []


@pytest.mark.parametrize(
    ("tensors", "sizes", "reason"),
    [
        ([[torch.zeros(8, dtype=torch.uint8)]], [], "lists of different lengths"),
        ([[]], [4], "a tensor without arrays or elements"),
        ([[torch.zeros(0, dtype=torch.uint8)]], [0], "a tensor without arrays or elements"),
        ([[torch.zeros(7, dtype=torch.uint8)]], [4], "an array of another number of elements"),
    ],
)
def test_a_bare_pass_refuses_arrays_that_do_not_belong_together(tensors, sizes, reason):
    with pytest.raises(ValueError, match=reason):
        native.core.stream(tensors, sizes, 1)


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
    shapes = rows.gpt2_shapes()
    assert len(shapes) == 148
    assert sum(math.prod(shape) for shape in shapes) == 124_439_808
    assert rows.SCENARIOS["large"].shapes == ((8192, 4096),)
    assert len(rows.SCENARIOS["small"].shapes) == 200


def test_each_row_has_its_baseline():
    names = [row.name for row in OWN]
    assert {row.baseline for row in OWN} <= set(names)
    assert {row.baseline for row in rows.ROWS} <= {*names, rows.CPU_ADAM}
    assert len({row.name for row in rows.ROWS}) == len(rows.ROWS)
    by_name = {row.name: row for row in rows.ROWS}
    assert all(by_name[row.baseline].parameters == row.parameters for row in rows.ROWS)


def test_each_target_is_of_a_row():
    for scenario in rows.SCENARIOS.values():
        assert set(scenario.targets) <= {row.name for row in scenario.rows}


def test_kernels_are_measured_in_cache_on_one_thread():
    cache = rows.SCENARIOS["cache"]
    assert (cache.threads, cache.turn) == (1, 10)
    assert all(row.one_pass for row in cache.rows)
    assert rows.COMPACT_WIDE in {row.name for row in cache.rows}
    gpt2 = rows.SCENARIOS["gpt2"]
    assert (gpt2.threads, gpt2.turn) == (None, 1)
    assert {row.name for row in gpt2.rows} == {row.name for row in rows.ROWS} - {rows.COMPACT_WIDE}


def test_a_peer_that_fails_is_reported_and_the_rest_measured(in_this_process, capsys):
    in_this_process(
        Row("broken peer", ADAMW_FUSED, failing, package="installed"),
        Row("idle peer", ADAMW_FUSED, lambda params: Idle(params), package="installed"),
        Row("working peer", ADAMW_FUSED, lambda params: torch.optim.SGD(params, 0.1), package="installed"),
        Row("crashing peer", ADAMW_FUSED, failing, package="crashing"),
        Row("absent peer", ADAMW_FUSED, failing, package="absent"),
    )
    assert main(["bench", "--quick", "--only", "small"]) == 0
    lines = capsys.readouterr().out.splitlines()

    def line_of(name):
        return next(line for line in lines if line.strip().startswith(name))

    assert all("failed" not in line_of(row.name) for row in rows.SCENARIOS["small"].rows if row.package is None)
    assert line_of("broken peer").endswith("failed: RuntimeError: no kernel for this CPU")
    assert line_of("idle peer").endswith("failed: RuntimeError: step() left a parameter as it was")
    assert "failed" not in line_of("working peer")
    assert line_of("crashing peer").endswith("failed: the process ended with code -11: Segmentation fault")
    assert "not installed: absent; `make bench` installs them, `make bench-deepspeed` DeepSpeed" in lines


def test_peers_can_be_left_out(in_this_process, capsys):
    in_this_process(
        Row("broken peer", ADAMW_FUSED, failing, package="installed"),
        Row("absent peer", ADAMW_FUSED, failing, package="absent"),
    )
    assert main(["bench", "--quick", "--only", "small", "--no-peers"]) == 0
    printed = capsys.readouterr().out
    assert "broken peer" not in printed
    assert "not installed" not in printed


def test_a_row_of_ours_that_fails_makes_the_exit_code_1(in_this_process, capsys):
    in_this_process(Row("ours", ADAMW_FUSED, failing))
    assert pytorch_steps.run(quick=True, only="small") == 1
    assert "ours" in capsys.readouterr().out


def test_ratio_is_the_median_over_processes(in_this_process, monkeypatch, capsys, tmp_path):
    times = iter([1.2, 1.3, 7.0])

    def answer(job):
        same = {"seconds": 1.0, "bare_seconds": 0.5, "steps": 10, "state_bytes": 8000}
        results = {name: dict(same) for name in job["rows"]}
        if "ademamix fused" in results:
            results["ademamix fused"]["seconds"] = next(times)
        return {"results": results, "torch": "2", "threads": 1}

    monkeypatch.setattr(pytorch_steps, "_in_fresh_process", answer)
    assert pytorch_steps.run(only="small", processes=3, json_file=tmp_path / "pytorch_steps.json") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith("ademamix fused 1.30"))
    assert lines[at - 2] == "over torch AdamW fused"
    assert lines[at] == "ademamix fused 1.30 1.20..7.00 1.00 not met 5859.375 0.04 12.1 0.0 0.0"
    found = json.loads((tmp_path / "pytorch_steps.json").read_text())["scenarios"]["small"]["rows"]
    row = next(row for row in found if row["name"] == "ademamix fused")
    assert row["ratios"] == [1.2, 1.3, 7.0]
    moved = 3 * 4 + 2 * 8000 / 204_800
    assert row["bytes_moved"] == pytest.approx(moved)
    assert row["gigabytes_per_second"] == pytest.approx(1e-9 * moved * 204_800 / 1.2)
    assert row["bare_gigabytes_per_second"] == pytest.approx(1e-9 * moved * 204_800 / 0.5)
    halves = next(row for row in found if row["name"] == rows.COMPACT_BF16)
    assert halves["bytes_moved"] == pytest.approx(3 * 2 + 2 * 8000 / 204_800)
    assert next(row for row in found if row["name"] == rows.FOREACH)["gigabytes_per_second"] is None


@pytest.mark.parametrize("name", ["small", "cache"])
def test_the_command_in_fresh_processes(name, monkeypatch, capsys, tmp_path):
    file = tmp_path / "pytorch_steps.json"
    assert main(["bench", "--quick", "--only", name, "--no-peers", "--threads", "1", "--json", str(file)]) == 0
    printed = capsys.readouterr()
    assert f"{name}: ademamix and torch, process 1 of 1" in printed.err
    assert f"{name}: ademamix and torch, bf16 parameters, process 1 of 1" in printed.err
    report = json.loads(file.read_text())
    assert report["environment"]["torch"] == torch.__version__
    assert report["environment"]["cpu"]
    assert report["environment"]["instruction_set"] == native.core.instruction_set()
    scenario = report["scenarios"][name]
    assert scenario["threads"] == 1
    own = [row for row in rows.SCENARIOS[name].rows if row.package is None]
    assert [row["name"] for row in scenario["rows"]] == [row.name for row in own]
    for row in scenario["rows"]:
        assert row["error"] is None
        assert row["name"] in printed.out
        assert row["met"] is (None if row["target"] is None else row["ratio"] <= row["target"])
        assert row["ns_per_parameter"] == pytest.approx(1e9 * row["seconds"] / scenario["parameters"])
    bytes_each = {row["name"]: row["state_bytes_per_parameter"] for row in scenario["rows"]}
    size = scenario["parameters"] / scenario["tensors"]
    assert bytes_each["ademamix fused"] == 12 + 8 / size
    assert bytes_each["ademamix fused, beta1=0"] == 8 + 8 / size
    assert bytes_each["torch AdamW fused"] == 8 + 4 / size


def test_one_peer_alone(in_this_process, monkeypatch, capsys):
    peer = Row("a peer", ADAMW_FUSED, lambda params: torch.optim.SGD(params, 0.1), package="installed")
    ours = Row("ours to it", "a peer", OWN[1].factory, package="installed")
    in_this_process(peer, ours, Row("another", ADAMW_FUSED, failing, package="other"))
    assert pytorch_steps.run(quick=True, only="small", peers=["installed"], with_own=False) == 0
    lines = [line.split("  ")[0:2] for line in capsys.readouterr().out.splitlines()]
    assert [line[-1] for line in lines[2:6]] == [" over torch AdamW fused", "a peer", " over a peer", "ours to it"]


def test_importing_ademamix_loads_no_framework(capsys):
    assert main(["bench", "--quick", "--only", "import"]) == 0
    assert "loads no framework" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes", "0"], "argument --processes: must be a whole number of at least 1, got '0'"),
        (["--threads", "100000k"], "argument --threads: must be at most 1000, got '100000k'"),
        (["--threads", "two"], "argument --threads: must be a whole number of at least 1, got 'two'"),
        (["--peer", "numpy"], "argument --peer: invalid choice: 'numpy'"),
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
    assert all(f"  {name} " in printed for name in rows.NAMES)
