"""What a tensor is on the wire: the name of its element type, its shape, and its bytes in C order,
little-endian.
"""

from collections.abc import Sequence

from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import MAX_DIMENSIONS, MAX_INT

DTYPES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


def item_bytes(dtype: str) -> int:
    """Bytes of one element.

    Raises
    ------
    WireError
        The type is not in the table.
    """
    size = DTYPES.get(dtype)
    if size is None:
        raise WireError(WireCode.TENSOR, f"unknown dtype {dtype[:20]!r}")
    return size


def nbytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor of this type and shape.

    Raises
    ------
    WireError
        A dimension is no size, there are too many, or the product passes 2**53.
    """
    if len(shape) > MAX_DIMENSIONS:
        raise WireError(WireCode.TENSOR, f"{len(shape)} dimensions, at most {MAX_DIMENSIONS}")
    total = item_bytes(dtype)
    for size in shape:
        if type(size) is not int or not 0 <= size <= MAX_INT:
            raise WireError(WireCode.TENSOR, f"a dimension is {size!r:.40}")
        # A later zero may not hide an earlier overflow, so the product is checked as if sizes were
        # at least 1.
        if total * max(size, 1) > MAX_INT:
            raise WireError(
                WireCode.TENSOR, f"shape {list(shape)} of {dtype} has more than 2**53 bytes"
            )
        total *= max(size, 1)
    return 0 if 0 in shape else total
