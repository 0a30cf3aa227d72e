"""torch.export in front of a user's module: a traced graph for inference, another with the loss
inside for training.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from potluck.errors import ModelError
from potluck.graph.called_module import ModuleAlone, ModuleWithLoss
from potluck.graph.gradient_flow import learning
from potluck.graph.loss.batch_reductions import BatchReductions, extract
from potluck.graph.loss.loss_scale import with_loss_scale
from potluck.graph.loss.row_mean import NEXT_STEP, check_apart, check_loss, follow, mixes_rows
from potluck.graph.loss.trials import apart, difference
from potluck.graph.partition.cuts import multiple
from potluck.graph.partition.outputs import OR_WHOLE, check_computes, check_outputs
from potluck.graph.torch import symbolic_sizes
from potluck.graph.torch.assertions import without_assertions
from potluck.graph.torch.batch_axis import Complete, OperatorFailed, by_rows
from potluck.graph.torch.control_flow import without_control_flow
from potluck.graph.torch.convert import Converter, passed
from potluck.graph.torch.dead_nodes import without_dead
from potluck.graph.torch.decompose import decompose
from potluck.graph.torch.default_type import check_default_type
from potluck.graph.torch.draws import note_rows
from potluck.graph.torch.export_program import TRY, export, exporting, first_line
from potluck.graph.torch.in_place import without_changes
from potluck.graph.torch.masks import check_masks
from potluck.graph.torch.mixed_precision import HALF, autocasting
from potluck.graph.torch.own_loss import OwnLoss
from potluck.graph.torch.padding import padded_encoders
from potluck.graph.torch.placeholders import (
    Holders,
    batch_names,
    holders_of,
    state_of,
    symbol_names,
    symbols_of,
    with_real_state,
)
from potluck.graph.torch.python_draws import check_draws
from potluck.graph.torch.refusals import together
from potluck.graph.torch.single_row_checks import ModuleAndProgram, check_same, check_single
from potluck.graph.torch.squeezes import as_written, keep_rows
from potluck.graph.torch.statefulness import check_forgets
from potluck.graph.torch.trainability import check_learning, check_norms
from potluck.graph.torch.training_modes import check_answers, check_modes, modes_of
from potluck.graph.torch.vmap_regions import without_maps
from potluck.graph.traced import Traced, Type
from potluck_wire.graph import (
    BATCH,
    DTYPE_BYTES,
    ITEM_BYTES,
    Buffer,
    Graph,
    Input,
    Node,
    Output,
    Parameter,
    Ref,
    SegmentError,
    refs,
    validate,
)

# arguments that training changes
_UPDATERS = {"aten.batch_norm.default": (3, 4)}
_INSTANCE_NORM = "aten.instance_norm.default"
_RUNNING_MEAN = 3
_USES_INPUT = 5


def trace(
    net: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    *,
    input_names: Sequence[str],
    loss: Callable[..., torch.Tensor] | OwnLoss | None = None,
    targets: Sequence[torch.Tensor] = (),
    sequence_dims: Sequence[int | None] = (),
    keywords: Sequence[str] = (),
    autocast: str = "",
    compares_rows: bool = False,
) -> Traced:
    """The graph of `net` as it answers, or with `loss` its graph in training (inputs, then targets;
    output: the loss).

    Parameters
    ----------
    net
        The module.
    inputs
        An example of each, with the batch first.
    input_names
        Their names.
    loss
        Of the outputs and targets; None: nothing is trained.
    targets
        An example of each.
    sequence_dims
        Of inputs, then targets: the dimension of the sequence, where there is one.
    keywords
        The name by which `net` gets each input, empty where it gets it by place; none: all by
        place.
    autocast
        The type that torch.autocast converts to; empty: nothing is converted.
    compares_rows
        Outputs or the loss do, and nobody looks for results of rows alone, or a mean over them.

    Raises
    ------
    ModelError
        Control flow depends on data, no device runs an operator, or the batch is not the first
        dimension everywhere.
    """
    again = partial(
        _trace,
        net,
        inputs,
        input_names=input_names,
        loss=loss,
        targets=targets,
        sequence_dims=sequence_dims,
        keywords=keywords,
        autocast=autocast,
        compares_rows=compares_rows,
    )
    with exporting:
        try:
            return again(lines=False)
        except ModelError as error:
            refused = error
        try:
            again(lines=True)
        except ModelError as error:
            raise error from refused.__cause__
        raise refused


def _trace(
    net: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    *,
    input_names: Sequence[str],
    loss: Callable[..., torch.Tensor] | OwnLoss | None,
    targets: Sequence[torch.Tensor],
    sequence_dims: Sequence[int | None],
    keywords: Sequence[str],
    autocast: str,
    compares_rows: bool,
    lines: bool,
) -> Traced:
    """As `trace`; with `lines`, what is refused names the user's own line."""
    tensors = [*inputs, *targets]
    _check_travels(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
    module = (
        ModuleAlone(net, keywords)
        if loss is None
        else ModuleWithLoss(net, loss, len(inputs), keywords)
    )
    dims = [sequence_dims[i] if i < len(sequence_dims) else None for i in range(len(tensors))]
    functions: dict[type, bool] | None = None if loss is None else {}
    with modes_of(net, training=loss is not None):
        check_norms(module)
        program, lengths = export(module, tensors, dims, autocast, lines=lines, functions=functions)
    with_real_state(program)
    without_maps(program)
    loops = without_control_flow(program, train=loss is not None)
    without_assertions(program)
    decompose(program, passed)
    without_changes(program)
    decompose(program, passed)
    written = keep_rows(program, batch_names(program))
    structure = program.call_spec.out_spec
    # torch compiles the turns of its own loops when the user's module is called
    with torch.compiler.set_stance("default" if loops else "force_eager"):
        traced, pair = _traced(
            program, module, list(input_names), tensors, dims, loss is not None, compares_rows
        )
        traced = replace(traced, lengths=lengths, structure=structure, squeezes_rows=bool(written))
        if loss is None:
            check_answers(traced)
        else:
            check_modes(net, traced)
            if autocast == HALF:
                traced = with_loss_scale(traced)
        if any(tensor.is_meta for tensor in tensors):
            return traced
        with (
            modes_of(net, training=loss is not None),
            autocasting(autocast),
            padded_encoders(net) as padded,
        ):
            check_forgets(module, tensors)
            check_draws(module, tensors)
            if loss is not None:
                check_learning(module, tensors, traced, functions or {})
            with as_written(program, written):
                check_default_type(program.graph_module, lambda: pair.arguments(tensors))
                check_same(pair, tensors)
                check_single(pair, tensors, dims if 1 in lengths else [None] * len(dims))
    return replace(traced, padded=tuple(padded))


def _traced(
    program: Any,
    module: torch.nn.Module,
    names: list[str],
    tensors: list[torch.Tensor],
    dims: list[Any],
    train: bool,
    compares_rows: bool,
) -> tuple[Traced, ModuleAndProgram]:
    holders = holders_of(program)
    symbols, state = symbol_names(holders.inputs, dims), state_of(program, module, holders.targets)
    # shapes alone: nothing can be run, nothing will be cut
    meta = any(tensor.is_meta for tensor in tensors)
    reductions = (
        _reductions(program, holders, state, symbols, tensors) if train and not meta else None
    )
    if reductions is not None:
        holders, names = holders_of(program), [*names, *reductions.names]
    has_draws = note_rows(program, symbols)
    converter, result = _converted(program, holders, symbols, train)
    types = [_types(h.meta["val"], symbols) for h in holders.all] + [
        _types(v, symbols) for v in converter.made
    ]
    full = Graph(
        **_ports(holders, names, [kinds[0] for kinds in types], state, converter.updated),
        nodes=tuple(converter.nodes),
        outputs=_outputs(result, types, train),
        symbols=symbols_of(symbols, dims, tensors),
    )
    rows, own = frozenset[Ref](), {holder: tensor for holder, (_, tensor) in state.items()}

    def complete(some: list[torch.Tensor]) -> list[torch.Tensor]:
        return [*some, *reductions(some)] if reductions is not None else some

    if not meta:
        rows = _seen(program, converter.values, types, own, tensors, complete)
        modules = tuple(converter.modules)
        seen = Traced(graph=full, types=tuple(types), by_rows=rows, modules=modules)
        rows = _settled(seen, program, converter.values, own, tensors, complete)
    graph, kept = _sendable(full, converter)
    if train and not meta:
        masks = [mask for mask in converter.masks if mask.value in kept]
        check_masks(full, masks, types, rows, converter.modules)
    used = {p.name for p in graph.parameters} | {b.name for b in graph.buffers}
    n_holders = len(holders.all)
    traced = Traced(
        graph=graph,
        types=tuple(types[value] for value in kept),
        by_rows=_crossing(rows, types, kept),
        tensors={name: tensor for name, tensor in state.values() if name in used},
        modules=tuple(converter.modules[value - n_holders] for value in kept if value >= n_holders),
        reductions=reductions or (),
    )
    if train:
        traced = replace(traced, graph=learning(traced))
    pair = ModuleAndProgram(
        module=module,
        program=program,
        state=own,
        complete=complete,
        train=train,
        has_draws=has_draws,
    )
    return traced if meta else _judged(traced, pair, tensors, compares_rows), pair


def _converted(
    program: Any, holders: Holders, symbols: dict[str, str], train: bool
) -> tuple[Converter, Any]:
    """What became of each value of the program, and what it returns; ModelError with all of it that
    no device runs.
    """
    converter = Converter(
        len(holders.all), symbols, holders.parameter_places, holders.buffer_places, train=train
    )
    converter.values.update({holder: Ref(i) for i, holder in enumerate(holders.all)})
    result = converter.graph(program.graph, program.graph_module)
    if converter.refused:
        raise together(converter.refused)
    if train:
        _check_instances(converter)
        converter.updated |= _running(converter.nodes)
    return converter, result


def _sendable(full: Graph, converter: Converter) -> tuple[Graph, dict[int, int]]:
    """The graph without what nobody reads, and the number there of each value that is kept;
    ModelError where a device would refuse it.
    """
    graph, kept = without_dead(full)
    if unsent := [converter.unsent[value] for value in kept if value in converter.unsent]:
        raise together(unsent)
    try:
        validate(graph)
    except SegmentError as error:
        raise ModelError(f"it cannot be sent to a device: {error}") from error
    return graph, {old: new for new, old in enumerate(kept)}


def _crossing(
    rows: frozenset[Ref], types: list[tuple[Type, ...]], kept: Mapping[int, int]
) -> frozenset[Ref]:
    """The values whose rows may go from device to device, by their numbers in the graph sent."""
    return frozenset(
        Ref(kept[ref.value], ref.item)
        for ref in rows
        if ref.value in kept and _crosses(types[ref.value][ref.item or 0])
    )


def _judged(
    traced: Traced, pair: ModuleAndProgram, tensors: list[torch.Tensor], compares_rows: bool
) -> Traced:
    """With what is known of its rows; ModelError where a batch cannot be divided by them."""
    if pair.train and compares_rows:
        return replace(traced, whole_batch=True)
    if pair.train:
        unproven, sums_rows = check_loss(traced)
        if unproven:
            _check_trials(pair.program, pair.state, tensors, pair.complete, unproven)
        return replace(traced, unproven=unproven, sums_rows=sums_rows)
    if compares_rows:
        check_computes(traced)
        return replace(traced, whole_batch=mixes_rows(traced))
    check_outputs(traced, next_step=OR_WHOLE)
    return replace(traced, unproven=check_apart(traced))


def _crosses(kind: Type) -> bool:
    """Whether rows of a value of such a type may go from device to device: complex ones do not."""
    return bool(multiple(kind.shape)) and kind.dtype in DTYPE_BYTES


def _failed(error: OperatorFailed) -> ModelError:
    return ModelError(
        f"it does not run on rows like the examples: {first_line(str(error))}",
        next_step=f"{TRY} Give two rows or more that differ, of values as they will be.",
    )


def _seen(
    program: Any,
    values: dict[Any, Any],
    types: list[tuple[Type, ...]],
    state: dict[Any, torch.Tensor],
    tensors: list[torch.Tensor],
    complete: Complete,
) -> frozenset[Ref]:
    """What shows only when the graph is run on rows like those of the examples: which values count
    rows.
    """
    try:
        return by_rows(program, values, types, state, tensors, complete)
    except OperatorFailed as error:
        raise _failed(error) from error


def _settled(
    seen: Traced,
    program: Any,
    values: dict[Any, Any],
    state: dict[Any, torch.Tensor],
    tensors: list[torch.Tensor],
    complete: Complete,
) -> frozenset[Ref]:
    """Of the values of which some rows were seen to be in order, those of which any are.

    Where the graph does not tell, further trials do.
    """
    followed = follow(seen)
    rows = seen.by_rows
    confirmed = frozenset[Ref]()
    # what reads a value that failed is assumed next
    while assumed := frozenset(followed.assumed) - confirmed:
        confirmed |= apart(program, values, seen.types, state, tensors, assumed, complete)
        rows = rows - (assumed - confirmed)
        followed = follow(replace(seen, by_rows=rows))
    return followed.in_order(rows)


def _check_trials(
    program: Any,
    state: Mapping[Any, torch.Tensor],
    tensors: list[torch.Tensor],
    complete: Complete,
    unproven: str,
) -> None:
    """Raise ModelError where trials show that a loss is no mean over rows of which the graph does
    not tell.
    """
    try:
        found = difference(program, state, tensors, complete)
    except OperatorFailed as error:
        raise _failed(error) from error
    if found is not None:
        what = (
            f"the gradient of {found.weight} differs"
            if found.weight
            else f"{found.parts:.6g} is the mean of parts"
        )
        raise ModelError(
            f"the loss is no mean over rows: {found.whole:.6g} for some rows, and {what}. Look at "
            f"{unproven}.",
            next_step=NEXT_STEP,
        )


def _reductions(
    program: Any,
    holders: Holders,
    state: dict[Any, tuple[str, torch.Tensor]],
    symbols: dict[str, str],
    tensors: list[torch.Tensor],
) -> BatchReductions | None:
    """The reductions of the loss, of constants and buffers of its own; of a module that computes
    its loss itself, of those that are only looked up in, as class weights are.

    The program takes them as inputs from now on.
    """
    own = {h: state[h] for h in holders.constants}
    try:
        return extract(program, holders.inputs, own, symbols, tensors)
    except OperatorFailed as error:
        raise _failed(error) from error


def _check_travels(dtypes: Iterable[str]) -> None:
    odd = [dtype for dtype in dtypes if dtype not in DTYPE_BYTES]
    if odd:
        raise ModelError(
            f"an input, weight or buffer of it is {odd[0]}, which does not travel.",
            next_step="Keep torch.view_as_real of it, and torch.view_as_complex inside. A table "
            "that is not saved may be complex: register_buffer(..., persistent=False).",
        )


def _ports(
    holders: Holders,
    names: list[str],
    types: list[Type],
    state: dict[Any, tuple[str, torch.Tensor]],
    updated: set[int],
) -> dict[str, Any]:
    """Inputs, parameters and buffers of the graph."""
    at = {holder: place for place, holder in enumerate(holders.all)}

    def of_state(holder: Any) -> dict[str, Any]:
        name, tensor = state[holder]
        return {"name": name, "dtype": types[at[holder]].dtype, "shape": tuple(tensor.shape)}

    _check_travels(k.dtype for k in types[: len(holders.all)])

    def trainable(tensor: torch.Tensor) -> bool:
        return bool(tensor.requires_grad) and tensor.is_floating_point()

    inputs = zip(names, types, strict=False)
    return {
        "inputs": tuple(
            Input(name=name, dtype=kind.dtype, shape=kind.shape) for name, kind in inputs
        ),
        "parameters": tuple(
            Parameter(**of_state(h), trainable=trainable(state[h][1])) for h in holders.parameters
        ),
        "buffers": tuple(Buffer(**of_state(h), updated=at[h] in updated) for h in holders.buffers),
    }


def _check_instances(converter: Converter) -> None:
    """Raise ModelError for running statistics of instances: they would follow micro-batches, though
    nothing else of an instance norm knows of them.
    """
    for node, module in zip(converter.nodes, converter.modules, strict=True):
        learns = node.op == _INSTANCE_NORM and node.args[_USES_INPUT] is True
        if learns and any(refs(node.args[_RUNNING_MEAN])):
            raise ModelError(
                "an instance norm keeps running statistics, which would follow micro-batches and "
                f"not batches{f' (in the module {module})' if module else ''}.",
                next_step="Give it track_running_stats=False; or eval(), which keeps them as they "
                "are.",
            )


def _running(nodes: Sequence[Node]) -> set[int]:
    """The values that normalisations change in training: running statistics."""
    changing = [
        node
        for node in nodes
        if node.op in _UPDATERS and node.args[_UPDATERS[node.op][1] + 1] is True
    ]
    return {
        ref.value
        for node in changing
        for place in _UPDATERS[node.op]
        for ref in refs(node.args[place])
    }


def _types(value: Any, symbols: dict[str, str]) -> tuple[Type, ...]:
    parts = value if isinstance(value, list | tuple) else (value,)
    types = []
    for part in parts:
        dtype = str(part.dtype).removeprefix("torch.")
        if dtype not in ITEM_BYTES:
            raise ModelError(f"it computes with {dtype}, which devices do not.")
        types.append(Type(dtype=dtype, shape=symbolic_sizes.shape(part, symbols)))
    return tuple(types)


def _outputs(result: Any, types: list[tuple[Type, ...]], train: bool) -> tuple[Output, ...]:
    found = []
    for i, ref in enumerate(result if isinstance(result, tuple) else (result,)):
        name = ("loss" if train else "output") + (f"_{i}" if i else "")
        if not isinstance(ref, Ref):
            raise ModelError(
                f"{name} is {ref!r}, which is no tensor.",
                next_step="Leave it out of what is returned.",
            )
        kind = types[ref.value][ref.item or 0]
        if kind.dtype not in DTYPE_BYTES:
            raise ModelError(
                f"{name} is {kind.dtype}, which does not travel.",
                next_step="Return torch.view_as_real of it.",
            )
        found.append(Output(name=name, ref=ref, dtype=kind.dtype, shape=kind.shape, gradient=train))
    if train and [output.shape for output in found] != [()]:
        got = f"{len(found)} of them"
        if len(found) == 1:
            sizes = ", ".join("rows" if size == BATCH else str(size) for size in found[0].shape)
            got = f"of the shape [{sizes}]"
        raise ModelError(
            f"the loss must be one number, got {got}.", next_step="Take its mean: loss.mean()."
        )
    return tuple(found)
