"""How much alpha and beta3 matter: the paper's figure alpha_beta_hyp.

The paper does not say which alpha its sweep over beta3 has; here it is 10, the best of the sweep over alpha. "Early"
is an eighth of the run. At laptop scale the grids are thinned; beta3 = 0.99 is left out because its memory would be
shorter there than that of beta1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ademamix.lab.config import Run
from ademamix.lab.report.kinds import Curves, EndAgainst
from ademamix.lab.reproduction.claims import Claim, as_low_as, at_step, every, lower, lowest, ordered
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, changed, grid, named

ALPHAS = {"smoke": (2, 10, 40), "laptop": (2, 10, 40), "paper": (2, 6, 10, 15, 20, 30, 40)}
TOO_LARGE = 0.999995
BETA3S = {
    "smoke": (0.9999, TOO_LARGE),
    "laptop": (0.999, 0.9999, 0.99999, TOO_LARGE),
    "paper": (0.99, 0.999, 0.9999, 0.99999, TOO_LARGE),
}


def plan(at: Scale) -> Panels:
    """Yield the sweep over alpha and the sweep over beta3."""
    lm = at.lm("110m")
    adamw, base = lm.run("adamw"), lm.run("ademamix", alpha=10, beta3=lm.beta3(0.9999))
    alphas, early = grid(base, alpha=ALPHAS[at.name]), lm.steps(32_000)
    large = [f"alpha={alpha}" for alpha in ALPHAS[at.name] if alpha >= 10]
    yield _sensitivity(
        "alpha",
        {"AdamW": adamw, **alphas},
        f"AdEMAMix: beta3 = {lm.beta3(0.9999):g}, warm-ups of {base.steps:,} steps.",
        [
            Claim(
                f"The larger alpha, the lower is the loss early in training, at step {early:,}",
                ordered(*(at_step(name, early) for name in reversed(alphas))),
            ),
            Claim("The last loss is larger for large alpha: it rises from alpha = 10 on", ordered(*large)),
            Claim("A sweet spot is reached at alpha = 10", lowest("alpha=10", alphas)),
            Claim(
                "The span of good alpha is very large: all from 2 to 40 end below AdamW",
                every(*(lower(name, "AdamW") for name in alphas)),
                source="the span of values resulting in good results is very large",
            ),
        ],
    )
    names = {beta3: named("beta3", lm.beta3(beta3), beta3) for beta3 in BETA3S[at.name]}
    beta3s = {name: changed(base, beta3=lm.beta3(beta3)) for beta3, name in names.items()}
    too_large = names[TOO_LARGE]
    yield _sensitivity(
        "beta3",
        {"AdamW": adamw, **beta3s},
        f"AdEMAMix: alpha = 10, warm-ups of {base.steps:,} steps.",
        [
            Claim(
                "All values of beta3 but the largest outperform AdamW",
                every(*(lower(name, "AdamW") for name in beta3s if name != too_large)),
            ),
            Claim("The largest beta3 does not outperform AdamW, by 0.01 or more", as_low_as("AdamW", too_large)),
            Claim(f"There is a sweet spot at {names[0.9999]}", lowest(names[0.9999], beta3s)),
            Claim(
                "After the sweet spot the final loss increases",
                ordered(*(name for beta3, name in names.items() if beta3 >= 0.9999)),
            ),
        ],
    )


def _sensitivity(setting: str, arms: Mapping[str, Run], caption: str, claims: Sequence[Claim]) -> Panel:
    return Panel(
        f"Sensitivity to {setting}",
        arms,
        show=[Curves(), EndAgainst(setting)],
        claims=claims,
        caption=caption,
        figure=setting,
    )
