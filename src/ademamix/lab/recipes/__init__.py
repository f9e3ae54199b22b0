"""One module for each result of the paper."""
