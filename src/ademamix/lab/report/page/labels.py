"""Labels of figures, which may have formulas in TeX, as plain text."""

from __future__ import annotations

import re

SYMBOLS = {
    r"\alpha": "α",
    r"\beta": "β",
    r"\eta": "η",
    r"\|": "‖",
    r"\star": "⋆",
}
RAISED = str.maketrans("0123456789()+-=t⋆", "⁰¹²³⁴⁵⁶⁷⁸⁹⁽⁾⁺⁻⁼ᵗ*")
LOWERED = str.maketrans("0123456789()+-=t", "₀₁₂₃₄₅₆₇₈₉₍₎₊₋₌ₜ")
SCRIPT = re.compile(r"([_^])(?:\{([^{}]*)\}|(.))")
HAT = re.compile(r"\\hat(\\[a-z]+|[a-z])")


def plain(label: str) -> str:
    r"""Return a label without TeX.

    >>> plain(r"weight, in units of $\hat\eta^{(t)}$"), plain(r"$\|x-x^\star\|_2$")
    ('weight, in units of η̂⁽ᵗ⁾', '‖x-x*‖₂')
    """
    return re.sub(r"\$([^$]*)\$", lambda formula: _formula(formula[1]), label)


def _formula(text: str) -> str:
    text = HAT.sub("\\1\u0302", text)  # a combining mark stands behind its letter
    for name, symbol in SYMBOLS.items():
        text = text.replace(name, symbol)
    text = SCRIPT.sub(_script, text)
    return text.replace("{", "").replace("}", "")


def _script(found: re.Match[str]) -> str:
    return (found[2] or found[3] or "").translate(RAISED if found[1] == "^" else LOWERED)
