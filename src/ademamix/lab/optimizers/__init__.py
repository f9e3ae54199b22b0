"""The optimizers of the lab by name, and those that only the lab needs."""
