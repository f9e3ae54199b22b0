"""The names of the moments, and the keys of what PyTorch's optimizer keeps for a parameter, also in checkpoints.

No framework: Optax's states are carried into PyTorch's, and checkpoints of both are inspected.
"""

from __future__ import annotations

# AdamW's keys, and one more. The order is that of the moments everywhere.
FAST_KEY, SLOW_KEY, SQUARE_KEY = "exp_avg", "exp_avg_slow", "exp_avg_sq"
MOMENT_KEYS = {"fast": FAST_KEY, "slow": SLOW_KEY, "square": SQUARE_KEY}
SCALE_KEYS = {moment: f"{key}_scale" for moment, key in MOMENT_KEYS.items()}  # of coded moments
CORRECTION_KEY = "correction"  # of bf16 parameters with masters
CLOCK_KEYS = STEP_KEY, SLOW_STEP_KEY = "step", "slow_step"
SKIPPED_KEY = "skipped"
FAST_START = "fast_start"  # the step at which m1 was empty, if that is not 0: beta1 was 0 until then
