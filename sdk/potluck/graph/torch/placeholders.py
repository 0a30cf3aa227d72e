"""torch's nodes that stand for what comes into an exported program: inputs, weights, buffers; and
the sizes that are read from them.
"""

from dataclasses import dataclass
from typing import Any

import torch

from potluck.errors import ModelError
from potluck.graph.torch.state_names import OWN, device_name
from potluck.graph.torch.subgraph_substitution import as_exported
from potluck.graph.traced import SEQUENCE
from potluck_wire.graph import BATCH, Symbol

# what reads single numbers of a tensor, as a loss reads class weights, and is no view of it
LOOK_UPS = frozenset(
    {
        torch.ops.aten.index.Tensor,
        torch.ops.aten.index_select.default,
        torch.ops.aten.gather.default,
        torch.ops.aten.cross_entropy_loss.default,
        torch.ops.aten.nll_loss_nd.default,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """torch's nodes that stand for what comes in, in our order.

    `targets`: what those of the state stand for.
    """

    inputs: list[Any]
    parameters: list[Any]
    buffers: list[Any]
    targets: dict[Any, str]

    @property
    def all(self) -> list[Any]:
        return [*self.inputs, *self.parameters, *self.buffers]

    @property
    def constants(self) -> list[Any]:
        """The buffers that a loss may take for constants: its own, and those of the module that are
        only looked up in: nothing changes them, and nothing is a view of them.
        """
        return [
            holder
            for holder in self.buffers
            if not self.targets[holder].startswith("net.")
            or (holder.users and all(user.target in LOOK_UPS for user in holder.users))
        ]

    @property
    def parameter_places(self) -> range:
        return range(len(self.inputs), len(self.inputs) + len(self.parameters))

    @property
    def buffer_places(self) -> range:
        return range(len(self.inputs) + len(self.parameters), len(self.all))


def holders_of(program: Any) -> Holders:
    holders = [node for node in program.graph.nodes if node.op == "placeholder"]
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    # these are reductions
    kinds = {h: specs[h.name].kind.name if h.name in specs else "USER_INPUT" for h in holders}
    odd = [
        kind
        for kind in kinds.values()
        if kind not in ("USER_INPUT", "PARAMETER", "BUFFER", "CONSTANT_TENSOR")
    ]
    if odd:
        raise ModelError(f"it holds an object that cannot be sent to a device ({odd[0].lower()}).")
    used = [holder for holder in holders if holder.users]
    parameters = [h for h in used if kinds[h] == "PARAMETER"]
    buffers = [h for h in used if kinds[h] in ("BUFFER", "CONSTANT_TENSOR")]
    return Holders(
        inputs=[h for h in holders if kinds[h] == "USER_INPUT"],
        parameters=parameters,
        buffers=buffers,
        targets={h: specs[h.name].target for h in (*parameters, *buffers)},
    )


def with_real_state(program: Any) -> None:
    """Have complex tensors that the module computes with, and does not save, come in as pairs of
    real numbers, which travel; as a table of rotations (`freqs_cis`).
    """
    unsaved = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind.name == "CONSTANT_TENSOR"
        or (spec.kind.name == "BUFFER" and not spec.persistent)
    }
    for holder in [node for node in program.graph.nodes if node.op == "placeholder"]:
        value = holder.meta.get("val")
        if holder.name not in unsaved or not isinstance(value, torch.Tensor):
            continue
        if value.is_complex():
            with program.graph.inserting_after(holder):
                joined = program.graph.call_function(torch.ops.aten.view_as_complex.default)
            holder.replace_all_uses_with(joined)
            joined.args = (holder,)
            joined.meta.update({"val": value})
            with as_exported(value):
                holder.meta["val"] = torch.view_as_real(value.resolve_conj())
            program.graph_module.recompile()


def symbol_names(users: list[Any], dims: list[Any]) -> dict[str, str]:
    """torch's names of the batch and the sequence -> ours."""
    names: dict[str, str] = {}
    for holder, dim in zip(users, dims, strict=True):
        shape = holder.meta["val"].shape
        names[str(shape[0].node.expr)] = BATCH
        if dim is not None:
            names[str(shape[dim].node.expr)] = SEQUENCE
    return names


def batch_names(program: Any) -> set[str]:
    """torch's names of the number of rows."""
    sizes = [holder.meta["val"].shape[0] for holder in holders_of(program).inputs]
    return {str(size.node.expr) for size in sizes if isinstance(size, torch.SymInt)}


def symbols_of(
    names: dict[str, str], dims: list[Any], tensors: list[torch.Tensor]
) -> tuple[Symbol, ...]:
    found = [Symbol(name=BATCH, input=0, dim=0, hint=tensors[0].shape[0])]
    if SEQUENCE in names.values():
        source = next(i for i, dim in enumerate(dims) if dim is not None)
        found.append(
            Symbol(
                name=SEQUENCE,
                input=source,
                dim=dims[source],
                hint=tensors[source].shape[dims[source]],
            )
        )
    return tuple(found)


def state_of(
    program: Any, module: torch.nn.Module, targets: dict[Any, str]
) -> dict[Any, tuple[str, torch.Tensor]]:
    """Each parameter and buffer: (the name that the user knows it by, the user's own tensor).

    A tensor of the model's that has several names, of which its loss may give it one, has one of
    the model's in every graph.
    """
    own: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    own |= dict(module.named_buffers(remove_duplicate=False))
    in_net = {id(tensor): name for name, tensor in own.items() if name.startswith("net.")}
    found = {}
    for holder, target in targets.items():
        tensor = own[target] if target in own else program.constants[target]
        path = in_net.get(id(tensor), target)
        if tensor.is_complex() and not holder.meta["val"].is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        name = path.removeprefix("net.") if path.startswith("net.") else OWN + path
        found[holder] = (device_name(name), tensor)
    return found
