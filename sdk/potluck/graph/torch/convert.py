"""From the nodes that torch.export gives to ours: plain arguments, no aliases changed in place,
nothing private.
"""

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch

from potluck.errors import ModelError
from potluck.graph.torch.assertions import CHECKS
from potluck.graph.torch.control_flow import ADVICE
from potluck.graph.torch.masks import Mask, drawn
from potluck.graph.torch.refusals import refusal
from potluck.graph.torch.source_lines import line_of
from potluck.graph.torch.symbolic_sizes import expression
from potluck.graph.torch.training_modes import draws, random_answer
from potluck.graph.torch.vmap_regions import is_wrapper
from potluck_wire.graph import MAX_INT, Argument, Dtype, Node, Ref, Sym
from potluck_wire.operators import KIND_OF, OPERATORS

# arguments that say where or how, not what
_PLACEMENT = frozenset({"device", "pin_memory", "layout", "memory_format", "non_blocking", "copy"})
_CASTS = frozenset(
    {
        "aten.to.dtype",
        "aten.to.dtype_layout",
        "aten.to.device",
        "aten._to_copy.default",
        "aten.to.other",
    }
)
_RENAMED = {
    "aten.lift_fresh_copy.default": "aten.clone.default",
    "aten.lift_fresh.default": "aten.alias.default",
    "aten.detach_.default": "aten.detach.default",
    "aten.empty.memory_format": "aten.zeros.default",  # never memory as it lies
    "aten.empty_like.default": "aten.zeros_like.default",
    "aten.new_empty.default": "aten.new_zeros.default",
}
_RENORM = "aten.embedding_renorm.default"
_TO_THE_END = 2**63 - 1  # where a slice ends that says no end
_COUNTER = "num_batches_tracked"  # of a batch norm, which it counts up
_COPIES = frozenset(
    {
        "cat",
        "stack",
        "pad",
        "constant_pad_nd",
        "repeat",
        "clone",
        "index_select",
        "gather",
        "roll",
        "flip",
    }
)


def passed(name: str) -> bool:
    """Whether an operator outside the list (`aten.x.y`) is converted by a way of its own, or by
    none.

    Changes in place are looked at with what they change.
    """
    packet = name.split(".")[1]
    in_place = packet.endswith("_") and not packet.startswith("__")
    return name in _CASTS or name in _RENAMED or packet in CHECKS or in_place


class Converter:
    """Collects our nodes; values are numbered from `first`.

    `values` maps torch's nodes to what they are here.
    """

    def __init__(
        self,
        first: int,
        symbols: Mapping[str, str],
        parameters: range,
        buffers: range,
        *,
        train: bool = True,
    ) -> None:
        self.first = first
        self.symbols = symbols
        self.parameters = parameters
        self.buffers = buffers
        self.train = train
        self.nodes: list[Node] = []
        self.made: list[Any] = []  # what torch says that each node gives
        self.modules: list[str] = []  # where in the user's model each stands
        self._module = ""
        self.values: dict[torch.fx.Node, Any] = {}
        self.updated: set[int] = set()  # buffers that nodes change
        self.masks: list[Mask] = []
        self._where = ""
        self.refused: list[ModelError] = []
        self.unsent: dict[int, ModelError] = {}  # by value: refused where an output needs it

    def graph(self, graph: torch.fx.Graph, owner: torch.nn.Module) -> Any:
        """Convert all nodes of a graph; its output."""
        for node in graph.nodes:
            if node.op == "call_function":
                self._module = _path(node)
                self._call_or_note(node, owner)
            elif node.op == "output":
                return self._argument(node.args[0])
        raise ModelError("the exported graph has no output.")

    def _call_or_note(self, node: torch.fx.Node, owner: torch.nn.Module) -> None:
        """Convert a node; what refuses it is kept, so that all refusals are told at once."""
        self._where = where(node)
        try:
            self._call(node, owner)
        except ModelError as error:
            self.refused.append(error)
            self.values[node] = self.add("refused", (), {}, node.meta.get("val"))

    def _call(self, node: torch.fx.Node, owner: torch.nn.Module) -> None:
        value, target = node.meta.get("val"), node.target
        name = str(target)
        if isinstance(value, int | torch.SymInt):
            return  # arithmetic of sizes: whoever uses it evaluates the expression
        if target is operator.getitem:
            self._item(node)
        elif name == "wrap_with_set_grad_enabled":
            self._inline(node, owner, *node.args[1:], detached=not node.args[0])
        elif name == "wrap_with_autocast":
            self._autocast(node, owner)
        elif isinstance(target, torch._ops.OpOverload):
            if target._opname not in CHECKS:
                self._operator(node, name)
        elif isinstance(value, torch.SymFloat):
            raise ModelError(
                "it computes a fraction of the number of rows (or of another size that may "
                f"change){where(node)}.",
                next_step="First divide the tensor: with n = x.shape[0], 2 * x.sum() / n and not "
                "x.sum() * (2 / n).",
            )
        elif isinstance(value, torch.SymBool):
            raise ModelError(
                f"the shape of a value depends on the data{where(node)}.",
                next_step="Keep the shape, with torch.where or a mask that is multiplied.",
            )
        else:
            raise _strange(target, where(node))

    def _item(self, node: torch.fx.Node) -> None:
        base = self._argument(node.args[0])
        index: Any = node.args[1]
        self.values[node] = base[index] if isinstance(base, tuple) else Ref(base.value, index)

    def _autocast(self, node: torch.fx.Node, owner: torch.nn.Module) -> None:
        """A region without autocast becomes part of the graph: nothing is converted there, nor
        outside.
        """
        _, dtype, enabled, _, *rest = node.args
        if enabled:
            raise ModelError(
                f"it computes under torch.autocast{where(node)}, whose conversions devices do "
                "not make.",
                next_step=f"Leave that block out, and convert yourself: x.to({dtype}), or the "
                "whole module, "
                f"net.to({dtype}).",
            )
        self._inline(node, owner, *rest)

    def _inline(
        self,
        node: torch.fx.Node,
        owner: torch.nn.Module,
        inner: Any,
        *arguments: Any,
        detached: bool = False,
    ) -> None:
        """A region becomes part of the graph.

        Where gradients are off in it, its results are detached.
        """
        module = getattr(owner, inner.target)
        holders = [n for n in module.graph.nodes if n.op == "placeholder"]
        for holder, argument in zip(holders, arguments, strict=True):
            self.values[holder] = self._argument(argument)
        result = self.graph(module.graph, module)
        results = result if isinstance(result, tuple) else (result,)
        if detached:
            outputs = next(n for n in module.graph.nodes if n.op == "output").args[0]
            results = tuple(
                self._detached(ref, out) for ref, out in zip(results, outputs, strict=True)
            )
        self.values[node] = results

    def _detached(self, ref: Any, node: torch.fx.Node) -> Any:
        return (
            self.add("aten.detach.default", (ref,), {}, node.meta["val"])
            if isinstance(ref, Ref)
            else ref
        )

    def add(
        self, op: str, args: tuple[Argument, ...], kwargs: Mapping[str, Argument], value: Any
    ) -> Ref:
        """Append a node that gives `value`."""
        self.nodes.append(
            Node(number=len(self.nodes), op=op, args=args, kwargs=tuple(sorted(kwargs.items())))
        )
        self.made.append(value)
        self.modules.append(self._module)
        return Ref(self.first + len(self.nodes) - 1)

    def _operator(self, node: torch.fx.Node, name: str) -> None:
        args = tuple(self._argument(argument) for argument in node.args)
        kwargs = {k: self._argument(a) for k, a in node.kwargs.items() if k not in _PLACEMENT}
        has_nan = any(map(_is_nan, (*args, *kwargs.values())))
        name = _RENAMED.get(name, name)
        if name in _CASTS:
            name, args, kwargs = self._cast(node, args)
        elif (
            name == "aten.clone.default"
            and node.kwargs.get("memory_format") is torch.contiguous_format
        ):
            name = "aten.contiguous.default"
        elif name == "aten.contiguous.default":
            args = args[:1]
        elif name in ("aten.slice.Tensor", "aten.slice_scatter.default"):
            args = tuple(MAX_INT if a == _TO_THE_END else a for a in args)
        elif name == "aten.embedding.default":
            args = args[:4]  # its gradient is a plain tensor, never a sparse one
        packet = name.split(".")[1]
        if packet.endswith("_") and not packet.startswith("__"):
            self._in_place(node, name, args, kwargs)
            return
        if name not in OPERATORS:
            raise refusal(node.target, where(node))
        if KIND_OF[name] == "draw" and not self.train:
            raise random_answer(name, where(node))
        self.values[node] = self._drawn_or_added(name, args, kwargs, node.meta["val"])
        if has_nan:
            self.unsent[self.first + len(self.nodes) - 1] = ModelError(
                f"the operator {name} is given NaN as a plain number{where(node)}.",
                next_step="Keep it in a tensor of the module: "
                'self.register_buffer("nan", torch.tensor(float("nan"))).',
                operator=name,
            )

    def _drawn_or_added(
        self, op: str, args: tuple[Argument, ...], kwargs: Mapping[str, Argument], value: Any
    ) -> Any:
        """What a node gives; a random one may become several."""
        node = Node(number=0, op=op, args=args, kwargs=tuple(kwargs.items()))
        return drawn(self, node, value) if draws(node) else self.add(op, args, kwargs, value)

    def _cast(
        self, node: torch.fx.Node, args: tuple[Argument, ...]
    ) -> tuple[str, tuple[Argument, ...], dict[str, Argument]]:
        """Every way to convert a tensor, as `to.dtype`; a mere change of device as an alias."""
        before, after = node.args[0].meta["val"].dtype, node.meta["val"].dtype  # type: ignore[union-attr]
        if before == after:
            return "aten.alias.default", args[:1], {}
        return "aten.to.dtype", (args[0], _dtype(after)), {}

    def _in_place(
        self,
        node: torch.fx.Node,
        name: str,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
    ) -> None:
        """A change in place becomes a new value that later readers see.

        Of a buffer, only the counting of batch norms is allowed: it is of micro-batches, as theirs
        are.
        """
        target, source = args[0], node.args[0]
        if KIND_OF.get(name.replace("_.", ".", 1)) == "random" and args[2] is False:
            self.values[node] = target  # a dropout that is off
            return
        # once more, where a module is called again
        counts = all(str(user.target) == name for user in node.users)
        if (
            name == "aten.add_.Tensor"
            and isinstance(target, Ref)
            and target.value in self.buffers
            and (target.value in self.updated or str(source.target).endswith(_COUNTER))  # type: ignore[union-attr]
            and counts
        ):
            self.updated.add(target.value)
            self.add(name, args, kwargs, node.meta["val"])
            self.values[node] = target
            return
        functional = name.replace("_.", ".", 1)
        if functional not in OPERATORS or _is_seen_elsewhere(source, node):
            raise ModelError(
                f"the operator {name} changes a tensor in place that others may see{where(node)}.",
                next_step=self._instead(node, functional),
                operator=name,
            )
        made = self._drawn_or_added(functional, args, kwargs, node.meta["val"])
        self.values[node] = self.values[source] = made  # type: ignore[index]

    def _instead(self, node: torch.fx.Node, functional: str) -> str:
        """What to write where a change in place is refused."""
        target = self._argument(node.args[0])
        if functional == _RENORM:
            return "Leave max_norm out, and scale what is looked up."
        if isinstance(target, Ref) and target.value in self.buffers:
            return (
                "It is a buffer, which devices keep as it is: compute it outside the model, and "
                "pass it as an input or a target; or leave it out, as eval() of the module does "
                "where it is for training alone."
            )
        if isinstance(target, Ref) and target.value in self.parameters:
            return (
                "It is a weight, which only the optimizer changes: change it between two fits, or "
                "give the layer what is made of it (torch.nn.utils.parametrize)."
            )
        return f"Use the form that returns a new tensor ({functional.split('.')[1]})."

    def _argument(self, value: Any) -> Any:
        """A torch argument as one of ours."""
        if isinstance(value, torch.fx.Node):
            if value in self.values:
                return self.values[value]
            return self._size(value.meta["val"])
        if isinstance(value, list | tuple):
            return tuple(self._argument(item) for item in value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, torch.dtype):
            return _dtype(value)
        if isinstance(value, torch.SymInt):
            return self._size(value)
        if isinstance(value, torch.device | torch.layout | torch.memory_format):
            return None
        raise ModelError(
            f"an argument of type {type(value).__name__} cannot be sent to a device{self._where}.",
            next_step="Make a complex number of two tensors: torch.complex(real, imaginary)."
            if isinstance(value, complex)
            else "",
        )

    def _size(self, value: Any) -> Argument:
        if not isinstance(value, int | torch.SymInt):
            raise ModelError(
                "a number is computed from the data, not from the shapes of the inputs.",
                next_step="Keep it a tensor, or compute it outside the model.",
            )
        size = expression(value, self.symbols)
        return size if isinstance(size, int) else Sym(size)


def _strange(target: Any, place: str) -> ModelError:
    """The refusal of what is no operator, such as a part of a transform of functions."""
    if is_wrapper(target):
        return ModelError(
            f"a function under torch.vmap could not be written out{place}.",
            next_step="Write it for all entries at once, with broadcasting.",
        )
    name = getattr(target, "__name__", str(target))
    return ModelError(
        f"the operation {name} cannot be sent to a device{place}.",
        next_step=ADVICE.get(str(target), ""),
    )


def _is_nan(argument: Argument) -> bool:
    return isinstance(argument, float) and math.isnan(argument)


def _dtype(dtype: torch.dtype) -> Dtype:
    return Dtype(str(dtype).removeprefix("torch."))


def _is_view(node: Any) -> bool:
    """Whether the node's result may share memory with its argument."""
    if node.op != "call_function" or node.target is operator.getitem:
        return bool(node.op == "call_function")
    name = str(node.target)
    return KIND_OF.get(name) == "shape" and name.split(".")[1] not in _COPIES


def _is_seen_elsewhere(source: Any, node: torch.fx.Node) -> bool:
    """Whether a change of a tensor is seen by who does not read that tensor: what it is a view of,
    and all other views of that.
    """
    root = source
    while isinstance(root, torch.fx.Node) and _is_view(root):
        root = root.args[0]
    if not isinstance(root, torch.fx.Node) or root.op == "placeholder":
        return True
    sharing = [root]
    for each in sharing:
        sharing += [user for user in each.users if user < node and _is_view(user)]
    return any(user > node for each in sharing if each is not source for user in each.users)


def where(node: torch.fx.Node) -> str:
    """In which module of the user's model a node stands."""
    path = _path(node)
    return f" (in the module {path})" if path else ""


def _path(node: Any) -> str:
    """The path of the innermost module that a node stands in, empty for the model itself; and the
    line of the user's source, where it was noted.
    """
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    path = "" if path == "net" else path.removeprefix("net.")
    line = line_of(node)
    own = path or (str(stack[-1][1]).rpartition(".")[2] if stack else "")
    return f"{own}, at {line}" if line else path
