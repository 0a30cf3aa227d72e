"""A model in one file, without a line of the user's code: its graphs and its tensors.

What its loss makes of a whole batch (see `loss.batch_reductions`) is made by functions of the
user's own. A model from a file has none: it takes those numbers as further targets, and
`with_reductions` adds them to a batch where the module is.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from potluck.documents import holds, read_json
from potluck.errors import FileError, ModelError
from potluck.graph.arguments import Arguments
from potluck.graph.partition.cuts import line
from potluck.graph.partition.layers import Layers, layers
from potluck.graph.traced import Traced, Type
from potluck.tensor_file import read_tensors, write_tensors
from potluck_wire.graph import DTYPE_BYTES, Ref, SegmentError
from potluck_wire.segment import dumps, loads

if TYPE_CHECKING:
    import torch

    from potluck.graph.model import Model

FORMAT = "potluck-model-1"
# of tensors: what devices keep, and what of the module's state they do not
_DEVICE, _MODULE = "device/", "module/"
# what a document that is none makes of its readers
_ODD = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    ModelError,
    SegmentError,
)
# what answers may be made of, as torch calls it
_LISTS, _DICTIONARIES = (
    ("builtins.list", "builtins.tuple"),
    ("builtins.dict", "collections.OrderedDict"),
)


class StoredModule:
    """What stands for the module of a model that came from a file: its state, and no code."""

    def __init__(self, state: "Mapping[str, torch.Tensor]") -> None:
        self._state = dict(state)

    def state_dict(self, *, keep_vars: bool = False) -> "dict[str, torch.Tensor]":
        """The state by the names of the module that it was."""
        return dict(self._state)


def save_model(model: "Model", path: Path) -> None:
    """Write the file that `load_model` reads.

    Parameters
    ----------
    model
        Made from a torch module.
    path
        Where to; a file that is there is replaced, once the new one is whole.

    Raises
    ------
    ModelError
        It came from an ONNX file, which is that model already.
    FileError
        It cannot be written; nothing is left behind.
    """
    write_tensors(path, _tensors(model), {"format": FORMAT, "model": json.dumps(_document(model))})


def load_model(path: Path) -> "Model":
    """The model of a file that `save_model` wrote.

    Raises
    ------
    FileError
        It is missing, cut short, of another kind, or does not hold.
    """
    tensors, metadata = read_tensors(path, "Give the path of a file that Model.save wrote.")
    if metadata.get("format") != FORMAT:
        raise FileError(
            f"{path} is not a saved model of this version (its format is "
            f"{metadata.get('format')!r}).",
            path=str(path),
        )
    try:
        return _model(read_json(metadata["model"], str(path)), tensors)
    except _ODD as error:
        raise FileError(f"{path} does not hold: {error}.", path=str(path)) from error


def with_reductions(
    model: "Model", batch: "Sequence[torch.Tensor]", constants: Any = None
) -> "tuple[torch.Tensor, ...]":
    """A batch as a model from the file takes it: inputs, targets, and what the loss makes of them.

    Parameters
    ----------
    model
        That which the file was written of.
    batch
        Inputs, then targets; each [rows, ...].
    constants
        Those of the loss, of a run; default: as they are now.
    """
    return tuple(model.fed(*batch, constants=constants).values())


def state_names(model: "Model") -> list[tuple[str, str]]:
    """Of the module's state, in its order: its own name, and that which devices know it by (empty
    where they do not keep it).

    Parameters
    ----------
    model
        Made from a torch module, or read from a file.
    """
    state = model.state()
    name_of = {id(tensor): name for name, tensor in state.items()}
    return [(key, name_of.get(id(tensor), "")) for key, tensor in model.state_dict(state).items()]


def _tensors(model: "Model") -> "dict[str, torch.Tensor]":
    state, kept = model.state(), {}
    for key, tensor in model.state_dict(state).items():
        if all(tensor is not own for own in state.values()):
            kept[_MODULE + key] = tensor.detach()
    return kept | {_DEVICE + name: tensor for name, tensor in state.items()}


def _document(model: "Model") -> dict[str, Any]:
    arguments, training = model.arguments, model.laid_out(True) if model.trains else None
    return {
        "name": model.name,
        "net": model.net_kind,
        "arguments": [arguments.inputs, arguments.targets, arguments.by_name, arguments.placeless],
        "state": state_names(model),
        "inference": _of_layers(model.laid_out()),
        "training": None if training is None else _of_layers(training),
    }


def _of_layers(chosen: Layers) -> dict[str, Any]:
    traced = chosen.line.traced
    return {
        "graph": dumps(traced.graph).decode(),
        "types": [[[kind.dtype, kind.shape] for kind in kinds] for kinds in traced.types],
        "by_rows": [[ref.value, ref.item] for ref in traced.by_rows],
        "modules": traced.modules,
        "lengths": [traced.lengths.start, traced.lengths.stop],
        "structure": _structure(traced.structure),
        "unproven": traced.unproven,
        "squeezes_rows": traced.squeezes_rows,
        "sums_rows": traced.sums_rows,
        "whole_batch": traced.whole_batch,
        "max_layers": chosen.max_layers,
        "merge_below": chosen.merge_below,
        "tensors": list(traced.tensors),
        "n_reductions": len(traced.reductions),
    }


def _structure(structure: Any) -> str:
    """As text; empty where it is not known, or of a class that only its owner can make."""
    from torch.utils import _pytree as pytree

    if structure is None:
        return ""
    try:
        text = str(pytree.treespec_dumps(structure))
    except (NotImplementedError, TypeError, ValueError):
        return ""
    return text if _is_plain(json.loads(text)) else ""


def _read_structure(text: str) -> Any:
    """The structure that `_structure` wrote; torch itself would import whatever a file names."""
    from torch.utils import _pytree as pytree

    if not text:
        return None
    if not _is_plain(read_json(text, "the structure of its answers")):
        raise ValueError("the structure of its answers is not of lists, tuples and dictionaries")
    return pytree.treespec_loads(text)


def _is_plain(document: Any) -> bool:
    """Whether a structure is of lists, tuples and dictionaries with plain keys alone."""
    if not isinstance(document, list) or len(document) != 2 or type(document[0]) is not int:
        return False
    nodes = [document[1]]
    while nodes:
        match nodes.pop():
            case {"type": None, "context": None, "children_spec": [], **more} if not more:
                pass
            case {"type": str(kind), "context": str(text), "children_spec": list(below), **more}:
                keys = read_json(text, "the structure of its answers")
                fits = (
                    isinstance(keys, list)
                    and len(keys) == len(below)
                    and all(type(key) in (str, int, float, bool, NoneType) for key in keys)
                    if kind in _DICTIONARIES
                    else kind in _LISTS and keys is None
                )
                if more or not fits:
                    return False
                nodes += below
            case _:
                return False
    return True


def _model(document: Mapping[str, Any], tensors: "Mapping[str, torch.Tensor]") -> "Model":
    from potluck.graph.model import Model

    state = {
        name.removeprefix(_DEVICE): tensor
        for name, tensor in tensors.items()
        if name.startswith(_DEVICE)
    }
    inputs, targets, by_name, placeless = document["arguments"]
    training_document = document["training"]
    inference = _layers(document["inference"], len(inputs), state)
    training = None if training_document is None else _layers(training_document, len(inputs), state)
    n_reductions = 0
    if training is not None:
        n_reductions = training_document["n_reductions"]
        n_given = len(training.line.traced.graph.inputs) - len(inputs) - len(targets)
        if type(n_reductions) is not int or n_reductions != n_given:
            raise ValueError("it has other inputs and targets than its graph")
    reductions = [(f"reduction_{i}" if i else "reduction",) for i in range(n_reductions)]
    arguments = Arguments(
        inputs=tuple(inputs),
        targets=(*map(tuple, targets), *reductions),
        n_reductions=n_reductions,
        by_name=by_name,
        placeless=tuple(placeless),
    )
    if not holds(arguments, Arguments):
        raise ValueError("what its inputs and targets are called does not hold")
    named = {
        key: state[name] if name else tensors[_MODULE + key] for key, name in document["state"]
    }
    return Model(
        inference=inference,
        training=training,
        net=type(str(document["net"]), (StoredModule,), {})(named),  # models are shown by it
        name=str(document["name"]),
        arguments=arguments,
    )


def _layers(
    document: Mapping[str, Any], n_inputs: int, state: "Mapping[str, torch.Tensor]"
) -> Layers:
    structure, max_layers = document["structure"], document["max_layers"]
    merge_below = document["merge_below"]
    traced = Traced(
        graph=loads(document["graph"].encode()),
        types=tuple(
            tuple(Type(dtype=dtype, shape=_shape(shape)) for dtype, shape in kinds)
            for kinds in document["types"]
        ),
        by_rows=frozenset(Ref(value, item) for value, item in document["by_rows"]),
        tensors={name: state[name] for name in document["tensors"]},
        modules=tuple(document["modules"]),
        lengths=range(*document["lengths"]),
        structure=_read_structure(structure),
        unproven=document["unproven"],
        squeezes_rows=document["squeezes_rows"],
        sums_rows=document.get("sums_rows", False),
        whole_batch=document.get("whole_batch", False),
    )
    _check(traced)
    if not holds(max_layers, int) or not holds(merge_below, float):
        raise ValueError("max_layers and merge_below are numbers")
    return layers(line(traced), n_inputs=n_inputs, max_layers=max_layers, merge_below=merge_below)


def _check(traced: Traced) -> None:
    """Whether what is said beside the graph is said of this graph. The graph was checked as it was
    read.
    """
    graph, types = traced.graph, traced.types
    if len(types) != graph.first_node + len(graph.nodes) or not all(types):
        raise ValueError("it has not one type for each value")
    for kind in (kind for kinds in types for kind in kinds):
        sizes = kind.at(traced.hints).shape
        if DTYPE_BYTES.get(kind.dtype) is None or not all(type(n) is int and n >= 0 for n in sizes):
            raise ValueError(f"{kind} is no type")
    refs = traced.by_rows
    if any(
        not 0 <= r.value < len(types) or not 0 <= (r.item or 0) < len(types[r.value]) for r in refs
    ):
        raise ValueError("rows are counted of a value that it does not have")
    is_sound = (
        holds(traced.modules, tuple[str, ...])
        and len(traced.modules) in (0, len(graph.nodes))
        and holds(traced.unproven, str)
        and holds(traced.squeezes_rows, bool)
        and holds(traced.sums_rows, bool)
        and holds(traced.whole_batch, bool)
    )
    if not is_sound:
        raise ValueError("what it says of its nodes does not hold")
    for name, kind in traced.state_types.items():
        tensor = traced.tensors[name]
        if str(tensor.dtype) != f"torch.{kind.dtype}" or tuple(tensor.shape) != kind.shape:
            raise ValueError(f"the tensor {name!r} is not of the type that its graph says")


def _shape(shape: Any) -> Any:
    """Sizes as graphs have them: expressions are tuples."""
    return tuple(_shape(size) if isinstance(size, list) else size for size in shape)
