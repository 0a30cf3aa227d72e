"""What a request leaves to the next one: buffers that an operator of our own writes to in place,
such as the keys and values of attention.

A cache has a slot for each row of the largest request, along its first dimension; a request of
fewer rows has the first slots.
"""

from typing import Any

import torch


def cache_scatter(
    cache: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor
) -> torch.Tensor:
    """The first slots of the cache, one for each row of `index`, after
    `torch.Tensor.scatter_(dim, index, source)` in them.

    Raises ValueError where the request has more rows than the cache has slots, or of them `source`
    has another number.
    """
    rows = index.shape[0] if index.dim() else 0
    if (
        not cache.dim()
        or not dim % cache.dim()
        or source.shape[:1] != index.shape[:1]
        or rows > cache.shape[0]
    ):
        raise ValueError(
            f"each row of index and source has a slot of its own in the cache; got "
            f"{list(index.shape)}, {list(source.shape)}, {list(cache.shape)} and dimension {dim}"
        )
    with torch.no_grad():
        return cache[:rows].scatter_(dim, index, source)


_library: Any = torch.library.Library
_LIBRARY = _library("potluck", "FRAGMENT")
_LIBRARY.define(
    "cache_scatter(Tensor(a!) cache, int dim, Tensor index, Tensor source) -> Tensor(a)"
)
_LIBRARY.impl("cache_scatter", cache_scatter, "CompositeImplicitAutograd")
OVERLOADS: dict[str, Any] = {
    "potluck.cache_scatter.default": torch.ops.potluck.cache_scatter.default
}
