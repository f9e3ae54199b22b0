"""Files of the site beside its pages: the page of results, and the numbers of the library that the explorer needs."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from ademamix import recommend, schedules
from ademamix.cli.plan_settings import TRAINER_SCHEDULES
from ademamix.hyperparameters import BETAS
from ademamix.lab.recipes.formulas import rosenbrock, steep_and_flat
from ademamix.recommendation import (
    CLIPS_TIGHTLY,
    DECAYING,
    LARGE_MODEL,
    LONG_RUN,
    NOT_AS_EPFL,
    OTHER_SHARES,
    PHASES,
    SCHEDULES,
    SHORTEST_RUN,
)

LENGTHS, SIZES = (LONG_RUN,), (CLIPS_TIGHTLY, LARGE_MODEL)  # where recommendations change


def explorer_data() -> dict[str, Any]:
    """Return what the scripts of the explorer take from Python."""
    toys = {
        "rosenbrock": {"start": rosenbrock.START, "minimum": rosenbrock.MINIMUM},
        "steepAndFlat": {
            "start": steep_and_flat.START,
            "minimum": steep_and_flat.MINIMUM,
            "momenta": steep_and_flat.MOMENTA,
        },
    }
    return {"settings": settings(), "toys": toys}


def settings() -> dict[str, Any]:
    """Return the constants of recommendations, and what is recommended in each case that they tell apart."""
    lengths = {**dict(enumerate((LENGTHS[0] - 1, *LENGTHS))), "open": schedules.OPEN}
    sizes = {**dict(enumerate((SIZES[0] - 1, *SIZES))), "unknown": None}
    cases = [
        case
        for case in itertools.product(PHASES, SCHEDULES, lengths, sizes)
        if not (case[1] in DECAYING and "open" in case)
    ]
    spanning, shorter = (recommend(1000, schedule=schedule).reasons[2] for schedule in ("cosine", "wsd"))
    return {
        "betas": BETAS,
        "horizonFraction": schedules.HORIZON_FRACTION,
        "paperBeta3": schedules.PAPER_BETA3,
        "openWarmup": schedules.open_warmup(0.0),  # in units of 1/(1 - beta3)
        "otherShares": OTHER_SHARES,
        "notAsEpfl": NOT_AS_EPFL,
        "decaying": DECAYING,
        "schedules": {"planned": recommend(1000).schedule, "open": recommend("open").schedule},
        "trainerSchedules": TRAINER_SCHEDULES,
        "shortestRun": SHORTEST_RUN,
        "lengths": LENGTHS,
        "sizes": SIZES,
        "sources": {
            "paperBeta3": recommend("open").reasons[0].source,
            "shortest": recommend(1).reasons[0].source,
            "rule": recommend(1000).reasons[0].source,
            "longRule": recommend(LONG_RUN).reasons[0].source,
        },
        "warmupSpansTheRun": {"why": spanning.why, "source": spanning.source},
        "warmupIsShorter": {"why": shorter.why, "source": shorter.source},
        "choices": {
            f"{phase} {schedule} {length} {size}": choice(lengths[length], sizes[size], phase, schedule)
            for phase, schedule, length, size in cases
        },
    }


def choice(steps: Any, parameters: int | None, phase: Any, schedule: Any) -> dict[str, Any]:
    """Return what does not depend on the exact number of steps; the reasons without those of beta3 and warm-ups."""
    plan = recommend(steps, parameters=parameters, phase=phase, schedule=schedule)
    reasons = [asdict(reason) for reason in plan.reasons if reason.setting not in ("beta3", "warm-ups")]
    return {"alpha": plan.alpha, "lr_factor": plan.lr_factor, "clip": plan.clip, "reasons": reasons}


def write(app: Sphinx, exception: Exception | None) -> None:
    """Add the files to a site that has been built."""
    if exception is not None or app.builder.format != "html":
        return
    report = Path(app.outdir, "report", "index.html")
    report.parent.mkdir(exist_ok=True)
    shutil.copyfile(Path(app.srcdir, "report", "index.html"), report)
    data = json.dumps(explorer_data(), separators=(",", ":"))
    Path(app.outdir, "_static", "explorer", "data.js").write_text(
        f'"use strict";\nvar ademamix = {{ data: {data} }};\n'
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Have the files written after each build."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
