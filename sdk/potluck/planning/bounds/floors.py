"""What a row, a device and a link take at the least, for the bounds that price them."""

from collections.abc import Iterable, Sequence
from itertools import permutations

from potluck.planning.building_blocks.device_classes import classes_of
from potluck.planning.search.link_costs import links_of, media_of
from potluck.records import Training
from potluck.simulate import cost, flows

EXACT = 8  # rows at once up to which every number of them is told apart
GROWTH = 1.25  # beyond: a number stands for those up to so many times as many

Rows = tuple[tuple[float, ...], ...]  # per number of rows at once, per layer


class Floors:
    """Lower bounds per kind of device (alike ones are one kind), number of rows, and layer.

    Rows of `sizes[q]` up to `tops[q]` take no less than what is said of q, and more rows no less
    than fewer: where a profile says otherwise, fewer are taken for as quick as more.

    Parameters
    ----------
    table
        Of a problem without branches.
    max_rows
        Rows of a micro-batch.
    """

    def __init__(self, table: cost.CostTable, max_rows: int) -> None:
        problem = table.problem
        self.training = isinstance(problem.workload, Training)
        self.streaming = not self.training and getattr(problem.workload, "streaming", False)
        self.kinds = classes_of(table)
        self.counts = [len(same) for same in self.kinds]
        self.names = [problem.devices[same[0]].name for same in self.kinds]
        self.n_layers, self.batch = len(problem.layers), problem.workload.batch
        measured = {n for costs in problem.costs.values() for layer in costs for n in layer.rows}
        self.sizes = _sizes(max_rows, measured)
        self.tops = [size - 1 for size in self.sizes[1:]] + [max_rows]
        self.forward, self.both = list[Rows](), list[Rows]()
        for name in self.names:
            times = [_layer_times(table, name, rows) for rows in self.sizes]
            self.forward.append(_rising([forward for forward, _ in times]))
            self.both.append(_rising([both for _, both in times]))
        self._table = table
        self._add_links(table)

    def rates(self, kind: int) -> Rows:
        """Per number of rows and layer, least seconds of a row: between two measured numbers they
        are least at one end.

        Parameters
        ----------
        kind
            Number of the kind.
        """
        found, name = [], self.names[kind]
        for size, top in zip(self.sizes, self.tops, strict=True):
            first, last = (_layer_times(self._table, name, rows)[1] for rows in (size, top))
            pairs = zip(first, last, strict=True)
            found.append(tuple(min(a / size, b / top) for a, b in pairs))
        return tuple(found)

    def _add_links(self, table: cost.CostTable) -> None:
        """Of links: the quickest of all; of media: those that all paths of a device cross."""
        links, n = links_of(table).values(), len(table.problem.devices)
        media = {pair: dict(taken) for pair, taken in media_of(table).items()}
        self.latency_s = min((link.latency_s for link in links), default=0.0)
        self.byte_s = min((link.byte_s for link in links), default=0.0)
        # seconds for which a byte takes a medium that all paths cross; and those out of, or into
        # one device
        self.air_s = _common_s(media, permutations(range(n), 2))
        first = [same[0] for same in self.kinds]
        self.out_s = [_common_s(media, ((d, e) for e in range(n) if e != d)) for d in first]
        self.into_s = [_common_s(media, ((e, d) for e in range(n) if e != d)) for d in first]
        layers, learns = table.problem.layers, flows.learning_layers(table.problem)
        # per cut behind layer i, bytes of a row there, and those that come back
        self.sent = [layer.output_bytes for layer in layers[:-1]]
        self.back = [
            layer.gradient_bytes if self.training and learning else 0
            for layer, learning in zip(layers[:-1], learns, strict=False)
        ]

    def trip_s(self, i: int, *, returns: bool) -> float:
        """Seconds of a row over the cut behind layer i, and of its gradient back."""
        out_s = self.latency_s + self.sent[i] * self.byte_s
        back_s = self.latency_s + self.back[i] * self.byte_s if self.back[i] else 0.0
        return out_s + back_s * returns


@cost.kept_by_table
def _layer_times(
    table: cost.CostTable, name: str, rows: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per layer the seconds of a forward, and of it with its backward, as said of the table."""
    layers = range(len(table.problem.layers))
    forward = tuple(table.forward_s(name, i, i + 1, rows) for i in layers)
    return forward, tuple(table.compute_s(name, i, i + 1, rows) for i in layers)


def _sizes(max_rows: int, measured: Iterable[int]) -> list[int]:
    """Numbers of rows that are told apart: between two of them times are linear, as every measured
    number is one.
    """
    found = {max_rows, *range(1, min(EXACT, max_rows) + 1), *(n for n in measured if n < max_rows)}
    rows = float(EXACT)
    while (rows := rows * GROWTH) < max_rows:
        found.add(int(rows))
    return sorted(found)


def _rising(rows: Sequence[Sequence[float]]) -> Rows:
    """Each the least of its own and all later ones.

    >>> _rising([[3.0, 1.0], [2.0, 4.0]])
    ((2.0, 1.0), (2.0, 4.0))
    """
    found = [tuple(rows[-1])]
    for row in rows[-2::-1]:
        found.append(tuple(map(min, row, found[-1])))
    return tuple(found[::-1])


def _common_s(
    media: dict[tuple[int, int], dict[str, float]], pairs: Iterable[tuple[int, int]]
) -> float:
    """The most seconds for which a byte between any of these pairs takes one medium."""
    taken = [media.get(pair, {}) for pair in pairs]
    if not taken:
        return 0.0
    common = (name for name in taken[0] if all(name in each for each in taken))
    return max((min(each[name] for each in taken) for name in common), default=0.0)
