"""What a run can go back to when a device is lost: a snapshot of all state of one step, here on the
notebook, and the batches since.

How often: by Young (1974) and Daly (2006), every sqrt(2 C M) seconds. C is what training waits for
a snapshot, never more than `MOST_FRAC` of the time, and M the mean time between losses. One that
comes home in the background uses the air for `MOST_AIR_FRAC` of it at most. M is at first what
homes are thought to be like, and shorter after losses. A fault in between costs the steps since the
snapshot, which are computed again from the same batches.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from potluck import units
from potluck.errors import (
    DeviceGone,
    OutOfMemory,
    PotluckError,
    ProtocolError,
    Refused,
    RequestFailed,
    UserError,
    WorkerFailed,
)
from potluck.records import Layer, Plan
from potluck.run.weight_update import Update
from potluck_wire.messages import Execute, FailureCause, RefusalCode

if TYPE_CHECKING:
    import torch

# Of one device: mean time until it leaves without a word, as people move about. It counts as one
# loss that was seen in so long; those of the run come beside it.
LOST_S = 2 * 3600.0
MOST_FRAC = 0.03  # of the time of training that it may wait for snapshots
MOST_AIR_FRAC = 0.25  # of the time in which they may be on their way home behind all else
LATE = 4.0  # times the interval: then training waits for a snapshot that finds no room on the air
MOST_BATCH_BYTES = 512 << 20  # of batches that are kept; then a snapshot comes sooner
OF_VALUES = (FailureCause.INPUT, FailureCause.ARITHMETIC)  # the same on every device
# as it declines what it is asked, where its worker has ended meanwhile, or it wants to leave
WORKER_GONE = (RefusalCode.STATE, RefusalCode.UNKNOWN_RUN, RefusalCode.LEAVING)
OLD_STANDS = (
    "old_stands"  # of a lack of memory for what was asked for, by which nothing has changed
)
Batch = Mapping[str, "torch.Tensor"]  # what is fed, by name; each [rows, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All state after `step` steps: weights, and the optimizer's (`moments`; none before the first
    step).
    """

    step: int
    optimizer: Update
    weights: "Mapping[str, torch.Tensor]"
    moments: "Mapping[str, torch.Tensor]" = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """What it takes here."""
        return _nbytes(self.weights) + _nbytes(self.moments)


class _Remembered(NamedTuple):
    """What was handed out at once: rows and tensors of its batch, or of its batches as one."""

    rows: int
    batch: Batch
    n_steps: int


def interval_s(
    cost_s: float, n_devices: int, arriving_s: float = 0.0, lost_s: float | None = None
) -> float:
    """Seconds of training between two snapshots.

    >>> round(interval_s(1.0, 4)), round(interval_s(0.01, 4)), round(interval_s(20.0, 4))
    (60, 6, 667)

    Parameters
    ----------
    cost_s
        What training waits for one.
    n_devices
        Each of which may be lost.
    arriving_s
        How long it then takes home, while training goes on.
    lost_s
        Mean time between losses of one device; default: what homes are thought to be like.
    """
    by_losses = math.sqrt(2 * cost_s * (LOST_S if lost_s is None else lost_s) / n_devices)
    return max(by_losses, cost_s / MOST_FRAC, arriving_s / MOST_AIR_FRAC)


def is_loss(error: PotluckError) -> bool:
    """Whether a run can go on after this elsewhere, or with a new worker: a device or its worker is
    gone, hangs, is full, breaks the protocol or will not take a step. What an operator says of its
    values is the same on every device.
    """
    if isinstance(error, RequestFailed) or not error.device or error.facts.get(OLD_STANDS):
        return False
    if isinstance(error, WorkerFailed):
        return error.facts.get("cause") not in OF_VALUES
    if isinstance(error, Refused):
        facts = error.facts
        return facts.get("code") in WORKER_GONE or facts.get("about") == Execute.__name__
    return isinstance(error, DeviceGone | OutOfMemory | ProtocolError)


def check_protect(protect: bool | int | None, *, training: bool) -> None:
    """Refuse what is no way to protect a run.

    Raises
    ------
    UserError
        It is neither a bool nor a number of steps, or one of steps where none is taken.
    """
    if protect is None or isinstance(protect, bool):
        return
    if not training:
        raise UserError(
            f"protect={protect!r} is a number of steps of training, and this plan is for "
            "inference.",
            next_step="Requests are asked again after a loss; with protect=False it ends the run.",
        )
    if not isinstance(protect, int) or protect < 1:
        raise UserError(
            f"protect is True, False or a number of steps of 1 or more, got {protect!r}.",
            next_step="home.deploy(plan, protect=20) keeps what was learned every 20 steps.",
        )


class Protection:
    """The latest snapshot of a run and the batches since.

    Parameters
    ----------
    snapshot
        As the run begins.
    cost_s
        What training is expected to wait for one.
    n_devices
        Of the plan.
    every
        Steps between two, which are then taken while training waits; None: by what they take.
    arriving_s
        How long one is expected to take home, while training goes on.
    copies
        Bytes that copies take of each device's memory meanwhile, where training does not wait.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        cost_s: float,
        n_devices: int,
        every: int | None = None,
        arriving_s: float = 0.0,
        copies: Mapping[str, int] | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.cost_s = cost_s
        self.n_devices = n_devices
        self.arriving_s, self.copies = arriving_s, dict(copies or {})
        self._every = every
        self._batches: list[_Remembered] = []
        self._batch_bytes = 0
        self._since_s: list[float] = []
        self._usual_s: float | None = None  # a step, until the first after a snapshot has come
        self._n_lost, self._seen_s = 0, 0.0  # losses of this run, and how long its devices trained

    @property
    def is_exact(self) -> bool:
        """Whether a snapshot is taken after so many steps, and training waits for it."""
        return self._every is not None

    @property
    def is_full(self) -> bool:
        """Whether more batches are kept than should be."""
        return self._batch_bytes > MOST_BATCH_BYTES

    @property
    def is_late(self) -> bool:
        """Whether a snapshot that is on its way home should have been here."""
        return self.is_full or sum(self._since_s) >= LATE * self.interval_s

    @property
    def batches(self) -> tuple[tuple[int, Batch], ...]:
        """Rows and tensors of everything that was handed out since the snapshot, in order."""
        return tuple((each.rows, each.batch) for each in self._batches)

    @property
    def interval_s(self) -> float:
        """Seconds of training between two snapshots."""
        return interval_s(self.cost_s, self.n_devices, self.arriving_s, self.lost_s)

    @property
    def lost_s(self) -> float:
        """Mean time between losses of one device, by those of this run, too; never longer than
        what homes are thought to be like.
        """
        return min(LOST_S, (LOST_S + self._seen_s) / (1 + self._n_lost))

    def lost(self) -> None:
        """A device was lost: the more of them, the sooner come snapshots."""
        self._n_lost += 1

    @property
    def every(self) -> int | None:
        """Steps between two; None: not known yet."""
        if self._every is not None or not self._since_s:
            return self._every
        return max(1, math.ceil(self.interval_s / max(median(self._since_s), 1e-9)))

    def remember(self, rows: int, batch: Batch, n_steps: int = 1) -> None:
        """A step was handed out, or several at once.

        Parameters
        ----------
        rows
            Of its batch.
        batch
            Nobody writes into it any more.
        n_steps
            That are taken on it.
        """
        self._batches.append(_Remembered(rows, batch, n_steps))
        self._batch_bytes += _nbytes(batch)

    def forget_after(self, step: int) -> None:
        """Steps beyond this one were not taken.

        Parameters
        ----------
        step
            From the snapshot's on.
        """
        n_taken = self._n_remembered(step - self.snapshot.step)
        self._batch_bytes -= sum(_nbytes(each.batch) for each in self._batches[n_taken:])
        del self._batches[n_taken:]

    def _n_remembered(self, n_steps: int) -> int:
        """How many of what was handed out make so many steps."""
        ends = [0, *accumulate(each.n_steps for each in self._batches)]
        return bisect_right(ends, n_steps) - 1

    def took(self, seconds: float) -> None:
        """A step was collected. The first one after a snapshot takes longer: devices had run empty.

        Parameters
        ----------
        seconds
            That it took.
        """
        self._since_s.append(seconds)
        self._seen_s += seconds * self.n_devices
        if self._usual_s is not None:
            self.cost_s += max(0.0, seconds - self._usual_s)
            self._usual_s = None

    @property
    def is_due(self) -> bool:
        """Whether it is time for a snapshot."""
        if self.is_full:
            return True
        if self._every is not None:
            return sum(each.n_steps for each in self._batches) >= self._every
        return sum(self._since_s) >= self.interval_s

    def begun(self, cost_s: float, n_devices: int) -> None:
        """A snapshot is on its way home.

        Parameters
        ----------
        cost_s
            What training waited for it.
        n_devices
            Of the plan.
        """
        self._usual_s = median(self._since_s) if self._since_s else None
        self.cost_s = cost_s
        self.n_devices = n_devices
        self._since_s = []

    def arrived(self, snapshot: Snapshot, arriving_s: float = 0.0) -> None:
        """A new snapshot, in place of the older one.

        Parameters
        ----------
        snapshot
            Of a step up to which all batches have been taken.
        arriving_s
            How long it took home, while training went on.
        """
        n_taken = self._n_remembered(snapshot.step - self.snapshot.step)
        self._batch_bytes -= sum(_nbytes(each.batch) for each in self._batches[:n_taken])
        del self._batches[:n_taken]
        self.snapshot, self.arriving_s = snapshot, arriving_s

    def __repr__(self) -> str:
        often = f"every {self.every} steps" if self.every else "not taken yet"
        if self._every is None:
            often += f" ({units.duration(self.interval_s)} of training)"
        held = units.size(self.snapshot.nbytes + self._batch_bytes)
        largest = max(self.copies.values(), default=0)
        copies = f"; {units.size(largest)} at most on a device" * bool(self.copies)
        return (
            f"<Protection: goes back to step {self.snapshot.step}; {held} here{copies}; {often}, "
            f"{units.duration(self.cost_s)} of waiting each>"
        )


def _nbytes(tensors: Batch) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def in_other_batches(old: Plan, new: Plan, layers: Sequence[Layer]) -> bool:
    """Whether steps of the old plan, computed again on the new one, would learn something else: in
    other batches or micro-batches, or where layers see theirs in those of another size.

    Parameters
    ----------
    old, new
        The plans.
    layers
        Of the model.
    """
    return _batches(old, layers) != _batches(new, layers)


def _batches(plan: Plan, layers: Sequence[Layer]) -> tuple[int, int, list[int]]:
    rows = [stage.rows for stage in plan.stages for _ in range(stage.start, stage.stop)]
    seen = [n for n, layer in zip(rows, layers, strict=True) if layer.sees_micro_batch]
    return plan.batch, plan.micro_batch, seen
