"""Changes in place of what others see through views (`y[:, 0] = x`), as new values that later
readers see.

A change of a view becomes a change of what it is a view of: the part that was taken is put back
where it came from, and every other view that is read later is taken anew. What belongs to the user
(inputs, weights, buffers) is left as it is.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from potluck.graph.torch.draws import IN_PLACE
from potluck_wire.operators import KIND_OF

_ATEN = torch.ops.aten
_PARTS = frozenset({"aten.chunk.default", "aten.split.Tensor", "aten.split_with_sizes.default"})
_COPIED = "potluck_copied"  # the mark of a node that stands for a copy
_SAME_SIZE_VIEWS = frozenset({"alias", "detach", "contiguous", "to", "lift_fresh"})
_RESHAPES = frozenset(
    {"view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "_unsafe_view", "view_as"}
    | {"reshape_as"}
)

# what changes the shape of its argument alone, and no value that others see
_RESHAPING = {
    _ATEN.squeeze_.default: _ATEN.squeeze.default,
    _ATEN.squeeze_.dim: _ATEN.squeeze.dim,
    _ATEN.squeeze_.dims: _ATEN.squeeze.dims,
    _ATEN.unsqueeze_.default: _ATEN.unsqueeze.default,
    _ATEN.transpose_.default: _ATEN.transpose.int,
    _ATEN.t_.default: _ATEN.t.default,
}


def without_changes(program: Any) -> None:
    """Write every change in place, of what the program itself made, as a new value."""
    for module in program.graph_module.modules():
        if hasattr(module, "graph"):
            changes = [node for node in module.graph.nodes if _changes(node)]
            for node in changes:
                _Rewrite(module.graph, node).apply()
            if changes:
                module.recompile()


def _changes(node: Any) -> bool:
    """Whether a node changes its first argument in place, other than by chance."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = str(node.target)
    packet = name.split(".")[1]
    if not packet.endswith("_") or packet.startswith("__"):
        return False
    return KIND_OF.get(functional_name(name)) != "random" and packet != "detach_"


def functional_name(name: str) -> str:
    """The form of an operator in place that gives a new tensor: `aten.add.Tensor`."""
    return name.replace("_.", ".", 1)


def _functional(name: str) -> Any:
    """That form, as torch has it; None where there is none."""
    if name in IN_PLACE:
        return IN_PLACE[name]
    _, packet, overload = functional_name(name).split(".")
    return getattr(getattr(_ATEN, packet, None), overload, None)


@dataclass(slots=True)
class _Rewrite:
    """One change in place, about to be written as a new value."""

    graph: Any
    node: Any
    order: dict[Any, int] = field(default_factory=dict)
    again: dict[Any, Any] = field(default_factory=dict)  # view -> the same view of the new value

    def apply(self) -> None:
        self.order = {node: place for place, node in enumerate(self.graph.nodes)}
        target = self.node.args[0]
        if self.node.target in _RESHAPING and target.op != "placeholder":
            self._reshape(target)
            return
        base, chain = _chain(target)
        views = self._views(base)
        name = str(self.node.target)
        if base.op == "placeholder" or any(_inverse(view) is None for view in chain):
            return
        with self.graph.inserting_before(self.node):
            changed = self._changed(name)
            if changed is None:
                return
            full = changed
            for view in chain:
                full = self._put_back(view, full)
            self.again = {base: full}
            if full is changed:
                self.again[target] = changed
            elif self.node.users:  # a view of the whole again: it may be changed once more
                self._again(target)
            for view in views:
                if self._later(view):
                    self._again(view)
        for old, new in self.again.items():
            old.replace_all_uses_with(new, delete_user_cb=self._is_later)
        self.node.replace_all_uses_with(self.again.get(target, changed))
        self.graph.erase_node(self.node)

    def _reshape(self, target: Any) -> None:
        """Who reads the target later sees it in its new shape; other views of it stay."""
        with self.graph.inserting_before(self.node):
            again = _RESHAPING[self.node.target]
            new = self._call(again, self.node.args, self.node, self.node.kwargs)
        target.replace_all_uses_with(new, delete_user_cb=self._is_later)
        self.node.replace_all_uses_with(new)
        self.graph.erase_node(self.node)

    def _is_later(self, user: Any) -> bool:
        return self.order.get(user, -1) > self.order[self.node]

    def _later(self, view: Any) -> bool:
        return any(self._is_later(user) for user in view.users)

    def _changed(self, name: str) -> Any:
        """What the part that is changed is afterwards."""
        target, *rest = self.node.args
        if name == "aten.zero_.default":
            return self._call(_ATEN.zeros_like.default, (target,), target)
        if name == "aten.copy_.default":
            return self._copied(rest[0], target)
        function = _functional(name)
        if function is None:
            return None
        changed = self._call(function, (target, *rest), target, self.node.kwargs)
        return self._cast(changed, target)

    def _copied(self, source: Any, target: Any) -> Any:
        """A value in the shape and type of another one."""
        before, after = source.meta["val"], target.meta["val"]
        if before.dtype != after.dtype:
            source = self._call(_ATEN.to.dtype, (source, after.dtype), source)
            source.meta["val"] = before.to(after.dtype)
        made = self._call(_ATEN.expand_as.default, (source, target), target)
        made.meta[_COPIED] = True  # what changes the source later does not change it
        return made

    def _cast(self, changed: Any, target: Any) -> Any:
        """In place a tensor keeps its type, whatever it is changed with."""
        wanted = target.meta["val"].dtype
        given = [v for v in self.node.all_input_nodes if "val" in v.meta]
        kinds = [v.meta["val"].dtype for v in given if isinstance(v.meta["val"], torch.Tensor)]
        if all(kind == wanted for kind in kinds):
            return changed
        return self._call(_ATEN.to.dtype, (changed, wanted), target)

    def _put_back(self, view: Any, part: Any) -> Any:
        """What a view was taken of, with another part in its place."""
        inverse = _inverse(view)
        assert inverse is not None
        parent = _parent(view)
        function, args = inverse(part)
        return part if function is None else self._call(function, args, parent)

    def _call(self, function: Any, args: Sequence[Any], like: Any, named: Any = None) -> Any:
        made = self.graph.call_function(function, tuple(args), dict(named or {}))
        made.meta = dict(self.node.meta) | {"val": like.meta["val"]}
        return made

    def _views(self, base: Any) -> list[Any]:
        """Every view of a value that was taken before the change, and views of these."""
        found, known = [], {base}
        for node in self.order:
            if node is self.node:
                break
            if _parent(node) in known:
                known.add(node)
                found.append(node)
        return found

    def _again(self, view: Any) -> Any:
        """The same view of the new value."""
        if view not in self.again:
            parent = view.args[0]
            of = self.again[parent] if parent in self.again else self._again(parent)
            if _writes(view):
                self.again[view] = of
                return of
            made = self.graph.call_function(view.target, (of, *view.args[1:]), view.kwargs)
            made.meta = dict(view.meta)
            self.again[view] = made
        return self.again[view]


def _chain(node: Any) -> tuple[Any, list[Any]]:
    """What a node is a view of in the end, and the views on the way, the last one first."""
    chain = []
    while (parent := _parent(node)) is not None:
        if node.target is not operator.getitem or str(node.args[0].target) in _LISTS:
            chain.append(node)
        node = parent
    return node, chain


_LISTS = _PARTS | {"aten.unbind.int", "aten.tensor_split.sections"}


def _parent(node: Any) -> Any:
    """The node whose memory a node's result lies in; None: its result has its own."""
    if node.op != "call_function" or _COPIED in node.meta:
        return None
    if node.target is operator.getitem:
        made = node.args[0]
        is_view = made.op == "call_function" and str(made.target) in _LISTS
        return made.args[0] if is_view else None
    if not isinstance(node.target, torch._ops.OpOverload) or str(node.target) in _LISTS:
        return None
    if _writes(node):
        return node.args[0]
    returns, arguments = node.target._schema.returns, node.target._schema.arguments
    if not returns or returns[0].alias_info is None:
        return None
    if not arguments or arguments[0].alias_info is None or not node.args:
        return None
    return node.args[0] if _is_surely_view(node) else None


def _writes(node: Any) -> bool:
    """Whether a node changes its first argument in place, and gives it back."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    alias = returns[0].alias_info if returns else None
    return alias is not None and alias.is_write and bool(node.args)


def _is_surely_view(node: Any) -> bool:
    """Whether a result that may be a copy is none: by type and order in memory."""
    packet = str(node.target).split(".")[1]
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    if packet in ("to", "type_as"):
        return bool(before.dtype == after.dtype)
    if packet in ("reshape", "flatten", "reshape_as", "contiguous"):
        return bool(before.is_contiguous())
    return True


_Inverse = Callable[[Any], tuple[Any, tuple[Any, ...]]]


def _inverse(view: Any) -> _Inverse | None:
    """How a changed part gets back to where a view took it; None where that is not known."""
    if view.target is operator.getitem:
        return _inverse_of_part(view)
    if _writes(view):
        return lambda part: (None, ())
    packet, args = str(view.target).split(".")[1], view.args
    source = args[0]
    rest = args[1:]
    if packet == "select":
        return lambda part: (_ATEN.select_scatter.default, (source, part, *rest))
    if packet == "slice":
        return lambda part: (_ATEN.slice_scatter.default, (source, part, *rest))
    if packet == "narrow" and all(isinstance(n, int) for n in rest) and rest[1] >= 0:
        dim, start, length = rest
        return lambda part: (
            _ATEN.slice_scatter.default,
            (source, part, dim, start, start + length),
        )
    if packet == "diagonal":
        return lambda part: (_ATEN.diagonal_scatter.default, (source, part, *rest))
    if packet in _RESHAPES:
        return lambda part: (_ATEN.reshape_as.default, (part, source))
    if packet in ("transpose", "swapaxes", "t", "numpy_T"):
        return lambda part: (view.target, (part, *rest))
    if packet == "permute":
        order = [dim % len(rest[0]) for dim in rest[0]]
        back = [order.index(i) for i in range(len(order))]
        return lambda part: (_ATEN.permute.default, (part, back))
    if packet in _SAME_SIZE_VIEWS:
        return lambda part: (None, ())
    return None


def _inverse_of_part(view: Any) -> _Inverse | None:
    """Of one item of a list of views."""
    made, index = view.args
    source, name = made.args[0], str(made.target)
    if name == "aten.unbind.int":
        dim = made.args[1] if len(made.args) > 1 else 0
        return lambda part: (_ATEN.select_scatter.default, (source, part, dim, index))
    dim = made.args[2] if len(made.args) > 2 else 0
    sizes = [value.shape[dim] for value in made.meta["val"]]
    if not all(isinstance(size, int) for size in sizes):
        return None
    start = sum(sizes[:index])
    return lambda part: (
        _ATEN.slice_scatter.default,
        (source, part, dim, start, start + sizes[index]),
    )
