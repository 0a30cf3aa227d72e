"""What a tensor is known by wherever it is kept: the SHA-256 of its type, shape and bytes."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

CONTENT_BYTES = 32


def begin(dtype: str, shape: Sequence[int]) -> "_Hash":
    """The sum as it is before the first byte; `update` it with the tensor's bytes, in C order.

    Parameters
    ----------
    dtype
        Its type, by the name that it has on the wire.
    shape
        Its sizes.
    """
    sizes = ",".join(map(str, shape))
    return hashlib.sha256(f"potluck weights 1|{dtype}|{sizes}|".encode())


def content_of(dtype: str, shape: Sequence[int], data: bytes | bytearray | memoryview) -> bytes:
    """The whole sum, 32 bytes.

    Parameters
    ----------
    dtype, shape
        As for `begin`.
    data
        Its bytes, in C order, little-endian.
    """
    summed = begin(dtype, shape)
    summed.update(data)
    return summed.digest()
