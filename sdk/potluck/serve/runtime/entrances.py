"""Devices as entrances: each that has a service may be asked for it, and hands requests on to the
others that have it.

The notebook grants that, and need not be there when they do. A grant is made when a service is
placed, and made anew when it moves; with its model it is gone.
"""

import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from potluck.errors import NotServed, PotluckError, UserError
from potluck.serve.runtime.loaded_model import Loaded, RowProgram
from potluck.sessions.events import AskService, Payload, RequestAll, ServiceAnswer
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Members
from potluck_wire.documents import dump
from potluck_wire.limits import MAX_LIMIT_S, MIN_RUN_S
from potluck_wire.messages import GrantService
from potluck_wire.version import GRANTS

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class RoutedAnswer:
    """An answer, the devices that its request went through (the entrance first), and the seconds
    that each had it.
    """

    value: Any
    path: tuple[str, ...]
    hops_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedService:
    """A service on the devices that may be asked for it."""

    service: str
    limit_s: float
    programs: Mapping[str, RowProgram]


class Entrances:
    """Of the services of one home.

    Parameters
    ----------
    link, members
        The home's connection and its devices.
    """

    def __init__(self, link: SessionLink, members: Members) -> None:
        self._link, self._members = link, members
        self._granted: dict[str, GrantedService] = {}

    def grant(self, name: str, limit_s: float, placed: Sequence[tuple[Loaded, float]]) -> None:
        """Let the devices that have a service ask each other for it, and nobody else.

        Parameters
        ----------
        name
            Of the service.
        limit_s
            Within which it answers.
        placed
            What is loaded of it, and the seconds that one row takes there.
        """
        before = self._granted.get(name)
        service = before.service if before else f"service-{uuid.uuid4().hex[:12]}"
        run_s = {
            loaded.devices[0]: max(MIN_RUN_S, seconds)
            for loaded, seconds in placed
            if len(loaded.devices) == 1 and self._can(loaded.devices[0])
        }
        limit_s = min(limit_s, MAX_LIMIT_S)
        programs = {}
        for loaded, _ in placed:
            program = loaded.row_program()
            if program is not None and run_s.get(loaded.devices[0], limit_s + 1) <= limit_s:
                programs[loaded.devices[0]] = program
        self._granted[name] = GrantedService(service=service, limit_s=limit_s, programs=programs)
        for device, program in programs.items():
            peers = [
                {"name": other, "asks_per_s": 1 / run_s[device], "hands_on": True}
                for other in programs
                if other != device
            ]
            inputs = [
                {"name": value, "dtype": dtype, "shape": list(shape)}
                for value, dtype, shape in program.inputs
            ]
            message = GrantService(
                service=service,
                run=program.run,
                epoch=program.epoch,
                program=program.name,
                run_s=run_s[device],
                limit_s=limit_s,
            )
            self._say(device, (message, (dump({"inputs": inputs, "peers": peers}),)))
        for device in (before.programs if before else {}).keys() - programs.keys():
            self._revoke(device, service)

    def revoke(self, name: str) -> None:
        """Nobody asks for it any more.

        Parameters
        ----------
        name
            Of the service.
        """
        if (standing := self._granted.pop(name, None)) is not None:
            for device in standing.programs:
                self._revoke(device, standing.service)

    def ask(
        self, name: str, device: str, inputs: "Sequence[torch.Tensor]", limit_s: float | None = None
    ) -> "tuple[RowProgram, Future[ServiceAnswer]]":
        """Ask a device for the answer to one row; gives the program that computes it, too.

        Parameters
        ----------
        name
            Of the service.
        device
            The entrance.
        inputs
            Each [1, ...].
        limit_s
            Of its own, if it is shorter than the service's.

        Raises
        ------
        NotServed
            That device is no entrance of it.
        UserError
            An input has another shape than the model was traced with.
        """
        program = self.program(name, device)
        feeds = program.feeds(inputs)
        granted = {value: (dtype, shape) for value, dtype, shape in program.inputs}
        for value, raw in feeds.items():
            if granted[value] != (raw.dtype, raw.shape):
                raise UserError(
                    f"{name}: an entrance takes {granted[value]}, got {(raw.dtype, raw.shape)}.",
                    next_step="Ask the service itself.",
                )
        standing = self._granted[name]
        request = AskService(
            device=device,
            service=standing.service,
            left_s=min(standing.limit_s, limit_s or standing.limit_s),
            feeds=feeds,
            expects=program.expects,
        )
        answer: Future[ServiceAnswer] = self._link.ask(request)
        return program, answer

    def program(self, name: str, device: str) -> RowProgram:
        """What a device computes of it.

        Parameters
        ----------
        name
            Of the service.
        device
            The entrance.

        Raises
        ------
        NotServed
            That device is no entrance of it.
        """
        standing = self._granted.get(name)
        if standing is None or device not in standing.programs:
            known = ", ".join(standing.programs) if standing is not None else ""
            raise NotServed(
                f"{name}: {device} is no entrance of it.",
                next_step=f"Ask at {known}." if known else "Ask the service itself.",
                reason="no entrance",
                limit_s=standing.limit_s if standing is not None else None,
                soonest_s=None,
            )
        return standing.programs[device]

    def _can(self, device: str) -> bool:
        return device in self._members and self._members[device].speaks(GRANTS)

    def _revoke(self, device: str, service: str) -> None:
        if self._link.connected(device):
            self._say(device, (GrantService(service=service), (b"{}",)))

    def _say(self, device: str, payload: Payload) -> None:
        """A device that is lost meanwhile has nothing to be granted."""
        with suppress(PotluckError):
            self._link.ask(RequestAll(requests={device: payload})).result()
