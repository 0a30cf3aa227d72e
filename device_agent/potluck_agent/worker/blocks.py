"""Values as int8 with a scale for each block, packed into float32 so that their gradients cross as
small as they do: torch has no gradient of integers.

A block is one row, and one token or channel of it: so many leading dimensions stay. Its largest
magnitude is 127 steps; each entry is rounded to the nearest step, halves to the even one. Four
steps lie in the bits of one float32, and the scale is the last. The derivative of packing is
unpacking, and the other way round: a gradient is rounded as a value is, and a rounding itself
counts as a step of slope one. What is packed is never added: each has one reader.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

STEPS = 127.0
LEAST = 1e-30  # of a scale: a block of zeros
_PER_ITEM = 4  # int8 in the bits of one float32


def packed(values: torch.Tensor, n_leading: int) -> torch.Tensor:
    """[..., block] as [..., items]: its steps, four to an item, and the scale.

    Raises ValueError where the values are no float32, or have no block.
    """
    if values.dtype is not torch.float32 or not 1 <= n_leading < values.dim():
        raise ValueError(
            f"float32 values with more than {n_leading} dimensions are packed, at least 1 of them "
            f"leading; got {values.dtype} {list(values.shape)}"
        )
    flat = values.reshape(*values.shape[:n_leading], math.prod(values.shape[n_leading:]))
    if not flat.shape[-1]:
        raise ValueError(f"blocks without an entry are not packed; got {list(values.shape)}")
    scale = flat.abs().amax(-1, keepdim=True).div(STEPS).clamp_min(LEAST)
    steps = (flat / scale).round().to(torch.int8)
    padded = torch.nn.functional.pad(steps, (0, -flat.shape[-1] % _PER_ITEM)).contiguous()
    return torch.cat((padded.view(torch.float32), scale), -1)


def unpacked(items: torch.Tensor, block: Sequence[int]) -> torch.Tensor:
    """[..., items] as [..., *block]; ValueError where they are not as many as such a block has."""
    n_entries = math.prod(block)
    n_items = -(-n_entries // _PER_ITEM) + 1
    sound = items.dtype is torch.float32 and items.dim() and items.shape[-1] == n_items
    if not sound or min(block, default=0) < 1:
        raise ValueError(
            f"{n_items} items of float32 are a block of {list(block)}; got {items.dtype} "
            f"{list(items.shape)}"
        )
    steps = items[..., :-1].contiguous().view(torch.int8)[..., :n_entries]
    return (steps.to(torch.float32) * items[..., -1:]).reshape(*items.shape[:-1], *block)


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, n_leading: int) -> torch.Tensor:
        ctx.block = values.shape[n_leading:]
        return packed(values, n_leading)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return unpacked(gradient, ctx.block), None


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: torch.Tensor, block: Sequence[int]) -> torch.Tensor:
        ctx.n_leading = items.dim() - 1
        return unpacked(items, block)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return packed(gradient, ctx.n_leading), None


_library: Any = torch.library.Library
_LIBRARY = _library("potluck", "DEF")
_LIBRARY.define("pack_int8(Tensor values, int n_leading) -> Tensor")
_LIBRARY.define("unpack_int8(Tensor items, int[] block) -> Tensor")
_LIBRARY.impl("pack_int8", _Pack.apply, "CompositeImplicitAutograd")
_LIBRARY.impl("unpack_int8", _Unpack.apply, "CompositeImplicitAutograd")
OVERLOADS: dict[str, Any] = {
    "potluck.pack_int8.default": torch.ops.potluck.pack_int8.default,
    "potluck.unpack_int8.default": torch.ops.potluck.unpack_int8.default,
}
