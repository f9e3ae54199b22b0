"""Formulas as MathML, converted by Docutils when the site is built: browsers draw it, without scripts or a network."""

from __future__ import annotations

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def converted(node: nodes.Element, *, as_block: bool) -> str:
    """Return the MathML of a formula; what Docutils does not know is a warning, and so an error of `make docs`."""
    formula = node.astext()
    try:
        return tex2mathml(formula, as_block=as_block)
    except MathError as error:
        logger.warning("%s in the formula %s", error, formula, location=node)
        return ""


def visit_math(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in a line of text."""
    translator.body.append(converted(node, as_block=False))
    raise nodes.SkipNode


def visit_math_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula of its own, in a box that scrolls where a phone is narrower."""
    translator.body.append(translator.starttag(node, "div", CLASS="formula"))
    translator.body.append(converted(node, as_block=True) + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer; `html_math_renderer = "mathml"` chooses it."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
