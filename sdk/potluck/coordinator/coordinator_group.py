"""The coordinators that share a training: where they are, who may ask them, which devices vote."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potluck.coordinator.job import JOB, MAX_JOB_BYTES
from potluck.sessions.events import Address
from potluck_wire.file_reading import read_file
from potluck_wire.limits import is_key

MAX_SEATS = 8  # their keys fit into one record
MAX_VOTERS = 64
MAX_NOTEBOOKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One coordinator: its key, and where it listens."""

    key: str
    host: str
    port: int

    def __post_init__(self) -> None:
        host = self.host
        is_host = type(host) is str and 0 < len(host) <= 255 and not set(host) & set("/ ")
        is_host = is_host and host.isprintable()  # half a character cannot be asked, a \0 cuts it
        is_port = type(self.port) is int and 0 < self.port < 1 << 16
        if not (is_key(self.key) and is_host and is_port):
            raise ValueError("that is no coordinator's key and address")

    def row(self) -> list[Any]:
        """As JSON holds it."""
        return [self.key, self.host, self.port]

    def __str__(self) -> str:
        return str(Address(host=self.host, port=self.port))


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorGroup:
    """Of one job. The first in line founded it; voters, the keys of devices, never change.

    `notebooks`: the keys of those that may ask any of them.
    """

    seats: tuple[Seat, ...]
    voters: tuple[str, ...]
    notebooks: tuple[str, ...]

    def __post_init__(self) -> None:
        keys = [*self.voters, *self.notebooks]
        is_sound = (
            1 <= len(self.seats) <= MAX_SEATS
            and 1 <= len(self.voters) <= MAX_VOTERS
            and len(self.notebooks) <= MAX_NOTEBOOKS
            and all(type(key) is str and is_key(key) for key in keys)
            and len({seat.key for seat in self.seats}) == len(self.seats)
            and len(set(self.voters)) == len(self.voters)
        )
        if not is_sound:
            raise ValueError("that is no group of coordinators")

    def seat(self, key: str) -> Seat | None:
        """That of this coordinator."""
        return next((seat for seat in self.seats if seat.key == key), None)

    def rank(self, key: str) -> int:
        """Its place in the line; behind all others where it has none."""
        return next((i for i, seat in enumerate(self.seats) if seat.key == key), len(self.seats))

    @property
    def may_ask(self) -> frozenset[str]:
        """The keys of all that may ask its coordinators."""
        return frozenset(self.notebooks) | {seat.key for seat in self.seats}

    def row(self) -> dict[str, Any]:
        """As a journal holds it."""
        return {
            "seats": [seat.row() for seat in self.seats],
            "voters": [*self.voters],
            "notebooks": [*self.notebooks],
        }


def read_seats(rows: Any) -> tuple[Seat, ...]:
    """Coordinators as JSON holds them.

    Parameters
    ----------
    rows
        Of `Seat.row`.

    Raises
    ------
    ValueError
        One is none.
    """
    try:
        return tuple(Seat(key=key, host=host, port=port) for key, host, port in rows)
    except TypeError as error:
        raise ValueError("those are no coordinators") from error


def read_group(row: Mapping[str, Any]) -> CoordinatorGroup:
    """A group as a journal holds it.

    Parameters
    ----------
    row
        Of `CoordinatorGroup.row`.

    Raises
    ------
    ValueError
        It is none.
    """
    match row:
        case {"seats": list(seats), "voters": list(voters), "notebooks": list(notebooks)}:
            return CoordinatorGroup(
                seats=read_seats(seats), voters=tuple(voters), notebooks=tuple(notebooks)
            )
    raise ValueError("that is no group of coordinators")


def is_anywhere(host: str) -> bool:
    """Whether this says "all addresses", and so none that others could use.

    Parameters
    ----------
    host
        Where somebody listens.
    """
    return host in ("0.0.0.0", "::", "*")  # noqa: S104


def lease_of(folder: Path) -> str:
    """What devices call the lease of a job: the same at all coordinators that have it.

    Parameters
    ----------
    folder
        Of the job.
    """
    digest = hashlib.sha256(folder.name.encode() + read_file(folder / JOB, MAX_JOB_BYTES))
    return f"job-{digest.hexdigest()[:40]}"
