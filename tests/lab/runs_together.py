"""Runs of the lab in groups of processes: the numbers of one process, whatever carries them out."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ademamix.lab.config import GPT, ConfigError, Images, Mamba, Optimizer, Run, Text, ViT
from ademamix.lab.distribution import process_group
from ademamix.lab.execution.in_turn import run_in_turn
from ademamix.lab.execution.interrupt import Interrupted
from ademamix.lab.execution.options import Progress
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.runs.record import RunFolder
from ademamix.lab.train import Options, assist, train
from lab_runs import DELICATE, DOCS, TINY, changed, outcome

PROBES = [
    {"kind": "update-norms", "span": 9},
    {"kind": "follow-batch", "every": 4},
    {"kind": "training-loss", "every": 8, "examples": 40},
]
RUN = changed(
    TINY,
    model=GPT(kind="gpt", width=16, layers=2, heads=1, context=16),
    data=Text(kind="text", source=DOCS, held_out_batches=1),
    # where rates are larger, rounding can grow a hundredfold in these first steps: it depends on the CPU and the text
    optimizer=Optimizer(name="ademamix", lr=3e-3, settings={"weight_decay": 0.1}),
    batch=8,
    validation_examples=70,  # three batches: the processes have unequally many
    probes=PROBES,
)
ADEMAMIX = Optimizer(name="ademamix", lr=5e-3)
DROPS = {"width": 16, "layers": 2, "heads": 1, "dropout": 0.2}
DIGITS = ViT(kind="vit", patch=4, image=8, channels=1, **DROPS)

ROUNDING = 3e-6
CASES: dict[str, tuple[Run, float]] = {
    "ademamix": (RUN, ROUNDING),
    "another optimizer": (changed(RUN, optimizer=Optimizer(name="adamw", lr=1e-2)).then(12, ADEMAMIX), ROUNDING),
    "dropout": (changed(RUN, model=GPT(kind="gpt", context=16, **DROPS), batch=16, accumulate=4), ROUNDING),
    "images": (
        changed(RUN, model=DIGITS, data=Images(kind="images", source="digits", held_out_batches=1), batch=16),
        ROUNDING,
    ),
    "mamba": (changed(RUN, model=Mamba(kind="mamba", width=16, layers=2, state=4, context=16)), ROUNDING),
    "parts": (changed(RUN, accumulate=8), ROUNDING),
    "compact": (
        changed(RUN, optimizer=Optimizer(name="ademamix", lr=5e-3, settings={"state_storage": "compact"})),
        1e-4,  # where a gradient is rounded to another value, a moment may get another code
    ),
}
"""Runs, and how far their losses may lie apart."""


def carry_out(run: Run, options: Options, report: Callable[[Progress], None] = lambda progress: None) -> None:
    """Carry out a run on all processes."""
    group = process_group.current()
    if group.is_first:
        train(run, options, report=report)
        group.announce(None)
    else:
        assist()


def stopped_at(step: int, run: Run, options: Options) -> None:
    """Carry out a run until a step, after which one process is asked to stop."""

    def report(progress: Progress) -> None:
        if progress.step >= step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        carry_out(run, options, report)


def assert_alike(run: Run, out: Path, other: Path, tolerance: float) -> None:
    """Compare all that was recorded of a run in two places."""
    if not process_group.current().is_first:
        return
    folders = [RunFolder(each / "runs", run) for each in (out, other)]
    found, expected = (folder.metrics() for folder in folders)
    assert [list(row) for row in found] == [list(row) for row in expected]
    for row, same in zip(found, expected, strict=True):
        for name, value in row.items():
            assert math.isclose(value, same[name], rel_tol=tolerance), (out, name, row, same)
    result, reference = (folder.result() for folder in folders)
    assert result is not None
    assert reference is not None
    kept = {"seconds": 0.0, "validation_loss": 0.0, "accuracy": None}
    assert replace(result, **kept) == replace(reference, **kept)
    assert math.isclose(result.validation_loss, reference.validation_loss, rel_tol=tolerance)
    assert result.accuracy is None or abs(result.accuracy - reference.accuracy) < 0.03  # one of 70 images


def ways(options: Options) -> list[Options]:
    """Return with copies and with shards, or the only way of a single process."""
    if process_group.current().count == 1:
        return [options]
    return [replace(options, out=options.out / str(shard), shard=shard) for shard in (False, True)]


def same_losses(folder: Path) -> None:
    """Train every kind of run; the first group, of one process, is what the others compare with."""
    for name, (run, tolerance) in CASES.items():
        alone = folder / name / "1"
        for how in ways(Options(folder / name / str(process_group.current().count))):
            carry_out(run, how)
            if how.out != alone:
                assert_alike(run, how.out, alone, tolerance)


MOVES = ((1, False), (4, True), (2, False), (2, True), (1, False), (4, False))
"""Groups of so many processes, and whether they have shards; each takes four steps, the last one all that are left."""


def elsewhere(folder: Path) -> None:
    """Continue what the group before this one has left."""
    moves = len(list(folder.glob("*.done")))
    process_group.current().gathered(moves)  # before a file is added
    for name in ("ademamix", "another optimizer", "compact"):
        run, tolerance = CASES[name]
        alone = folder / f"{name}, alone"
        options = Options(folder / name, shard=MOVES[moves][1])
        if moves == 0:
            carry_out(run, Options(alone))
        if moves + 1 < len(MOVES):
            stopped_at(4 * (moves + 1), run, options)
        else:
            carry_out(run, options)
            assert_alike(run, options.out, alone, tolerance)
    if process_group.current().is_first:
        (folder / f"{moves}.done").touch()


def same_bits(folder: Path) -> None:
    """A run that was stopped ends with the bits of one that was not, on the same number of processes."""
    probes = [{"kind": "update-norms", "span": 6}]
    run = changed(DELICATE, batch=16, steps=20, validate_every=10, probes=probes)
    for how in ways(Options(folder / f"bits-{process_group.current().count}")):
        whole, halted = (replace(how, out=how.out / each) for each in ("whole", "halted"))
        carry_out(run, whole)
        stopped_at(8, run, halted)
        carry_out(run, halted)
        if process_group.current().is_first:
            assert outcome(run, halted.out) == outcome(run, whole.out)


def branches(folder: Path) -> None:
    """Runs that begin alike: the second continues from what the first has left."""
    trunk, branch = changed(RUN, optimizer=Optimizer(name="adamw", lr=1e-2)), CASES["another optimizer"][0]
    group = process_group.current()
    for how in ways(Options(folder / "branches")):
        carry_out(branch, replace(how, out=how.out / "alone"))
        if group.is_first:
            run_in_turn({"trunk": trunk, "branch": branch}, how, kept={}, watch=lambda statuses: None)
            group.announce(None)
            assert len(list(how.beginnings.iterdir())) == 1
            assert outcome(branch, how.out) == outcome(branch, how.out / "alone")
        else:
            assist()


def every_optimizer(folder: Path) -> None:
    """Each continues with shards what it began with copies, and the reverse."""
    for name in OPTIMIZERS:
        run = changed(RUN, optimizer=Optimizer(name=name, lr=1e-3), steps=12, validate_every=12)
        here = folder / name
        carry_out(run, Options(here / "copies"))
        for shard in (True, False):
            options = Options(here / str(shard), shard=shard)
            stopped_at(4, run, options)
            carry_out(run, replace(options, shard=not shard))
            assert_alike(run, options.out, here / "copies", ROUNDING)


def failures(folder: Path) -> None:
    """A run that no process can begin leaves the group ready for the next."""
    uneven = changed(RUN, batch=3)
    group, options = process_group.current(), Options(folder)
    if not group.is_first:
        assist()
        return
    with pytest.raises(ConfigError, match="a batch of 3 cannot be divided among 2 processes: give a --batch"):
        train(uneven, options)
    runs = {"uneven": uneven, "even": RUN}
    assert list(run_in_turn(runs, options, kept={}, watch=lambda statuses: None, keep_going=True)) == ["even"]
    group.announce(None)
