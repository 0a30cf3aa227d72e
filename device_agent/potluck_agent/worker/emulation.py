"""Pretend to be a slower device: every task takes `slowdown` times the processor time it really
needs.

The numbers are really computed; only time is stretched. A task lasts as long as the device's
profile says, where the notebook has one: the profile is what is emulated. Where it has none, the
time aimed at is that of the quickest among recent tasks of the same kind: a neighbour on the same
core, cold caches and page faults can only make a task slower, and several emulated devices share a
few cores. Measured on two busy hardware threads, medians wandered by 40 %.
"""

import time
from collections import defaultdict, deque
from collections.abc import Hashable

# tasks per kind: enough for an undisturbed one among them, few enough to follow a lasting change
WINDOW = 15
# sleeping overshoots by some 60 us (Linux timer slack); the last 100 us are waited for awake
SPIN_S = 100e-6

Kind = tuple[str, Hashable]  # tasks of the same slot that take the same time: operation, shapes


class EmulatedDurations:
    """How long tasks shall take. `slowdown` 1 leaves them as they are."""

    def __init__(self, slowdown: float = 1.0) -> None:
        if not 1.0 <= slowdown <= 1e4:
            raise ValueError(f"a slowdown of {slowdown}: expected 1 to 10,000")
        self.slowdown = slowdown
        self._recent: defaultdict[Kind, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))

    def target_s(self, kind: Kind, cpu_s: float, lasts_s: float = 0.0) -> float:
        """Seconds that a task of this `kind`, which took `cpu_s` of processor time, shall last in
        all.

        `lasts_s` where the device's profile says so; else by what such tasks took lately. 0 where
        nothing is emulated.
        """
        if lasts_s > 0.0:
            return lasts_s
        if self.slowdown == 1.0:
            return 0.0
        recent = self._recent[kind]
        recent.append(cpu_s)
        return self.slowdown * min(recent)

    def forget(self, slot: str) -> None:
        """Drop what is known of that segment's tasks."""
        for kind in [kind for kind in self._recent if kind[0] == slot]:
            del self._recent[kind]


def wait_until(deadline_s: float) -> None:
    """Return at `deadline_s` of `time.monotonic`, late by some microseconds.

    At once where it has passed.
    """
    while (left_s := deadline_s - time.monotonic()) > 0:
        if left_s > SPIN_S:
            time.sleep(left_s - SPIN_S)
