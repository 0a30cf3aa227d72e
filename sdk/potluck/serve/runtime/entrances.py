"""Devices as entrances: each that has a service may be asked for it, and hands requests on to the
others that have it. Batches of the home go there, too: every device decides by one function,
whoever asks it.

The notebook grants that, for a time, and need not be there when they do. A grant is made when a
service is placed, made anew when it moves, and renewed while it is served; with its model it is
gone.

Where several devices share a model, the first of them is the entrance. Each is granted to ask the
next one for what later ones compute: a service of its own.
"""

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from potluck import units
from potluck.errors import NotServed, PotluckError, ProtocolError, UserError, WorkerFailed
from potluck.run.tensors import padded
from potluck.serve.runtime.argument_checks import own_limit_s
from potluck.serve.runtime.loaded_model import BatchProgram, Computing, Loaded
from potluck.serve.scheduling.records import BatchTimes
from potluck.sessions.events import AskService, Payload, RequestAll, ServiceAnswer
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Members
from potluck_wire.documents import dump
from potluck_wire.limits import MAX_ASKS_PER_S, MAX_LIMIT_S, MIN_RUN_S
from potluck_wire.messages import FailureCause, GrantService, RefusalCode
from potluck_wire.version import ASK_ROWS, GRANTS, PARTS

if TYPE_CHECKING:
    import torch

    from potluck.graph.traced import Type

GRANT_S = 60.0  # that a grant is for: so long members may still ask each other without a notebook
RENEW_S = 20.0  # between renewals
# why a device does not answer that has a model no more, or not the one that was asked for
PLACED_ANEW = (RefusalCode.NOT_GRANTED, RefusalCode.UNKNOWN_RUN, FailureCause.CANCELLED)


GrantName = tuple[str, str]  # the device that has it, and the service's name there


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
    """A service on the devices that may be asked for it: their programs, the smallest first, and
    what they, and those that they ask for a part, were told.
    """

    service: str
    limit_s: float
    programs: Mapping[str, tuple[BatchProgram, ...]]
    told: Mapping[GrantName, Payload]


class AskedRows:
    """Rows that a device was asked for as an entrance.

    Parameters
    ----------
    program
        What answers them.
    types
        Of what it answers, by name.
    wanted
        How many of its rows.
    answer
        What the device says.
    devices
        Those that may have computed it, the one that was asked first.
    """

    def __init__(
        self,
        program: BatchProgram,
        types: "Mapping[str, Type]",
        wanted: int,
        answer: "Future[ServiceAnswer]",
        devices: Sequence[str],
    ) -> None:
        self._program, self._types = program, types
        self._wanted = wanted
        self._answer, self._known = answer, devices

    def on_done(self, callback: "Callable[[Future[Any]], None]") -> None:
        """Call this once it has ended, well or not: in the link's thread, must be quick."""
        self._answer.add_done_callback(callback)

    def wait(self) -> "list[torch.Tensor]":
        """Wait for the outputs, in order; each [rows x k, ...].

        Raises
        ------
        NotServed
            It was refused, or came as no output from one of several who had it.
        RequestFailed
            An operator failed over these values.
        PotluckError
            A device was lost, or sent what is no output.
        """
        found = self._answer.result()
        try:
            return self._program.outputs(found.outputs, self._types, self._wanted)
        except ProtocolError as error:
            if len(found.path) == 1 or len(self._program.parts) > 1:
                raise
            # who passes an answer on does not know its type, and may be honest
            way = ", ".join(found.path)
            text = f"{way}: one of them sent what is no output ({error})."
            raise _refusal(text, RefusalCode.STATE) from error

    @property
    def devices(self) -> tuple[str, ...]:
        """Who computed them: the last one that had them, as far as it can have been that; where
        several share the model, all of these.
        """
        last = self._answer.result().path[-1]
        if len(self._program.parts) > 1:
            return self._program.devices
        return (last,) if last in self._known else (self._known[0],)

    def routed(self, answer: "Callable[[list[torch.Tensor]], Any]") -> RoutedAnswer:
        """Wait for it, with where it was.

        Parameters
        ----------
        answer
            Makes what the caller gets of the outputs.

        Raises
        ------
        NotServed
            It was refused; or its device has the model no more, which the home has placed anew.
        PotluckError
            As for `wait`.
        """
        try:
            outputs, found = self.wait(), self._answer.result()
        except WorkerFailed as error:
            if error.facts.get("cause") not in PLACED_ANEW:
                raise
            text = f"{error.device}: the home has placed its services anew."
            raise _refusal(text, RefusalCode.UNKNOWN_RUN) from error
        return RoutedAnswer(answer(outputs), found.path, found.hops_s)


def _refusal(text: str, reason: str) -> NotServed:
    step = "Ask again, or another device."
    return NotServed(text, next_step=step, reason=reason, limit_s=None, soonest_s=None)


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
        self._granting = threading.RLock()

    def grant(self, name: str, limit_s: float, placed: Sequence[tuple[Loaded, BatchTimes]]) -> None:
        """Let the devices that have a service ask each other for it, and nobody else.

        Parameters
        ----------
        name
            Of the service.
        limit_s
            Within which it answers.
        placed
            What is loaded of it, and how long batches take there; none larger than was measured is
            granted.
        """
        limit_s = min(limit_s, MAX_LIMIT_S)
        sizes = {
            loaded.devices[0]: found
            for loaded, times in placed
            if (found := self._grantable(loaded, times, limit_s))
        }
        with self._granting:
            before = self._granted.get(name)
            service = before.service if before else f"service-{uuid.uuid4().hex[:12]}"
            told: dict[GrantName, Payload] = {}
            for device in sizes:
                parts = _payloads(service, limit_s, device, sizes, self._speaks(device, ASK_ROWS))
                if all(self._say(where, payload) for (where, _), payload in parts.items()):
                    told |= parts
            programs = {
                device: tuple(program for program, _ in found)
                for device, found in sizes.items()
                if (device, service) in told
            }
            self._granted[name] = GrantedService(
                service=service, limit_s=limit_s, programs=programs, told=told
            )
            for gone in (before.told if before else {}).keys() - told.keys():
                self._revoke(*gone)

    def _grantable(
        self, loaded: Loaded, times: BatchTimes, limit_s: float
    ) -> "list[tuple[BatchProgram, float]]":
        """The programs that its first device may be asked for, with the seconds of each."""
        feature = PARTS if len(loaded.devices) > 1 else GRANTS
        several = self._speaks(loaded.devices[0], ASK_ROWS)
        is_known = all(self._speaks(device, feature) for device in loaded.devices)
        programs = loaded.batch_programs() if is_known else ()
        if not programs or programs[0].rows > 1 or _grantable_s(times, 1) > limit_s:
            return []
        return [
            (each, _grantable_s(times, each.rows))
            for each in programs
            if each.rows == 1 or (several and each.rows <= times.items[-1])
        ]

    def renew(self) -> None:
        """All that is granted is so for as long again."""
        with self._granting:
            for standing in self._granted.values():
                for (device, _), payload in standing.told.items():
                    if self._link.connected(device):
                        self._say(device, payload)

    def revoke(self, name: str) -> None:
        """Nobody asks for it any more.

        Parameters
        ----------
        name
            Of the service.
        """
        with self._granting:
            if (standing := self._granted.pop(name, None)) is not None:
                for granted in standing.told:
                    self._revoke(*granted)

    def compute(
        self, name: str, loaded: Loaded, inputs: "Sequence[torch.Tensor]", rows: int, left_s: float
    ) -> Computing:
        """Have a batch answered by a device that has the service, as its entrance; over several
        devices as it is loaded, which is the shorter way, and so with inputs of many lengths.

        Parameters
        ----------
        name
            Of the service.
        loaded
            Where.
        inputs
            Each [rows, ...].
        rows
            How many.
        left_s
            Until the last of them must be answered.

        Raises
        ------
        PotluckError
            It cannot be asked.
        """
        standing = self._granted.get(name)
        programs = standing.programs.get(loaded.devices[0], ()) if standing is not None else ()
        program = next((each for each in programs if each.rows >= rows), None)
        is_other = program is None or program.run != loaded.run
        if standing is None or program is None or is_other or len(program.parts) > 1:
            return loaded.ask(inputs, rows)
        # a batch that is begun is ended, so that no other waits behind it
        grace_s = standing.limit_s
        return self._ask(standing, loaded.devices[0], program, inputs, rows, left_s, grace_s)

    def ask(
        self, name: str, device: str, inputs: "Sequence[torch.Tensor]", limit_s: float | None = None
    ) -> AskedRows:
        """Ask a device for the answer to some rows.

        Parameters
        ----------
        name
            Of the service.
        device
            The entrance.
        inputs
            Each [rows, ...].
        limit_s
            Of its own, if it is shorter than the service's.

        Raises
        ------
        NotServed
            That device is no entrance of it.
        UserError
            It takes fewer rows at once, or that is no limit.
        """
        programs, rows = self.programs(name, device), inputs[0].shape[0]
        program = next((each for each in programs if each.rows >= rows), None)
        if program is None:
            most = units.number(programs[-1].rows, "row")
            raise UserError(
                f"{name}: {device} takes {most} at once, got {rows}.",
                next_step="Ask for fewer at a time, or the service itself.",
            )
        standing = self._granted[name]
        left_s = own_limit_s(limit_s, standing.limit_s)
        return self._ask(standing, device, program, inputs, rows, left_s)

    def _ask(
        self,
        standing: GrantedService,
        device: str,
        program: BatchProgram,
        inputs: "Sequence[torch.Tensor]",
        rows: int,
        left_s: float,
        grace_s: float = 0.0,
    ) -> AskedRows:
        whole = [padded(each, program.rows) for each in inputs]
        request = AskService(
            device=device,
            service=standing.service,
            left_s=max(0.0, min(standing.limit_s, left_s)),
            rows=program.rows,
            grace_s=grace_s,
            feeds=program.feeds(whole),
            expects=program.expects,
        )
        answer: Future[ServiceAnswer] = self._link.ask(request)
        devices = {d: None for each in standing.programs.values() for d in each[0].devices}
        known = dict.fromkeys((device, *devices))
        return AskedRows(program, program.types(whole), rows, answer, tuple(known))

    def programs(self, name: str, device: str) -> tuple[BatchProgram, ...]:
        """What a device computes of it, the smallest first.

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

    def _speaks(self, device: str, feature: tuple[int, int]) -> bool:
        return device in self._members and self._members[device].speaks(feature)

    def _revoke(self, device: str, service: str) -> None:
        if self._link.connected(device):
            self._say(device, (GrantService(service=service), (b"{}",)))

    def _say(self, device: str, payload: Payload) -> bool:
        """Whether it has heard; one that is lost meanwhile has nothing to be granted."""
        try:
            self._link.ask(RequestAll(requests={device: payload})).result()
        except PotluckError:
            return False
        return True


Sizes = Mapping[str, Sequence[tuple[BatchProgram, float]]]  # by device, with the seconds of each


def _grantable_s(times: BatchTimes, rows: int) -> float:
    return max(MIN_RUN_S, times.at(rows))


def _payloads(
    service: str, limit_s: float, device: str, sizes: Sizes, takes_rows: bool
) -> dict[GrantName, Payload]:
    """What a device is told of a service: what answers there, and what its others may; and before,
    what those are told that have a part of it, the last one first.
    """
    (one, run_s), *_ = sizes[device]
    others: list[Mapping[str, Any]] = []
    for other, programs in sizes.items():
        if other != device:
            peer = {"name": other, "asks_per_s": 1 / run_s, "hands_on": True}
            rows = {"rows": programs[-1][0].rows} if takes_rows else {}
            others.append({**peer, **rows})
    # all of them are at work at once, each for another request; what the first one takes comes at
    # once, as much as ends within the limit: more than a second's where the limit is longer
    asks_per_s = min(MAX_ASKS_PER_S, len(one.parts) / run_s * max(1.0, limit_s))
    before: list[Mapping[str, Any]] = [
        {"name": name, "asks_per_s": asks_per_s, "hands_on": False} for name in one.devices
    ]
    peers: list[list[Mapping[str, Any]]] = [others, *([asker] for asker in before)]
    names = [service, *(f"{service}-{number}" for number in range(1, len(one.parts)))]
    return {
        (part.device, names[number]): _payload(
            names, number, limit_s, sizes[device], peers[number], takes_rows
        )
        for number, part in reversed([*enumerate(one.parts)])
    }


def _payload(
    names: Sequence[str],
    number: int,
    limit_s: float,
    sizes: Sequence[tuple[BatchProgram, float]],
    peers: Sequence[Mapping[str, Any]],
    takes_rows: bool,
) -> Payload:
    """What is told of a part of these programs. How their seconds are divided is not known: each
    part is taken to have as many.
    """
    left_frac = 1 - number / len(names)
    (one, run_s), *larger = [(each, max(MIN_RUN_S, left_frac * s)) for each, s in sizes]
    document: dict[str, Any] = {**_part(one, names, number), "peers": peers}
    if takes_rows:
        document["sizes"] = [
            {"rows": each.rows, "program": each.name, "run_s": s, **_part(each, names, number)}
            for each, s in larger
        ]
    message = GrantService(
        service=names[number],
        run=one.run,
        epoch=one.epoch,
        program=one.name,
        run_s=run_s,
        limit_s=limit_s,
        lasts_s=GRANT_S,
    )
    return message, (dump(document),)


def _part(program: BatchProgram, names: Sequence[str], number: int) -> dict[str, Any]:
    """The inputs of a part, who has the earlier ones, and who has what later ones compute."""
    before, (part, *after) = program.parts[:number], program.parts[number:]
    inputs = [
        {"name": value, "dtype": dtype, "shape": list(shape)} for value, dtype, shape in part.inputs
    ]
    document: dict[str, Any] = {"inputs": inputs}
    if before:
        document["before"] = [each.device for each in before]
    if after:
        document["then"] = {
            "peer": after[0].device,
            "service": names[number + 1],
            "devices": [each.device for each in after],
            "inputs": [name for name, *_ in after[0].inputs],
            "outputs": list(after[0].outputs),
        }
    return document
