"""torch tensors <-> raw bytes, and batches of a loader <-> tuples of tensors; torch is imported when first used."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from potluck.errors import UserError
from potluck.sessions.traffic import Raw

if TYPE_CHECKING:
    import torch


def to_raw(tensor: "torch.Tensor") -> Raw:
    """The tensor's bytes (a view where it is contiguous on the CPU), with dtype and shape."""
    import torch

    plain = tensor.detach().to("cpu").contiguous()
    shape, flat = tuple(plain.shape), plain.as_strided((plain.numel(),), (1,))  # of one row, any stride is contiguous
    data = flat.view(torch.uint8).numpy().data if plain.numel() else memoryview(b"")
    return Raw(dtype=str(plain.dtype).removeprefix("torch."), shape=shape, data=data)


def to_tensor(raw: Raw) -> "torch.Tensor":
    """A tensor over the bytes."""
    import torch

    dtype = getattr(torch, raw.dtype)
    if not len(raw.data):
        return torch.empty(raw.shape, dtype=dtype)
    data = raw.data if isinstance(raw.data, bytearray) else bytearray(raw.data)
    return torch.frombuffer(data, dtype=dtype).reshape(raw.shape)


def as_tuple(batch: Any) -> "tuple[torch.Tensor, ...]":
    """A batch, as any DataLoader gives it (tensor, list, tuple, dict), as a flat tuple of tensors.

    Raises
    ------
    UserError
        Where something in it is no tensor.
    """
    import torch

    if isinstance(batch, torch.Tensor):
        return (batch,)
    if isinstance(batch, dict):
        return tuple(tensor for value in batch.values() for tensor in as_tuple(value))
    if isinstance(batch, (list, tuple)):
        return tuple(tensor for value in batch for tensor in as_tuple(value))
    try:
        return (torch.as_tensor(batch),)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"a batch holds a {type(batch).__name__}, which is no tensor.",
            next_step="Give tensors, or a DataLoader that yields tuples of tensors.",
        ) from error


def check_rows(tensors: "Sequence[torch.Tensor]", names: Sequence[str]) -> int:
    """The number of rows of a batch: the first dimension, the same of all.

    Raises
    ------
    UserError
        Where their number is not that of `names`, or their first dimensions differ.
    """
    if len(tensors) != len(names):
        raise UserError(
            f"a batch has {len(tensors)} tensors; the model takes {len(names)}: {', '.join(names)}.",
            next_step="Give its inputs, and in training its targets, in that order.",
        )
    rows = {int(tensor.shape[0]) if tensor.ndim else 0 for tensor in tensors}
    if len(rows) != 1 or 0 in rows:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in zip(names, tensors, strict=True))
        raise UserError(f"the tensors of a batch need the same number of rows, 1 or more; got {shapes}.")
    return rows.pop()


def batches(data: Any, batch: int) -> "Iterable[tuple[torch.Tensor, ...]]":
    """The batches of `data`: of a loader as it gives them; of a tuple of tensors, `batch` rows each, in order."""
    import torch

    if isinstance(data, torch.Tensor) or (
        isinstance(data, (tuple, list)) and data and all(isinstance(item, torch.Tensor) for item in data)
    ):
        tensors = as_tuple(data)
        return [tuple(t[start : start + batch] for t in tensors) for start in range(0, tensors[0].shape[0], batch)]
    return (as_tuple(item) for item in data)


def count(data: Any, batch: int) -> int | None:
    """How many batches `data` has, where that is known."""
    import torch

    if isinstance(data, torch.Tensor) or (
        isinstance(data, (tuple, list)) and data and isinstance(data[0], torch.Tensor)
    ):
        first = data if isinstance(data, torch.Tensor) else data[0]
        return -(-int(first.shape[0]) // batch)
    try:
        return len(data)
    except TypeError:
        return None


def padded(tensor: "torch.Tensor", rows: int) -> "torch.Tensor":
    """The tensor with its last row repeated up to `rows`: outputs of the extra rows are thrown away."""
    import torch

    missing = rows - tensor.shape[0]
    return torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])]) if missing else tensor


def first_rows(tensor: "torch.Tensor", wanted: int, rows: int) -> "torch.Tensor":
    """The entries of the first `wanted` of `rows` rows."""
    return tensor if wanted == rows or not tensor.ndim else tensor[: tensor.shape[0] // rows * wanted]


def joined(parts: "Sequence[dict[str, torch.Tensor]]", names: Sequence[str]) -> Any:
    """The outputs of several requests one after another: a tensor, or a tuple of several by `names`."""
    import torch

    whole = [parts[0][name] if len(parts) == 1 else torch.cat([part[name] for part in parts]) for name in names]
    return whole[0] if len(whole) == 1 else tuple(whole)
