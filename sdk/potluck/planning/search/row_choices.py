"""Every way to share the rows of a micro-batch among devices, in blocks of so many rows that there
are not too many: where links hold a plan up, rows by speed are not the best ones.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import comb


def block_rows(n_rows: int, groups: Sequence[int], max_shares: int) -> int:
    """The fewest rows, a power of two, in blocks of which groups have at most `max_shares` shares
    together.

    >>> block_rows(8, [2, 3], 28), block_rows(8, [2, 3], 10)
    (1, 2)

    Parameters
    ----------
    n_rows
        To be shared.
    groups
        How many devices each has.
    max_shares
        Shares of all groups.
    """
    block = 1
    while sum(comb(n_rows // block - 1, n - 1) for n in groups if n_rows >= block * n) > max_shares:
        block *= 2
    return block


def in_blocks(n_rows: int, n_devices: int, block: int) -> Iterator[tuple[int, ...]]:
    """All shares of at least a block for each device; rows beyond the last block go to the first.

    >>> list(in_blocks(9, 2, 3)), list(in_blocks(5, 2, 2))
    ([(3, 6), (6, 3)], [(3, 2)])

    Parameters
    ----------
    n_rows
        To be shared.
    n_devices
        That share them.
    block
        Rows of a block.
    """
    n_blocks, rest = divmod(n_rows, block)
    for at in combinations(range(1, n_blocks), n_devices - 1):
        first, *others = (block * (b - a) for a, b in pairwise((0, *at, n_blocks)))
        yield (first + rest, *others)
