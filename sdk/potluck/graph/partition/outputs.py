"""Whether a model can be computed a few rows at a time: every output counts rows of the batch.

Pure: no torch.
"""

from collections.abc import Sequence
from typing import Any

from potluck.errors import ModelError
from potluck.graph.traced import Traced
from potluck_wire.graph import Ref, node_refs

APART = "Return what belongs to each row, batch first, and compute over all rows outside the model."
OR_WHOLE = (
    f"{APART} Or say that all rows are to be there at once: from_torch(..., compares_rows=True)."
)


def check_outputs(
    traced: Traced,
    outputs: Sequence[str] = (),
    operators: Sequence[str] = (),
    *,
    next_step: str = APART,
) -> None:
    """Raise ModelError for an output that depends on other rows of the batch, and name the operator
    it begins with.

    `outputs`, `operators`: what the user calls them, where the graph has other names.
    """
    check_computes(traced)
    graph = traced.graph
    names = outputs or [output.name for output in graph.outputs]
    for name, output in zip(names, graph.outputs, strict=True):
        if output.ref not in traced.by_rows:
            raise ModelError(
                f"{name} does not hold one result for each row of the "
                f"batch{_since(traced, output.ref, operators)}, so the rows cannot be divided.",
                next_step=next_step,
            )


def check_computes(traced: Traced) -> None:
    """Raise ModelError for a model without any operator."""
    graph = traced.graph
    if not graph.nodes or all(output.ref.value < graph.first_node for output in graph.outputs):
        raise ModelError(
            "it computes nothing from its inputs.", next_step="Give it at least one operator."
        )


def need_rows_apart(model: Any, what: str) -> None:
    """Raise ModelError for a model whose answer to a row depends on other rows of the batch.

    Parameters
    ----------
    model
        Of any kind.
    what
        Is done with it: "served".
    """
    if any(layer.whole_batch for layer in model.layers()):
        raise ModelError(
            f"{model.name} compares the rows of a batch, and cannot be {what}: whose rows those of "
            "a request are compared with would be left to chance.",
            next_step="Deploy it, home.deploy(plan, model): each call is a batch. Or leave the "
            "comparison out of the model.",
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
