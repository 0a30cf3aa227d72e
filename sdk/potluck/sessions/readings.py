"""Readings of the devices' power whenever somebody wants them: as a stream, to a callback, as a
file; the latest are kept.
"""

import csv
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from io import StringIO
from pathlib import Path

from potluck import display_hooks
from potluck.display_hooks import Shown
from potluck.documents import write_text
from potluck.errors import DeviceGone, HomeError, UserError
from potluck.sanitized_text import who_is_here
from potluck.sessions.metering import Metering
from potluck.sessions.power_reading import EnergyCount, PowerReading, believed, fault_of
from potluck_wire.messages import Reading

MIN_RATE_HZ, MAX_RATE_HZ = 1 / 3600, 20.0  # what agents accept
KEPT = 6000  # readings of each device: ten minutes at 10 a second
GRACE_FRAC = 0.05  # of a period: readings come when a device's loop gets to it
WAITING = 1000  # readings of each device that nobody has taken yet; then the oldest go


class Stream(Iterator[PowerReading]):
    """Readings as they come; the loop ends when it or the home is closed.

    A device that is gone is told of by a warning, and its readings go on when it is back. Whoever
    is slow misses the oldest.
    """

    def __init__(self, devices: Sequence[str] | None, rate_hz: float) -> None:
        self.devices, self.rate_hz = devices, rate_hz
        self._waiting: dict[str, deque[PowerReading]] = {}
        self._notes: deque[str] = deque(maxlen=WAITING)
        self._next_s: dict[str, float] = {}
        self._news = threading.Condition()
        self._closed = False
        self._ended: Callable[[], None] = lambda: None

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> PowerReading:
        reading = self.take()
        if reading is None:
            raise StopIteration
        return reading

    def take(self, timeout_s: float | None = None) -> PowerReading | None:
        """The next reading; None where the stream has ended, or none comes in time.

        Parameters
        ----------
        timeout_s
            Default: as long as it takes.
        """
        while True:
            with self._news:
                is_in_time = self._news.wait_for(self._has_news, timeout_s)
                notes, closed = tuple(self._notes), self._closed
                self._notes.clear()
                taken = self._take() if not notes else None
            for text in notes:
                warnings.warn(text, stacklevel=2)
            if taken is not None or closed or not is_in_time:
                return taken

    def _has_news(self) -> bool:
        return self._closed or bool(self._notes) or any(self._waiting.values())

    def _take(self) -> PowerReading | None:
        """The devices take turns: one that floods costs itself alone."""
        for device, waiting in self._waiting.items():
            if waiting:
                self._waiting[device] = self._waiting.pop(device)
                return waiting.popleft()
        return None

    def close(self) -> None:
        """No more readings; safe to call twice."""
        with self._news:
            self._closed = True
            self._waiting.clear()
            self._news.notify_all()
        self._ended()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, reading: PowerReading) -> None:
        """A reading has come; too early ones, which others asked for, are left out."""
        device = reading.device
        if self.devices is not None and device not in self.devices:
            return
        due_s = self._next_s.get(device, reading.at_s)
        if reading.at_s < due_s - GRACE_FRAC / self.rate_hz:
            return
        with self._news:
            if self._closed:
                return
            self._next_s[device] = max(due_s + 1 / self.rate_hz, reading.at_s)
            self._waiting.setdefault(device, deque(maxlen=WAITING)).append(reading)
            self._news.notify_all()

    def add_note(self, device: str, text: str) -> None:
        """Something that whoever reads has to know."""
        with self._news:
            if self.devices is None or device in self.devices:
                self._notes.append(text)
                self._next_s.pop(device, None)
                self._news.notify_all()


class Readings(Shown):
    """The power of all devices of a home, also while no run is on.

    `home.readings(rate_hz=10)` is a stream of `PowerReading`s, `home.readings.call(back)` calls for
    each, `home.readings.history` has the latest of each device.
    """

    def __init__(self, metering: Metering, known: Callable[[], Mapping[str, object]]) -> None:
        self._metering, self._known = metering, known
        self._history: dict[str, deque[PowerReading]] = {}
        self._before: dict[str, Reading] = {}
        self._counts: dict[str, EnergyCount] = {}
        self._faults: dict[str, str] = {}
        self._streams: set[Stream] = set()
        self._lock = threading.RLock()
        self._closed = False

    # --- for people -------------------------------------------------------------------------------

    def __call__(self, rate_hz: float = 1.0, devices: Sequence[str] | None = None) -> Stream:
        """Readings as they come: `for reading in home.readings(rate_hz=10): ...`.

        Parameters
        ----------
        rate_hz
            Readings a second of each device: 1/3600 to 20.
        devices
            Only these. Default: all, also those that come later.

        Raises
        ------
        UserError
            The rate is not possible, or devices are no list of names.
        DeviceGone
            One of them is not in this home.
        HomeError
            The home is closed.
        """
        self._check(rate_hz, devices)
        stream = Stream(None if devices is None else tuple(devices), rate_hz)
        with self._lock:
            if self._closed:
                raise HomeError("this home is closed.", next_step="Open another one.")
            self._streams.add(stream)
        number = self._metering.want(devices, 1 / rate_hz)
        stream._ended = lambda: self._end(stream, number)
        return stream

    def call(
        self,
        back: Callable[[PowerReading], object],
        rate_hz: float = 1.0,
        devices: Sequence[str] | None = None,
    ) -> Stream:
        """Call `back(reading)` for each, in a thread of its own, until the stream that this returns
        is closed, or `back` raises.

        Parameters
        ----------
        back
            Called with a `PowerReading`.
        rate_hz, devices
            As for a stream.
        """
        stream = self(rate_hz, devices)

        def carry_out() -> None:
            with stream:
                for reading in stream:
                    back(reading)

        threading.Thread(target=carry_out, name="potluck readings", daemon=True).start()
        return stream

    def live(self, rate_hz: float = 2.0, devices: Sequence[str] | None = None) -> Stream:
        """A picture in this cell of a notebook that follows the readings until the stream is
        closed.

        Parameters
        ----------
        rate_hz, devices
            As for a stream.
        """
        redraw = display_hooks.live(self)
        return self.call(lambda reading: redraw(), rate_hz, devices)

    @property
    def history(self) -> Mapping[str, tuple[PowerReading, ...]]:
        """The latest readings of each device, oldest first: up to 6000."""
        with self._lock:
            return {device: tuple(kept) for device, kept in self._history.items()}

    @property
    def faults(self) -> Mapping[str, str]:
        """What devices told that cannot be, and was left out."""
        return dict(self._faults)

    def to_csv(self, path: str | Path) -> Path:
        """Write the history as a file for spreadsheets.

        Parameters
        ----------
        path
            Of the file; what is there is replaced.

        Raises
        ------
        FileError
            It cannot be written.
        """
        names = [field.name for field in fields(PowerReading)]
        rows = sorted(
            (reading for kept in self.history.values() for reading in kept),
            key=lambda reading: reading.at_s,
        )
        table = StringIO()
        writer = csv.writer(table)
        writer.writerow(names)
        for reading in rows:
            writer.writerow([_cell(getattr(reading, name)) for name in names])
        return write_text(path, table.getvalue())

    def __repr__(self) -> str:
        return display_hooks.text(self)

    # --- for the members --------------------------------------------------------------------------

    def receive(self, device: str, reported: Reading) -> bool:
        """A device told its power; whether that is believed. Quick: the link calls it."""
        with self._lock:
            before = self._before.get(device)
            fault = fault_of(reported, before)
            if fault:
                self._faults[device] = fault
                return False
            count = self._counts.get(device, EnergyCount()).after(reported, before)
            self._before[device], self._counts[device] = reported, count
            reading = believed(device, reported, count)
            self._history.setdefault(device, deque(maxlen=KEPT)).append(reading)
            streams = tuple(self._streams)
        for stream in streams:
            stream.put(reading)
        return True

    def lost(self, device: str) -> None:
        """Its session has ended."""
        self._metering.forget(device)
        with self._lock:
            self._before.pop(device, None)
            streams = tuple(self._streams)
        for stream in streams:
            stream.add_note(device, f"{device} is gone: no readings of it until it is back.")

    def joined(self, device: str) -> None:
        """It has a session, the first one or a new one."""
        self._metering.forget(device)
        with self._lock:
            self._before.pop(device, None)
        self._metering.ask()

    def close(self) -> None:
        """All streams end."""
        with self._lock:
            self._closed = True
            streams = tuple(self._streams)
        for stream in streams:
            stream.close()

    def _end(self, stream: Stream, number: int) -> None:
        with self._lock:
            self._streams.discard(stream)
            closed = self._closed
        if not closed:
            with suppress(HomeError):
                self._metering.enough(number)

    def _check(self, rate_hz: float, devices: Sequence[str] | None) -> None:
        if (
            isinstance(rate_hz, bool)
            or not isinstance(rate_hz, int | float)
            or not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ
        ):
            raise UserError(
                f"{rate_hz!r} readings a second are not possible; 1/3600 to {MAX_RATE_HZ:g} are.",
                next_step="home.readings(rate_hz=10)",
            )
        if isinstance(devices, str) or not isinstance(devices, Iterable | None):
            raise UserError(
                f"devices are a list of names, got {devices!r}.",
                next_step=f"devices=[{str(devices)!r}]",
            )
        known = self._known()
        for name in devices or ():
            if name not in known:
                raise DeviceGone(f"it is not in this home; {who_is_here(known)}.", device=name)


def _cell(value: object) -> object:
    """A spreadsheet takes a text that begins so for a formula, and a device chose it."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
