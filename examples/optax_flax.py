"""Train a Flax NNX model with AdEMAMix: the one line that differs from optax.adamw is the constructor."""

import jax.numpy as jnp
import optax
from flax import nnx

from ademamix.optax import ademamix

STEPS = 400

inputs = jnp.linspace(-2, 2, 256)[:, None]
targets = jnp.sin(3 * inputs)
rngs = nnx.Rngs(0)
model = nnx.Sequential(nnx.Linear(1, 64, rngs=rngs), jnp.tanh, nnx.Linear(64, 1, rngs=rngs))

learning_rate = optax.cosine_decay_schedule(1e-2, STEPS)
optimizer = nnx.Optimizer(model, ademamix(learning_rate, total_steps=STEPS), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer):
    loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(inputs) - targets) ** 2))(model)
    optimizer.update(model, gradients)
    return loss


for step in range(1, STEPS + 1):
    loss = train_step(model, optimizer)
    if step % 100 == 0:
        print(f"step {step}: loss {loss:.5f}")
