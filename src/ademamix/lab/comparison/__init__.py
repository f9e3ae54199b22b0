"""Several optimizers on one model: `ademamix compare`."""
