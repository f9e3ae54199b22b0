"""One AdEMAMix step as a function: advances the clocks, then chooses the body that does the arithmetic.

The three bodies share one signature: `single` (readable, differentiable), `foreach` (torch's multi-tensor
operations) and `fused` (one call into the C++ core).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

from ademamix.pytorch import step_foreach, step_fused, step_single
from ademamix.pytorch.coefficients import Settings, advance
from ademamix.pytorch.rounding import Rounding

PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def ademamix_step(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_slows: list[Tensor],
    exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    slow_steps: list[Tensor],
    skipped: list[Tensor],
    *,
    lr: float | Tensor,
    betas: tuple[float, float, float],
    alpha: float,
    alpha_warmup: int,
    beta3_warmup: int,
    beta3_start: float,
    eps: float,
    weight_decay: float,
    rounding: Rounding,
    maximize: bool,
    capturable: bool,
    differentiable: bool,
    foreach: bool | None,
    fused: bool | None,
    grad_scale: Tensor | None,
) -> None:
    r"""Take one step on each parameter, in place.

    .. math::
        m_1 &\leftarrow \beta_1 m_1 + (1-\beta_1) g, \quad
        m_2 \leftarrow \beta_3^{(t)} m_2 + (1-\beta_3^{(t)}) g, \quad
        \nu \leftarrow \beta_2 \nu + (1-\beta_2) g^2 \\
        \theta &\leftarrow \theta - \eta\Big(\frac{m_1/(1-\beta_1^t) + \alpha^{(t)} m_2}
                 {\sqrt{\nu/(1-\beta_2^t)} + \epsilon} + \lambda\theta\Big)

    `exp_avgs` is empty when beta1 = 0. `skipped` is empty if non-finite gradient elements propagate; otherwise they
    are passed over and counted there. Complex tensors are treated as pairs of real ones, as in torch.optim.

    Reference: Algorithm 1 of the paper.
    """
    if not params:
        return
    as_tensors = capturable or torch.compiler.is_compiling()
    if isinstance(lr, Tensor):
        # In double: an fp32 lr times weight_decay would be rounded before it meets an fp64 parameter.
        lr = lr.reshape(()).to(torch.float64) if as_tensors or differentiable else lr.item()
    settings = Settings(lr, betas, alpha, alpha_warmup, beta3_warmup, beta3_start, eps, weight_decay)
    if fused is None and foreach is None:
        fused, foreach = fastest(params, differentiable=differentiable)
    body = step_fused.update if fused else step_foreach.update if foreach else step_single.update

    coefficients = advance(state_steps, slow_steps, settings, as_tensors=as_tensors)
    if any(p.is_complex() for p in params):
        params, grads, exp_avgs, exp_avg_slows, exp_avg_sqs = (
            [torch.view_as_real(x) if x.is_complex() else x for x in tensors]
            for tensors in (params, grads, exp_avgs, exp_avg_slows, exp_avg_sqs)
        )
    body(
        params,
        grads,
        exp_avgs,
        exp_avg_slows,
        exp_avg_sqs,
        skipped,
        coefficients,
        rounding=rounding,
        maximize=maximize,
        grad_scale=grad_scale,
    )


def fastest(params: list[Tensor], *, differentiable: bool) -> tuple[bool, bool]:
    """Choose (fused, foreach) for parameters whose owner stated neither."""
    plain = not differentiable and all(type(p) in PLAIN_TYPES for p in params)
    if plain and all(step_fused.unsupported(p) is None for p in params):
        return True, False
    # torch has no multi-tensor kernels for a CPU, but there the body works in the cache, which is what makes it fast.
    foreach_devices = (*_get_foreach_kernels_supported_devices(), "cpu")
    return False, plain and all(p.device.type in foreach_devices for p in params)
