"""Is a silent device gone, or only its way to this notebook? Other devices are asked whether they
reach it before it is given up (Asteroid, section 3.4: a device is probed before it is declared
dead). Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from potluck_wire.limits import PULSE_LOST_S, PULSE_S
from potluck_wire.messages import Probe, Probed

DOUBT_S = 2 * PULSE_S  # of silence: two pings, or the answers to them, have not come
ASK_AGAIN_S = 2 * PULSE_S
UNREACHED_S = 5.0  # of silence: without us it cannot take part, whoever else reaches it
N_ASKED = 2


@dataclass(slots=True)
class Suspicion:
    """One silent device: who was asked in which task, and who reached it last, and when."""

    probes: dict[str, str] = field(default_factory=dict)
    asked_s: float = float("-inf")
    seen_by: str = ""
    seen_s: float = float("-inf")


class Suspicions:
    """The silent devices of a home."""

    def __init__(self) -> None:
        self._suspicions: dict[str, Suspicion] = {}
        self._n_asked = 0

    def ask(self, device: str, heard: Sequence[str], now_s: float) -> list[tuple[str, Probe]]:
        """Whom to ask now whether they reach a device.

        Parameters
        ----------
        device
            That is silent.
        heard
            The devices that are not.
        now_s
            The time.
        """
        suspicion = self._suspicions.setdefault(device, Suspicion())
        if now_s < suspicion.asked_s + ASK_AGAIN_S:
            return []
        suspicion.asked_s = now_s
        probes = []
        for other in heard[:N_ASKED]:
            self._n_asked += 1
            task = f"reach-{self._n_asked}"
            suspicion.probes[task] = other
            probes.append((other, Probe(task=task, peer=device, nbytes=1)))
        return probes

    def answered(self, other: str, answer: Probed, now_s: float) -> None:
        """A device has reached another; nothing where nobody has asked it to."""
        suspicion = self._suspicions.get(answer.peer)
        if suspicion is not None and suspicion.probes.get(answer.task) == other:
            suspicion.seen_by, suspicion.seen_s = other, now_s

    def end(self, device: str) -> None:
        """It was heard, or given up."""
        self._suspicions.pop(device, None)

    def is_lost(self, device: str, silent_s: float, now_s: float) -> bool:
        """Whether nobody has reached it for too long, or this notebook has not for much longer."""
        suspicion = self._suspicions.get(device, Suspicion())
        seen_s = min(silent_s, now_s - suspicion.seen_s)
        return seen_s > PULSE_LOST_S or silent_s > UNREACHED_S

    def seen_by(self, device: str) -> str:
        """Who has reached it since it is silent; empty where nobody has."""
        return self._suspicions.get(device, Suspicion()).seen_by
