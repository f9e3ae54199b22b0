"""Train an Equinox model with AdEMAMix, and switch to it from AdamW on the way."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ademamix.optax import ademamix, from_adamw_state

STEPS, SWITCH = 400, 100

inputs = jnp.linspace(-2, 2, 256)[:, None]
targets = jnp.sin(3 * inputs)
model = eqx.nn.MLP(1, 1, width_size=64, depth=1, activation=jnp.tanh, key=jax.random.key(0))
learning_rate = optax.cosine_decay_schedule(1e-2, STEPS)


@eqx.filter_jit
def train_step(model, state, optimizer):
    loss, gradients = eqx.filter_value_and_grad(lambda model: jnp.mean((jax.vmap(model)(inputs) - targets) ** 2))(model)
    updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, loss


optimizer = optax.adamw(learning_rate)
state = optimizer.init(eqx.filter(model, eqx.is_array))
for step in range(1, STEPS + 1):
    model, state, loss = train_step(model, state, optimizer)
    if step == SWITCH:  # the learning-rate schedule continues
        optimizer = ademamix(learning_rate, alpha=2.0, total_steps=STEPS - SWITCH, alpha_warmup=0, beta3_warmup=0)
        state = from_adamw_state(state, optimizer.init(eqx.filter(model, eqx.is_array)))
    if step % 100 == 0:
        print(f"step {step}: loss {loss:.5f}")
