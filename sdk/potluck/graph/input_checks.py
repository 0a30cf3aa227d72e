"""Whether a batch fits a model: how many tensors there are, their types and shapes, what indices
they hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from potluck.errors import ModelError
from potluck.graph.arguments import Arguments
from potluck.graph.indices import check_indices, index_bounds
from potluck.graph.partition.batch_norms import check_values
from potluck.graph.traced import SEQUENCE, Traced
from potluck_wire.graph import BATCH, Input, evaluate


def check_inputs(traced: Traced, arguments: Arguments, tensors: Sequence[Any], train: bool) -> int:
    """The number of rows of a batch, after checking it.

    Parameters
    ----------
    traced
        The model, in training or not.
    arguments
        What its inputs and targets are called.
    tensors
        Inputs, and for training the targets; each [rows, ...].
    train
        Whether it is for training.

    Raises
    ------
    ModelError
        A number, type, shape or index is another one than was expected.
    """
    labels = arguments.labels
    if not arguments.by_name:
        rest = [""] * (len(traced.given) - len(labels))
        pairs = zip(traced.given, (*labels, *rest), strict=False)
        labels = tuple(label or port.name for port, label in pairs)
    ports = [replace(port, name=label) for port, label in zip(traced.given, labels, strict=False)]
    names = [port.name for port in ports]
    if len(tensors) != len(ports):
        wanted = "1 tensor is" if len(ports) == 1 else f"{len(ports)} tensors are"
        text = f"{wanted} expected ({', '.join(names)}); got {len(tensors)}."
        raise ModelError(text, next_step=arguments.about_reductions)
    _check_tensors(names, tensors)
    sizes = _sizes(traced, ports, tensors)
    if traced.squeezes_rows and sizes[BATCH] == 1 and not train:
        raise ModelError(
            "one row is given, and of one row its squeeze() drops the dimension of the rows, "
            "which devices keep.",
            next_step="Name the dimension that is meant in the module, as in squeeze(-1); or "
            "give two rows or more.",
        )
    check_indices(index_bounds(traced), names, tensors)
    check_values(traced, sizes)
    return sizes[BATCH]


def _sizes(traced: Traced, ports: Sequence[Input], tensors: Sequence[Any]) -> dict[str, int]:
    """What each symbol of a shape stands for in this batch; ModelError where a type or shape is
    another one.
    """
    sizes: dict[str, int] = {}
    for symbol in traced.graph.symbols:
        shape = tuple(tensors[symbol.input].shape)
        if symbol.dim >= len(shape):
            raise _mismatch(ports[symbol.input], tensors[symbol.input], traced.hints)
        sizes[symbol.name] = shape[symbol.dim]
    if sizes.get(SEQUENCE, traced.lengths[0]) not in traced.lengths:
        raise ModelError(
            f"a sequence of {sizes[SEQUENCE]} is given; the model takes {traced.lengths[0]} to "
            f"{traced.lengths[-1]}, as its tables and its slices do.",
            next_step="Cut it, or give it in parts.",
        )
    for port, tensor in zip(ports, tensors, strict=True):
        expected_shape = tuple(evaluate(size, sizes) for size in port.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tuple(tensor.shape) != expected_shape or dtype != port.dtype:
            raise _mismatch(port, tensor, sizes, expected=expected_shape, got=tuple(tensor.shape))
    return sizes


def _mismatch(port: Input, tensor: Any, sizes: Mapping[str, int], **facts: Any) -> ModelError:
    """What is wrong with the type or shape of a tensor, and what to do."""
    words = [
        _rows(sizes) if size == BATCH else size if isinstance(size, str) else evaluate(size, sizes)
        for size in port.shape
    ]
    expected = ", ".join(str(word) for word in words)
    dtype = str(tensor.dtype).removeprefix("torch.")
    next_step = ""
    if len(tensor.shape) == len(port.shape) - 1:
        next_step = "The first dimension is the batch: x[None] makes one row of x."
    elif dtype != port.dtype:
        next_step = f"Convert it: .to(torch.{port.dtype})."
    text = f"{port.name} is {dtype} {list(tensor.shape)}; {port.dtype} [{expected}] is expected."
    return ModelError(text, next_step=next_step, **facts)


def _rows(sizes: Mapping[str, int]) -> str:
    return f"{sizes[BATCH]} row{'s' * (sizes[BATCH] != 1)}" if BATCH in sizes else "rows"


def _check_tensors(names: Sequence[str], tensors: Sequence[Any]) -> None:
    """Refuse what is no dense tensor with values."""
    for name, tensor in zip(names, tensors, strict=True):
        if not hasattr(tensor, "detach"):
            is_array = hasattr(tensor, "dtype")
            raise ModelError(
                f"{name} is {'an array' if is_array else f'a {type(tensor).__name__}'}; a "
                "tensor is expected.",
                next_step="torch.as_tensor(x) makes one of an array." if is_array else "",
            )
        if str(tensor.layout) != "torch.strided" or tensor.is_meta:
            raise ModelError(
                f"{name} {'has no values' if tensor.is_meta else 'is sparse'}; a dense "
                "tensor with its values is expected.",
                next_step="" if tensor.is_meta else "Call to_dense() on it.",
            )
