"""Whether a model can be computed a few rows at a time: every output counts rows of the batch.

Pure: no torch.
"""

from collections.abc import Sequence

from potluck.errors import ModelError
from potluck.graph.traced import Traced
from potluck_wire.graph import Ref, node_refs

APART = "Return what belongs to each row, batch first, and compute over all rows outside the model."


def check_outputs(
    traced: Traced, outputs: Sequence[str] = (), operators: Sequence[str] = ()
) -> None:
    """Raise ModelError for an output that depends on other rows of the batch, and name the operator
    it begins with.

    `outputs`, `operators`: what the user calls them, where the graph has other names.
    """
    graph = traced.graph
    if not graph.nodes or all(output.ref.value < graph.first_node for output in graph.outputs):
        raise ModelError(
            "it computes nothing from its inputs.", next_step="Give it at least one operator."
        )
    names = outputs or [output.name for output in graph.outputs]
    for name, output in zip(names, graph.outputs, strict=True):
        if output.ref not in traced.by_rows:
            raise ModelError(
                f"{name} does not hold one result for each row of the "
                f"batch{_since(traced, output.ref, operators)}, so the rows cannot be divided.",
                next_step=APART,
            )


def _since(traced: Traced, ref: Ref, operators: Sequence[str]) -> str:
    """The operator from which on a value does not count rows, in words."""
    graph, mixed = traced.graph, _mixed(traced)
    while ref.value >= graph.first_node:
        position = ref.value - graph.first_node
        before = next(
            (
                r
                for r in node_refs(graph.nodes[position])
                if r.value in mixed and r not in traced.by_rows
            ),
            None,
        )
        if before is None:
            module = traced.modules[position] if position < len(traced.modules) else ""
            operator = operators[position] if operators else graph.nodes[position].op
            return f" (since {operator}{f' in the module {module}' if module else ''})"
        ref = before
    return ""


def _mixed(traced: Traced) -> frozenset[int]:
    """The values that depend on the inputs."""
    graph = traced.graph
    found = set(range(len(graph.inputs)))
    for position, node in enumerate(graph.nodes):
        if any(ref.value in found for ref in node_refs(node)):
            found.add(graph.first_node + position)
    return frozenset(found)
