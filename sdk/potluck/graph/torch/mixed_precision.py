"""torch.autocast as a part of the graph: the conversions that it would make before an operator
become operators.

So every device makes them, wherever the model is cut; what is sent, kept and reckoned has the type
that it really has. Weights stay as they are: their gradients arrive in their own type.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from potluck.errors import ModelError
from potluck.graph.torch.convert import where

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_KIND, _KEY = "cpu", "AutocastCPU"  # whose rules hold: those of the machine that traces
_TO_COPY = torch.ops.aten._to_copy.default
_TO = torch.ops.aten.to.dtype
# The product inside is converted, of views of the operands: the same as the operands themselves.
_OF_PRODUCTS = frozenset({"aten::einsum"})
_WITHOUT_GRADIENTS = "wrap_with_set_grad_enabled"


def check(name: str, *, trains: bool) -> None:
    """Raise ModelError where this is no type for autocast, or none to train with.

    Parameters
    ----------
    name
        As the user gave it; empty: none is wanted.
    trains
        Whether there is a loss.
    """
    if name and name not in DTYPES:
        raise ModelError(
            f"autocast={name!r} is not offered.", next_step=f"Choose one of {', '.join(DTYPES)}."
        )
    if name == "float16" and trains:
        raise ModelError(
            "training with autocast='float16' would lose small gradients: they need a loss that is "
            "scaled, which devices do not do.",
            next_step="Use autocast='bfloat16', which needs none; or leave out the loss, for "
            "answers in float16.",
        )


def autocasting(name: str) -> contextlib.AbstractContextManager[Any]:
    """Whatever runs in this block is converted so; nothing without a name."""
    if not name:
        return contextlib.nullcontext()
    # each use of a weight converts it itself, as each device has to
    return torch.autocast(_KIND, dtype=DTYPES[name], cache_enabled=False)


def insert_casts(program: Any, name: str) -> None:
    """Make the conversions of autocast operators of a program that was exported under it.

    Parameters
    ----------
    program
        Of torch.export; changed in place.
    name
        The type; nothing is done without.

    Raises
    ------
    ModelError
        An operator converts something inside itself.
    """
    if name:
        for module in _regions(program.graph_module):
            for node in list(module.graph.nodes):
                if isinstance(node.target, torch._ops.OpOverload):
                    _insert(node, name)
            module.recompile()


def _regions(module: Any) -> Iterator[Any]:
    """The graph and what is in it without gradients; where the user switched autocast off, it
    is.
    """
    yield module
    for node in module.graph.nodes:
        if node.op == "call_function" and str(node.target) == _WITHOUT_GRADIENTS:
            yield from _regions(getattr(module, node.args[1].target))


class _Conversions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which tensors are converted to another type of floats."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[torch.Tensor, torch.dtype]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named: Mapping[str, Any] = kwargs or {}
        if func is _TO_COPY and named.get("dtype") is not None:
            self.found.append((args[0], named["dtype"]))
        return func(*args, **named)


def _insert(node: torch.fx.Node, name: str) -> None:
    """The conversions before one operator."""
    try:
        casts = _casts(node, name)
    except RuntimeError as error:  # it cannot even be looked at
        raise _inside(node) from error
    graph, made = node.graph, {}
    for source, dtype in casts.items():
        with graph.inserting_before(node):
            cast = graph.call_function(_TO, (source, dtype))
        cast.meta = {key: value for key, value in node.meta.items() if key != "val"}
        cast.meta["val"] = _evaluated(_TO, (source.meta["val"], dtype), {})
        made[source] = cast
    node.args = torch.fx.map_arg(node.args, lambda used: made.get(used, used))
    node.kwargs = torch.fx.map_arg(node.kwargs, lambda used: made.get(used, used))


def _casts(node: torch.fx.Node, name: str) -> dict[torch.fx.Node, torch.dtype]:
    """Which arguments autocast converts, and to what."""
    sources = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    floats = [n for n in sources if n.meta["val"].is_floating_point()]
    if not floats:
        return {}
    if str(node.target.name()).partition(".")[0] in _OF_PRODUCTS:  # type: ignore[union-attr]
        found = {n: DTYPES[name] for n in floats if n.meta["val"].dtype is torch.float32}
    else:
        found = _observed(node, floats, name)
    # an operator that widens half precision inside itself does so everywhere
    narrowing = {n: dtype for n, dtype in found.items() if dtype is DTYPES[name]}
    for casts in (found, narrowing):
        args, kwargs = _values(node, casts)
        if _dtypes(_evaluated(node.target, args, kwargs)) == _dtypes(node.meta["val"]):
            return casts
    raise _inside(node)


def _observed(
    node: torch.fx.Node, floats: list[torch.fx.Node], name: str
) -> dict[torch.fx.Node, torch.dtype]:
    """What torch converts when it computes this operator, on tensors without values."""
    args, kwargs = _values(node, {})
    with autocasting(name), _Conversions() as there:
        _evaluated(node.target, args, kwargs)
    has_rule = torch._C._dispatch_has_kernel_for_dispatch_key(node.target.name(), _KEY)  # type: ignore[union-attr]
    if not has_rule:
        with _Conversions() as without:
            _evaluated(node.target, args, kwargs)
        if len(there.found) != len(without.found):
            raise _inside(node)
        return {}
    converted = {id(tensor): dtype for tensor, dtype in there.found}
    return {n: converted[id(n.meta["val"])] for n in floats if id(n.meta["val"]) in converted}


def _values(
    node: torch.fx.Node, casts: Mapping[torch.fx.Node, torch.dtype]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a node, some of them converted."""

    def value(used: torch.fx.Node) -> Any:
        known = used.meta["val"]
        return _evaluated(_TO, (known, casts[used]), {}) if used in casts else known

    args: tuple[Any, ...] = torch.fx.map_arg(node.args, value)
    kwargs: dict[str, Any] = torch.fx.map_arg(node.kwargs, value)
    return args, kwargs


def _evaluated(target: Any, args: Any, kwargs: Any) -> Any:
    """The result, without values, as export itself evaluates it."""
    tensor = next((t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)), None)
    mode = getattr(tensor, "fake_mode", None) or contextlib.nullcontext()
    with torch.no_grad(), mode:
        return target(*args, **kwargs)


def _dtypes(result: Any) -> list[torch.dtype]:
    return [part.dtype for part in tree_iter(result) if isinstance(part, torch.Tensor)]


def _inside(node: torch.fx.Node) -> ModelError:
    return ModelError(
        f"the operator {node.target} converts a part of its work under autocast{where(node)}, "
        "which devices do not do.",
        next_step="Leave its module out of autocast: with torch.autocast('cpu', enabled=False) "
        "around it, in forward.",
        operator=str(node.target),
    )
