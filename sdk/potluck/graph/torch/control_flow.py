"""torch's control flow written out: `scan`, `while_loop` and `map` turn by turn, `cond` as both of
its sides.

Devices run programs without jumps. A loop whose number of turns is known when the model is made is
as good as its turns one after the other. What only the data decide stays, and is refused by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from potluck.graph.torch.subgraph_substitution import as_exported, put_in

MAX_TURNS = 4096
_ATEN = torch.ops.aten
_LITERAL = "lifted_tensor"  # torch.tensor(0) in the code; what a module keeps may be changed later
_MOST_KNOWN = 4096  # entries of a value that is followed for the condition of a loop
ADVICE: Mapping[str, str] = {
    "cond": "In training one side alone has gradients; write torch.where, which has both.",
    "while_loop": f"Its turns must not depend on the data, and be at most {MAX_TURNS}; in "
    "training, write a loop of Python's: for turn in range(3).",
    "scan": f"It takes at most {MAX_TURNS} turns, over a dimension that is always as long; the "
    "batch is another one.",
    "map_impl": "Write it for all entries at once, with broadcasting.",
    "associative_scan": "Use torch.cumsum, cumprod or logcumsumexp, or "
    "torch._higher_order_ops.scan.",
}


def without_control_flow(program: Any, *, train: bool) -> bool:
    """Write out the control flow of a program, that within others first; whether there was any.

    Parameters
    ----------
    program
        Of torch.export; changed.
    train
        Of a model in training: `cond`, of which both sides would have gradients, and `while_loop`
        stay.
    """
    constants = {
        spec.arg.name: program.constants[spec.target]
        for spec in program.graph_signature.input_specs
        if spec.kind.name == "CONSTANT_TENSOR"
        and spec.target.rpartition(".")[2].startswith(_LITERAL)
    }
    was_there = False
    for owner in reversed([m for m in program.graph_module.modules() if hasattr(m, "graph")]):
        known = constants if owner is program.graph_module else {}
        found = [node for node in owner.graph.nodes if _name(node) in ADVICE]
        for node in found:
            _write_out(owner, node, known, train)
        if found:
            owner.recompile()
            was_there = True
    return was_there


def _name(node: Any) -> str:
    is_higher = isinstance(node.target, torch._ops.HigherOrderOperator)
    return str(node.target) if is_higher else ""


def _write_out(owner: Any, node: Any, constants: Mapping[str, Any], train: bool) -> None:
    """What the node comes down to in its place, where that is known."""
    turns = _Turns(owner, node, constants)
    name = _name(node)
    results: Sequence[Any] | None = None
    if name == "scan":
        results = turns.scanned()
    elif name == "while_loop" and not train:  # torch's own gradients of it are wrong
        results = turns.looped()
    elif name == "map_impl":
        results = turns.mapped()
    elif name == "cond" and not train:
        results = turns.both()
    if results is None:
        return
    for user in list(node.users):  # items of what it gives
        user.replace_all_uses_with(results[user.args[1]])
        owner.graph.erase_node(user)
    bodies = [n for n in node.all_input_nodes if n.op == "get_attr"]
    owner.graph.erase_node(node)
    for body in bodies:
        if not body.users:
            owner.graph.erase_node(body)
            owner.delete_submodule(body.target)


class _Turns:
    """The nodes that one node of control flow becomes, before it.

    Parameters
    ----------
    owner
        The module whose graph it is in.
    node
        Of control flow.
    constants
        Values of those placeholders that the program itself gives.
    """

    def __init__(self, owner: Any, node: Any, constants: Mapping[str, Any]) -> None:
        self._owner = owner
        self._node = node
        self._known: dict[Any, Any] = {
            n: constants[n.name] for n in owner.graph.nodes if n.name in constants
        }

    def scanned(self) -> list[Any] | None:
        """The last state, then what each turn gives, one above the other."""
        body, state, over, more = self._node.args
        turns = self._turns(over)
        if turns is None:
            return None
        carried, given = list(state), list[Any]()
        for turn in range(turns):
            now = [self._call(_ATEN.select.int, x, 0, turn) for x in over]
            results = self._put(body, [*carried, *now, *more])
            carried = results[: len(carried)]
            given.append(results[len(carried) :])
        return [*carried, *(self._stacked(each) for each in zip(*given, strict=True))]

    def mapped(self) -> list[Any] | None:
        """What each entry gives, one above the other; of the batch, all at once."""
        body, over, more = self._node.args
        turns = self._turns(over)
        if turns is None:
            return self._at_once(body, over, more)
        given = [
            self._put(body, [*(self._call(_ATEN.select.int, x, 0, turn) for x in over), *more])
            for turn in range(turns)
        ]
        return [self._stacked(each) for each in zip(*given, strict=True)]

    def looped(self) -> list[Any] | None:
        """What the last turn leaves, if its condition is known in each."""
        condition, body, state, more = self._node.args
        carried = list(state)
        values = [self._value(node) for node in (*carried, *more)]
        for _ in range(MAX_TURNS):
            (goes_on,) = self._values(condition, values)
            if goes_on is None:
                return None
            if not goes_on:
                return carried
            results = self._values(body, values)
            carried = self._put(body, [*carried, *more])
            values = [*results, *values[len(carried) :]]
        return None

    def both(self) -> list[Any]:
        """Both sides, and of these what the condition chooses."""
        chosen, if_true, if_false, given = self._node.args
        sides = (self._put(side, given) for side in (if_true, if_false))
        return [self._call(_ATEN.where.self, chosen, *pair) for pair in zip(*sides, strict=True)]

    def _turns(self, over: Sequence[Any]) -> int | None:
        """How many there are, where that is a plain number."""
        size = over[0].meta["val"].shape[0] if over else None
        return size if isinstance(size, int) and 0 < size <= MAX_TURNS else None

    def _put(self, body: Any, given: Sequence[Any]) -> list[Any]:
        """One turn's nodes; what they give."""
        results, _ = put_in(self._owner.graph, self._node, self._graph(body), given)
        return list(results) if isinstance(results, list | tuple) else [results]

    def _graph(self, body: Any) -> Any:
        return self._owner.get_submodule(body.target)

    def _call(self, operator: Any, *args: Any) -> Any:
        """A node of one operator, which knows its shape."""
        with self._owner.graph.inserting_before(self._node):
            made = self._owner.graph.call_function(operator, args)
        values = torch.fx.node.map_arg(args, lambda node: node.meta["val"])
        with as_exported(self._node.meta["val"]), torch.no_grad():
            made.meta.update(self._node.meta | {"val": operator(*values)})
        return made

    def _stacked(self, parts: Sequence[Any]) -> Any:
        return self._call(_ATEN.stack.default, list(parts), 0)

    def _at_once(self, body: Any, over: Sequence[Any], more: Sequence[Any]) -> list[Any] | None:
        """By torch.vmap, for as many entries as there are; None where torch has no rule for it."""
        axes = (*(0 for _ in over), *(None for _ in more))
        mapped = torch.func.vmap(self._graph(body), axes)
        given = [*over, *more]
        try:
            with as_exported(self._node.meta["val"]), torch.no_grad():
                made = make_fx(mapped)(*[node.meta["val"] for node in given])
            results, _ = put_in(self._owner.graph, self._node, made, given)
        except Exception:  # whatever torch raises: it is refused where it stands
            return None
        return list(results)

    def _value(self, node: Any) -> Any:
        """What a node gives whatever the inputs are; None: that is not known."""
        if not isinstance(node, torch.fx.Node):
            return node
        if node not in self._known:
            self._known[node] = _computed(node, self._value)
        return self._known[node]

    def _values(self, body: Any, given: Sequence[Any]) -> list[Any]:
        """The same of a turn's results."""
        rest = iter(given)
        found: dict[Any, Any] = {}
        for node in self._graph(body).graph.nodes:
            if node.op == "output":
                results = node.args[0]
                several = results if isinstance(results, list | tuple) else [results]
                return [found[one] if isinstance(one, torch.fx.Node) else one for one in several]
            found[node] = (
                next(rest)
                if node.op == "placeholder"
                else _computed(node, lambda n: found[n] if isinstance(n, torch.fx.Node) else n)
            )
        return []


def _computed(node: Any, value: Any) -> Any:
    """What a small operator makes of values that are known; None where one is not."""
    seen = node.meta.get("val")
    is_small = isinstance(seen, torch.Tensor) and all(isinstance(n, int) for n in seen.shape)
    if node.op != "call_function" or not is_small or seen.numel() > _MOST_KNOWN:
        return None
    if any(value(one) is None for one in node.all_input_nodes):
        return None
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value)
    return node.target(*args, **kwargs).clone()
