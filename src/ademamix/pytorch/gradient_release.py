"""Steps in the middle of the backward pass, so that gradients need not be in memory all at once."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import torch
from torch import Tensor

from ademamix.pytorch.optimizer import AdEMAMix


def gradient_release(model: torch.nn.Module, optimizer: AdEMAMix) -> ExitStack:
    """Step each parameter of `model` as soon as its gradient is there, and free the gradient.

    ``backward()`` then is the whole step, and ``optimizer.step()`` has nothing left to do. The numbers and random words
    are those of an ordinary step. What needs all gradients at once is not possible: clipping by their norm,
    accumulation over several batches, ``GradScaler``. ``close()`` of what is returned ends it.

    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = AdEMAMix(model.parameters(), total_steps=100)
    >>> released = gradient_release(model, optimizer)
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> model.weight.grad is None, optimizer.schedule()[0]["step"]
    (True, 1)
    >>> released.close()
    """
    one_at_a_time = threading.Lock()  # backward has a thread for each device
    trained = {param for group in optimizer.param_groups for param in group["params"]}

    def step(param: Tensor) -> None:
        with one_at_a_time:
            optimizer.step()  # no other parameter has a gradient now
            param.grad = None

    released = ExitStack()
    for param in model.parameters():
        if param in trained and param.requires_grad:
            released.callback(param.register_post_accumulate_grad_hook(step).remove)
    return released
