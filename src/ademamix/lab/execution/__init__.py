"""Carrying out runs: by whom, in which order, and what is shown of it meanwhile."""
