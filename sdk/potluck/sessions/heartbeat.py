"""Is a device alive, does it get on, and how does its clock relate to ours: judged from pings and
pongs. Pure.
"""

from collections import deque
from math import inf

from potluck_wire.limits import PULSE_S
from potluck_wire.messages import Ping, Pong

KEPT_PINGS = 64  # half a minute: the clocks of two devices drift some 20 us in that time


class Heartbeat:
    """The heartbeat of one device, seen from the notebook."""

    def __init__(self, now_s: float) -> None:
        self._seq = 0
        self._sent: dict[int, float] = {}
        # (round trip, home clock - device clock)
        self._offsets: deque[tuple[float, float]] = deque(maxlen=KEPT_PINGS)
        self._next_s = now_s
        self._heard_s = self._answered_s = now_s
        self._progress = -1
        self._progress_s = now_s
        self._busy = False
        self._last_s = now_s
        self._told_s = -inf, -inf  # the last moment that it told: by its clock, and by ours

    def receive(self, now_s: float) -> None:
        """Anything from the device shows that it lives."""
        self._heard_s = now_s

    def tick(self, now_s: float) -> Ping | None:
        """A ping, where one is due."""
        # we ourselves stood still: silence in that time says nothing
        if now_s - self._last_s > PULSE_S:
            self._heard_s += now_s - self._last_s
            self._answered_s += now_s - self._last_s
            self._progress_s += now_s - self._last_s
        self._last_s = now_s
        if now_s < self._next_s:
            return None
        self._next_s = now_s + PULSE_S
        self._seq += 1
        self._sent[self._seq] = now_s
        for seq in [seq for seq in self._sent if seq <= self._seq - KEPT_PINGS]:
            del self._sent[seq]
        return Ping(seq=self._seq)

    def pong(self, pong: Pong, now_s: float) -> None:
        """Take in an answer."""
        self.receive(now_s)
        self._answered_s = now_s
        sent_s = self._sent.pop(pong.seq, None)
        if sent_s is not None:
            self._offsets.append((now_s - sent_s, (now_s + sent_s) / 2 - pong.clock_s))
        if pong.progress != self._progress or not pong.busy:
            self._progress, self._progress_s = pong.progress, now_s
        self._busy = pong.busy

    @property
    def answered(self) -> bool:
        """Whether there has been any pong yet."""
        return bool(self._offsets)

    @property
    def offset_s(self) -> float | None:
        """Our clock minus the device's, from the fastest round trip: off by at most half of it."""
        return min(self._offsets)[1] if self._offsets else None

    def ours_s(self, own_s: float, now_s: float) -> float:
        """A moment of its clock by ours: now, until it has answered a ping. What it tells in order
        stays in order, also where a faster round trip has set its clock back.
        """
        ours_s = now_s if self.offset_s is None else own_s + self.offset_s
        before_own_s, before_s = self._told_s
        if own_s >= before_own_s:
            ours_s = max(ours_s, before_s)
        self._told_s = own_s, ours_s
        return ours_s

    @property
    def round_trip_s(self) -> float | None:
        """The fastest round trip."""
        return min(self._offsets)[0] if self._offsets else None

    @property
    def is_busy(self) -> bool:
        """Whether it has something to do, as it says."""
        return self._busy

    def silent_s(self, now_s: float) -> float:
        """Seconds since anything was heard of it."""
        return now_s - self._heard_s

    def unanswered_s(self, now_s: float) -> float:
        """Seconds since it answered a ping: it may speak and not hear."""
        return now_s - self._answered_s

    def still_s(self, now_s: float) -> float:
        """Seconds without progress of a busy worker; 0 where it has nothing to do."""
        return now_s - self._progress_s if self._busy else 0.0
