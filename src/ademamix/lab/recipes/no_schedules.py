"""AdEMAMix from scratch without schedules for alpha and beta3: the paper's figure exploding-norm.

Without weight decay, as in the paper. The paper has a batch of 32 here, half of that of its other runs; below paper
scale the batch stays, for which the settings were found. The paper says neither which small values of alpha it takes
nor beta3: here alpha is 1, 2 and 5 (below paper scale 1 and 5), and beta3 is that of all other runs. The norm of 1,000
consecutive updates is, below paper scale, that of as large a share of the run. "The beginning of training" is 20k
steps, twice the memory of beta3 = 0.9999, and the norm there is compared with that of AdEMAMix with schedules: below
paper scale AdamW has another learning rate. An improvement below 0.01 is none.
"""

from __future__ import annotations

from ademamix.lab.probes import UpdateNorms
from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Claim, as_low_as, at_step, every, lower
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, grid

SPAN, BEGINNING = 1000, 20_000
SCHEDULED = "AdEMAMix with schedules"


def plan(at: Scale) -> Panels:
    """Yield AdamW, AdEMAMix, and AdEMAMix without schedules for several alpha."""
    lm = at.lm("110m")
    fields = {"weight_decay": 0.0, "probes": (UpdateNorms(kind="update-norms", span=lm.steps(SPAN)),)}
    if at.name == "paper":
        fields["batch"] = 32
    norm = f"norm_of_{lm.steps(SPAN)}_updates"
    bare = grid(
        lm.run("ademamix", alpha_warmup=0, beta3_warmup=0, **fields),
        alpha=(1.0, 2.0, 5.0) if at.name == "paper" else (1.0, 5.0),
    )
    unscheduled = {f"no schedules, {name}": run for name, run in bare.items()}
    early = lm.steps(BEGINNING)
    yield Panel(
        "AdEMAMix without schedules",
        {"AdamW": lm.run("adamw", **fields), SCHEDULED: lm.run("ademamix", **fields), **unscheduled},
        show=[Curves(norm), Curves()],
        claims=[
            Claim(
                "Without schedules the updates are larger at the beginning of training, even with a small alpha",
                every(*(lower(at_step(SCHEDULED, early, norm), at_step(arm, early, norm)) for arm in unscheduled)),
                source="Even when using small values of alpha, the norm of the updates is increasing significantly at "
                "the beginning of training",
            ),
            Claim(
                "Without schedules AdEMAMix diverges or fails to recover and improve upon AdamW, by 0.01 or more",
                every(*(as_low_as("AdamW", arm) for arm in unscheduled)),
            ),
            Claim("With schedules AdEMAMix improves upon AdamW", lower(SCHEDULED, "AdamW"), ours=True),
        ],
        caption="No weight decay. Without schedules alpha and beta3 have their final values from the first step on.",
    )
