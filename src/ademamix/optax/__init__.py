"""AdEMAMix for JAX and Optax.

>>> import optax
>>> from ademamix.optax import ademamix
>>> optimizer = ademamix(1e-3, total_steps=10_000)
>>> isinstance(optimizer, optax.GradientTransformation)
True
"""

try:
    import optax as _optax  # noqa: F401  # optax needs jax, so this finds both
except ImportError as error:
    raise ImportError("ademamix.optax needs JAX and Optax: pip install 'ademamix[jax]'") from error

from ademamix.optax.convert import from_adamw_state, to_adamw_state
from ademamix.optax.fused import fused_step
from ademamix.optax.schedules import alpha_schedule, beta3_schedule
from ademamix.optax.settings import STATIC_ARGS
from ademamix.optax.torch_state import from_torch, to_torch
from ademamix.optax.transform import ScaleByAdemamixState, ademamix, scale_by_ademamix

__all__ = [
    "STATIC_ARGS",
    "ScaleByAdemamixState",
    "ademamix",
    "alpha_schedule",
    "beta3_schedule",
    "from_adamw_state",
    "from_torch",
    "fused_step",
    "scale_by_ademamix",
    "to_adamw_state",
    "to_torch",
]
