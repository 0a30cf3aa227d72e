"""Batches as loaders and collators give them, as tuples of tensors: the model's inputs, then its
targets.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from potluck.errors import UserError
from potluck.graph.arguments import Arguments, Leaf, by_names

if TYPE_CHECKING:
    import torch


def as_tuple(batch: Any, arguments: Arguments) -> "tuple[torch.Tensor, ...]":
    """A batch (tensor, list, tuple, mapping, or these in one another) as inputs, then targets.

    What has a key in a mapping is matched by it, as has the field of a named tuple whose fields are
    all known. Of others the fields that are known have to be where they are in the order.

    Raises
    ------
    UserError
        Where something in it is no tensor, or a name is missing, unknown, or in another's place.
    """
    return arguments.in_order(list(_leaves(batch, arguments, "", 0)))


def batches(data: Any, batch: int, arguments: Arguments) -> "Iterable[tuple[torch.Tensor, ...]]":
    """The batches of `data`: of a loader as it gives them.

    Of tensors that hold all rows, `batch` rows each.

    Parameters
    ----------
    data
        A loader, or a tuple or mapping of tensors.
    batch
        Rows of a batch, for tensors that hold all rows.
    arguments
        What a batch may call inputs and targets.

    Returns
    -------
    Iterable[tuple[torch.Tensor, ...]]
        Per batch its inputs, then its targets; each [rows, ...].

    Raises
    ------
    UserError
        As `as_tuple`; or a batch has no rows to count.
    """
    if not is_whole(data):
        return (_of_rows(as_tuple(item, arguments)) for item in data)
    tensors = _of_rows(as_tuple(data, arguments))
    return [
        tuple(t[start : start + batch] for t in tensors)
        for start in range(0, tensors[0].shape[0], batch)
    ]


def count(data: Any, batch: int, arguments: Arguments) -> int | None:
    """How many batches `data` has, where that is known.

    Parameters
    ----------
    data
        A loader, or a tuple or mapping of tensors.
    batch
        Rows of a batch, for tensors that hold all rows.
    arguments
        What a batch may call inputs and targets.

    Raises
    ------
    UserError
        As `batches`.
    """
    if is_whole(data):
        return -(-int(_of_rows(as_tuple(data, arguments))[0].shape[0]) // batch)
    try:
        return len(data)
    except TypeError:
        return None


def _of_rows(tensors: "tuple[torch.Tensor, ...]") -> "tuple[torch.Tensor, ...]":
    """The same, if there is a first dimension to count rows by."""
    if not tensors or not tensors[0].ndim:
        raise UserError(
            f"a batch {'begins with a single number' if tensors else 'holds nothing'}; tensors "
            "whose first dimension is the batch are expected.",
            next_step="torch.tensor(rows) makes one of a list of rows, x[None] one row of x.",
        )
    return tensors


def is_whole(data: Any) -> bool:
    """Whether this is all rows at once: a tensor, a mapping, or tensors, with or without mappings
    beside them.
    """
    import torch

    if isinstance(data, torch.Tensor | Mapping):
        return True
    parts = data if isinstance(data, tuple | list) else ()
    return any(isinstance(part, torch.Tensor) for part in parts) and all(
        isinstance(part, torch.Tensor | Mapping) for part in parts
    )


def _leaves(value: Any, arguments: Arguments, key: str, before: int) -> Iterator[Leaf]:
    """The tensors of a batch with their keys, the innermost where mappings hold mappings.

    None is not given. `before`: so many came before them.
    """
    import torch

    named = by_names(value, arguments.names)
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            raise UserError(
                "a batch holds a nested tensor; one with the same sizes in all rows is expected.",
                next_step="torch.nested.to_padded_tensor(x, 0.0) makes one; give a mask beside it.",
            )
        yield key, value
    elif named is not None:
        for name, item in named.items():
            if item is not None:
                yield from _leaves(item, arguments, str(name), before)
    elif isinstance(value, tuple | list) and not key:
        fields, place = getattr(value, "_fields", ()), before
        for i, item in enumerate(value):
            if fields:
                arguments.check_place(fields[i], place)
            for leaf in _leaves(item, arguments, "", place):
                yield leaf
                place += 1
    else:
        yield key, _as_tensor(value, key, arguments)


def _as_tensor(value: Any, key: str, arguments: Arguments) -> "torch.Tensor":
    import torch

    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        if key and key not in arguments.names:
            # a name that is not the model's says more than a type
            arguments.in_order([(key, value)])
        what = f"a batch holds a {type(value).__name__}{f' as {key}' if key else ''}"
        if hasattr(value, "dtype"):
            raise UserError(
                f"{what} of {value.dtype}, of which torch makes no tensor: "
                f"{str(error).splitlines()[0]}"[:300],
                next_step="Give numbers, with their bytes and rows in this machine's order: "
                "numpy.ascontiguousarray(x, x.dtype.newbyteorder('=')).",
            ) from error
        raise UserError(
            f"{what}, which is no tensor.",
            next_step="Give tensors, or a DataLoader that yields tuples or mappings of tensors.",
        ) from error
