"""Right answers in tasks of lm-eval, during training and after it: the paper's figure and table icl_results.

At paper scale the tasks are the paper's, and those of its figure are evaluated every 50k steps, since it does not say
how often. TruthfulQA is mc2, whose scores are like those in the paper; RewardBench is a definition of ours; the score
is the plain accuracy. Below paper scale the tasks are made of the validation text: what continues it, which bracket or
quote closes, how far a line is indented, which keyword or which name comes next. Guessing gives 1/2 of code_quotes, 1/3
of code_brackets, and 1/4 of the others.

"Nearly all" is more than 0.7, since the paper's table has AdEMAMix ahead on 11 of 15 tasks; so is "except for a couple
exceptions", of all tasks and times. A large margin is 0.05 (PubmedQA: 0.076). Around random guessing is within 0.03 of
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from ademamix.lab.evaluation import PAPER_TASKS, PAPER_TASKS_DURING_TRAINING, code_tasks, metric
from ademamix.lab.probes import Evaluate
from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Check, Claim, Quantity, at_step, every, last, lower, overall, some, within
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import BOTH, Scale

EVERY = {"smoke": 10, "laptop": 4000, "paper": 50_000}
NEARLY_ALL, LARGE, AROUND, GUESSING = 0.7, 0.05, 0.03, 1 / 4
CONTINUED = "code_keywords"


def plan(at: Scale) -> Panels:
    """Yield a run of each optimizer, evaluated at intervals and at its end."""
    lm, interval = at.lm("1.3b").of_length(1_000_000), EVERY[at.name]
    during = after = (CONTINUED,) if at.name == "smoke" else tuple(code_tasks.FINDERS)
    by_letter, continued = code_tasks.LETTERED, CONTINUED
    if at.name == "paper":
        during, after = PAPER_TASKS_DURING_TRAINING, tuple(PAPER_TASKS)
        by_letter, continued = "mmlu", "mmlu_continuation"
    others = tuple(sorted({*after, by_letter} - {*during}))
    probes = (
        Evaluate(kind="evaluate", tasks=during, every=interval),
        Evaluate(kind="evaluate", tasks=others, every=lm.base.steps),
    )
    times = range(interval, lm.base.steps + 1, interval)
    yield Panel(
        lm.title,
        {label: lm.run(name, probes=probes) for label, name in BOTH.items()},
        show=[Curves(metric(task)) for task in during],
        scores=[metric(task) for task in dict.fromkeys((*after, *during, by_letter))],
        claims=[
            Claim(
                "Except for a couple exceptions, AdEMAMix is performing better than AdamW during training",
                _ahead([_margin(task, step) for task in during for step in times]),
            ),
            *_claims_at_the_end([_margin(task, lm.base.steps) for task in after], by_letter, continued),
        ],
    )


def _margin(task: str, step: int) -> Quantity:
    """Return how many more answers are right with AdEMAMix."""
    right = [at_step(arm, step, metric(task)) for arm in BOTH]
    return overall(f"AdEMAMix's lead in {task} at step {step:,}", _lead, right)


def _lead(right: Sequence[float]) -> float:
    adamw, ademamix = (share if math.isfinite(share) else -math.inf for share in right)  # infinite: it diverged
    return ademamix - adamw


def _ahead(margins: Sequence[Quantity]) -> Check:
    share = overall("the share in which AdEMAMix leads", lambda each: fmean(lead > 0 for lead in each), margins)
    return lower(NEARLY_ALL, share)


def _claims_at_the_end(margins: Sequence[Quantity], by_letter: str, continued: str) -> Iterator[Claim]:
    yield Claim("The model trained with AdEMAMix outperforms that of AdamW on nearly all tasks", _ahead(margins))
    yield Claim("On some tasks it does so by a large margin", some(*(lower(LARGE, margin) for margin in margins)))
    checks = [within(AROUND, last(arm, metric(by_letter)), GUESSING) for arm in BOTH]
    checks += [lower(GUESSING + AROUND, last(arm, metric(continued))) for arm in BOTH]
    yield Claim(
        "Answers by letter are around random guessing, those scored as continuations are better",
        every(*checks),
        source="we concatenate the question prompt and each answer separately, and pick the most likely answer. We "
        "found it allows a much better comparison of smaller models, which otherwise fluctuates around random guessing",
    )
