"""Diagnostics in a plain loop: where they are logged, when there is time for them, and at what they warn."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
import warnings

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter
from wandb.proto.wandb_internal_pb2 import Record

from ademamix import AdEMAMix
from ademamix.pytorch.monitoring import LOGGED, Budget, Monitor

ALWAYS = {"share": math.inf}
UNSCHEDULED = {"alpha": 8.0, "alpha_warmup": 0, "beta3_warmup": 0}


def gradient(step, signal, noise, elements=256):
    """A direction that stays, and noise."""
    direction = torch.randn(elements, generator=torch.Generator().manual_seed(0))
    return signal * direction + noise * torch.randn(elements, generator=torch.Generator().manual_seed(step))


def run(steps, monitor_settings, gradients=lambda step: gradient(step, 0.1, 1.0), log=None, **settings):
    """Follow an optimizer that is fed gradients; return the monitor and the optimizer."""
    param = torch.nn.Parameter(torch.zeros(256))
    optimizer = AdEMAMix([param], lr=1e-3, **{"total_steps": steps, **settings})
    monitor = Monitor(optimizer, log, **ALWAYS, **monitor_settings)
    for step in range(1, steps + 1):
        param.grad = gradients(step)
        optimizer.step()
    return monitor, optimizer


def test_every_so_many_steps_a_function_is_given_the_diagnostics():
    rows = {}
    monitor, optimizer = run(20, {"every": 8}, log=lambda values, step: rows.update({step: values}))
    assert list(rows) == [8, 16]
    monitor.look()
    (found,) = optimizer.diagnostics()
    assert rows[20] == {f"ademamix/{name}": found[name] for name in LOGGED}


def test_closing_ends_it():
    seen = []
    monitor, optimizer = run(4, {"every": 2}, log=lambda values, step: seen.append(step))
    monitor.close()
    optimizer.step()
    optimizer.step()
    assert seen == [2, 4]


def test_it_looks_by_hand_alone_if_asked_to():
    seen = []
    monitor, _ = run(4, {"every": None}, log=lambda values, step: seen.append(step))
    assert seen == []
    monitor.look()
    assert seen == [4]


def test_groups_have_names_of_their_own_also_one_that_joins_later():
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = AdEMAMix(params[:1], total_steps=10)
    rows = []
    Monitor(optimizer, lambda values, step: rows.append(values), every=1, prefix="slow", **ALWAYS)
    for step in range(2):
        for param in params:
            param.grad = torch.ones(2)
        if step:
            optimizer.add_param_group({"params": params[1:]})
        optimizer.step()
    assert "slow/update_norm" in rows[0]
    assert {"slow/0/update_norm", "slow/1/update_norm"} <= set(rows[1])


def test_what_is_not_a_number_is_left_out():
    rows = []
    run(1, {"every": 1}, lambda step: torch.zeros(256), log=lambda values, step: rows.append(values))
    assert "ademamix/cosine" not in rows[0]  # between two zeros there is no angle
    assert rows[0]["ademamix/update_norm"] == 0.0


def test_a_summary_writer_of_tensorboard(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        _, optimizer = run(20, {"every": 10}, log=writer)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {f"ademamix/{name}" for name in LOGGED}
    norms = events.Scalars("ademamix/update_norm")
    assert [event.step for event in norms] == [10, 20]
    assert norms[-1].value == pytest.approx(optimizer.diagnostics()[0]["update_norm"])


def wandb_rows(folder):
    """Return the rows of a run that was kept offline."""
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    rows = []
    for data in leveldb_records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            rows.append({name: float(value) for name, value in items.items() if not name.startswith("_")})
    return rows


def leveldb_records(content, block=32_768, header=7):
    """Yield the records of a log in the format of LevelDB, which begins with seven bytes of W&B's."""
    position, parts = header, []
    while position < len(content):
        if block - position % block < header:
            position += block - position % block
        _, length, kind = struct.unpack_from("<IHB", content, position)
        position += header + length
        parts.append(content[position - length : position])
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


WANDB_LOOP = """
import math, torch, wandb
from ademamix import AdEMAMix
from ademamix.pytorch.monitoring import Monitor

param = torch.nn.Parameter(torch.ones(2))
optimizer = AdEMAMix([param], lr=0.5, betas=(0.0, 0.9), alpha=0.0, total_steps=21)
with wandb.init(project="of-a-test") as run:
    Monitor(optimizer, run, every=3, share=math.inf)
    for step in range(1, 22):
        param.grad = torch.full((2,), 1.0)
        optimizer.step()
        if step <= 10 and step % 2 == 0:
            run.log({"loss": step})
"""


def test_a_run_of_wandb(tmp_path):
    """At first the loop logs every second step, under W&B's own count; after step 10 it logs nothing."""
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", WANDB_LOOP], env=environment, cwd=tmp_path, check=True)
    rows = wandb_rows(tmp_path)
    assert [row["loss"] for row in rows if "loss" in row] == [2.0, 4.0, 6.0, 8.0, 10.0]
    looks = {row["ademamix/step"]: row["ademamix/update_norm"] for row in rows if "ademamix/step" in row}
    assert list(looks) == [3, 6, 9, 12, 15, 18, 21]
    assert list(looks.values()) == pytest.approx([0.5 * math.sqrt(2)] * 7)  # lr in both elements


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_the_budget_is_kept(share):
    """Whatever a look costs, and though costs change: all but the last were paid for when they began."""
    budget, now, spent, overdrawn = Budget(share), 0.0, 0.0, 0
    costs = [0.02 * (1 + (7 * number) % 5) for number in range(10_000)]
    for step in range(1, 10_001):
        now += 0.01
        if budget.allows(now, step):
            cost = costs[step - 1]
            budget.spend(cost)
            now, spent = now + cost, spent + cost
            overdrawn = max(overdrawn, spent - share * now)
    assert spent > 0.5 * share * now  # it does not starve either
    assert overdrawn <= max(costs)


def test_by_default_a_short_run_is_not_looked_at():
    """The first look has to be paid for by a hundred steps, at least."""
    seen = []
    param = torch.nn.Parameter(torch.zeros(2))
    optimizer = AdEMAMix([param], total_steps=50)
    Monitor(optimizer, lambda values, step: seen.append(step), every=1)
    for _ in range(50):
        param.grad = torch.ones(2)
        optimizer.step()
    assert not seen


def names(monitor):
    return [sign.name for sign in monitor.signs]


@pytest.mark.parametrize("horizon", [None, 10_000])
def test_updates_that_grow_without_schedules(horizon):
    advice = "Leave out alpha_warmup and beta3_warmup" if horizon else "Pass total_steps="
    with pytest.warns(UserWarning, match=f"updates grow early.*{advice}") as caught:
        monitor, _ = run(800, {"every": 20}, betas=(0.9, 0.999, 0.999), total_steps=horizon, **UNSCHEDULED)
    assert names(monitor) == ["growing-updates"]
    assert len(caught) == 1  # each sign once
    assert str(monitor.signs[0]) in str(caught[0].message)


def strong_then_noise(step):
    return gradient(step, 1.0, 0.0) if step <= 100 else gradient(step, 0.0, 0.3)


def test_a_slow_average_that_outweighs_recent_gradients():
    with pytest.warns(UserWarning, match=r"alpha m2 is .* times as large as m1.*`reset_slow\(\)`"):
        monitor, _ = run(
            200, {"every": 20}, strong_then_noise, betas=(0.9, 0.999, 0.999), total_steps=None, **UNSCHEDULED
        )
    assert "stale-average" in names(monitor)


@pytest.mark.parametrize("gradients", [lambda step: gradient(step, 0.1, 1.0), strong_then_noise])
def test_with_schedules_there_is_nothing_to_warn_of(gradients):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor, _ = run(2000, {"every": 20}, gradients, alpha=8.0)
    assert names(monitor) == []


def test_elements_whose_gradients_stay_away():
    def half_idle(step):
        whole = gradient(step, 0.3, 1.0)
        return whole if step <= 300 else torch.cat([whole[:128], torch.zeros(128)])

    settings = {"betas": (0.9, 0.95, 0.9999), "total_steps": None, **UNSCHEDULED}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # updates grow as well
        monitor, _ = run(600, {"every": 20}, half_idle, **settings)
        bounded, _ = run(600, {"every": 20}, half_idle, slow_clip=30.0, **settings)
    (idle,) = (sign for sign in monitor.signs if sign.name == "idle-elements")
    assert "Pass slow_clip=32, or beta3 <= sqrt(beta2)" in idle.message
    assert "idle-elements" not in names(bounded)


@pytest.mark.parametrize(
    ("nonfinite", "name", "advice"),
    [("skip", "skipped-elements", "1 elements of gradients"), ("propagate", "not-finite", "pass nonfinite='skip'")],
)
def test_gradients_that_are_not_finite(nonfinite, name, advice):
    def poisoned(step):
        found = gradient(step, 0.1, 1.0)
        found[3] = math.inf if step == 5 else found[3]
        return found

    with pytest.warns(UserWarning, match=advice):
        monitor, _ = run(10, {"every": 1}, poisoned, nonfinite=nonfinite)
    assert names(monitor) == [name]
    assert monitor.signs[0].step == 5


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"every": 0}, ValueError, "every must be at least 1, or None, got 0"),
        ({"share": 0.0}, ValueError, r"share must be above 0, got 0\.0"),
        ({"share": math.nan}, ValueError, "share must be above 0, got nan"),
        ({"log": "out"}, TypeError, r"log must be a SummaryWriter, a run of wandb or a function .*, got str"),
    ],
)
def test_mistakes(settings, error, message):
    optimizer = AdEMAMix([torch.nn.Parameter(torch.ones(1))], total_steps=1)
    with pytest.raises(error, match=message):
        Monitor(optimizer, **settings)
    assert not optimizer._optimizer_step_post_hooks


def test_another_optimizer():
    with pytest.raises(TypeError, match=r"must be an ademamix\.AdEMAMix, got AdamW"):
        Monitor(torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))]))
