"""What a checkpoint holds is said in the numbers of the optimizer that wrote it, and trouble is named."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import torch

from ademamix import AdEMAMix, beta3_at
from ademamix.checkpoints import CheckpointError, inspect
from ademamix.checkpoints.inspection import State
from ademamix.lab.report.checkpoint import picture, text
from ademamix.optax import ademamix
from cases import STORAGES
from fixtures.foreign import write_foreign as foreign
from written_by import ROWS, SAVED

FOREIGN = Path(foreign.__file__).parent


def stepped(
    path: Path,
    shapes: dict[str, tuple[int, ...]],
    gradients: Any = torch.randn,
    dtype: torch.dtype = torch.float32,
    **settings: Any,
) -> AdEMAMix:
    """Write a state after 60 steps, with names."""
    torch.manual_seed(0)
    params = {name: torch.zeros(shape, dtype=dtype, requires_grad=True) for name, shape in shapes.items()}
    optimizer = AdEMAMix(params.items(), **{"total_steps": 1000, **settings})
    for _ in range(60):
        for param in params.values():
            param.grad = gradients(param.shape).to(dtype)
        optimizer.step()
    torch.save({"optimizer": optimizer.state_dict()}, path)
    return optimizer


def only(path: Path, **settings: Any) -> State:
    (state,) = inspect(path, **settings).states
    return state


def test_our_own_state(tmp_path: Path) -> None:
    optimizer = stepped(tmp_path / "run.pt", {"layer.weight": (4, 3), "layer.bias": (4,)})
    state = only(tmp_path / "run.pt")
    diagnostics = optimizer.diagnostics()[0]
    (group,) = state.groups
    assert (state.label, state.origin, state.warnings) == ("optimizer", "ademamix", [])
    assert (group.step, group.slow_step, group.total_steps) == (60, 60, 1000)
    assert (group.alpha, group.beta3) == (diagnostics["alpha"], diagnostics["beta3"])
    assert (group.alpha_end, group.beta3_end, group.alpha_warmup, group.beta3_warmup) == (5.0, 0.975, 1000, 1000)
    assert group.largest_slow_step == diagnostics["largest_slow_step"]
    left = math.prod(beta3_at(s, 0.975, 0.9, 1000) for s in range(1, 61))
    assert group.filled == pytest.approx(1 - left, rel=1e-12)
    assert [parameter.name for parameter in state.parameters] == ["layer.weight", "layer.bias"]
    for parameter, entries in zip(state.parameters, optimizer.state.values(), strict=True):
        for moment, key in {"m1": "exp_avg", "m2": "exp_avg_slow", "nu": "exp_avg_sq"}.items():
            assert parameter.norms[moment] == pytest.approx(float(entries[key].norm()), rel=1e-6)
    assert state.bytes == {"m1": 64, "m2": 64, "nu": 64}


@pytest.mark.parametrize(("storage", "bytes_of_m2"), [("fp32", 4 * 4900), ("bf16", 2 * 4900), ("compact", 9870)])
def test_bytes_and_dtypes_are_those_of_the_file(tmp_path: Path, storage: str, bytes_of_m2: int) -> None:
    optimizer = stepped(tmp_path / "run.pt", {"weight": (70, 70)}, state_storage=storage)
    state = only(tmp_path / "run.pt")
    diagnostics = optimizer.diagnostics()[0]
    assert sum(state.bytes.values()) == diagnostics["reduced_bytes"] + diagnostics["full_bytes"]
    assert state.bytes["m2"] == bytes_of_m2
    assert state.dtypes["m2"] == [{"fp32": "float32", "bf16": "bfloat16", "compact": "int16"}[storage]]


def test_corrections_of_masters_are_counted(tmp_path: Path) -> None:
    shapes = {"weight": (70, 70), "bias": (9,)}
    stepped(tmp_path / "run.pt", shapes, dtype=torch.bfloat16, state_storage="compact", master="24bit")
    state = only(tmp_path / "run.pt")
    assert state.bytes["correction"] == 4909
    assert state.dtypes["correction"] == ["int8"]
    assert "correction  int8" in text(inspect(tmp_path / "run.pt"), 80)
    assert not state.warnings


@pytest.mark.parametrize("row", ["plain", "nested", "distributed", "flattened", "string keys", "accelerate"])
def test_adamw_in_every_container(tmp_path: Path, row: str) -> None:
    found = inspect(ROWS[row].begin(tmp_path))
    assert {state.origin for state in found.states} == {"AdamW"}
    assert all(group.step == SAVED and group.alpha is None for state in found.states for group in state.groups)
    parameters = [parameter for state in found.states for parameter in state.parameters]
    assert sorted(parameter.shape for parameter in parameters) == [(1,), (1, 5), (5,), (5, 6)]
    assert all(set(parameter.norms) == {"m1", "nu"} for parameter in parameters)
    names = {"plain": "0", "nested": "weight", "accelerate": "0"}
    assert parameters[0].name == names.get(row, "layers.0.weight")


@pytest.mark.parametrize(
    ("name", "dtypes"), [("bitsandbytes-8", ["float32", "uint8"]), ("heavyball-rising", ["float32"])]
)
def test_another_ademamix(name: str, dtypes: list[str]) -> None:
    state = only(FOREIGN / f"{name}.pt")
    (group,) = state.groups
    assert (group.step, group.slow_step, group.total_steps, group.alpha_warmup) == (120, 120, None, 1000)
    assert group.alpha == pytest.approx(3.0 * 0.12)
    assert state.dtypes["m2"] == dtypes
    if name == "bitsandbytes-8":  # a code and a share of two scales for each block of 256, and 5 plain numbers
        assert state.bytes == {"m1": 4160 + 17 * 4 + 20, "m2": 4160 + 17 * 4 + 20, "nu": 4160 + 17 * 4 + 20}


def test_orbax(tmp_path: Path) -> None:
    optimizer = ademamix(1e-3, total_steps=1000, slow_dtype="int16")
    params = {"dense": {"kernel": jnp.ones((70, 70)), "bias": jnp.ones(3)}}
    _, state = optimizer.update(params, optimizer.init(params), params)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "run", {"opt_state": state})
    found = only(tmp_path / "run")
    assert (found.label, found.origin, found.groups[0].step, found.groups[0].slow_step) == (
        "opt_state[0]",
        "ademamix",
        1,
        1,
    )
    norms = {parameter.name: parameter.norms for parameter in found.parameters}
    assert norms["dense.kernel"]["m1"] == pytest.approx(7.0, rel=1e-6)
    assert norms["dense.kernel"]["m2"] == pytest.approx(70 * (1 - beta3_at(1, 0.975, 0.9, 1000)), rel=1e-3)
    assert found.dtypes["m2"] == ["float32", "int16"]
    assert found.bytes["m1"] == 4 * 4903
    (note,) = found.notes
    assert note.startswith("a state of Optax has no settings in it, so that alpha(t), beta3(t), the place in the run")
    assert " ".join(text(inspect(tmp_path / "run"), 80).split()).endswith(f"note: {note}")


def of_optax(path: Path, counts: tuple[int, int] = (60, 0), **settings: Any) -> AdEMAMix:
    """Write a state of Optax after live and idle steps, and return an optimizer of torch that took the same."""
    optimizer = ademamix(1e-3, **settings)
    betas = (settings.pop("b1", 0.9), settings.pop("b2", 0.999), *([settings.pop("b3")] if "b3" in settings else []))
    twin = AdEMAMix([("rare", torch.zeros(4, 3, requires_grad=True))], betas=betas, **settings)
    (param,) = twin.param_groups[0]["params"]
    params = {"rare": jnp.zeros((4, 3))}
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    generator = np.random.default_rng(0)
    for step in range(sum(counts)):
        gradient = (0.3 + generator.standard_normal((4, 3))).astype(np.float32)
        gradient[2] *= step < counts[0]
        _, state = update({"rare": jnp.asarray(gradient)}, state, params)
        param.grad = torch.from_numpy(gradient)
        twin.step()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, state)
    return twin


@pytest.mark.parametrize(
    ("settings", "stated"),
    [
        ({"total_steps": 1000}, {"total_steps": 1000}),
        ({"total_steps": 400, "alpha": 2.0, "b1": 0.0}, {"total_steps": 400, "alpha": 2.0}),
        (
            {"b1": 0.8, "b3": 0.97, "alpha_warmup": 0, "beta3_warmup": 90, "slow_clip": 0.5},
            {"beta1": 0.8, "beta3": 0.97, "alpha_warmup": 0, "beta3_warmup": 90, "slow_clip": 0.5},
        ),
    ],
)
def test_settings_that_are_stated_place_a_state_of_optax(
    tmp_path: Path, settings: dict[str, Any], stated: dict[str, Any]
) -> None:
    """In the schedule and with the numbers that the same run has in torch."""
    twin = of_optax(tmp_path / "run", **settings)
    torch.save(twin.state_dict(), tmp_path / "run.pt")
    expected, found = only(tmp_path / "run.pt"), only(tmp_path / "run", **stated)
    (group,), (same,) = found.groups, expected.groups
    assert dataclasses.replace(group, largest_slow_step=None) == dataclasses.replace(same, largest_slow_step=None)
    assert group.largest_slow_step == pytest.approx(same.largest_slow_step, rel=1e-4)
    assert (found.warnings, found.notes) == (expected.warnings, []) == ([], [])


@pytest.mark.parametrize("b1", [0.9, 0.0])
def test_settings_that_are_stated_bring_the_warnings(tmp_path: Path, b1: float) -> None:
    settings: dict[str, Any] = {"b2": 0.95, "b3": 0.999, "alpha": 0.2, "alpha_warmup": 0, "beta3_warmup": 0}
    twin = of_optax(tmp_path / "run", (60, 400), b1=b1, **settings)
    torch.save(twin.state_dict(), tmp_path / "run.pt")
    stated = {"beta2": 0.95, "beta3": 0.999, "alpha": 0.2, "alpha_warmup": 0, "beta3_warmup": 0}
    found = only(tmp_path / "run", **stated).warnings
    assert found == only(tmp_path / "run.pt").warnings
    assert [warning.split(".")[0] for warning in found] == [
        "elements with a slow step above 10 times lr: 3",
        "idle elements: 3, in rare",
    ]
    assert only(tmp_path / "run", slow_clip=30.0, **stated).warnings == []
    (warning,) = only(tmp_path / "run", total_steps=1000, beta3=0.9999, slow_clip=30.0).warnings
    assert "remembers about 10,000 steps, more than half of total_steps = 1,000" in warning
    (warning,) = only(tmp_path / "run", **{**stated, "beta3_warmup": 1000, "slow_clip": 30.0}).warnings
    assert "more than half of the warm-ups of 1,000" in warning


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"beta2": 1.0}, r"beta2 must be a number in \[0, 1\), got 1.0"),
        ({"state_storage": "bf16"}, "state_storage is no setting of an inspection; these are: total_steps, alpha"),
    ],
)
def test_settings_that_are_stated_wrongly(tmp_path: Path, stated: dict[str, Any], message: str) -> None:
    of_optax(tmp_path / "run", (1, 0), total_steps=10)
    with pytest.raises(CheckpointError, match=message):
        inspect(tmp_path / "run", **stated)


def test_settings_are_for_states_without_any(tmp_path: Path) -> None:
    stepped(tmp_path / "run.pt", {"weight": (3,)})
    with pytest.raises(CheckpointError, match="a state of torch has its settings in it: leave alpha out"):
        inspect(tmp_path / "run.pt", alpha=8.0)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "adamw", optax.adamw(1e-3).init({"w": jnp.ones(3)}))
    (perhaps,) = only(tmp_path / "adamw").notes
    assert "the state of adabelief" in perhaps
    notes = only(tmp_path / "adamw", alpha=8.0).notes
    assert notes[0] == perhaps
    assert notes[1].startswith("AdamW has no slow average")


def test_nan_is_named(tmp_path: Path) -> None:
    optimizer = stepped(tmp_path / "run.pt", {"first": (3,), "second": (3,)})
    list(optimizer.state.values())[1]["exp_avg_slow"][1] = math.nan
    torch.save(optimizer.state_dict(), tmp_path / "run.pt")
    (warning,) = [text for text in only(tmp_path / "run.pt").warnings if "NaN" in text]
    assert warning.startswith("elements of m2 that are NaN or infinite: 1, in second.")


def test_nan_in_orbax_is_named(tmp_path: Path) -> None:
    optimizer = ademamix(1e-3, total_steps=1000)
    state = optimizer.init({"w": jnp.ones(3)})
    state = (state[0]._replace(nu={"w": jnp.array([1.0, jnp.inf, 2.0])}), *state[1:])
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "run", state)
    (warning,) = only(tmp_path / "run").warnings
    assert warning.startswith("elements of nu that are NaN or infinite: 1, in w.")


def test_idle_elements_are_named(tmp_path: Path) -> None:
    """Gradients of one row stop: first it is idle, and much later its slow step is large."""
    live = torch.ones(4, 1)

    def gradients(shape: Any) -> torch.Tensor:
        return torch.randn(shape) * live

    settings: dict[str, Any] = {"alpha_warmup": 0, "beta3_warmup": 0, "betas": (0.9, 0.95, 0.999)}
    settings |= {"alpha": 0.2, "total_steps": 5000}
    optimizer = stepped(tmp_path / "run.pt", {"rare": (4, 3)}, gradients, **settings)
    assert only(tmp_path / "run.pt").warnings == []
    live[2] = 0.0
    (param,) = optimizer.param_groups[0]["params"]
    for count, expected in {
        220: ["idle elements: 3, in rare"],
        300: ["slow step above 10 times lr: 3", "idle elements: 3"],
    }.items():
        for _ in range(count):
            param.grad = gradients(param.shape)
            optimizer.step()
        torch.save(optimizer.state_dict(), tmp_path / f"{count}.pt")
        warnings = only(tmp_path / f"{count}.pt").warnings
        assert len(warnings) == len(expected), warnings
        assert all(words in warning for words, warning in zip(expected, warnings, strict=True)), warnings
    optimizer.param_groups[0]["slow_clip"] = 30.0
    torch.save(optimizer.state_dict(), tmp_path / "bounded.pt")
    assert all("idle elements" not in warning for warning in only(tmp_path / "bounded.pt").warnings)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("beta1", "beta2", "steps"), [(0.9, 0.999, 900), (0.0, 0.95, 500)])
def test_idle_rows_are_named_in_every_storage(
    tmp_path: Path, storage: str, beta1: float, beta2: float, steps: int
) -> None:
    """Where m1 is not stored, they must have been idle for longer: their slow step has grown by then."""
    live = torch.ones(128, 1)

    def gradients(shape: Any) -> torch.Tensor:
        return (0.3 + torch.randn(shape)) * live

    settings: dict[str, Any] = {"betas": (beta1, beta2, 0.9999), "total_steps": 10**7, "beta3_warmup": 0}
    optimizer = stepped(tmp_path / "run.pt", {"rare": (128, 64)}, gradients, state_storage=storage, **settings)
    assert only(tmp_path / "run.pt").warnings == []
    live[:64] = 0.0
    (param,) = optimizer.param_groups[0]["params"]
    for _ in range(steps):
        param.grad = gradients(param.shape)
        optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "run.pt")
    (warning,) = only(tmp_path / "run.pt").warnings
    found = int(warning.split()[2].rstrip(",").replace(",", ""))
    assert warning.startswith("idle elements: ")
    assert found == 4096 if beta1 else 3500 < found <= 4096


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("beta1", [0.9, 0.0])
def test_live_elements_are_not_called_idle(tmp_path: Path, storage: str, beta1: float) -> None:
    """Those of a small language model, whose gradients shrink most at the beginning."""
    torch.manual_seed(0)
    text = torch.tensor(list(Path(__file__).read_bytes().lower()))
    frequent = torch.bincount(text, minlength=256) > len(text) // 200
    tokens = (frequent.cumsum(0) - 1)[text[frequent[text]]]
    table, head = torch.nn.Embedding(int(frequent.sum()), 256), torch.nn.Linear(256, int(frequent.sum()))
    model = torch.nn.Sequential(table, torch.nn.Linear(256, 256), torch.nn.Tanh(), head)
    optimizer = AdEMAMix(
        model.parameters(), lr=3e-3, betas=(beta1, 0.95, 0.999), total_steps=25_000, state_storage=storage
    )
    for step in range(1, 241):
        places = torch.randint(len(tokens) - 1, (512,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens[places]), tokens[places + 1]).backward()
        optimizer.step()
        if step % 20 == 0:
            torch.save(optimizer.state_dict(), tmp_path / "run.pt")
            assert only(tmp_path / "run.pt").warnings == []


def test_a_bound_that_a_group_has_is_not_recommended_to_it(tmp_path: Path) -> None:
    """Only the groups without one are warned of."""
    params = [torch.zeros(3, requires_grad=True) for _ in range(2)]
    bounded = [{"params": params[:1], "slow_clip": 30.0}, {"params": params[1:]}]
    optimizer = AdEMAMix(bounded, betas=(0.9, 0.95, 0.9999), alpha=8.0, alpha_warmup=0, beta3_warmup=0)
    for step in range(800):
        for param in params:
            param.grad = torch.full((3,), float(step < 300))
        optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "run.pt")
    state = only(tmp_path / "run.pt")
    bound, free = (group.largest_slow_step for group in state.groups)
    assert bound == 30.0
    assert free is not None
    assert free > 10_000
    assert [warning.split(".")[0] for warning in state.warnings] == [
        "elements with a slow step above 10 times lr: 3",
        "idle elements: 3, in 1",
    ]
    optimizer.param_groups[1]["slow_clip"] = 30.0
    torch.save(optimizer.state_dict(), tmp_path / "run.pt")
    assert only(tmp_path / "run.pt").warnings == []


def test_a_frozen_slow_average_is_named(tmp_path: Path) -> None:
    """In 8 bits, or in the bf16 of a bf16 model, rounded to nearest; ours rounds stochastically."""
    warning, _ = only(FOREIGN / "bitsandbytes-8.pt").warnings
    assert warning.startswith("m2 is likely frozen in 0: with beta3 = 0.999 a step moves it by 0.001")
    saved = torch.load(FOREIGN / "authors-risen.pt")
    assert only(FOREIGN / "authors-risen.pt").warnings == []
    for entries in saved["optimizer"]["state"].values():
        entries["exp_avg_slow"] = entries["exp_avg_slow"].bfloat16()
    torch.save(saved, tmp_path / "bf16.pt")
    (warning,) = only(tmp_path / "bf16.pt").warnings
    assert warning.startswith("m2 is likely frozen in 0, 1: with beta3 = 0.999")
    saved["optimizer"]["param_groups"][0]["betas"] = (0.9, 0.99, 0.997)
    torch.save(saved, tmp_path / "bf16.pt")
    assert only(tmp_path / "bf16.pt").warnings == []
    stepped(
        tmp_path / "ours.pt", {"weight": (70, 70)}, state_storage="bf16", betas=(0.9, 0.99, 0.999), total_steps=9000
    )
    assert only(tmp_path / "ours.pt").warnings == []


@pytest.mark.filterwarnings("ignore:beta3 = 0.9999 remembers")
def test_a_memory_longer_than_the_run_is_named(tmp_path: Path) -> None:
    stepped(tmp_path / "run.pt", {"weight": (3,)}, betas=(0.9, 0.999, 0.9999))
    (warning,) = only(tmp_path / "run.pt").warnings
    assert "remembers about 10,000 steps, more than half of total_steps = 1,000" in warning


@pytest.mark.parametrize("name", ["authors-rising", "heavyball-rising", "pytorch_optimizer", "bitsandbytes-32"])
def test_a_memory_longer_than_half_of_the_warmups_is_named(tmp_path: Path, name: str) -> None:
    """Of an AdEMAMix that does not know the length of its run; where the run is past its warm-ups, they do not tell."""
    (warning,) = only(FOREIGN / f"{name}.pt").warnings
    assert warning == (
        "beta3 = 0.999 remembers about 1,000 steps, more than half of the warm-ups of 1,000. If that is the length of "
        "the run, the slow average outlives it: take beta3 = 0.975, which fits."
    )
    assert only(FOREIGN / f"{name.partition('-')[0]}-risen.pt").warnings == [] if "rising" in name else True


def test_what_is_no_adam_is_refused(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.ones(3, requires_grad=True)], momentum=0.9)
    torch.save({"optimizer": optimizer.state_dict()}, tmp_path / "sgd.pt")
    with pytest.raises(CheckpointError, match="at optimizer: this is the state of another optimizer"):
        inspect(tmp_path / "sgd.pt")


def test_parameters_without_a_state_are_left_out(tmp_path: Path) -> None:
    used, unused = (torch.ones(3, requires_grad=True) for _ in range(2))
    optimizer = AdEMAMix([unused, used], total_steps=100)
    used.grad = torch.ones(3)
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "run.pt")
    (parameter,) = only(tmp_path / "run.pt").parameters
    assert (parameter.name, parameter.shape) == ("1", (3,))
    assert parameter.norms["m1"] == pytest.approx(0.1 * np.sqrt(3))


def test_names_of_a_model_in_the_same_file(tmp_path: Path) -> None:
    """Where its parameters fit those of the optimizer, and nowhere else."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(saved, tmp_path / "fits.pt")
    assert [parameter.name for parameter in only(tmp_path / "fits.pt").parameters] == list(saved["model"])
    torch.save({**saved, "model": dict(reversed(saved["model"].items()))}, tmp_path / "other.pt")
    assert [parameter.name for parameter in only(tmp_path / "other.pt").parameters] == ["0", "1", "2", "3"]
    torch.save({**saved, "average": saved["model"]}, tmp_path / "two.pt")
    assert [parameter.name for parameter in only(tmp_path / "two.pt").parameters] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("named", [True, False])
def test_many_parameters_are_shown_by_layer(tmp_path: Path, named: bool) -> None:
    """If their names are known; every one of them is in the data."""
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(21)))
    optimizer = torch.optim.AdamW(model.named_parameters() if named else model.parameters())
    sum(param.sum() for param in model.parameters()).backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "adamw.pt")
    found = inspect(tmp_path / "adamw.pt")
    rows = {line.split()[0]: line.split()[1:] for line in text(found, 80).splitlines() if line}
    if named:
        assert rows["layer"][:1] == ["elements"]
        assert rows["20"] == ["12", f"{0.1 * np.sqrt(12):.3g}", "-", f"{0.001 * np.sqrt(12):.3g}"]
    else:
        assert rows["41"] == ["3", f"{0.1 * np.sqrt(3):.3g}", "-", f"{0.001 * np.sqrt(3):.3g}"]
    assert len(found.states[0].parameters) == 42
    picture(found, tmp_path / "norms.svg")
    assert ("by layer" if named else "parameters, in their order") in (tmp_path / "norms.svg").read_text()
