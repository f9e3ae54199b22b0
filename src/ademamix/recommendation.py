"""Settings for a run, each with the reason for it and where that comes from."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ademamix.hyperparameters import ALPHA, BETAS, LAST_STEP, checked_steps, resolve_algorithm
from ademamix.published import APERTUS, APERTUS_SFT, EPFL, LOG_TIME, OURS, PAPER
from ademamix.schedules import HORIZON_FRACTION, OPEN, PAPER_BETA3, half_life, open_warmup

Schedule: TypeAlias = Literal["cosine", "linear", "wsd", "constant"]

PHASES = ("pretrain", "finetune")
SCHEDULES: tuple[Schedule, ...] = ("cosine", "linear", "wsd", "constant")
DECAYING = ("cosine", "linear")  # over the whole run, whose end must be known

LONG_RUN = 48_000  # steps; published runs of this length and more have a larger alpha than short ones of ours
LARGE_MODEL = 1_000_000_000
CLIPS_TIGHTLY = 300_000_000  # parameters
SHORTEST_RUN = 500  # steps; we have not tried AdEMAMix in shorter ones
OTHER_SHARES = (
    "averaged over all lengths, 12.5% and 2% ended alike, but from 2,000 steps on 12.5% ended 0.009 to 0.011 lower, on "
    "one of two texts beyond chance: 8% to 12.5% is worth a try there"
)
NOT_AS_EPFL = "EPFL's 0.999 was not compared with other values, and the paper finds 0.9999 best at 256,000 steps"
LEAST_BETA2 = 0.99  # below it, elements without gradients are a danger much sooner than with 0.999
WEIGHT_DECAY = 0.1  # what AdamW usually has in published pre-training
STORAGE = "our measurements, docs/memory.md and docs/storage.md"


@dataclass(frozen=True)
class Reason:
    """Why a setting has its value."""

    setting: str
    value: str
    why: str
    source: str

    def __str__(self) -> str:
        return f"{self.setting} = {self.value}: {self.why} ({self.source})"


@dataclass(frozen=True)
class Recommendation:
    """Settings for a run, and the reasons for them. See :func:`recommend`.

    No setting of a tuned AdamW is known here. `lr_factor` is to be multiplied by its learning rate, and its weight
    decay stays. `clip` is the norm that gradients are clipped to; None for that of AdamW. `schedule` is that of the
    learning rate. `pays` is False where the run is shorter than any that we have tried.
    """

    total_steps: int | Literal["open"]
    schedule: Schedule
    betas: tuple[float, float, float]
    alpha: float
    alpha_warmup: int
    beta3_warmup: int
    lr_factor: float
    clip: float | None
    pays: bool
    reasons: tuple[Reason, ...]

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for the optimizer's constructor, except lr."""
        names = ("betas", "alpha", "total_steps", "alpha_warmup", "beta3_warmup")
        return {name: getattr(self, name) for name in names}


def recommend(
    total_steps: int | Literal["open"],
    *,
    parameters: int | None = None,
    phase: Literal["pretrain", "finetune"] = "pretrain",
    schedule: Schedule | None = None,
    betas: tuple[float, float] = BETAS,
) -> Recommendation:
    r"""Recommend settings for a run of `total_steps` optimizer steps, or for one whose end is open.

    .. math:: \beta_3 = 1 - \frac{1}{0.04\,T}, \qquad T_\alpha = T_{\beta_3} = T

    Args:
        total_steps: the number of optimizer steps, or ``"open"``.
        parameters: of the model, if they are known: the published settings of large models differ.
        phase: ``"pretrain"``, or ``"finetune"`` for a model that has been trained before.
        schedule: of the learning rate: ``"cosine"``, ``"linear"``, ``"wsd"`` (warmup, stable, decay) or ``"constant"``.
            Left out, it is cosine, or wsd if the end is open: the first two cannot be had without an end.
        betas: beta1 and beta2, which stay as they are.

    >>> plan = recommend(10_000)
    >>> plan.betas, plan.alpha, plan.alpha_warmup
    ((0.9, 0.999, 0.9975), 5.0, 10000)
    >>> print(plan.reasons[0].why.partition(";")[0])
    it remembers 400 steps, 4% of the run, half-life 276 steps
    >>> plan = recommend("open", parameters=8_000_000_000)
    >>> plan.schedule, plan.alpha, plan.alpha_warmup
    ('wsd', 8.0, 100000)

    Reference: section 3 of the paper for the schedules, :data:`ademamix.published.RUNS` for what others chose.
    """
    steps = _checked_length(total_steps)
    schedule = _schedule(steps) if schedule is None else schedule
    _check(steps, parameters, phase, schedule, betas)
    alpha, why_alpha = _alpha(steps, parameters, phase, schedule)
    factor, why_lr = _learning_rate(phase, schedule)
    clip, why_clip = _clip(parameters, phase)
    raw = {"betas": betas, "alpha": alpha, "total_steps": steps, "eps": 0.0, "weight_decay": 0.0}
    raw |= dict.fromkeys(("alpha_warmup", "beta3_warmup", "beta3_start"))
    resolved = resolve_algorithm(raw)
    beta3 = resolved["betas"][2]
    warmup = resolved["alpha_warmup"]
    if schedule not in DECAYING and steps != OPEN:
        warmup = min(warmup, open_warmup(beta3))
    return Recommendation(
        total_steps=steps,
        schedule=schedule,
        betas=resolved["betas"],
        alpha=resolved["alpha"],
        alpha_warmup=warmup,
        beta3_warmup=warmup,
        lr_factor=factor,
        clip=clip,
        pays=steps == OPEN or steps >= SHORTEST_RUN,
        reasons=(
            _beta3(beta3, resolved["betas"][0], steps, phase),
            why_alpha,
            _warmup(warmup, steps),
            why_lr,
            why_clip,
            _weight_decay(phase),
            _betas(*resolved["betas"][:2]),
            _storage(),
        ),
    )


def _checked_length(total_steps: Any) -> int | Literal["open"]:
    if isinstance(total_steps, str) and total_steps == OPEN:
        return OPEN
    try:
        steps = checked_steps("total_steps", total_steps, least=1)
    except ValueError:
        steps = None
    if steps is None:
        raise ValueError(f"total_steps must be an integer from 1 to {LAST_STEP:,} or {OPEN!r}, got {total_steps!r:.40}")
    return steps


def _schedule(steps: int | Literal["open"]) -> Schedule:
    return "wsd" if steps == OPEN else "cosine"


def _check(steps: int | Literal["open"], parameters: Any, phase: str, schedule: str, betas: Any) -> None:
    if parameters is not None and not (isinstance(parameters, numbers.Real) and float(parameters) >= 1):
        raise ValueError(f"parameters must be a number >= 1 or None, got {parameters!r}")
    for name, value, choices in (("phase", phase, PHASES), ("schedule", schedule, SCHEDULES)):
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    if steps == OPEN and schedule in DECAYING:
        raise ValueError(
            f"total_steps={OPEN!r} has no end to decay to: schedule must be wsd or constant, got {schedule!r}"
        )
    if not isinstance(betas, (tuple, list)) or len(betas) != len(BETAS):
        raise ValueError(f"betas must be (beta1, beta2), got {betas!r}: beta3 is recommended")


def _beta3(beta3: float, beta1: float, steps: int | Literal["open"], phase: str) -> Reason:
    memory = f"it remembers {1 / (1 - beta3):,.0f} steps"
    if beta3 <= beta1:
        why = f"{memory}, no more than m1: too short a run, or too large a beta1, for a slow average"
        return Reason("beta3", f"{beta3:g}", why, "our rule, docs/settings.md")
    if beta3 == PAPER_BETA3:
        return Reason("beta3", f"{beta3:g}", f"{memory}, as in all long runs of the paper", f"{PAPER}; {APERTUS}")
    share = f"{HORIZON_FRACTION:.0%} of the run, half-life {half_life(beta3):,.0f} steps"
    why, source = f"{memory}, {share}; {OTHER_SHARES}", OURS
    if phase == "pretrain" and steps != OPEN and steps >= LONG_RUN:  # as EPFL's are
        why, source = f"{why}; {NOT_AS_EPFL}", f"{source}; {PAPER}; {EPFL}"
    return Reason("beta3", f"{beta3:g}", why, source)


def _alpha(steps: int | Literal["open"], parameters: int | None, phase: str, schedule: str) -> tuple[float, Reason]:
    if phase == "finetune":
        alpha, why, source = 8.0, "as in supervised fine-tuning of a model of 70B parameters", APERTUS_SFT
    elif schedule in DECAYING and parameters is not None and parameters >= LARGE_MODEL:
        alpha, why, source = 5.0, "tuned at 1.3B parameters", PAPER
    elif steps == OPEN or steps >= LONG_RUN:
        alpha, why, source = 8.0, "in published pre-training runs of 48,000 steps and more", f"{PAPER}; {EPFL}"
    else:
        why = (
            "the paper finds 4 to 10 to work well; in our runs of 500 to 10,000 steps, on two texts, 2 differed by no "
            "more than chance, and 10 ended higher on average, by 0.05 and 0.06; with a larger model 2 ended higher"
        )
        alpha, source = float(ALPHA), f"{PAPER}; {OURS}"
    return alpha, Reason("alpha", f"{alpha:g}", why, source)


def _warmup(warmup: int, steps: int | Literal["open"]) -> Reason:
    value = f"{warmup:,} step{'s' if warmup != 1 else ''}"
    if warmup == steps:
        return Reason("warm-ups", value, "alpha and beta3 rise over the whole run; without, runs diverge", PAPER)
    why = "ten times what beta3 remembers: where the learning rate stays constant, they need not span the run"
    return Reason("warm-ups", value, why, APERTUS)


def _learning_rate(phase: str, schedule: str) -> tuple[float, Reason]:
    if phase == "finetune":
        why = (
            "our assumption, since no comparison with AdamW is published; AdEMAMix had 5e-6 at 8B parameters and 2e-6 "
            "at 70B; try half of AdamW's as well"
        )
        factor, source = 1.0, f"the two rates: {APERTUS_SFT}"
    else:
        factor, source = 0.5, f"{LOG_TIME}; {PAPER}; {EPFL}; {OURS}"
        why = (
            "where both were tuned, fits give 0.43 to 0.45 for 10M to 1B parameters, and we found 0.5 in 13 of 24 "
            "searches with small models, 0.25 in 5, 0.125 in 2 and 1 in 4; the paper kept 1 at 110M and took 0.6 at "
            "1.3B, and EPFL's scripts have 1 from 124M to 720M; try 0.25 and 1 as well"
        )
        if schedule == "wsd":
            why += "; if AdamW's was tuned with a cosine, halve it once more: Apertus is reported to do so for wsd"
            source += f"; {APERTUS}, second hand"
    return factor, Reason("lr", f"{factor:g} x AdamW's", why, source)


def _clip(parameters: int | None, phase: str) -> tuple[float | None, Reason]:
    if phase == "finetune":
        clip, why, source = 1.0, "in supervised fine-tuning", APERTUS_SFT
    elif parameters is None:
        why = "the paper clips both alike, at 0.5 for 110M parameters and at 0.1 from 330M on"
        return None, Reason("clip", "as for AdamW", why, PAPER)
    elif parameters >= CLIPS_TIGHTLY:
        why = "in most published runs from 330M parameters on; it clips almost every step"
        clip, source = 0.1, f"{PAPER}; {APERTUS}"
    else:
        clip, why, source = 0.5, "in most published runs of up to 210M parameters", f"{PAPER}; {EPFL}"
    return clip, Reason("clip", f"{clip:g}", why, source)


def _weight_decay(phase: str) -> Reason:
    if phase == "finetune":
        return Reason("weight_decay", "as for AdamW", "the published run does not state its own", APERTUS_SFT)
    why = (
        f"{WEIGHT_DECAY:g} in most published pre-training runs; weights decay by lr times it in each step, which half "
        "of AdamW's rate halves as well; arXiv 2602.05298 keeps that at 4/T, by a weight decay of 4/(lr T)"
    )
    return Reason("weight_decay", "as for AdamW", why, f"{PAPER}; {EPFL}; {APERTUS}; {LOG_TIME}")


def _betas(beta1: float, beta2: float) -> Reason:
    value, usual = f"{beta1:g} and {beta2:g}", "{:g} and {:g}".format(*BETAS)
    source = f"{PAPER}; {EPFL}; {APERTUS}; {OURS}"
    if (beta1, beta2) == BETAS:
        return Reason("betas", value, "as in all published runs and in ours, whatever AdamW had", source)
    why = f"as stated; all published runs and ours had {usual}, whatever AdamW had"
    if beta2 < LEAST_BETA2:
        why += (
            f"; try beta2 = {BETAS[1]:g}, or set slow_clip=30: the lower beta2, the faster grows the step of elements "
            "without gradients, with 0.95 sixty times as fast"
        )
        source += "; docs/idle.md"
    return Reason("betas", value, why, source)


def _storage() -> Reason:
    why = (
        "12 bytes per parameter, where AdamW has 8; bf16 takes 6 and compact 4.03: if memory is short, take compact, "
        "whose loss was within 0.0003 nats per byte of that of fp32, on 5 seeds"
    )
    return Reason("storage", "fp32", why, STORAGE)
