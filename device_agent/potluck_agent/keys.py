"""Who this device is and whom it trusts: its CURVE key pair and its peers, two small files in the
state directory.

Both are written atomically and readable by the owner only. A file that does not hold is an error,
never a reason to make new keys: that would silently break every pairing.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from potluck_agent.errors import AgentError
from potluck_wire.durable_rename import keep_names, take_place
from potluck_wire.file_lock import alone
from potluck_wire.file_reading import is_there, read_file
from potluck_wire.fingerprint import fingerprint
from potluck_wire.limits import is_device_name, is_key
from potluck_wire.process_identity import identity as identity_of

IDENTITY = "identity.json"
PEERS = "peers.json"
PEERS_LOCK = "peers.lock"
PART = ".part"  # behind the name of a file that is being written, and the number of its process
# and a fingerprint: whoever it is was forgotten while there was no room for a list without him. The
# file is empty, for which a full disk has room.
FORGOTTEN = "forgotten-"
OWNER = "owner"  # the one role in the file: a notebook that may run programs here
MAX_PEERS = 64
MAX_FILE_BYTES = 1024 * 1024
LOCK_TIMEOUT_S = 0.5  # others change the peers in milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """This device's CURVE key pair (z85)."""

    public: str
    secret: str

    def __repr__(self) -> str:  # never the secret
        return f"Identity({fingerprint(self.public)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedPeer:
    """A notebook that this device trusts. `date` is for display."""

    name: str
    key: str
    role: str = OWNER
    date: str = ""


def default_state_dir() -> Path:
    """$POTLUCK_HOME, or `potluck` in the platform's configuration directory."""
    chosen = os.environ.get("POTLUCK_HOME") or ""
    if chosen:
        return Path(chosen) / "agent"
    base = os.environ.get("APPDATA") if os.name == "nt" else os.environ.get("XDG_CONFIG_HOME")
    return Path(base or Path.home() / ".config") / "potluck" / "agent"


def open_state_dir(path: Path) -> Path:
    """The state directory, made if need be, open to its owner only."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name != "nt":
            path.chmod(0o700)
    except OSError as error:
        raise AgentError(
            f"cannot use {path} as state directory: {error.strerror}. Choose another with --state."
        ) from error
    return path


def identity(state: Path) -> Identity:
    """The key pair of this device; made at the first start."""
    path = state / IDENTITY
    if not is_there(path):
        import zmq

        public, secret = (part.decode() for part in zmq.curve_keypair())
        write_private(path, {"public": public, "secret": secret}, only_if_new=True)
    return _read_identity(path)


def _read_identity(path: Path) -> Identity:
    import zmq

    document = read_private(path)
    row = document if isinstance(document, dict) else {}
    public, secret = str(row.get("public")), str(row.get("secret"))
    if (
        not is_key(public)
        or not is_key(secret)
        or zmq.curve_public(secret.encode()).decode() != public
    ):
        raise AgentError(
            f"{path} does not hold a key pair. Restore it from a backup; or delete it, and every "
            "notebook pairs again."
        )
    return Identity(public=public, secret=secret)


def load_peers(state: Path) -> tuple[TrustedPeer, ...]:
    """Whom this device trusts; nobody, before the first pairing."""
    path = state / PEERS
    if not is_there(path):
        return ()
    document = read_private(path)
    try:
        peers = tuple(TrustedPeer(**row) for row in document)
        sound = all(
            is_device_name(peer.name)
            and is_key(peer.key)
            and peer.role == OWNER
            and peer.date.isprintable()
            for peer in peers
        ) and len({peer.key for peer in peers}) == len(peers)
    except (TypeError, AttributeError):
        sound = False
    if not sound:
        raise AgentError(
            f"{path} is not a list of peers. Restore it; or delete it, and every notebook must "
            "pair again."
        )
    return tuple(peer for peer in peers if not is_there(_mark(state, peer)))


def add_peer(state: Path, peer: TrustedPeer) -> tuple[TrustedPeer, ...]:
    """Trust this peer from now on; it replaces one of the same key.

    A second one of a name gets a number behind it.
    """
    with _alone(state):
        others = tuple(other for other in load_peers(state) if other.key != peer.key)
        if len(others) >= MAX_PEERS:
            raise AgentError(
                f"this device already trusts {MAX_PEERS} notebooks. Forget one: potluck agent "
                "forget NAME."
            )
        taken = {other.name for other in others}
        names = (peer.name, *(f"{peer.name[:36]}-{number}" for number in range(2, MAX_PEERS + 2)))
        free = next(name for name in names if name not in taken)
        added = replace(peer, name=free, date=time.strftime("%Y-%m-%d"))
        return _write_peers(state, (*others, added))


def forget_peer(state: Path, name: str) -> tuple[TrustedPeer, ...]:
    """Trust that peer no longer, also where the disk is full; an error where nobody has this
    name.
    """
    with _alone(state):
        peers = load_peers(state)
        remaining = tuple(peer for peer in peers if peer.name != name)
        if len(remaining) == len(peers):
            known = ", ".join(peer.name for peer in peers) or "nobody"
            raise AgentError(f"no peer is called {name}; this device trusts {known}.")
        try:
            return _write_peers(state, remaining)
        except AgentError as error:
            try:
                _mark_forgotten(state, [peer for peer in peers if peer.name == name])
            except OSError:
                raise error from None
            return remaining


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """While another process changes the peers, wait, but not for long: the agent's loop stands.

    The agent adds a peer that pairs while a command may forget one: what one of them read would
    undo what the other wrote.
    """
    path = state / PEERS_LOCK
    held = ExitStack()
    try:
        held.enter_context(alone(path, LOCK_TIMEOUT_S))
    except TimeoutError as error:
        raise AgentError(
            f"cannot change the peers: another process holds {path} (a `potluck agent` command "
            "that was stopped?). End it, and try again."
        ) from error
    except OSError as error:
        raise AgentError(f"cannot write {path}: {error.strerror}.") from error
    with held:
        yield


def _write_peers(state: Path, peers: tuple[TrustedPeer, ...]) -> tuple[TrustedPeer, ...]:
    write_private(state / PEERS, [asdict(peer) for peer in peers])
    for mark in state.glob(f"{FORGOTTEN}*"):  # they are not in the list any more
        try:
            mark.unlink(missing_ok=True)
        except OSError as error:
            raise AgentError(f"cannot remove {mark}: {error.strerror}.") from error
    return peers


def _mark(state: Path, peer: TrustedPeer) -> Path:
    return state / f"{FORGOTTEN}{fingerprint(peer.key)}"


def _mark_forgotten(state: Path, peers: Sequence[TrustedPeer]) -> None:
    for peer in peers:
        _mark(state, peer).touch(mode=0o600)
    keep_names(state)
    os.utime(state / PEERS)  # whoever has read it reads it again


def read_private(path: Path, most_bytes: int = MAX_FILE_BYTES) -> Any:
    """What `write_private` wrote there.

    Parameters
    ----------
    path
        The file; it must be this user's own.
    most_bytes
        It may have.

    Raises
    ------
    AgentError
        It cannot be read, or is not what this agent writes.
    """
    from potluck_wire.documents import parse
    from potluck_wire.errors import WireError

    try:
        data = read_file(path, most_bytes, is_own=True)
        return parse(data, "the file", lambda document: document, most_bytes)
    except OSError as error:
        raise AgentError(f"cannot read {path}: {error.strerror}.") from error
    except WireError as error:
        raise AgentError(
            f"{path} is corrupt: {error.text}. Restore it from a backup, or delete it and pair "
            "again."
        ) from error


def write_private(path: Path, document: Any, *, only_if_new: bool = False) -> None:
    """All of it or nothing, never readable by others.

    `only_if_new`: two agents that start at once get one file.
    """
    import json

    part = path.with_name(f"{path.name}.{os.getpid()}{PART}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        if only_if_new and is_there(path):
            part.unlink()
        else:
            take_place(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise AgentError(f"cannot write {path}: {error.strerror}.") from error


def unfinished(state: Path) -> list[Path]:
    """What processes that are no more have begun to write into this directory, and not ended."""
    return [
        part
        for part in state.glob(f"*.*{PART}")
        if (number := part.name.removesuffix(PART).rpartition(".")[2]).isdecimal()
        and not identity_of(int(number))
    ]
