"""How long batches of a service take on a device: asked there and answered here, by number of rows,
alone and with another one under way.

The worker of an agent computes one batch after the other. So a batch that shares it with `n - 1`
others takes `n` times as long as the device needs for it, which `degrees` uses for more than two.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.errors import OutOfMemory, PlanError
from potluck.graph.traced import SEQUENCE
from potluck.serve.runtime.loaded_model import Loaded
from potluck.serve.scheduling.records import BATCHES, BatchTimes
from potluck_wire.graph import BATCH, evaluate

if TYPE_CHECKING:
    import torch

REPEATS = 3
ONE_ROW_REPEATS = 12  # by which it is told how late an answer to one row may be
STEPS = (8, 32, 128, 512)  # largest batches that are loaded to be measured, while larger ones pay
WORTH_FRAC = 0.95  # of the seconds per row: else a larger batch pays no more
PAIRS = 3  # of batches that are under way at once
LONG_S = 0.25  # a batch that takes longer is measured once: chance is a small part of it
# What the entrance of a device, its decision and the notebook's queue take beside a batch that was
# asked for directly: 2 to 4 ms on two x86-64 cores, with chance up to 8.
ENTRANCE_S = 0.01
CHANCE_FRAC = 0.25  # that one of many answers takes longer than the slowest of a few

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredService:
    """Of one model on one device, or on several that share it. `slowest_s`: that one row alone
    took at most; 0: as `alone`.
    """

    alone: BatchTimes
    in_pairs: BatchTimes  # one other under way
    memory_bytes: int
    item_bytes: int
    n_devices: int = 1
    slowest_s: float = 0.0

    @property
    def beyond_s(self) -> float:
        """Seconds that an answer to one row may take beyond its batch, where nothing else is asked:
        its way, the entrance, and chance.
        """
        one_s = self.alone.at(1)
        return (1 + CHANCE_FRAC) * max(one_s, self.slowest_s) + ENTRANCE_S - one_s

    def holds_for(self, limit_s: float, measured_s: float) -> bool:
        """Whether another limit needs no larger batches than were measured.

        Parameters
        ----------
        limit_s
            The other one, in seconds.
        measured_s
            The limit that it was measured for.
        """
        return limit_s <= measured_s or 2 * self.alone.seconds[-1] > limit_s

    def degrees(self, max_degree: int) -> Mapping[int, BatchTimes]:
        """Times by how many batches are under way at once: 1, 2, 4, ... up to `max_degree`."""
        found, degree = {1: self.alone}, 2
        while degree <= max_degree:
            scaled = tuple(seconds * degree / 2 for seconds in self.in_pairs.seconds)
            found[degree] = BatchTimes(items=self.in_pairs.items, seconds=scaled)
            degree *= 2
        return found


def example(model: Any, rows: int) -> "tuple[torch.Tensor, ...]":
    """Inputs of so many rows, of the lengths of the model's example; each [rows, ...], zeros.

    Parameters
    ----------
    model
        What is served.
    rows
        How many.
    """
    import torch

    traced = model.traced_line().traced
    sizes = {**traced.hints, BATCH: rows}
    if SEQUENCE in sizes:
        sizes[SEQUENCE] = min(sizes[SEQUENCE], traced.lengths[-1])
    return tuple(
        torch.zeros([evaluate(n, sizes) for n in port.shape], dtype=getattr(torch, port.dtype))
        for port in traced.given
    )


def measure(
    load: Callable[[int], Loaded],
    model: Any,
    limit_s: float,
    clock: Clock = time.perf_counter,
    n_devices: int = 1,
) -> MeasuredService:
    """Times of batches of 2^0 rows and more, while larger ones take less per row and hold the limit
    twice.

    Parameters
    ----------
    load
        Loads the model for batches of so many rows.
    model
        What is served.
    limit_s
        Seconds that an answer may take.
    clock
        Seconds.
    n_devices
        That share it.

    Raises
    ------
    OutOfMemory
        Not even the smallest batches have room.
    """
    alone: dict[int, float] = {}
    in_pairs: dict[int, float] = {}
    memory: dict[int, int] = {}
    slowest_s = 0.0
    for largest in STEPS:
        try:
            loaded = load(largest)
        except (OutOfMemory, PlanError):
            if not alone:
                raise
            break
        try:
            memory[largest] = max(loaded.memory_bytes.values())
            slowest_s = max(
                slowest_s, _times(loaded, model, largest, limit_s, alone, in_pairs, clock)
            )
        finally:
            loaded.close()
        if largest not in alone or 2 * alone[largest] > limit_s or not _pays(alone):
            break
    (few, smallest), (many, highest) = min(memory.items()), max(memory.items())
    item_bytes = (highest - smallest) // (many - few) if many > few else 0
    sizes = tuple(sorted(alone))
    return MeasuredService(
        alone=_rising(sizes, alone),
        in_pairs=_rising(sizes, in_pairs),
        memory_bytes=smallest,
        item_bytes=item_bytes,
        n_devices=n_devices,
        slowest_s=slowest_s,
    )


def _times(
    loaded: Loaded,
    model: Any,
    largest: int,
    limit_s: float,
    alone: dict[int, float],
    in_pairs: dict[int, float],
    clock: Clock,
) -> float:
    """Up to the first size of which two do not hold the limit, or have no room: larger ones are
    never used. The most that one row took, if it was measured.
    """
    slowest_s = 0.0
    for rows in (rows for rows in BATCHES if rows <= largest and rows not in alone):
        inputs = example(model, rows)
        try:
            loaded.ask(inputs, rows).wait()
            taken = _alone_s(loaded, inputs, rows, clock)
            pair_s = _beside_s(loaded, inputs, rows, median(taken), clock)
        except OutOfMemory:  # as many are loaded for, and have no room to be computed
            if not alone:
                raise
            break
        alone[rows] = median(taken)
        slowest_s = max(taken) if rows == 1 else slowest_s
        in_pairs[rows] = min(max(alone[rows], pair_s), 2 * alone[rows])  # more is chance
        if 2 * alone[rows] > limit_s:
            break
    return slowest_s


def _alone_s(
    loaded: Loaded, inputs: "Sequence[torch.Tensor]", rows: int, clock: Clock
) -> list[float]:
    taken: list[float] = []
    repeats = ONE_ROW_REPEATS if rows == 1 else REPEATS
    for number in range(1, repeats + 1):
        begun_s = clock()
        loaded.ask(inputs, rows).wait()
        taken.append(clock() - begun_s)
        if taken[0] > LONG_S or (number >= REPEATS and sum(taken) > LONG_S):
            break
    return taken


def _beside_s(
    loaded: Loaded, inputs: "Sequence[torch.Tensor]", rows: int, alone_s: float, clock: Clock
) -> float:
    """Of a batch while another one is under way."""
    n_pairs = PAIRS if alone_s <= LONG_S else 1
    begun_s = clock()
    before = loaded.ask(inputs, rows)
    for _ in range(2 * n_pairs - 1):
        now = loaded.ask(inputs, rows)
        before.wait()
        before = now
    before.wait()
    return (clock() - begun_s) / n_pairs


def _pays(alone: Mapping[int, float]) -> bool:
    largest = max(alone)
    return alone[largest] / largest < WORTH_FRAC * alone[largest // 2] / (largest // 2)


def _rising(sizes: tuple[int, ...], seconds: Mapping[int, float]) -> BatchTimes:
    """No batch is quicker than a smaller one: that it was measured so is chance."""
    found: list[float] = []
    for rows in sizes:
        found.append(max(seconds[rows], found[-1] if found else 1e-6))
    return padded_times(sizes, found)


def padded_times(sizes: Sequence[int], seconds: Sequence[float]) -> BatchTimes:
    """Times of batches of any size where a batch between two sizes takes as long as the larger one:
    it goes to that one's program, see `Loaded`.

    Parameters
    ----------
    sizes
        Rows that there are programs for, rising from 1.
    seconds
        Of each.

    Examples
    --------
    >>> padded_times((1, 2, 4), (1.0, 1.5, 2.5)).at(3)
    2.5
    """
    items, found = [1], [seconds[0]]
    for before, size, taken_s in zip(sizes, sizes[1:], seconds[1:], strict=False):
        items += [before + 1, size] if size > before + 1 else [size]
        found += [taken_s] * (2 if size > before + 1 else 1)
    return BatchTimes(items=tuple(items), seconds=tuple(found))
