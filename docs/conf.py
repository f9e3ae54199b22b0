"""The documentation site: `make docs` builds it into build/docs, and fails on any warning."""

from __future__ import annotations

import ademamix

project = "ademamix"
author = "the developers of ademamix"
release = ademamix.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
exclude_patterns = ["report"]
html_theme = "furo"
html_title = f"ademamix {release}"
html_copy_source = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
