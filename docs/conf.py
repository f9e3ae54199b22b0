"""The documentation site: `make docs` builds it into build/docs, and fails on any warning."""

from __future__ import annotations

import sys
from pathlib import Path

import ademamix

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "ademamix"
author = "the developers of ademamix"
release = ademamix.__version__

extensions = [
    *("myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"),
    *("mathml", "plain_attributes", "tables", "site_files"),
]
exclude_patterns = ["report"]
default_role = "code"  # single backticks in docstrings
highlight_language = "text"  # of blocks that state none: commands and their output
html_theme = "furo"
html_title = f"ademamix {release}"
html_static_path = ["_static"]
html_css_files = ["site.css", "explorer/explorer.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_math_renderer = "mathml"

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

nitpicky = True  # references lead somewhere, but for types of others, aliases, and what only type checkers import
OTHERS = ("collections", "contextlib", "numpy", "optax", "pathlib", "torch")
UNRESOLVED = (
    *("Accelerator", "MegatronOptimizer", "OptimizersContainer", "ParamsT", "Tensor", "TrainSpec", "Trainer"),
    *("Callback", "DataKind", "Function", "Grid", "Horizon", "Lines", "NotNegative", "Number", "Positive", "Rate"),
)
nitpick_ignore_regex = [("py:.*", rf"({'|'.join(OTHERS)})\..*"), ("py:class", "|".join(UNRESOLVED))]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
