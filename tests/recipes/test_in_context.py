"""The claims of in-context, decided by made-up accuracies."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from ademamix.lab.evaluation import code_tasks, metric
from ademamix.lab.recipes import load
from ademamix.lab.reproduction.claims import FAILS, HOLDS, OPEN
from ademamix.lab.reproduction.finished import FinishedPanel
from ademamix.lab.reproduction.outcome import Outcome, TrainedArm
from ademamix.lab.reproduction.scale import SCALES
from ademamix.lab.runs.record import RunFolder
from lab_runs import result

AT = SCALES["laptop"]


def finished(folder: Path, accuracy: Callable[[str, str, int], float], *, losses: dict[str, float]) -> FinishedPanel:
    """Return the panel after runs with these accuracies, by arm, task and seed, the same at all steps.

    Those without a finite loss diverge after step 12,000.
    """
    (panel,) = load("in-context")(AT)
    arms = {}
    for arm, run in panel.arms.items():
        folders = [RunFolder(folder, run.model_copy(update={"seed": seed})) for seed in AT.seeds]
        for seed, each in zip(AT.seeds, folders, strict=True):
            with each.locked(), each.open_metrics() as append:
                for step in range(4000, 20_001 if math.isfinite(losses[arm]) else 12_001, 4000):
                    row = {metric(task): accuracy(arm, task, seed) for task in code_tasks.TASKS}
                    append({"step": step, "validation_loss": losses[arm], **row})
        arms[arm] = TrainedArm(arm, run, [result(losses[arm]) for _ in AT.seeds], folders)
    return FinishedPanel.of(panel, Outcome(arms, AT.seeds), "", {})


def better(arm: str, task: str, seed: int) -> float:
    """AdEMAMix is ahead by 0.02 on all tasks but one, and by 0.1 on one; letters are guessed."""
    if task == code_tasks.LETTERED:
        return 0.25 + 0.001 * seed
    ahead = {"code_names": -0.02, "code_quotes": 0.1}.get(task, 0.02)
    return 0.5 + 0.01 * seed + (ahead if arm == "AdEMAMix" else 0.0)


def as_good(arm: str, task: str, seed: int) -> float:
    return 0.5 + 0.01 * seed


def worse(arm: str, task: str, seed: int) -> float:
    return 0.5 + 0.01 * seed - (0.02 if arm == "AdEMAMix" else 0.0)


@pytest.mark.parametrize(
    ("accuracy", "verdicts"),
    [(better, [HOLDS] * 4), (as_good, [FAILS] * 4), (worse, [FAILS] * 4)],
)
def test_verdicts(accuracy: Callable[[str, str, int], float], verdicts: list[str], tmp_path: Path) -> None:
    panel = finished(tmp_path, accuracy, losses={"AdamW": 1.0, "AdEMAMix": 1.0})
    assert [decision.verdict for _, decision in panel.decisions] == verdicts
    assert OPEN not in verdicts


def test_a_run_that_diverged_is_not_ahead(tmp_path: Path) -> None:
    panel = finished(tmp_path, better, losses={"AdamW": 1.0, "AdEMAMix": math.inf})
    assert [decision.verdict for _, decision in panel.decisions][1:3] == [FAILS, FAILS]


def test_accuracies_have_a_table(tmp_path: Path) -> None:
    _, table = finished(tmp_path, better, losses={"AdamW": 1.0, "AdEMAMix": 1.0}).tables
    assert table.header == ["", "AdamW", "AdEMAMix"]
    assert table.rows[0] == ["accuracy on code continuation", "0.52", "0.54"]
    assert [row[0] for row in table.rows] == [metric(task).replace("_", " ") for task in code_tasks.TASKS]
