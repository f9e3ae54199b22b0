"""The AdEMAMix class: gathers tensors and state, and calls one function. No arithmetic here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from ademamix import hyperparameters
from ademamix.pytorch import (
    checkpoint,
    convert,
    diagnostics,
    foreign,
    gathering,
    groups,
    inputs,
    parameter_state,
    shards,
)
from ademamix.pytorch.coefficients import Settings
from ademamix.pytorch.parameter_state import Kind
from ademamix.pytorch.rounding import Rounding
from ademamix.pytorch.step import Flags, ademamix_step, check_fused
from ademamix.pytorch.tensors import Tensors, whole_places
from ademamix.schedules import Horizon
from ademamix.state_keys import SCALE_KEYS, SLOW_KEY, SLOW_STEP_KEY

# A group, its tensors of one kind, the steps at which an m1 began late by position, and addresses from the core.
Gathered = tuple[dict[str, Any], Tensors, dict[int, Tensor], Any]


class AdEMAMix(Optimizer):
    r"""AdamW with a second, slow average of the gradients: a drop-in replacement for ``torch.optim.AdamW``.

    .. math::
        m_1 &\leftarrow \beta_1 m_1 + (1-\beta_1) g \qquad
        m_2 \leftarrow \beta_3^{(t)} m_2 + (1-\beta_3^{(t)}) g \qquad
        \nu \leftarrow \beta_2 \nu + (1-\beta_2) g^2 \\
        \theta &\leftarrow \theta - \eta\Bigl(\frac{m_1/(1-\beta_1^t) + \alpha^{(t)} m_2}
                 {\sqrt{\nu/(1-\beta_2^t)} + \epsilon} + \lambda\theta\Bigr)

    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = AdEMAMix(model.parameters(), lr=1e-3, total_steps=1000)
    >>> loss = model(torch.ones(8, 4)).square().mean()
    >>> loss.backward()
    >>> optimizer.step()
    >>> optimizer.schedule()[0]["alpha"]
    0.005

    Args:
        params: parameters, named parameters or parameter groups, as for every torch optimizer. A group may have its
            own value of every setting below.
        lr: learning rate, a number or a one-element tensor.
        betas: ``(beta1, beta2)``, or ``(beta1, beta2, beta3)``. Of a pair, beta3 is chosen for `total_steps` (see
            :func:`ademamix.schedules.beta3_for_horizon`); without a horizon it is 0.9999. With ``beta1 = 0`` no m1
            is stored, and the state is as large as AdamW's.
        alpha: weight of the slow average; the paper finds 4 to 10 to work well.
        total_steps: number of optimizer steps of the run. It sets the warm-ups and beta3 where they are left open.
            ``"open"`` for a run whose end is not planned yet, as with a warmup-stable-decay schedule: beta3 is 0.9999,
            and the warm-ups take ten times what it remembers (see :func:`ademamix.schedules.open_warmup`).
        alpha_warmup, beta3_warmup: steps over which alpha and beta3 rise to their final values; 0 for no warm-up,
            None for `total_steps`.
        beta3_start: where beta3 begins; None for beta1.
        eps, weight_decay: as in AdamW; weight decay is decoupled.
        state_storage: how the moments are stored: ``"fp32"``, 12 bytes per parameter (fp64 for fp64 parameters);
            ``"bf16"``, 6 bytes; or ``"compact"``, 4 bytes: 16-bit codes of m2, 8-bit codes of m1 and nu, with a scale
            for each block of 128. Both round stochastically. Tensors with rows under 64 elements or under 4096 elements
            in all stay fp32, and so do those of one dimension under 131072 elements; fp64 and complex ones are never
            reduced.
        stochastic_rounding: round bf16 parameters, or their masters, stochastically when they are written back; None
            for yes, unless `differentiable`. Parameters of other dtypes are always rounded to nearest.
        rounding_seed: key of the generator of stochastic rounding. Left open it is 0; optimizers of one parameter each,
            as for steps in backward hooks, are numbered, so that they do not share random words.
        master: ``"24bit"`` to keep 8 more bits of each bf16 parameter, in a byte beside it: a step reads and writes a
            number of 24 bits, to which the parameter is the nearest in bf16. See :meth:`master_parameters`. Parameters
            of other dtypes have none. None for none, or as a checkpoint that is loaded has it.
        nonfinite: ``"propagate"`` non-finite gradients into parameters and moments, as torch does, or ``"skip"``
            them elementwise: parameter and moments of that element stay, and it is counted in :meth:`diagnostics`.
        slow_clip: a bound on the slow part of each element of the update, ``|alpha m2| / (sqrt(nu_hat) + eps)``, for
            models with elements whose gradient is 0 for long; None for no bound, as in the paper. See docs/idle.md.
        foreach, fused: choose the multi-tensor or the fused implementation; left open, the fastest that applies.
        maximize, capturable, differentiable: as in AdamW.
        amsgrad: for calls that were written for AdamW; only False is possible.

    Reference: Pagliardini, Ablin and Grangier, "The AdEMAMix Optimizer: Better, Faster, Older", Algorithm 1.
    """

    _advises = True
    _load_report: str | None = None

    @groups.named_after_betas
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, ...] = hyperparameters.BETAS,
        *,
        alpha: float = hyperparameters.ALPHA,
        total_steps: Horizon = None,
        alpha_warmup: int | None = None,
        beta3_warmup: int | None = None,
        beta3_start: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        state_storage: str = hyperparameters.STATE_STORAGE,
        stochastic_rounding: bool | None = None,
        rounding_seed: int = hyperparameters.ROUNDING_SEED,
        master: str | None = None,
        nonfinite: str = "propagate",
        slow_clip: float | None = None,
        foreach: bool | None = None,
        fused: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        amsgrad: bool = False,
    ) -> None:
        foreign.refuse_other_adams({"amsgrad": amsgrad})
        defaults = {
            "lr": lr,
            "betas": betas,
            "alpha": alpha,
            "total_steps": total_steps,
            "alpha_warmup": alpha_warmup,
            "beta3_warmup": beta3_warmup,
            "beta3_start": beta3_start,
            "eps": eps,
            "weight_decay": weight_decay,
            "state_storage": state_storage,
            "stochastic_rounding": stochastic_rounding,
            "rounding_seed": rounding_seed,
            "master": master,
            "nonfinite": nonfinite,
            "slow_clip": slow_clip,
            "foreach": foreach,
            "fused": fused,
            "maximize": maximize,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        hyperparameters.resolve(defaults)
        self._advises = False  # once for all groups, below
        super().__init__(params, defaults)
        del self._advises
        groups.settle_seeds(self.param_groups)
        self.defaults["rounding_seed"] = int(rounding_seed)  # of groups that are added later
        groups.advise(self.param_groups, stacklevel=4)  # advise, __init__, its decorator, the caller

    @classmethod
    def from_adamw(
        cls,
        adamw: torch.optim.Adam,
        *,
        total_steps: Horizon = None,
        alpha: float = 2.0,
        beta3: float | None = None,
        alpha_warmup: int | None = 0,
        beta3_warmup: int | None = 0,
        beta3_start: float | None = None,
        state_storage: str = hyperparameters.STATE_STORAGE,
        stochastic_rounding: bool | None = None,
        rounding_seed: int = hyperparameters.ROUNDING_SEED,
        master: str | None = None,
        nonfinite: str = "propagate",
        slow_clip: float | None = None,
    ) -> AdEMAMix:
        """Switch a live AdamW to AdEMAMix in the middle of a run.

        Settings, moments and bias-correction clocks are taken over without a copy, attached lr schedulers continue, and
        ``adamw.step()`` raises from then on. The slow average starts empty and its clock at 0. Hooks that were
        registered on `adamw` are not taken over.

        >>> model = torch.nn.Linear(4, 1)
        >>> adamw = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> optimizer = AdEMAMix.from_adamw(adamw, total_steps=50_000)
        >>> optimizer.param_groups[0]["betas"]
        (0.9, 0.999, 0.9995)

        Args:
            adamw: the optimizer to convert; amsgrad and L2 weight decay are refused.
            total_steps: the steps that are still to come, or ``"open"``.
            alpha: the paper switched with 2 at 110M parameters and with 1 at 1.3B.
            beta3: None for the value that suits `total_steps`, or 0.9999 without a horizon.
            alpha_warmup, beta3_warmup: the paper needs none after a switch.
            beta3_start, state_storage, stochastic_rounding, rounding_seed, master, nonfinite, slow_clip: as in the
                constructor.

        Reference: section 4.1 of the paper, "Resume from AdamW".
        """

        def build(param_groups: list[dict[str, Any]]) -> AdEMAMix:
            return cls(
                param_groups,
                alpha=alpha,
                total_steps=total_steps,
                alpha_warmup=alpha_warmup,
                beta3_warmup=beta3_warmup,
                beta3_start=beta3_start,
                state_storage=state_storage,
                stochastic_rounding=stochastic_rounding,
                rounding_seed=rounding_seed,
                master=master,
                nonfinite=nonfinite,
                slow_clip=slow_clip,
                capturable=any(group["capturable"] for group in param_groups),
                differentiable=any(group["differentiable"] for group in param_groups),
            )

        return convert.from_adamw(build, adamw, beta3, state_storage)

    def to_adamw(self) -> torch.optim.AdamW:
        """Switch to ``torch.optim.AdamW`` in the middle of a run: the slow average is dropped, the rest continues.

        Attached lr schedulers also continue, and this optimizer's ``step()`` raises from then on. AdamW has one clock:
        an m1 that began late, since beta1 was 0 before, is scaled so that its bias-corrected value stays the same.

        >>> model = torch.nn.Linear(4, 1)
        >>> adamw = AdEMAMix(model.parameters(), lr=1e-3, total_steps=1000).to_adamw()
        >>> adamw.param_groups[0]["betas"]
        (0.9, 0.999)

        Reference: appendix C of the paper, "Removing the second EMA mid-training".
        """
        return convert.to_adamw(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, even in the middle of a run; its schedules start at its own first step."""
        before, count = param_group.copy(), len(self.param_groups)
        try:
            if isinstance(param_group, dict):  # torch reports anything else
                param_group.update(groups.resolved(param_group, self.defaults))
            super().add_param_group(param_group)
            check_fused(param_group)
        except Exception:
            del self.param_groups[count:]
            if isinstance(param_group, dict):
                param_group.clear()
                param_group.update(before)
            raise
        if self._advises:
            groups.advise([param_group], stacklevel=3)

    def _init_group(
        self, group: dict[str, Any], reduced: bool, corrected: bool, first_index: int, *lists: list[Any]
    ) -> None:
        """Gather, for torch.compile.

        It knows this name and shape of method, and runs it outside of the graph: it maps lists that are arguments of
        their own, and no others, and takes a constant in return.
        """
        self._opt_called = True  # again: torch.compile forgets the note that `step` makes
        gathering.gather(group, Kind(reduced, corrected), first_index, self.state, lists)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step, and return the loss if `closure` computes it.

        Everything that can be wrong with a gradient or a setting is checked before anything is changed.
        """
        self._begin_step()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            return loss
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            self._step_groups()
        return loss

    # An lr scheduler wraps `step` in a function that torch.compile cannot trace, unless the method says it has been.
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def _step_one(self, param: Tensor, group_number: int, index: int) -> None:
        """Take the step of one parameter, the `index`-th of all, without a look at the others.

        The parameters of a group and their states are passed on as if there were no others: what follows is the same.
        """
        self._begin_step()
        group = {**self.param_groups[group_number], "params": [param]}
        states = {param: self.state[param]} if param in self.state else self.state
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            self._update(self._gather(group, index, states))

    def _begin_step(self) -> None:
        if hasattr(self, "_accelerator_graph_capture_health_check"):  # not in older torch
            self._accelerator_graph_capture_health_check()
        self._opt_called = True  # an lr scheduler's wrapper of `step` would note it, see above

    def _step_groups(self) -> None:
        is_new = not self.state
        gathered = []
        first_index = 0
        for group in self.param_groups:
            gathered += self._gather(group, first_index, self.state)
            first_index += len(group["params"])
        if is_new and not torch.compiler.is_compiling() and self._is_for_state_alone(gathered):
            return
        self._update(gathered)

    def _gather(self, group: dict[str, Any], first_index: int, states: dict[Tensor, Any]) -> list[Gathered]:
        """Return what a step of a group takes, for each kind of its parameters."""
        groups.check_for_step(group)
        gathered = []
        left = len(group["params"])
        for kind in parameter_state.kinds_in(group):
            lists, addresses = gathering.empty_lists(), None
            if torch.compiler.is_compiling():
                self._init_group(group, *kind, first_index, *lists)
            else:
                addresses = gathering.gather(group, kind, first_index, states, lists)
            late, fast_starts, indices, *columns = lists
            tensors = Tensors(whole_places(indices) if addresses is None else [], *columns)
            gathered.append((group, tensors, dict(zip(late, fast_starts, strict=True)), addresses))
            left -= len(indices)
            if not left:
                break
        return gathered

    def _update(self, gathered: list[Gathered]) -> None:
        grad_scale = getattr(self, "grad_scale", None)
        for group, tensors, starts, addresses in gathered:
            stochastic = group["stochastic_rounding"] is not False and not group["differentiable"]
            how = (Settings.of_group(group), Rounding(group["rounding_seed"], stochastic), Flags.of_group(group))
            ademamix_step(tensors, *how, grad_scale=grad_scale, fast_starts=starts, addresses=addresses)

    @staticmethod
    def _is_for_state_alone(gathered: list[Gathered]) -> bool:
        """Tell whether a first step is no step: torch.distributed.checkpoint takes one to have state to load into.

        It has zeros for gradients and 0 for lr. The clocks of what is saved then should not have run.
        """
        if any(group["differentiable"] or float(group["lr"]) != 0 for group, *_ in gathered):
            return False
        grads = [shards.local(grad) for _, tensors, *_ in gathered for grad in tensors.grads]
        # A process that has empty parts alone is told nothing by them, and keeps time with those that take a step.
        return any(grad.numel() for grad in grads) and not any(bool(grad.any()) for grad in grads)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether GradScaler leaves the scaling of gradients to `step`: only if ``fused=True`` was asked for.

        As in torch: trainers that clip gradients between the two refuse an optimizer that says so.
        """
        return all(bool(group["fused"]) for group in self.param_groups)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state_dict of AdEMAMix, of AdamW as a switch, or of another AdEMAMix, which a warning names.

        The others are those of bitsandbytes, of pytorch_optimizer, of heavyball and of the paper's authors; every other
        state is refused. Parameters are matched by name if both sides have names, or else by position.

        Groups are restored as torch does, but `total_steps`, `alpha`, `beta3`, the warm-ups, `beta3_start`,
        `slow_clip`, `state_storage` and `master` that this optimizer was given explicitly win over the checkpoint's;
        what follows from `total_steps` is derived again, the clocks are kept, and a warning reports alpha(t) and
        beta3(t) before and after. Moments keep their precision whatever the dtype of their parameter.
        """
        last_hook = self.register_load_state_dict_pre_hook(checkpoint.protect)
        try:
            super().load_state_dict(state_dict)
        finally:
            last_hook.remove()
        if self._load_report is not None:
            warnings.warn(self._load_report, stacklevel=2)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "defaults" not in state:  # from load_state_dict, not from pickle
            self._load_report = checkpoint.settle(self.param_groups, state)
        super().__setstate__(state)
        for settings in (self.defaults, *self.param_groups):
            settings.setdefault("slow_clip", None)  # pickled by an earlier version
            settings.setdefault("master", None)

    @torch.no_grad()
    def master_parameters(self) -> list[Tensor]:
        r"""Return copies of the parameters as steps see them, at least in fp32, in the order of the groups.

        Of a bf16 parameter under ``master="24bit"`` that is its master: with its correction c, a signed byte,

        .. math:: \mathrm{bits}(\text{master}) = 2^{16}\,\mathrm{bits}(\theta) + 2^8 c

        so that fp32 masters can be saved, evaluated, or trained further by another optimizer. A parameter that is 0 is
        its own master. Sharded parameters have sharded masters.

        >>> model = torch.nn.Linear(4, 1, dtype=torch.bfloat16)
        >>> optimizer = AdEMAMix(model.parameters(), total_steps=100, master="24bit")
        >>> optimizer.load_master_parameters([torch.full((1, 4), 1.001), torch.zeros(1)])
        >>> model.weight[0, 0].item(), optimizer.master_parameters()[0][0, 0].item()
        (1.0, 1.001007080078125)
        """
        return [
            parameter_state.master_of(param, self.state.get(param, {}), group)
            for group in self.param_groups
            for param in group["params"]
        ]

    @torch.no_grad()
    def load_master_parameters(self, masters: Iterable[Tensor]) -> None:
        """Write these values into the parameters, in the order of the groups; the inverse of :meth:`master_parameters`.

        Under ``master="24bit"``, bf16 parameters take the nearest value, and their corrections what that leaves out. A
        run can so begin, or continue, with fp32 masters that come from elsewhere. Clocks and moments stay as they are.

        >>> model = torch.nn.Linear(4, 1)
        >>> masters = [param.clone() for param in model.parameters()]
        >>> optimizer = AdEMAMix(model.bfloat16().parameters(), total_steps=100, master="24bit")
        >>> optimizer.load_master_parameters(masters)
        """
        owners = [(param, group) for group in self.param_groups for param in group["params"]]
        values = list(masters)
        inputs.check_masters(values, [param for param, _ in owners])
        for value, (param, group) in zip(values, owners, strict=True):
            parameter_state.write_master(value, param, self.state, group)

    def schedule(self) -> list[dict[str, Any]]:
        """Return clocks, alpha(t) and beta3(t) of the last step, one dict per group, at its largest clocks.

        >>> model = torch.nn.Linear(4, 1)
        >>> AdEMAMix(model.parameters(), alpha=4.0, total_steps=100).schedule()
        [{'step': 0, 'slow_step': 0, 'alpha': 0.04, 'beta3': 0.9}]
        """
        return [diagnostics.schedule_of(group, self.state) for group in self.param_groups]

    def diagnostics(self) -> list[dict[str, Any]]:
        """Return :meth:`schedule` and the norms of the averages and of the update, one dict per group.

        ``m1_norm`` and ``alpha_m2_norm`` are the Euclidean norms of the fast average and of alpha(t) times the slow
        one, ``cosine`` is that of the angle between the two, ``update_norm`` the norm of the last change of the
        parameters apart from weight decay. ``largest_slow_step`` is the largest slow part of an element of the update,
        ``|alpha m2| / (sqrt(nu_hat) + eps)``, and ``large_slow_steps`` the number of elements where it exceeds 10: both
        grow where gradients stay away for long (see docs/idle.md). ``skipped`` is the number of gradient elements that
        ``nonfinite="skip"`` has passed over so far. ``reduced_bytes`` and ``full_bytes`` are the sizes of the moments
        that are stored in fewer bits than they are computed in, with their scales, and of the others. With
        ``beta1 = 0`` the fast average is the gradient: call this before ``zero_grad``. Of sharded parameters, all of
        this is about the parts that this process has. It reads the whole state: call it now and then, not every step.

        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = AdEMAMix(model.parameters(), total_steps=100)
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
        >>> round(optimizer.diagnostics()[0]["cosine"], 6)
        1.0
        """
        return [diagnostics.diagnostics_of(group, self.state) for group in self.param_groups]

    def reset_slow(self) -> None:
        """Empty the slow average and restart its clock, for example when the data changes.

        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = AdEMAMix(model.parameters(), total_steps=100)
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.reset_slow()
        >>> optimizer.schedule()[0]["step"], optimizer.schedule()[0]["slow_step"]
        (1, 0)
        """
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state.get(param, {})
                for key in (SLOW_KEY, SCALE_KEYS["slow"], SLOW_STEP_KEY):
                    if key in state:
                        state[key].zero_()
