"""Pairing: both sides prove that they know one secret (an 8-digit code or a token) and learn each
other's CURVE key.

SPAKE2 over the secret, with both CURVE keys as identities, then HMAC-SHA256 over the whole
transcript as key confirmation. A wrong code, an exchanged key or name, or a reflected message ends
in a wrong MAC; nothing that is sent helps to guess the secret offline. Pure: messages in, messages
out; one object per attempt.

    controller                    agent
    PairHello  ------------------>
               <------------------ PairHello
    PairShare  ------------------>
               <------------------ PairShare
    PairConfirm ----------------->  checks; only now does it show a MAC of its own
               <------------------ PairConfirm
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Any

from potluck_wire.errors import WireError
from potluck_wire.limits import PAIRING_DIGITS, is_device_name, is_key
from potluck_wire.messages import Message, PairConfirm, PairHello, PairRefused, PairShare
from potluck_wire.version import VERSION, agree

CLOSED = "closed"
EXPIRED = "expired"
WRONG_CODE = "wrong-code"
BUSY = "busy"
WRONG_VERSION = "version"
MALFORMED = "malformed"

TOKEN_BYTES = 16  # 128 bits


class PairingFailed(Exception):
    """This attempt is over.

    Parameters
    ----------
    code
        As in `PairRefused`.
    text
        For people.
    tries_left
        What the agent said; -1 if it did not.
    """

    def __init__(self, code: str, text: str, tries_left: int = -1) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.tries_left = tries_left


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """What an attempt yields: who the other one is, and its CURVE key (z85)."""

    name: str
    key: str


def new_code() -> str:
    """A fresh 8-digit code."""
    return f"{secrets.randbelow(10**PAIRING_DIGITS):0{PAIRING_DIGITS}d}"


def new_token() -> str:
    """A fresh 128-bit token, to be copied and pasted."""
    return secrets.token_hex(TOKEN_BYTES)


def show_secret(secret: str) -> str:
    """Grouped for people: `4829 1305`; tokens stay as they are."""
    return f"{secret[:4]} {secret[4:]}" if len(secret) == PAIRING_DIGITS else secret


def read_secret(text: str) -> str:
    """The code or token that a person typed, without spaces and hyphens.

    Raises
    ------
    ValueError
        It can be neither.
    """
    secret = re.sub(r"[\s-]", "", text).lower()
    if not re.fullmatch(
        rf"[0-9]{{{PAIRING_DIGITS}}}|[0-9a-f]{{{2 * TOKEN_BYTES}}}", secret, re.ASCII
    ):
        raise ValueError(
            f"a pairing code has {PAIRING_DIGITS} digits (a token {2 * TOKEN_BYTES} "
            "hexadecimal digits)"
        )
    return secret


class _Side:
    """What both roles share: the transcript and the two MACs."""

    def __init__(self, *, secret: str, hello: PairHello, controller: bool) -> None:
        self._secret = secret
        self._hello = hello
        self._controller = controller
        self._spake: Any = None
        self._share = b""
        self._key = b""
        self._transcript = b""
        self._peer: PairHello | None = None

    def _meet(self, hello: PairHello) -> None:
        """The other one's hello: its key goes into SPAKE2 as its identity."""
        try:
            agree(hello.major, hello.minor)
        except WireError as error:
            raise PairingFailed(WRONG_VERSION, error.text) from error
        if not is_device_name(hello.name) or not is_key(hello.key):
            raise PairingFailed(MALFORMED, "the other side gave no valid name or key")
        if hello.key == self._hello.key:
            raise PairingFailed(MALFORMED, "the other side claims to be this one")
        from spake2 import SPAKE2_A, SPAKE2_B  # 50 ms, and needed only here

        self._peer = hello
        ours, theirs = (self._hello, hello) if self._controller else (hello, self._hello)
        side = SPAKE2_A if self._controller else SPAKE2_B
        self._spake = side(
            self._secret.encode(), idA=b"nb|" + ours.key.encode(), idB=b"ag|" + theirs.key.encode()
        )
        self._share = self._spake.start()

    def _finish(self, share: bytes) -> None:
        """The agreed key, from the other one's SPAKE2 element."""
        try:
            self._key = self._spake.finish(share)
        # the library raises a dozen unrelated kinds on malformed elements
        except Exception as error:
            raise PairingFailed(
                MALFORMED, f"a malformed SPAKE2 element ({type(error).__name__})"
            ) from error
        assert self._peer is not None
        first, second = (self._hello, self._peer) if self._controller else (self._peer, self._hello)
        shares = (self._share, share) if self._controller else (share, self._share)
        parts = [field for hello in (first, second) for field in _fields(hello)] + list(shares)
        self._transcript = b"".join(len(part).to_bytes(4, "big") + part for part in parts)

    def _mac(self, label: bytes) -> bytes:
        return hmac.new(self._key, label + b"|" + self._transcript, hashlib.sha256).digest()

    def _paired(self) -> Paired:
        assert self._peer is not None
        return Paired(name=self._peer.name, key=self._peer.key)


class ControllerSide(_Side):
    """The notebook's side of one attempt. Send `first()`, then feed each answer to `receive`.

    `paired` when it stands.

    Parameters
    ----------
    secret
        The code or token, from `read_secret`.
    name
        What this side is called.
    key
        Its public key as Z85 text.

    Raises
    ------
    PairingFailed
        From `receive`, when the agent refuses or does not know the code.
    """

    def __init__(self, *, secret: str, name: str, key: str) -> None:
        hello = PairHello(major=VERSION[0], minor=VERSION[1], name=name, key=key)
        super().__init__(secret=secret, hello=hello, controller=True)
        self.paired: Paired | None = None

    def first(self) -> PairHello:
        """What to send first."""
        return self._hello

    def receive(self, message: Message) -> Message | None:
        """The answer to send, or None once `paired` is set.

        Raises
        ------
        PairingFailed
            The agent refuses, speaks out of turn, or does not know the code.
        """
        match message:
            case PairRefused():
                raise PairingFailed(message.code, message.text, message.tries_left)
            case PairHello() if self._peer is None:
                self._meet(message)
                return PairShare(share=self._share)
            case PairShare() if self._share and not self._key:
                self._finish(message.share)
                return PairConfirm(mac=self._mac(b"confirm A"))
            case PairConfirm() if self._key and self.paired is None:
                if not hmac.compare_digest(message.mac, self._mac(b"confirm B")):
                    raise PairingFailed(
                        WRONG_CODE, "the device could not prove that it knows the code"
                    )
                self.paired = self._paired()
                return None
        raise PairingFailed(MALFORMED, f"the device sent {type(message).__name__} out of turn")


class AgentSide(_Side):
    """The device's side of one attempt. Feed each message to `receive` and send its answer.

    Then look at `paired`.

    Parameters
    ----------
    secret
        The code or token that it shows.
    name
        What this side is called.
    key
        Its public key as Z85 text.

    Raises
    ------
    PairingFailed
        From `receive`: tell the other one with `PairRefused`, count a try, close.
    """

    def __init__(self, *, secret: str, name: str, key: str) -> None:
        hello = PairHello(major=VERSION[0], minor=VERSION[1], name=name, key=key)
        super().__init__(secret=secret, hello=hello, controller=False)
        self.paired: Paired | None = None

    def receive(self, message: Message) -> Message:
        """The answer to send.

        Raises
        ------
        PairingFailed
            The message is out of turn, or the code is wrong.
        """
        match message:
            case PairHello() if self._peer is None:
                self._meet(message)
                return self._hello
            case PairShare() if self._share and not self._key:
                self._finish(message.share)
                return PairShare(share=self._share)
            case PairConfirm() if self._key and self.paired is None:
                if not hmac.compare_digest(message.mac, self._mac(b"confirm A")):
                    raise PairingFailed(WRONG_CODE, "the code is wrong")
                self.paired = self._paired()
                return PairConfirm(mac=self._mac(b"confirm B"))
        raise PairingFailed(MALFORMED, f"{type(message).__name__} out of turn")


def _fields(hello: PairHello) -> tuple[bytes, ...]:
    return (
        str(hello.major).encode(),
        str(hello.minor).encode(),
        hello.name.encode(),
        hello.key.encode(),
    )
