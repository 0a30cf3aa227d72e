"""Power and energy of this device: the best meter there is, or a model that says that it is one.

One file per family of meters; each finds its meter below an injectable root folder and explains why
it is not there. Time is an argument everywhere. Keep reading about once a second while something is
to be known: meters that tell power only are integrated from reading to reading, and counters
overflow within minutes.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from potluck_agent.meters import battery, ina, nvml, pi5, rapl
from potluck_agent.meters.battery import charge_frac
from potluck_agent.meters.power_model import PowerModel
from potluck_agent.meters.records import Advance, FoundMeters, Gauge, MeterFinding, MeterSample
from potluck_wire.default_power import guessed_w

__all__ = [
    "MeterFinding",
    "Gauge",
    "DeviceMeter",
    "PowerModel",
    "MeterSample",
    "charge_frac",
    "explain",
    "open_meter",
]

Power = tuple[float, float, float]  # (idle_w, max_w, radio_w)


class DeviceMeter:
    """Joules since it was made, from `gauges` where they answer and from `model` where they do not.

    `charge_frac()` tells how full the battery is.
    """

    def __init__(
        self,
        gauges: tuple[Gauge, ...],
        model: PowerModel,
        charge_frac: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._gauges = gauges
        self._model = model
        self._charge_frac = charge_frac
        self._joules = 0.0
        self._last_s: float | None = None
        self._partly_modelled = False

    def read(self, now_s: float, busy_s: float, radio_s: float) -> MeterSample:
        """Power since the last reading. `busy_s` and `radio_s` are the seconds of computing and of
        sending so far.

        While a meter is silent (a charger is plugged in, a driver is gone), or has jumped beyond
        what can be, the model speaks for it. From then on every sample says "estimated", for its
        joules hold an estimate; `meter` says who gave the watts.
        """
        modelled = self._model.advance(now_s, busy_s, radio_s)
        watts, joules = self._measure(now_s)
        name = "model" if watts is None else "+".join(gauge.name for gauge in self._gauges)
        has_passed = self._last_s is not None and now_s > self._last_s
        self._last_s = now_s
        self._partly_modelled |= joules is None and has_passed
        self._joules += modelled[1] if joules is None else joules
        measured = self._gauges and not self._partly_modelled
        return MeterSample(
            watts=modelled[0] if watts is None else watts,
            joules=self._joules,
            source="measured" if measured else self._model.source,
            meter=name,
            resolution_w=0.0
            if watts is None
            else sum(gauge.resolution_w for gauge in self._gauges),
            battery_frac=self._charge_frac(),
        )

    def _measure(self, now_s: float) -> Advance:
        """The sum over all gauges of what is known."""
        if not self._gauges:
            return None, None
        try:
            readings = [gauge.advance(now_s) for gauge in self._gauges]
        except OSError:
            for gauge in self._gauges:
                gauge.skip()
            return None, None
        return _sum([watts for watts, _ in readings]), _sum([joules for _, joules in readings])


def _sum(figures: list[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None


def open_meter(
    *, power: Power | None = None, emulated: bool = False, root: Path = Path("/")
) -> DeviceMeter:
    """The best meter here. An emulated device has none of its own: its power is simulated."""
    idle_w, max_w, radio_w = power or guessed_w(os.cpu_count() or 1)
    model = PowerModel(idle_w, max_w, radio_w, source="simulated" if emulated else "estimated")
    if emulated:
        return DeviceMeter((), model)
    return DeviceMeter(_best(_find(root)), model, partial(battery.charge_frac, root))


def explain(root: Path = Path("/")) -> tuple[MeterFinding, ...]:
    """For every family of meters: is it here, why not, and what would help."""
    return tuple(found.finding for found in _find(root))


def _find(root: Path) -> tuple[FoundMeters, ...]:
    return ina.find(root), pi5.find(root), battery.find(root), rapl.find(root), nvml.find()


def _best(found: tuple[FoundMeters, ...]) -> tuple[Gauge, ...]:
    """A meter of the whole device; else those of its parts (processor, graphics), added up."""
    *of_device, processor, graphics = (one.gauges for one in found)
    return next((gauges for gauges in of_device if gauges), processor + graphics)
