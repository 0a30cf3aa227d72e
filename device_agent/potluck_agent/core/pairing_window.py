"""The pairing window: when this device may be paired, and with whom.

Pure, time comes in as an argument.

Closed unless its owner opens a window: 180 seconds for a code, no limit for a token, three tries,
one success. One visitor at a time, five seconds for each message. A malformed message is a try.
"""

from dataclasses import dataclass

from potluck_wire.errors import WireError
from potluck_wire.limits import PAIRING_STEP_S, PAIRING_TRIES, PAIRING_WINDOW_S
from potluck_wire.messages import Channel, Message, PairRefused
from potluck_wire.pairing import BUSY, CLOSED, EXPIRED, MALFORMED, AgentSide, Paired, PairingFailed
from potluck_wire.stream import StreamReader, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What to do with the visitor: send `data`, then hang up if `close`.

    `paired` is to be trusted from now on.
    """

    data: bytes = b""
    close: bool = False
    paired: Paired | None = None


class PairingWindow:
    """At most one open window and one visitor."""

    def __init__(self, *, name: str, key: str) -> None:
        self._name, self._key = name, key
        self._secret = ""
        self._closes_s: float | None = None
        self._tries_left = 0
        self.n_wrong = 0  # tries that failed since a window was last opened
        self._expired = False
        self._attempt: AgentSide | None = None
        self._reader = StreamReader(Channel.PAIRING)
        self._step_ends_s: float | None = None

    def open(self, secret: str, now_s: float, *, window_s: float | None = PAIRING_WINDOW_S) -> None:
        """Open a window for this secret; a window that is open already is replaced.

        `window_s` None: until used.
        """
        self._secret = secret
        self._tries_left = PAIRING_TRIES
        self._expired = False
        self.n_wrong = 0
        self._attempt = None  # the visitor that is there knew the secret of another window
        self._closes_s = None if window_s is None else now_s + window_s

    def close(self) -> None:
        """Close the window; the visitor that is there is refused at the next message."""
        self._secret = ""
        self._closes_s = None
        self._tries_left = 0
        self._attempt = None

    def is_open(self, now_s: float) -> bool:
        """Whether a visitor may try now."""
        if self._secret and self._closes_s is not None and now_s >= self._closes_s:
            self.close()
            self._expired = True
        return bool(self._secret)

    def arrive(self, now_s: float) -> Reply:
        """A visitor connected."""
        if self._step_ends_s is not None:
            return _refuse(BUSY, "another notebook is pairing right now", self._tries_left)
        if not self.is_open(now_s):
            return self._refuse_closed()
        self._attempt = AgentSide(secret=self._secret, name=self._name, key=self._key)
        self._reader = StreamReader(Channel.PAIRING)
        self._step_ends_s = now_s + PAIRING_STEP_S
        return Reply()

    def leave(self) -> None:
        """The visitor is gone."""
        self._attempt = self._step_ends_s = None

    def overdue(self, now_s: float) -> bool:
        """Whether the visitor took too long for its message: hang up, then `leave`."""
        return self._step_ends_s is not None and now_s >= self._step_ends_s

    def receive(self, data: bytes, now_s: float) -> Reply:
        """Bytes from the visitor."""
        if not self.is_open(now_s):
            return self._refuse_closed()
        if self._attempt is None:
            return Reply(close=True)
        try:
            answers = b"".join(
                pack(self._receive(message)) for message, _ in self._reader.feed(data)
            )
        except WireError as error:
            return self._count(MALFORMED, error.text)
        except PairingFailed as failure:
            return self._count(failure.code, failure.text)
        if answers:
            self._step_ends_s = now_s + PAIRING_STEP_S
        paired = self._attempt.paired
        if paired is None:
            return Reply(data=answers)
        self.close()
        return Reply(data=answers, close=True, paired=paired)

    def _receive(self, message: Message) -> Message:
        assert self._attempt is not None
        return self._attempt.receive(message)

    def _count(self, code: str, text: str) -> Reply:
        """A try is used up; after the last one the window is closed."""
        self.n_wrong += 1
        left = self._tries_left = self._tries_left - 1
        if left <= 0:
            self.close()
        self._attempt = None
        return _refuse(code, text, left)

    def _refuse_closed(self) -> Reply:
        if self._expired:
            return _refuse(
                EXPIRED, "the pairing window has expired; open a new one on the device", 0
            )
        return _refuse(
            CLOSED, "this device is not open for pairing; run `potluck agent pair` on it", 0
        )


def _refuse(code: str, text: str, tries_left: int) -> Reply:
    return Reply(data=pack(PairRefused(code=code, text=text, tries_left=tries_left)), close=True)
