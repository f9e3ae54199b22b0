"""States of other optimizers in the names used here: AdEMAMixes continue, AdamW is switched, the rest is refused.

============================  ==================================  =======================================
whose AdEMAMix                recognised by                       clocks and moments
============================  ==================================  =======================================
bitsandbytes                  ``t_alpha`` in the group            ``step``, ``state1`` (m1, m2), ``state2``
pytorch_optimizer             ``t_alpha_beta3`` in the group      ``step`` of the group; our names
heavyball                     ``storage_dtype`` in the group      ``step_count``; m1, nu bias-corrected
the paper's authors           ``alpha_warmup`` in the group       ``step``; m1 is ``exp_avg_fast``
============================  ==================================  =======================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from torch import Tensor

Entries = Mapping[str, Any]
Group = Mapping[str, Any]

ADAMW_ONLY = ("amsgrad", "decoupled_weight_decay")  # keys of its groups that mean nothing here
FUSED = "fused"  # of torch's kernels, not of those here, which a user has to ask for on CUDA
KNOWN_OF_ADAMW = (  # keys of its groups in torch, in apex and DeepSpeed, and what lr schedulers add
    *("params", "param_names", "lr", "betas", "eps", "weight_decay", "decoupled_weight_decay", "amsgrad", "maximize"),
    *("foreach", "capturable", "differentiable", FUSED),
    *("step", "bias_correction"),
    *("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"),
)
LAMB_ONLY = ("trust_clip", "always_adapt", "grad_averaging")  # of timm and apex, with the moments of AdamW
NADAM_ONLY = "momentum_decay"  # in groups that are otherwise like those of RAdam
ORIGIN = "origin"  # in a translated group: whose AdEMAMix it was
KEPT = ("params", "param_names", "lr", "initial_lr", "betas", "eps", "weight_decay", "alpha", "foreach")

BITSANDBYTES_WRAPPER = "__bnb_optimizer_quant_state__"  # newer versions keep all tensors in it
BITSANDBYTES_BLOCK = 256
HEAVYBALL_ENTRY = re.compile(r"(?:update|scale)_by_ademamix_(exp_avg_fast|exp_avg_slow|exp_avg_sq)_\d+")


def translated(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return `state_dict` in our names or AdamW's, or raise ValueError if that is not possible. Twice is like once."""
    groups, state = [], dict(state_dict["state"])
    for number, group in enumerate(state_dict["param_groups"]):
        keys = [key for key in group["params"] if state.get(key)]
        layout = layout_of(group)
        if set(group) == {"params"} and not group["params"]:
            groups.append(group)  # torch.distributed.checkpoint keeps nothing of a group without parameters
            continue
        if layout is None or NADAM_ONLY in group:
            _refuse(group, state[keys[0]] if keys else {})
        refuse_other_adams(group)
        try:
            groups.append(layout.group(group))
        except KeyError as missing:
            raise ValueError(
                f"group {number} of this AdEMAMix of {layout.origin} has no {missing.args[0]}: it was changed since "
                "that optimizer wrote it. Put the setting back into param_groups, or go back to an earlier checkpoint."
            ) from missing
        for key in keys:
            try:
                state[key] = layout.state(state[key], group)
            except KeyError:
                _refuse(group, state[key])
    return {**state_dict, "state": state, "param_groups": groups}


def layout_of(group: Group) -> Layout | None:
    """Return the layout of the optimizer that a group belongs to, or None if it is not known."""
    return next((layout for layout in LAYOUTS if layout.key in group), None)


def refuse_other_adams(group: Group) -> None:
    """Raise if `group` belongs to an Adam whose state or weight decay means something other than AdamW's."""
    if group.get("amsgrad"):
        raise ValueError(
            "amsgrad=True is not possible: AdEMAMix has no maximum of second moments. In a call, leave it out; to "
            "continue a run, load it into an AdamW with amsgrad=False first if dropping the maximum is what you want."
        )
    if "decoupled_weight_decay" in group and "amsgrad" not in group:
        raise ValueError(
            "this is the state of torch.optim.RAdam: its moments are those of AdamW, its updates are not. To continue "
            "without its rectification, load it into a torch.optim.AdamW and save the state of that."
        )
    if not group.get("weight_decay"):
        return
    if not group.get("decoupled_weight_decay", True) or not group.get("weight_decouple", True):
        raise ValueError(
            f"this is Adam with L2 weight decay ({group['weight_decay']}), not AdamW: AdEMAMix's weight decay is "
            "decoupled. Set weight_decay to 0 in its groups, then give AdEMAMix the decoupled decay you want."
        )
    if group.get("fixed_decay"):
        raise ValueError(
            f"this is a weight decay ({group['weight_decay']}) that is not multiplied by lr, which AdEMAMix's is. Set "
            "weight_decay to 0 in its groups, then give AdEMAMix the decay over lr."
        )


def doubts(groups: Sequence[Group], own: Collection[str] = ()) -> list[str]:
    """Say why `groups` that are taken for AdamW's may be another optimizer's; `own` are keys that the user has as well.

    >>> group = {"params": [0], "lr": 0.1, "betas": (0.9, 0.99), "amsgrad": False, "weight_decay": 0.1}
    >>> doubts([{**group, "decoupled_weight_decay": True}])
    []
    >>> [text.partition(":")[0] for text in doubts([{**group, "rectify": True}])]
    ['groups have rectify, which those of AdamW have not', 'no group says whether its weight decay is decoupled']
    """
    found = []
    alike = [group for group in groups if (layout := layout_of(group)) and layout.origin == "AdamW"]
    unknown = sorted({str(key) for group in alike for key in group if key not in KNOWN_OF_ADAMW and key not in own})
    if unknown:
        found.append(f"groups have {', '.join(unknown)}, which those of AdamW have not: {_IF_ANOTHER}")
    if any(not {"amsgrad", "bias_correction"} & set(group) for group in alike):
        found.append(f"groups have no amsgrad, which those of torch.optim.AdamW have: {_IF_ANOTHER}")
    if any(group.get("weight_decay") and "decoupled_weight_decay" not in group for group in alike):
        found.append(
            "no group says whether its weight decay is decoupled: older torch does not save that. It continues as "
            "AdamW's. If this was Adam, it was an L2 penalty: set weight_decay to 0 in the groups, and choose another."
        )
    return found


_IF_ANOTHER = (
    "other optimizers have the same moments and other updates. This is right only if the state was written by an AdamW."
)


class Layout(NamedTuple):
    """How an optimizer lays out its ``state_dict``."""

    origin: str  # whose it is
    key: str  # of its groups, by which it is recognised
    group: Callable[[Group], dict[str, Any]]  # a group in our names
    state: Callable[[Entries, Group], Entries]  # the state of a parameter in our names


def _renamed(group: Group, *, origin: str, alpha_warmup: str, beta3_warmup: str) -> dict[str, Any]:
    """Return a group of another AdEMAMix; the last two are its names for the warm-ups, whose None is no warm-up."""
    if len(group["betas"]) != 3:
        raise ValueError(
            f"of {origin}, AdEMAMix loads only the state of its AdEMAMix, whose betas are (beta1, beta2, beta3), but "
            f"this one has betas {group['betas']}. To start with an empty state, do not load one."
        )
    return {
        **{key: group[key] for key in KEPT if key in group},
        "alpha_warmup": group[alpha_warmup] or 0,
        "beta3_warmup": group[beta3_warmup] or 0,
        ORIGIN: origin,
    }


def _of_bitsandbytes(entries: Entries, group: Group) -> Entries:
    entries = {**entries, **entries.get(BITSANDBYTES_WRAPPER, {})}
    averages, square = _bitsandbytes_values(entries, "1"), _bitsandbytes_values(entries, "2")
    return _one_clock(entries["step"], averages[0], averages[1], square)


def _bitsandbytes_values(entries: Entries, number: str) -> Tensor:
    stored: Tensor = entries[f"state{number}"]
    if f"qmap{number}" not in entries:
        return stored
    largest: Tensor = entries[f"absmax{number}"]  # of each block; m1 and m2 have blocks of their own
    table: Tensor = entries[f"qmap{number}"]
    values = table[stored.long()].reshape(*largest.shape[:-1], -1)
    if largest.shape[-1] != -(-values.shape[-1] // BITSANDBYTES_BLOCK):
        raise ValueError(
            f"the 8-bit state of bitsandbytes has {largest.shape[-1]} scales for {values.shape[-1]} elements, and is "
            f"read only in blocks of {BITSANDBYTES_BLOCK}. Continue it with 32-bit state first."
        )
    scales = largest.repeat_interleave(BITSANDBYTES_BLOCK, dim=-1)[..., : values.shape[-1]]
    return (values * scales).view(stored.shape)


def _of_pytorch_optimizer(entries: Entries, group: Group) -> Entries:
    for variant in ("cautious", "stable_adamw"):
        if group.get(variant):
            raise ValueError(
                f"this AdEMAMix of pytorch_optimizer has {variant}=True, which changes the updates and which AdEMAMix "
                f"does not have. Set {variant} to False in its groups if dropping it is what you want."
            )
    return _one_clock(group["step"], entries["exp_avg"], entries["exp_avg_slow"], entries["exp_avg_sq"])


def _of_the_authors(entries: Entries, group: Group) -> Entries:
    return _one_clock(entries["step"], entries["exp_avg_fast"], entries["exp_avg_slow"], entries["exp_avg_sq"])


def _one_clock(step: Any, fast: Tensor | None, slow: Tensor, square: Tensor) -> Entries:
    """Rename the entries of an AdEMAMix with one clock. With beta1 = 0 some store no m1."""
    moments = {"exp_avg": fast, "exp_avg_slow": slow, "exp_avg_sq": square}
    return {"step": step, "slow_step": step, **{name: value for name, value in moments.items() if value is not None}}


def _heavyball_group(group: Group) -> dict[str, Any]:
    for variant in ("caution", "mars", "ecc", "param_ecc", "cautious_weight_decay"):
        if group.get(variant):
            raise ValueError(
                f"this AdEMAMix of heavyball has {variant}={group[variant]!r}, which changes the updates or the state "
                f"and which AdEMAMix does not have. Set {variant} to False in its groups if dropping it is what you "
                "want."
            )
    warmup = group.get("warmup_steps") or 0
    if float(group.get("step_count") or 0) < warmup:
        raise ValueError(
            f"this AdEMAMix of heavyball is inside of its own warm-up of lr, over {warmup} steps, which "
            "AdEMAMix leaves to lr schedulers. Set warmup_steps to 0 in its groups, and attach a scheduler."
        )
    return _renamed(group, origin="heavyball", alpha_warmup="alpha_warmup", beta3_warmup="beta3_warmup")


def _of_heavyball(entries: Entries, group: Group) -> Entries:
    """Undo the bias correction of the stored m1 and nu: those are m1 / (1 - beta1^t) and nu / (1 - beta2^t)."""
    views = [view for view in entries.values() if isinstance(view, Mapping)]
    moments = {
        found[1]: value for view in views for key, value in view.items() if (found := HEAVYBALL_ENTRY.fullmatch(key))
    }
    if len(views) != 1 or group.get("step_count") is None:
        raise ValueError(
            f"this is a state of heavyball with {len(views)} parts for a parameter and "
            f"{'no' if group.get('step_count') is None else 'a'} step_count in its group: AdEMAMix loads only that of "
            "heavyball.AdEMAMix, with whole parameters and a clock. To start with an empty state, do not load one."
        )
    step = float(group["step_count"])
    fast, square = (_without_correction(moments[key], beta, step) for key, beta in _heavyball_betas(group))
    return _one_clock(step, fast, moments["exp_avg_slow"], square)


def _heavyball_betas(group: Group) -> list[tuple[str, float]]:
    return [("exp_avg_fast", float(group["betas"][0])), ("exp_avg_sq", float(group["betas"][1]))]


def _without_correction(average: Tensor, beta: float, step: float) -> Tensor:
    return average * -math.expm1(step * math.log(beta)) if beta > 0 else average


def _of_adamw(entries: Entries, group: Group) -> Entries:
    entries = {"step": group.get("step"), **entries}  # apex, for one, has the clock in the group
    if set(entries) - {"max_exp_avg_sq"} != {"step", "exp_avg", "exp_avg_sq"} or entries["step"] is None:
        _refuse(group, entries)
    return {name: value for name, value in entries.items() if name != "max_exp_avg_sq"}


def _refuse(group: Group, entries: Entries) -> NoReturn:
    raise ValueError(
        f"this is the state of another optimizer: its groups have {', '.join(map(str, group))}, and its state "
        f"{', '.join(map(str, entries)) or 'nothing that is known'}. AdEMAMix loads its own, AdamW's, and those of the "
        "AdEMAMix of bitsandbytes, of pytorch_optimizer, of heavyball and of the paper's authors. To start with an "
        "empty state, do not load one."
    )


def _as_it_is(entries: Entries, group: Group) -> Entries:
    return entries


def _adamw_group(group: Group) -> dict[str, Any]:
    if lamb := [key for key in LAMB_ONLY if key in group]:
        raise ValueError(
            f"this is the state of LAMB, whose groups have {lamb[0]}: its moments are those of AdamW, its updates are "
            "not. To start with an empty state, do not load one."
        )
    if not group.get("bias_correction", True):
        raise ValueError(
            "this is an AdamW with bias_correction=False, which AdEMAMix does not have. Set bias_correction to True in "
            "its groups if that is what you want."
        )
    return {key: value for key, value in group.items() if key not in ("step", FUSED)}


LAYOUTS = (  # in the order in which they are looked for
    Layout("translated", ORIGIN, dict, _as_it_is),
    Layout("ademamix", "given", dict, _as_it_is),
    Layout("heavyball", "storage_dtype", _heavyball_group, _of_heavyball),
    Layout(
        "bitsandbytes",
        "t_alpha",
        partial(_renamed, origin="bitsandbytes", alpha_warmup="t_alpha", beta3_warmup="t_beta3"),
        _of_bitsandbytes,
    ),
    Layout(
        "pytorch_optimizer",
        "t_alpha_beta3",
        partial(_renamed, origin="pytorch_optimizer", alpha_warmup="t_alpha_beta3", beta3_warmup="t_alpha_beta3"),
        _of_pytorch_optimizer,
    ),
    Layout(
        "the paper's authors",
        "alpha_warmup",
        partial(_renamed, origin="the paper's authors", alpha_warmup="alpha_warmup", beta3_warmup="beta3_warmup"),
        _of_the_authors,
    ),
    Layout("AdamW", "betas", _adamw_group, _of_adamw),
)
