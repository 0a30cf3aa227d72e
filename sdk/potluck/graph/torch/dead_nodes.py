"""A traced graph without the nodes and the state that no output needs."""

from dataclasses import replace

from potluck.graph.traced import moved
from potluck_wire.graph import Buffer, Graph, Node, Parameter, Ref, node_refs

_NORM, _TRAINING = "aten.batch_norm.default", 5


def changes_state(node: Node) -> bool:
    """Whether a batch norm learns running statistics, which nothing has to read."""
    return node.op == _NORM and node.args[_TRAINING] is True and isinstance(node.args[3], Ref)


def without_dead(graph: Graph) -> tuple[Graph, list[int]]:
    """The graph without nodes and state that no output needs, and which values are left."""
    first = graph.first_node
    needed = {output.ref.value for output in graph.outputs}
    for position in reversed(range(len(graph.nodes))):
        node = graph.nodes[position]
        changes = node.op == "aten.add_.Tensor" or changes_state(node)
        if first + position in needed or changes:
            needed |= {first + position} | {ref.value for ref in node_refs(node)}
    n_inputs = len(graph.inputs)
    kept = [
        value for value in range(first + len(graph.nodes)) if value < n_inputs or value in needed
    ]
    number = {old: new for new, old in enumerate(kept)}
    states = [*graph.parameters, *graph.buffers]
    alive = [states[value - n_inputs] for value in kept if n_inputs <= value < first]
    nodes = [graph.nodes[value - first] for value in kept if value >= first]

    def move(ref: Ref) -> Ref:
        return Ref(number[ref.value], ref.item)

    return Graph(
        inputs=graph.inputs,
        parameters=tuple(state for state in alive if isinstance(state, Parameter)),
        buffers=tuple(state for state in alive if isinstance(state, Buffer)),
        nodes=tuple(replace(moved(node, move), number=i) for i, node in enumerate(nodes)),
        outputs=tuple(replace(output, ref=move(output.ref)) for output in graph.outputs),
        symbols=graph.symbols,
    ), kept
