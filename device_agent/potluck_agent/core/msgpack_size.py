"""How many things a msgpack text holds, before any of them is made: a megabyte of empty lists takes
90 MiB as Python's. Pure.
"""

from collections.abc import Iterator

# first byte -> bytes of the length that follows, bytes of each thing it counts, things in each
_SIZED = {
    **dict.fromkeys((0xC4, 0xD9), (1, 1, 0)),  # bin and str of up to 255 bytes
    **dict.fromkeys((0xC5, 0xDA), (2, 1, 0)),
    **dict.fromkeys((0xC6, 0xDB), (4, 1, 0)),
    0xDC: (2, 0, 1),  # lists
    0xDD: (4, 0, 1),
    0xDE: (2, 0, 2),  # maps
    0xDF: (4, 0, 2),
}
# first byte -> bytes that follow
_FIXED = {
    **dict.fromkeys((0xCC, 0xD0), 1),
    **dict.fromkeys((0xCD, 0xD1), 2),
    **dict.fromkeys((0xCA, 0xCE, 0xD2), 4),
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 8),
}


def check_count(data: bytes, max_things: int) -> None:
    """ValueError where more than `max_things` things are in it, one in another or side by side."""
    n_left = 1
    for count, n_within in enumerate(_things(data), 1):
        n_left += n_within - 1
        if count + n_left > max_things:
            raise ValueError(f"more than {max_things} things")
        if not n_left:  # what comes after the end is for who reads it
            return


def _things(data: bytes) -> Iterator[int]:
    """Of each thing in turn, how many are within it. What is broken ends it, as it does reading."""
    at, end = 0, len(data)
    while at < end:
        first = data[at]
        at += 1
        n_within = 0
        if first in _SIZED:
            length_bytes, n_bytes, n_each = _SIZED[first]
            length = int.from_bytes(data[at : at + length_bytes], "big")
            at += length_bytes + length * n_bytes
            n_within = length * n_each
        elif 0x80 <= first <= 0x8F:
            n_within = 2 * (first & 0x0F)
        elif 0x90 <= first <= 0x9F:
            n_within = first & 0x0F
        elif 0xA0 <= first <= 0xBF:
            at += first & 0x1F
        else:
            at += _FIXED.get(first, 0)
        yield n_within
