"""A torch optimizer as a description: its class, its groups of parameters and their settings."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from potluck.errors import UserError
from potluck.graph.torch.state_names import device_name
from potluck.run.optimizer_state import has_steps
from potluck.run.optimizers import CLASSES, Adam, AdamW, Optimizer
from potluck.run.weight_update import ParameterGroup

_STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_HOOKS_OF_ALL = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
# settings that only one value is supported of
_ONE_VALUE = {"dampening": 0, "initial_accumulator_value": 0, "differentiable": False}


def groups_of(model: Any, optimizer: Any) -> tuple[ParameterGroup, ...]:
    """The groups of a torch optimizer, with parameters as devices know them.

    Raises
    ------
    UserError
        Its class or a setting is not supported, or it is not for the weights that the model trains.
    """
    _check_torchs(optimizer)
    names, trained = model.names_by_identity(), {parameter.name for parameter in model.trained}
    pieces: dict[str, list[str]] = {}  # of each tensor that is cut
    for name, piece in model.pieces.items():
        pieces.setdefault(piece.whole, []).append(name)
    groups, seen = [], set[str]()
    for group in optimizer.param_groups:
        labels = group.get("param_names") or [""] * len(group["params"])
        pairs = zip(group["params"], labels, strict=True)
        found = [_name_of(tensor, label, names, trained | pieces.keys()) for tensor, label in pairs]
        pieces_found = [piece for name in found for piece in pieces.get(name, [name])]
        members = tuple(name for name in pieces_found if name in trained and name not in seen)
        seen.update(members)
        groups.append(ParameterGroup(parameters=members, optimizer=optimizer_of(group, optimizer)))
    if len({type(group.optimizer) for group in groups}) > 1:
        raise UserError(
            "the groups of the optimizer differ in decoupled_weight_decay, and devices take the "
            "steps of one class.",
            next_step="Give all groups the same.",
        )
    if missing := sorted(trained - seen):
        raise UserError(
            f"{missing[0]} is trained by the model, and the optimizer has it not"
            f"{f' (nor {len(missing) - 1} others)' if len(missing) > 1 else ''}.",
            next_step="Give it to the optimizer, or freeze it with requires_grad_(False) before "
            "Model.from_torch.",
        )
    return tuple(groups)


def _check_torchs(optimizer: Any) -> None:
    if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "state"):
        raise UserError(
            f"the optimizer is one of potluck's or of torch's, got {type(optimizer).__name__}.",
            next_step="potluck.AdamW(lr), or torch.optim.AdamW(net.parameters(), lr)",
        )
    if _ours(optimizer) is None:
        known = ", ".join(sorted(each.__name__ for each in CLASSES if each.__name__ != "Lion"))
        raise UserError(
            f"{type(optimizer).__module__}.{type(optimizer).__name__} is no optimizer that devices "
            f"know; of torch.optim they know {known}.",
            next_step="Lion is potluck.Lion(lr).",
        )
    check_hooks(optimizer)
    if any(len(state) for state in optimizer.state.values() if has_steps(state)):
        raise UserError(
            "the optimizer has made steps of its own, and devices begin without them.",
            next_step="Make a new one; or save and resume the run: home.deploy(plan, resume=path).",
        )


def check_hooks(optimizer: Any) -> None:
    """See that a step of the optimizer is that of its class.

    Parameters
    ----------
    optimizer
        One of torch's.

    Raises
    ------
    UserError
        It is more.
    """
    from torch.optim import optimizer as of_all

    found = ""
    if any(getattr(optimizer, name, None) for name in _STEP_HOOKS):
        found = "has hooks on its step, which devices take without them"
    elif any(getattr(of_all, name, None) for name in _HOOKS_OF_ALL):
        found = "has hooks on its step, as all optimizers, which devices take without them"
    elif _has_own_step(optimizer):
        found = "has a step that was put in the place of its class's, which devices take"
    if found:
        raise UserError(
            f"the optimizer {found}.",
            next_step="Remove them (handle.remove()), or make a new one. Limits of gradients are "
            "clip_norm= and clip_value=; what looks at the weights belongs into on_step.",
        )


def _has_own_step(optimizer: Any) -> bool:
    """Whether its step is not that of its class. Schedulers put one around it, which counts."""
    step = vars(optimizer).get("step", type(optimizer).step)
    step = getattr(step, "__func__", step)
    while getattr(step, "__globals__", {}).get("__name__") == "torch.optim.lr_scheduler":
        step = step.__wrapped__
    return step is not type(optimizer).step


def _ours(optimizer: Any) -> type[Optimizer] | None:
    """Our record for exactly this class of torch's."""
    import torch

    for each in CLASSES:
        if type(optimizer) is getattr(torch.optim, each.__name__, None):
            return each
    return None


def optimizer_of(group: Mapping[str, Any], optimizer: Any) -> Optimizer:
    """The settings of one group of a torch optimizer.

    Parameters
    ----------
    group
        As in its `param_groups`.
    optimizer
        Whose it is.

    Raises
    ------
    UserError
        A setting is not supported.
    """
    made = _ours(optimizer)
    assert made is not None  # it was checked
    for name, only in _ONE_VALUE.items():
        if group.get(name, only) != only:
            raise UserError(f"{name}={group[name]!r} of the optimizer is not supported.")
    if made in (Adam, AdamW):  # in torch one class, which each group's setting tells apart
        made = AdamW if group.get("decoupled_weight_decay", made is AdamW) else Adam
    known = {item.name for item in fields(made)}  # type: ignore[arg-type]
    given = {name: _plain(value) for name, value in group.items() if name in known}
    return made(**given)


def _plain(value: Any) -> Any:
    """A setting without tensors."""
    if isinstance(value, tuple | list):
        return tuple(_plain(part) for part in value)
    try:
        return value.item() if hasattr(value, "item") else value
    except (RuntimeError, ValueError):  # of several numbers
        return value


def _name_of(tensor: Any, label: str, names: Mapping[int, str], trained: Collection[str]) -> str:
    """What devices call a parameter; empty: the model's graph does not use it."""
    if id(tensor) in names:
        return names[id(tensor)]
    if label and (name := device_name(label)) in trained:
        return name
    raise UserError(
        f"the optimizer has a parameter of the shape {list(tensor.shape)} that is not the model's.",
        next_step="Make it of the module that the model was made from: "
        "torch.optim.AdamW(net.parameters()).",
    )
