"""torch.autocast as a part of the graph: the conversions that it would make before an operator
become operators.

So every device makes them, wherever the model is cut; what is sent, kept and reckoned has the type
that it really has. Weights stay as they are: their gradients arrive in their own type.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
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


HALF = "float16"  # small gradients are lost in it, where the loss is not multiplied


def check(name: str) -> None:
    """Raise ModelError where this is no type for autocast.

    Parameters
    ----------
    name
        As the user gave it; empty: none is wanted.
    """
    if name and name not in DTYPES:
        raise ModelError(
            f"autocast={name!r} is not offered.", next_step=f"Choose one of {', '.join(DTYPES)}."
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
        before = source.meta["val"]
        with torch.no_grad(), before.fake_mode:
            cast.meta["val"] = before.to(dtype)
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
        if _Trial(node, casts).gives() == _dtypes(node.meta["val"]):
            return casts
    raise _inside(node)


def _observed(
    node: torch.fx.Node, floats: list[torch.fx.Node], name: str
) -> dict[torch.fx.Node, torch.dtype]:
    """What torch converts when it computes this operator, on tensors without values."""
    trial = _Trial(node, {})
    ids = {n: id(trial.known[n]) for n in floats}
    with autocasting(name), _Conversions() as within:
        trial.run()
    has_rule = torch._C._dispatch_has_kernel_for_dispatch_key(node.target.name(), _KEY)  # type: ignore[union-attr]
    if not has_rule:
        with _Conversions() as without:
            trial.run()
        if len(within.found) == len(without.found):
            return {}
        if not {id(tensor) for tensor, _ in within.found} <= set(ids.values()):
            raise _inside(node)
    # the first one counts: what comes later is inside the operator
    converted = {id(tensor): dtype for tensor, dtype in reversed(within.found)}
    return {n: converted[number] for n, number in ids.items() if number in converted}


class _Trial:
    """One operator over tensors of its examples' sizes, without values: sizes of the export itself
    would be tied to numbers by the operators that look at them.
    """

    def __init__(self, node: torch.fx.Node, casts: Mapping[torch.fx.Node, torch.dtype]) -> None:
        self._node, self._mode = node, FakeTensorMode()
        with self._mode:
            self.known = {n: _like(n.meta["val"], casts.get(n)) for n in node.all_input_nodes}

    def run(self) -> Any:
        """Its result."""
        args: Any = torch.fx.map_arg(self._node.args, self.known.__getitem__)
        kwargs: Any = torch.fx.map_arg(self._node.kwargs, self.known.__getitem__)
        with torch.no_grad(), self._mode:
            return self._node.target(*args, **kwargs)  # type: ignore[operator]

    def gives(self) -> list[torch.dtype] | None:
        """The types of its results; None where it takes no such arguments."""
        try:
            return _dtypes(self.run())
        except RuntimeError:
            return None


def _like(value: Any, dtype: torch.dtype | None) -> Any:
    """The same with plain sizes, of this type if one is named."""
    if isinstance(value, torch.Tensor):
        sizes, strides = map(_plain, value.shape), map(_plain, value.stride())
        return torch.empty_strided(tuple(sizes), tuple(strides), dtype=dtype or value.dtype)
    if isinstance(value, list | tuple):
        return type(value)(_like(item, None) for item in value)
    return _plain(value)


def _plain(value: Any) -> Any:
    """A number of the example, not of every batch."""
    return value.node.hint if isinstance(value, torch.SymInt | torch.SymFloat) else value


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
