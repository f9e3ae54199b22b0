"""Step time and memory: of the optimizers in PyTorch and Optax, and of the training loop."""
