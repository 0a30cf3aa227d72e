"""What the loop sees that its owner may want to read later, in words for the log."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from potluck_agent.core.events import (
    Event,
    FromPeer,
    KillWorker,
    MustLeave,
    PeerRevoked,
    Tick,
    WorkerDied,
)
from potluck_agent.keys import TrustedPeer
from potluck_agent.log_file import PAIRING, STRANGER, LimitedLines, LogFile
from potluck_wire import __version__
from potluck_wire.fingerprint import fingerprint
from potluck_wire.messages import Goodbye
from potluck_wire.version import show

LIFE = "life"
NOTEBOOK = "notebooks"
WORKER = "the worker"
FAULT = "faults"
NOTE = "notes"
PAIRED = "pairings"


class EventLog:
    """`note(text)` is read by the owner at once; of each kind of them so many in a time, as in the
    log: the system may keep what is printed.
    """

    def __init__(
        self, log: LogFile, note: Callable[[str], None], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._note = log, note
        self._lines = LimitedLines(now_s)
        self._sessions: dict[str, str] = {}  # key -> how it was called when it came
        self._states: dict[str, str] = {}  # what was said last, by what it is about

    def began(self, status: Mapping[str, Any]) -> None:
        """The agent listens."""
        backends = ", ".join(f"{name} {version}" for name, version in status["backends"].items())
        self._log.info(
            LIFE,
            f"started: {status['name']} (process {status['pid']}, potluck {__version__}, protocol "
            f"{show()}) listens on port {status['port']}, computes with {backends or 'nothing'}",
        )

    def ended(self) -> None:
        """It was told to stop."""
        self._log.info(LIFE, "stopped, as it was told")

    def leaves(self, reason: str) -> None:
        """It has to, by its owner's rules or word."""
        self._log.info(LIFE, f"wants to leave: {reason}")

    def waits(self, most_s: float) -> None:
        """It is to end, and something runs here yet."""
        self._note(
            f"what runs here moves elsewhere, {most_s:g} s at most; told again, it ends at once"
        )

    def stays(self) -> None:
        """It need not leave any more."""
        self._log.info(LIFE, "takes part again")

    def note(self, text: str, kind: str = NOTE) -> None:
        """For the owner now, and for later."""
        self._print(kind, text)
        self._log.warning(kind, text)

    def _print(self, kind: str, text: str) -> None:
        for line in self._lines.admitted(kind, text):
            self._note(line)

    def note_state(self, about: str, text: str) -> None:
        """A note of something that lasts, said when it begins or changes; empty: it is over."""
        if text and text != self._states.get(about):
            self.note(text, f"{NOTE} on {about}")
        self._states[about] = text

    def cut(self, n_connections: int, most_bytes: int) -> None:
        """Connections that filled the memory were cut."""
        text = f"{n_connections} connections were cut: over {most_bytes} bytes of messages unread"
        self._print(STRANGER, text)
        self._log.warning(STRANGER, text)

    def paired(self, name: str, key: str) -> None:
        """A notebook is trusted from now on."""
        text = f"paired with {name} ({fingerprint(key)})"
        self._print(PAIRED, text)
        self._log.info(PAIRED, text)

    def saw(
        self, event: Event, sessions: Collection[str], owners: Mapping[str, TrustedPeer]
    ) -> None:
        """The core has handled this event, and these notebooks have a session now."""
        if type(event) is WorkerDied:
            self._log.warning(WORKER, f"the worker is gone ({event.cause}): {event.text}")
        if len(sessions) == len(self._sessions):  # an event begins or ends sessions, never both
            return
        for key in sessions:
            if key not in self._sessions:
                self._sessions[key] = f"{owners[key].name} ({fingerprint(key)})"
                self._log.info(NOTEBOOK, f"{self._sessions[key]} is connected")
        for key in [key for key in self._sessions if key not in sessions]:
            self._log.info(NOTEBOOK, f"{self._sessions.pop(key)} is gone: {_why_gone(event)}")

    def worker_starts(self) -> None:
        """A worker is started."""
        self._log.info(WORKER, "a worker starts")

    def worker_ends(self, action: KillWorker) -> None:
        """The agent ends it: because nobody needs it, or because of what it did."""
        say = self._log.warning if self._sessions else self._log.info
        say(WORKER, f"the worker is ended: {action.reason}")

    def fault(self, report: str, file: str) -> None:
        """What must not happen did; the report is kept in a file."""
        self._print(FAULT, report)
        lines = report.partition("\nbefore it:")[0].splitlines() or [""]
        error = f" ({lines[-1]})" if len(lines) > 1 else ""
        self._log.error(FAULT, f"{lines[0][:300]}{error}, see {file}")

    def refused(self, key: str, address: str) -> None:
        """A stranger knocked."""
        self._log.warning(
            STRANGER, f"refused a stranger at {address}: its key {fingerprint(key)} is not paired"
        )

    def window(self, window_s: float | None) -> None:
        """The owner has opened the pairing window, for a code or for a token."""
        until = "until it is used" if window_s is None else f"for {window_s:.0f} s"
        self._log.info(NOTE, f"open for pairing {until}")

    def visitor(self, address: str, refused: bool) -> None:
        """Somebody came to the pairing port."""
        if refused:
            self._log.warning(PAIRING, f"turned {address} away from the pairing port: not open")
        else:
            self._log.info(PAIRING, f"{address} is at the pairing port")


def _why_gone(event: Event) -> str:
    match event:
        case FromPeer(message=Goodbye(reason=reason)):
            return f"it said goodbye{reason and f', {reason}'}"
        case PeerRevoked():
            return "it is not trusted any more"
        case Tick():
            return "it, or a worker for it, was silent for too long"
        case WorkerDied():
            return "no worker could be started for it"
        case MustLeave(reason=reason):
            return f"this device leaves: {reason}"
    return "a fault"
