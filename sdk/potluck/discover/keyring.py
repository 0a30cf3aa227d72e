"""Who this notebook is and which devices it knows: its key pair and a list of devices, two small
files.

Written all or nothing, readable by the owner only. A file that does not hold is an error, never a
reason to start afresh: that would silently break every pairing.
"""

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from potluck.discover.key_claim import KeyClaim, claim
from potluck.documents import read_json, write_whole
from potluck.errors import FileError, UserError
from potluck.sessions.events import Address
from potluck_wire.file_lock import alone
from potluck_wire.file_reading import is_there, read_file
from potluck_wire.limits import is_device_name, is_key
from potluck_wire.messages import HOME

IDENTITY = "notebook.json"
DEVICES = "devices.json"
LOCK = "keyring.lock"
LOCK_TIMEOUT_S = 5.0
MAX_DEVICES = 256
MOST_BYTES = 4 * 2**20  # of either file; a device has 2 KiB with its longest addresses
MAX_HOST = 255  # letters of a name in the network
KEPT_ADDRESSES = 4  # a phone comes back at home, at work, on the hotspot


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDevice:
    """A device that was paired: its name here, its CURVE key, and where it was seen, the latest
    first.
    """

    name: str
    key: str
    addresses: tuple[Address, ...] = ()


def state_dir() -> Path:
    """$POTLUCK_HOME, or `potluck` in the platform's configuration directory."""
    chosen = os.environ.get("POTLUCK_HOME")
    if chosen:
        return Path(chosen)
    base = os.environ.get("APPDATA") if os.name == "nt" else os.environ.get("XDG_CONFIG_HOME")
    return Path(base or Path.home() / ".config") / "potluck"


def controller_name() -> str:
    """What devices call this notebook: its host name, as far as that is allowed."""
    kept = "".join(
        letter if letter.isascii() and letter.isalnum() else "-"
        for letter in socket.gethostname().lower()
    )
    name = kept.strip("-")[:40].strip("-")
    return name if is_device_name(name) else "notebook"


class Keyring:
    """The two files in `directory`, made when they are first needed.

    Raises
    ------
    FileError
        From every method, where a file is corrupt or cannot be read or written.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or state_dir()
        self._claim: KeyClaim | None = None

    def claim(self, give_way: Callable[[], bool]) -> None:
        """Have these keys alone, until `close`; HomeError where another home has them.

        `give_way()` is asked when another home of this program wants them: whether they are free by
        now.
        """
        self._claim = claim(self.directory)
        self._claim.give_way = give_way

    def close(self) -> None:
        """Let others have the keys."""
        if self._claim is not None:
            self._claim.close()

    def identity(self) -> tuple[str, str]:
        """(public, secret) key of this notebook, Z85."""
        path = self.directory / IDENTITY
        if not _exists(path):
            with self._alone():
                self._make_identity(path)
        document = _read(path)
        keys: tuple[Any, ...] = ()
        if isinstance(document, dict):
            keys = document.get("public"), document.get("secret")
        if not keys or not all(is_key(key) for key in keys) or not _is_pair(*keys):
            raise _corrupt(
                path,
                "it does not hold a key pair",
                "Restore it, or delete it and pair every device again.",
            )
        return str(keys[0]), str(keys[1])

    def _make_identity(self, path: Path) -> None:
        if _exists(path):  # another program was first
            return
        import zmq

        public, secret = (part.decode() for part in zmq.curve_keypair())
        _write(path, {"public": public, "secret": secret})

    def devices(self) -> tuple[KnownDevice, ...]:
        """All known devices."""
        path = self.directory / DEVICES
        return _known(path, _read(path)) if _exists(path) else ()

    def get(self, name: str) -> KnownDevice | None:
        """The device of that name."""
        return next((known for known in self.devices() if known.name == name), None)

    def remember(self, known: KnownDevice) -> KnownDevice:
        """Add a device, or renew what is known of it.

        The same name with another key gets a number: `phone-2`.
        """
        with self._alone():
            others = [other for other in self.devices() if other.key != known.key]
            if len(others) >= MAX_DEVICES:
                raise UserError(
                    f"{MAX_DEVICES} devices are known already.",
                    next_step="Forget one: `potluck forget NAME`.",
                )
            taken = {other.name for other in others}
            kept = replace(
                known,
                name=free_name(known.name, taken.__contains__),
                addresses=tuple(dict.fromkeys(known.addresses))[:KEPT_ADDRESSES],
            )
            self._write_devices([*others, kept])
            return kept

    def forget(self, name: str) -> None:
        """Trust that device no longer."""
        with self._alone():
            devices = self.devices()
            remaining = [known for known in devices if known.name != name]
            if len(remaining) == len(devices):
                names = ", ".join(known.name for known in devices) or "none"
                raise UserError(f"no device is called {name!r}; known are {names}.")
            self._write_devices(remaining)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While another program of this user changes the files, wait: what one of them read would
        undo what the other wrote.
        """
        path = self.directory / LOCK
        held = ExitStack()
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            held.enter_context(alone(path, LOCK_TIMEOUT_S))
        except TimeoutError as error:
            raise FileError(
                f"another program holds {path}.",
                next_step="End the potluck program that was stopped, and try again.",
                path=str(path),
            ) from error
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror}.", path=str(path)) from error
        with held:
            yield

    def _write_devices(self, devices: list[KnownDevice]) -> None:
        _write(self.directory / DEVICES, [asdict(known) for known in devices])


def free_name(name: str, taken: Callable[[str], bool]) -> str:
    """`name`, or with a number where it is taken; always a valid device name."""
    base = name if is_device_name(name) else "device"
    number, free = 1, base
    while free == HOME or taken(free):
        number += 1
        ending = f"-{number}"
        free = base[: 40 - len(ending)] + ending
    return free


def _known(path: Path, document: Any) -> tuple[KnownDevice, ...]:
    try:
        devices = tuple(
            KnownDevice(
                name=row["name"],
                key=row["key"],
                addresses=tuple(Address(**place) for place in row["addresses"]),
            )
            for row in document
        )
    except (TypeError, KeyError) as error:
        raise _corrupt(
            path, f"not a list of devices ({error})", "Restore it, or delete it and pair again."
        ) from error
    if not all(_may_be(known) for known in devices):
        raise _corrupt(
            path,
            "a name, key or address in it cannot be",
            "Restore it, or delete it and pair again.",
        )
    return devices


def _may_be(known: KnownDevice) -> bool:
    return (
        is_device_name(known.name)
        and is_key(known.key)
        and all(
            type(place.host) is str
            and 0 < len(place.host) <= MAX_HOST
            and place.host.isprintable()
            and type(place.port) is int
            and 0 < place.port < 2**16
            for place in known.addresses
        )
    )


def _is_pair(public: str, secret: str) -> bool:
    import zmq

    return bool(zmq.curve_public(secret.encode()).decode() == public)


def _corrupt(path: Path, what: str, next_step: str) -> FileError:
    return FileError(f"{path} cannot be used: {what}.", next_step=next_step, path=str(path))


def _exists(path: Path) -> bool:
    try:
        return is_there(path)
    except OSError as error:
        next_step = "Give it to this user (chown), or set POTLUCK_HOME to a folder of yours."
        raise FileError(
            f"cannot look at {path}: {error.strerror}.", next_step=next_step, path=str(path)
        ) from error


def _read(path: Path) -> Any:
    try:
        return read_json(read_file(path, MOST_BYTES, is_own=True), str(path))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.", path=str(path)) from error
    except FileError as error:
        raise _corrupt(
            path, str(error), "Restore it from a backup, or delete it and pair again."
        ) from error


def _write(path: Path, document: Any) -> None:
    write_whole(path, json.dumps(document, indent=1))
