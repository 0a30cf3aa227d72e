"""Answering how fast this device is: layers on its worker, values over its links, and power over
time. Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from potluck_agent.core.epochs import OtherNotebooks, refusal_code
from potluck_agent.core.events import Buffer, PeerDevice, ReadMeter, Span
from potluck_agent.core.outbox import Outbox
from potluck_agent.core.send_queue import SendQueue, Transfer
from potluck_agent.core.worker_proxy import BusyTime, WorkerProxy
from potluck_wire.limits import MAX_ITEMS, MAX_MEASURES, MAX_PROBES, MIB, PROBE, is_identifier
from potluck_wire.messages import (
    HOME,
    ComputeFailed,
    Measure,
    Measured,
    MeasuredTask,
    MeasureTask,
    Meter,
    Probe,
    Probed,
    RefusalCode,
    Value,
)
from potluck_wire.replies import check_timings
from potluck_wire.statement import BACKEND_OF
from potluck_wire.version import READING_BATTERY, SHARING, SPLIT_BACKWARD, VERSION

PROBE_PRIORITY = 2**53  # behind everything that is needed
REACH_BYTES = 64  # up to so many only ask whether a device is there, which cannot wait
MAX_PROBE_BYTES = 64 * MIB
MAX_REPEATS = 64
MIN_PERIOD_S, MAX_PERIOD_S = 0.05, 3600.0


@dataclass(frozen=True, slots=True)
class ProbeOf:
    """A probe under way: who asked, and what it is called."""

    key: str
    task: str


@dataclass(slots=True)
class Series:
    """The repeats of one probe."""

    request: Probe
    peer_key: str
    n_beside: int
    seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Subscription:
    """Readings for one notebook."""

    period_s: float
    due_s: float
    busy_s: float = 0.0
    since_s: float = 0.0


class MeasurementQueue:
    """Measurements that are asked for and not answered yet."""

    def __init__(
        self,
        out: Outbox,
        worker: WorkerProxy,
        outgoing: SendQueue,
        members: Callable[[str], dict[str, PeerDevice]],
        others: OtherNotebooks,
        busy: BusyTime,
    ) -> None:
        self._out = out
        self._busy = busy
        self._worker = worker
        self._outgoing = outgoing
        self._members = members
        self._others = others
        # by task: who asked what, beside how many others
        self._measures: dict[str, tuple[str, Measure, int]] = {}
        self._probes: dict[ProbeOf, Series] = {}
        self._meters: dict[str, Subscription] = {}

    @property
    def askers(self) -> set[str]:
        """Whose measurements are under way."""
        return {key for key, *_ in self._measures.values()} | {about.key for about in self._probes}

    # --- layers -----------------------------------------------------------------------------------

    def measure(self, key: str, message: Measure, buffers: Sequence[Buffer], now_s: float) -> None:
        """Time a layer."""
        sound = (
            is_identifier(message.task)
            and message.kind in BACKEND_OF
            and message.task not in self._measures
        )
        if (
            not sound
            or not message.rows
            or 0 in message.rows
            or not 1 <= message.repeats <= MAX_REPEATS
        ):
            text = (
                f"a new task, one of {', '.join(BACKEND_OF)}, rows above 0 and 1 to "
                f"{MAX_REPEATS} repeats are expected"
            )
            self._out.refuse(key, message, RefusalCode.DOCUMENT, text)
            return
        if self._must_wait(key, message):
            return
        n_waiting = sum(owner == key for owner, *_ in self._measures.values())
        crowded = self._worker.crowded(sum(map(len, buffers)))
        if n_waiting >= MAX_MEASURES:
            crowded = (
                f"{n_waiting} measurements wait already; ask again when one of them is answered"
            )
        if crowded:
            self._out.refuse(key, message, RefusalCode.BUSY, crowded)
            return
        self._measures[message.task] = (key, message, self._others.n_at_work)
        self._worker.need(now_s)
        order = MeasureTask(
            task=message.task,
            kind=message.kind,
            train=message.train,
            rows=message.rows,
            repeats=message.repeats,
        )
        self._worker.send(order, buffers, now_s)

    def _must_wait(self, key: str, message: Measure | Probe) -> bool:
        """Whether nothing is measured now: a notebook that cannot be told that it was beside
        others' runs would take that for the device's speed.
        """
        if not self._others.n_at_work or self._knows_others(key):
            return False
        text = "another notebook's run is on, and would slow what is measured; ask again later"
        self._out.refuse(key, message, RefusalCode.BUSY, text)
        return True

    def _knows_others(self, key: str) -> bool:
        return self._out.versions.get(key, VERSION) >= SHARING

    def measured(self, message: MeasuredTask) -> None:
        """It has been timed. WireError where something else was measured than what was asked
        for.
        """
        if message.task not in self._measures:  # whoever asked is gone
            return
        key, request, n_beside = self._measures[message.task]
        check_timings(request, message)
        del self._measures[message.task]
        tells_frac = self._out.versions.get(key, VERSION) >= SPLIT_BACKWARD
        answer = Measured(
            task=message.task,
            rows=message.rows,
            forward_s=message.forward_s,
            backward_s=message.backward_s,
            memory_bytes=message.memory_bytes,
            update_s=message.update_s,
            sgd_s=message.sgd_s,
            weight_frac=message.weight_frac if tells_frac else -1.0,
            n_beside=self._n_beside(key, n_beside),
        )
        self._out.send(key, answer)

    def _n_beside(self, key: str, n_at_first: int) -> int:
        """Notebooks whose runs went on meanwhile."""
        return max(n_at_first, self._others.n_at_work) if self._knows_others(key) else 0

    def failed(self, message: ComputeFailed) -> bool:
        """A layer could not be loaded or timed; False where it is none of ours."""
        if message.tag >= 0 or message.slot not in self._measures:
            return False
        key, request, _ = self._measures.pop(message.slot)
        self._out.refuse(
            key, request, refusal_code(message.cause), f"{request.task}: {message.text}"
        )
        return True

    def lose_worker(self, code: str, text: str) -> None:
        """Nothing of this will be answered by the worker."""
        for key, request, _ in self._measures.values():
            self._out.refuse(key, request, code, f"{request.task}: {text}")
        self._measures.clear()

    # --- links ------------------------------------------------------------------------------------

    def probe(self, key: str, message: Probe, now_s: float) -> None:
        """Time values to a member, or home."""
        member = self._members(key).get(message.peer)
        peer_key = key if message.peer == HOME else member.key if member else ""
        about = ProbeOf(key, message.task)
        sound = (
            is_identifier(message.task)
            and about not in self._probes
            and 1 <= message.repeats <= MAX_ITEMS
        )
        if not peer_key or not sound or message.nbytes > MAX_PROBE_BYTES:
            text = (
                f"a member, a new task, up to {MAX_PROBE_BYTES} bytes and 1 to {MAX_ITEMS} "
                "repeats are expected"
            )
            self._out.refuse(key, message, RefusalCode.DOCUMENT, text)
            return
        if self._must_wait(key, message):
            return
        n_waiting = sum(other.key == key for other in self._probes)
        if n_waiting >= MAX_PROBES:
            text = (
                f"{n_waiting} probes are under way already; ask again when one of them is answered"
            )
            self._out.refuse(key, message, RefusalCode.BUSY, text)
            return
        self._probes[about] = Series(message, peer_key, self._others.n_at_work)
        self._send_probe(about)

    def _send_probe(self, about: ProbeOf) -> None:
        series = self._probes[about]
        nbytes = series.request.nbytes
        value = Value(program=PROBE, name=about.task, dtype="uint8", shape=(nbytes,), nbytes=nbytes)
        place = Span(arena="zeros", offset=0, nbytes=nbytes)
        priority = 0 if nbytes <= REACH_BYTES else PROBE_PRIORITY
        self._outgoing.add(
            Transfer(
                key=series.peer_key,
                value=value,
                place=place,
                priority=priority,
                about=about,
                owner=about.key,
            )
        )

    def delivered(self, transfer: Transfer, now_s: float) -> None:
        """One repeat has arrived."""
        about = transfer.about
        if not isinstance(about, ProbeOf) or about not in self._probes:
            return
        series = self._probes[about]
        series.seconds.append(now_s - (now_s if transfer.start_s is None else transfer.start_s))
        if len(series.seconds) < series.request.repeats:
            self._send_probe(about)
            return
        del self._probes[about]
        answer = Probed(
            task=about.task,
            peer=series.request.peer,
            seconds=tuple(series.seconds),
            n_beside=self._n_beside(about.key, series.n_beside),
        )
        self._out.send(about.key, answer)

    def refused(self, transfer: Transfer, text: str) -> None:
        """The receiver does not want to be measured."""
        about = transfer.about
        if isinstance(about, ProbeOf) and about in self._probes:
            series = self._probes.pop(about)
            self._out.refuse(
                about.key, series.request, RefusalCode.STATE, f"{series.request.peer}: {text}"
            )

    # --- power ------------------------------------------------------------------------------------

    def meter(self, key: str, message: Meter, now_s: float) -> None:
        """Send readings from now on, or no more."""
        if message.period_s and not MIN_PERIOD_S <= message.period_s <= MAX_PERIOD_S:
            text = (
                f"a reading every {message.period_s:g} s; every {MIN_PERIOD_S:g} to "
                f"{MAX_PERIOD_S:g} s is possible, or 0 for none"
            )
            self._out.refuse(key, message, RefusalCode.DOCUMENT, text)
            return
        self._meters.pop(key, None)
        if message.period_s:
            self._meters[key] = Subscription(message.period_s, now_s, self._busy.total_s, now_s)

    def tick(self, now_s: float, radio_s: float) -> None:
        """Readings that are due."""
        for key, meter in self._meters.items():
            if now_s < meter.due_s:
                continue
            busy_s, span_s = self._busy.total_s, now_s - meter.since_s
            busy_frac = min(1.0, max(0.0, (busy_s - meter.busy_s) / span_s)) if span_s > 0 else 0.0
            tells_battery = self._out.versions.get(key, VERSION) >= READING_BATTERY
            self._out.add(
                ReadMeter(
                    key=key,
                    busy_s=busy_s,
                    radio_s=radio_s,
                    busy_frac=busy_frac,
                    tells_battery=tells_battery,
                )
            )
            meter.busy_s, meter.since_s = busy_s, now_s
            meter.due_s = max(meter.due_s + meter.period_s, now_s)

    def wake_s(self) -> float | None:
        """When the next reading is due."""
        return (
            min((meter.due_s for meter in self._meters.values()), default=None)
            if self._meters
            else None
        )

    def leave(self, key: str) -> None:
        """A notebook is gone."""
        self._meters.pop(key, None)
        probes = {about for about in self._probes if about.key == key}
        self._outgoing.cancel(probes)
        for about in probes:
            del self._probes[about]
        for task in [task for task, (owner, *_) in self._measures.items() if owner == key]:
            del self._measures[task]
