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

    Each parameter is looked at once per backward pass, so its share of the time does not grow with their number. The
    groups must keep their parameters until ``close()``; settings may change, and checkpoints may be loaded. Step hooks
    of the optimizer run where ``optimizer.step()`` is called, not in the backward pass.

    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = AdEMAMix(model.parameters(), total_steps=100)
    >>> released = gradient_release(model, optimizer)
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> model.weight.grad is None, optimizer.schedule()[0]["step"]
    (True, 1)
    >>> released.close()
    """
    one_at_a_time = threading.Lock()  # backward has a thread for each device
    owners = [(param, number) for number, group in enumerate(optimizer.param_groups) for param in group["params"]]
    places = {param: (number, index) for index, (param, number) in enumerate(owners)}

    def step(param: Tensor) -> None:
        with one_at_a_time:
            optimizer._step_one(param, *places[param])
            param.grad = None

    released = ExitStack()
    for param in model.parameters():
        if param in places and param.requires_grad:
            released.callback(param.register_post_accumulate_grad_hook(step).remove)
    return released
