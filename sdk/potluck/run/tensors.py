"""torch tensors <-> raw bytes, and rows of tensors; torch is imported when first used."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from potluck.errors import UserError
from potluck.sessions.traffic import Raw

if TYPE_CHECKING:
    import torch


def to_raw(tensor: "torch.Tensor") -> Raw:
    """The tensor's bytes (a view where it is contiguous on the CPU), with dtype and shape."""
    import torch

    plain = tensor.detach().to("cpu").contiguous()
    # of one row, any stride is contiguous
    shape, flat = tuple(plain.shape), plain.as_strided((plain.numel(),), (1,))
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


def kept(tensor: "torch.Tensor") -> "torch.Tensor":
    """A copy that stays as it is, whatever its owner writes into the tensor meanwhile."""
    import torch

    return tensor.detach().clone(memory_format=torch.contiguous_format)


def padded(tensor: "torch.Tensor", rows: int) -> "torch.Tensor":
    """The tensor with its last row repeated up to `rows`: outputs of the extra rows are thrown
    away.
    """
    import torch

    missing = rows - tensor.shape[0]
    return (
        torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])]) if missing else tensor
    )


def first_rows(tensor: "torch.Tensor", wanted: int, rows: int) -> "torch.Tensor":
    """The entries of the first `wanted` of `rows` rows.

    Parameters
    ----------
    tensor
        [rows x k, ...].
    wanted
        Rows to keep.
    rows
        Rows that it has.

    Returns
    -------
    torch.Tensor
        [wanted x k, ...].
    """
    return (
        tensor if wanted == rows or not tensor.ndim else tensor[: tensor.shape[0] // rows * wanted]
    )


def score_of(value: object) -> float:
    """The score of a batch as a number.

    Raises
    ------
    UserError
        It is none, or several.
    """
    shape = getattr(value, "shape", None)
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"a tensor of the shape {list(shape)}" if shape is not None else repr(value)
        raise UserError(
            f"a score is one number for a batch, its mean over rows; got {got}.",
            next_step="Take the mean: (outputs.argmax(1) == labels).float().mean().",
        ) from error


def joined(
    parts: "Sequence[dict[str, torch.Tensor]]", names: Sequence[str]
) -> "list[torch.Tensor]":
    """The outputs of several requests one after another, by `names`."""
    import torch

    return [
        parts[0][name] if len(parts) == 1 else torch.cat([part[name] for part in parts])
        for name in names
    ]
