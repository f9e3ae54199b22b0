"""Mamba's selective scan for CPUs, in plain torch, and a mixer that uses it.

Without CUDA kernels, transformers computes the scan by a loop over time that autograd records, on tensors in which one
moment in time is scattered over memory: a training step of a small model takes seconds. The scan here is faster for
three reasons: one multiply-add in place for each moment, on contiguous memory; a gradient written out by hand, so that
there is no graph of the moments; and spans of time short enough for the cache, whose states are computed again for the
gradient instead of stored.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import Cache, PreTrainedModel
from transformers.models.mamba.modeling_mamba import MambaMixer

SPAN_ELEMENTS = 2**18
"""About how many elements the states of a span have: 1 MB in fp32, so that a span stays in a core's cache."""


def selective_scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    r"""Run Mamba's recurrence over time, from a state of zeros.

    .. math::
        h_t[d, n] = e^{\Delta_t[d] A[d, n]}\, h_{t-1}[d, n] + \Delta_t[d]\, B_t[n]\, u_t[d], \qquad
        y_t[d] = \sum_n C_t[n]\, h_t[d, n]

    `u` and `dt` have the shape (batch, length, inner), `A` (inner, state), `B` and `C` (batch, length, state); the
    result has that of `u`. The arithmetic is in fp32 (fp64 for fp64), even under autocast.

    >>> ones = torch.ones(1, 3, 1)
    >>> selective_scan(u=ones, dt=ones, A=torch.tensor([[0.5]]).log(), B=ones, C=ones).flatten()
    tensor([1.0000, 1.5000, 1.7500])

    Reference: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", section 3.
    """
    dtype = torch.promote_types(u.dtype, torch.float32)
    wide = (tensor.to(dtype) for tensor in (u, dt, A, B, C))
    y: Tensor = _SelectiveScan.apply(*wide)  # type: ignore[no-untyped-call]
    return y


class _SelectiveScan(torch.autograd.Function):
    # Inside, time comes first and the inner width last: a moment is contiguous, and every product runs along the width.

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        u, dt, B, C = _swap(u, dt, B, C)
        A = A.mT.contiguous()
        y = torch.empty_like(u)
        memory = _SpanMemory(u, A)
        starts = [torch.zeros_like(memory.states[0])]
        for span in memory.spans:
            states, _ = memory.run(starts[-1], u[span], dt[span], A, B[span])
            y[span] = (C[span].unsqueeze(2) @ states[1:]).squeeze(2)
            starts.append(states[-1].clone())
        ctx.save_for_backward(u, dt, A, B, C, *starts[:-1])
        return y.transpose(0, 1)

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, y_grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        u, dt, A, B, C, *starts = ctx.saved_tensors
        y_grad = y_grad.transpose(0, 1)
        u_grad, dt_grad, A_grad, B_grad, C_grad = (torch.zeros_like(tensor) for tensor in (u, dt, A, B, C))
        memory = _SpanMemory(u, A)
        grad_memory = torch.empty_like(memory.decays)
        from_later = torch.zeros_like(memory.states[0])
        for start, span in zip(reversed(starts), reversed(memory.spans), strict=True):
            states, decays = memory.run(start, u[span], dt[span], A, B[span])
            grads = grad_memory[: len(decays)]  # of the states
            torch.mul(C[span].unsqueeze(3), y_grad[span].unsqueeze(2), out=grads)
            grads[-1] += from_later
            backwards = grads.unbind()[::-1]
            for later_grad, grad, later_decay in zip(backwards, backwards[1:], decays.unbind()[:0:-1], strict=False):
                grad.addcmul_(later_decay, later_grad)
            torch.mul(decays[0], grads[0], out=from_later)

            C_grad[span] = (states[1:] @ y_grad[span].unsqueeze(3)).squeeze(3)
            B_grad[span] = (grads @ (dt[span] * u[span]).unsqueeze(3)).squeeze(3)
            input_grad = (B[span].unsqueeze(2) @ grads).squeeze(2)
            u_grad[span] = input_grad * dt[span]
            exponent_grads = grads.mul_(states[:-1]).mul_(decays)
            dt_grad[span] = torch.mul(exponent_grads, A, out=decays).sum(2) + input_grad * u[span]
            A_grad += torch.mul(exponent_grads, dt[span].unsqueeze(2), out=decays).sum((0, 1))
        return *_swap(u_grad, dt_grad), A_grad.mT, *_swap(B_grad, C_grad)


class _SpanMemory:
    """Memory for the states and decays of a span, the same for all of them: new memory would cost a quarter more."""

    def __init__(self, u: Tensor, A: Tensor) -> None:
        length, batch, _ = u.shape
        moments = max(1, min(length, SPAN_ELEMENTS // (batch * A.numel())))
        self.spans = [slice(first, first + moments) for first in range(0, length, moments)]
        self.states = A.new_empty(1 + moments, batch, *A.shape)
        self.decays = A.new_empty(moments, batch, *A.shape)

    def run(self, start: Tensor, u: Tensor, dt: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states of a span, with the one before it, and the factor between each and the next."""
        states, decays = self.states[: 1 + len(u)], self.decays[: len(u)]
        torch.mul(dt.unsqueeze(2), A, out=decays).exp_()
        states[0] = start
        torch.mul((dt * u).unsqueeze(2), B.unsqueeze(3), out=states[1:])
        moments = states.unbind()
        for before, after, decay in zip(moments, moments[1:], decays.unbind(), strict=False):
            after.addcmul_(decay, before)
        return states, decays


def _swap(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return views with batch and time swapped."""
    return tuple(tensor.transpose(0, 1) for tensor in tensors)


class CPUMambaMixer(MambaMixer):
    """The library's Mamba mixer, parameters and all, with :func:`selective_scan` on CPU.

    It does only what training and evaluation need: whole sequences, no cache, no padding. Everything else, and every
    other device, is left to the library, which has CUDA kernels for it. The library's functions that warn that these
    kernels are missing are not called on CPU.
    """

    def forward(
        self,
        hidden_states: Tensor,
        cache_params: Cache | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Mix a sequence of shape (batch, length, width) along its length."""
        if hidden_states.device.type != "cpu" or cache_params is not None or attention_mask is not None:
            kwargs |= {"cache_params": cache_params, "attention_mask": attention_mask}
            return cast(Tensor, super().forward(hidden_states, **kwargs))
        dtype = torch.promote_types(hidden_states.dtype, torch.float32)
        u, gate = self.in_proj(hidden_states).chunk(2, dim=-1)
        u = self.act(self.conv1d(u.mT)[..., : u.shape[1]].mT)
        time_step, B, C = self.x_proj(u).split([self.time_step_rank, self.ssm_state_size, self.ssm_state_size], dim=-1)
        dt = F.softplus(F.linear(time_step, self.dt_proj.weight).to(dtype) + self.dt_proj.bias.to(dtype))
        y = selective_scan(u, dt, -self.A_log.to(dtype).exp(), B, C) + self.D * u
        return cast(Tensor, self.out_proj((y * F.silu(gate)).to(hidden_states.dtype)))


def use_cpu_scan(model: PreTrainedModel) -> None:
    """Let the Mamba mixers of a model use :class:`CPUMambaMixer`; models without such mixers stay as they are.

    The mixers change their class in place: parameters, names, checkpoints and the model's own class stay the library's.
    """
    for module in model.modules():
        if type(module) is MambaMixer:
            module.__class__ = CPUMambaMixer
