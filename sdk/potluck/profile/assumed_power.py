"""The watts of a device as far as anybody knows them without measuring: those that its owner
stated, those that the library prints for its name, or a guess by its threads. All are assumed.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from potluck.profile import library
from potluck.profile.power_model import Watts
from potluck.provenance import ASSUMED, SIMULATED
from potluck_wire.default_power import IDLE_FRAC, THREAD_W, guessed_w

# what makers add to a name without meaning another device
_ADDED = re.compile(r"\(r\)|\(tm\)|\bcpu\b|@.*$|\brev\b.*$|\bwith\b.*graphics\b.*$", re.IGNORECASE)


def assumed_watts(capability: Mapping[str, Any]) -> Watts:
    """What is assumed of a device by its capability statement; unknown where not even its threads
    are stated.
    """
    stated = capability.get("power")
    if stated and stated.get("idle_w") is not None and stated.get("busy_w") is not None:
        played = bool(capability.get("emulated"))
        return Watts(
            idle_w=stated["idle_w"],
            busy_w=stated["busy_w"],
            radio_w=stated.get("radio_w"),
            source=SIMULATED if played else ASSUMED,
            note="as it is played" if played else "as its owner stated them (--power)",
        )
    if capability.get("emulated"):
        return Watts()
    for name in _names(capability):
        kind = kind_called(name)
        if kind:
            return _printed(kind, name)
    threads = capability.get("threads") or capability.get("cores")
    if not threads:
        return Watts()
    idle_w, busy_w, radio_w = guessed_w(int(threads))
    return Watts(
        idle_w=idle_w,
        busy_w=busy_w,
        radio_w=radio_w,
        source=ASSUMED,
        note=f"a guess: {THREAD_W:g} W for each thread that computes",
    )


def kind_called(name: str) -> str:
    """The device of the library that systems call so, to the letter but for case, trade marks and
    revisions; empty where there is none.

    >>> kind_called("Raspberry Pi 5 Model B Rev 1.0"), kind_called("Raspberry Pi 5000")
    ('raspberry-pi-5', '')
    """
    return _kinds().get(plain_name(name), "")


def plain_name(name: str) -> str:
    """A name as all makers write it, without what they add."""
    return " ".join(_ADDED.sub(" ", name).lower().split())


@cache
def _kinds() -> Mapping[str, str]:
    return {
        plain_name(called): kind
        for kind in library.names("devices")
        for called in library.load_device(kind).known_as
    }


def _names(capability: Mapping[str, Any]) -> Iterable[str]:
    """Graphics first: where there is one, it takes most."""
    stated = capability.get("processors") or ()
    processors = [p for p in stated if isinstance(p, Mapping) and p.get("used", True)]
    yield from (str(p.get("name", "")) for p in processors if p.get("kind") != "cpu")
    yield from (str(name) for name in capability.get("hardware") or ())
    yield from (str(p.get("name", "")) for p in processors if p.get("kind") == "cpu")


def _printed(kind: str, name: str) -> Watts:
    """The library's watts: what its file prints, else what its homes assume, else by its thermal
    design power.
    """
    numbers = {**library.assumed(kind), **library.load_device(kind).numbers}
    tdp = numbers.get("tdp_w")
    busy = numbers.get("busy_w", tdp)
    if busy is None:
        return Watts()
    idle, radio = numbers.get("idle_w"), numbers.get("radio_w")
    idle_w = min(idle.value, busy.value) if idle else IDLE_FRAC * busy.value
    return Watts(
        idle_w=idle_w,
        busy_w=busy.value,
        radio_w=radio.value if radio else guessed_w(1)[2],
        source=ASSUMED,
        note=f"those of {kind} in the library, for its system calls it {name!r:.60}",
    )
