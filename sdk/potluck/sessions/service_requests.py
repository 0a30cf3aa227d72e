"""Requests that devices were asked as entrances of services: where each is, and what it brings.
Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from potluck.errors import PotluckError
from potluck.sessions import failures
from potluck.sessions.events import Action, AskService, Reject, Resolve, ServiceAnswer
from potluck.sessions.expected_values import ExpectedValues, HeldValues
from potluck.sessions.pending_records import Peer
from potluck.sessions.traffic import Envelope, Place, Raw
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import ANSWER, ASK
from potluck_wire.messages import Ask, AskEnded, Rejected, Value
from potluck_wire.request_handler import is_route

ANSWER_GRACE_S = 10.0  # after its time is over, in which a device says so itself


@dataclass(slots=True)
class _Open:
    event: AskService
    until_s: float
    expected: ExpectedValues
    outputs: dict[str, Raw] = field(default_factory=dict)


class ServiceRequests:
    """All of one notebook, by device and number. No number is used twice."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], _Open] = {}
        self._n_asked = 0

    def begin(self, event: AskService, peer: Peer, now_s: float) -> list[Envelope]:
        """One more; returns what may go out now."""
        self._n_asked += 1
        number = self._n_asked
        until_s = now_s + event.left_s + event.grace_s + ANSWER_GRACE_S
        self._open[event.device, number] = _Open(event, until_s, peer.expected)
        peer.expected.expect(_answer(number), event.expects)
        ask = Ask(
            number=number,
            service=event.service,
            left_s=event.left_s,
            rows=event.rows,
            grace_s=event.grace_s,
        )
        envelopes: list[Envelope] = [(ask, ())]
        for name, raw in event.feeds.items():
            envelopes += peer.traffic.send(("", 0, ASK, number), name, raw)
        return envelopes

    def arrived(self, device: str, number: int, name: str, raw: Raw) -> None:
        """An output is here."""
        if (known := self._open.get((device, number))) is not None:
            known.outputs[name] = raw

    def ended(self, device: str, message: AskEnded) -> list[Action]:
        """A device says how one went. WireError where that cannot be."""
        _check(device, message)
        known = self._open.get((device, message.number))
        if known is None:  # nobody waits for it any more
            return []
        if not message.code and known.outputs.keys() != known.event.expects.keys():
            raise WireError(WireCode.STATE, "a request that is answered without its outputs")
        self._end(device, message.number)
        ticket = known.event.ticket
        if message.code:
            return [Reject(ticket=ticket, error=failures.not_answered(device, message))]
        answer = ServiceAnswer(outputs=known.outputs, path=message.path, hops_s=message.hops_s)
        return [Resolve(ticket=ticket, result=answer)]

    def rejected(self, device: str, value: Value, rejection: Rejected) -> list[Action]:
        """A device does not take an input of one: so it is not answered."""
        if value.run or value.program != ASK or (device, value.step) not in self._open:
            return []
        ticket = self._end(device, value.step).event.ticket
        ended = AskEnded(code=rejection.code, text=rejection.text, path=(device,))
        return [Reject(ticket=ticket, error=failures.not_answered(device, ended))]

    def held(self, device: str) -> HeldValues:
        """Bytes of outputs of a device that are here whole, and those that it may send."""
        of_it = [known for (asked, _), known in self._open.items() if asked == device]
        here_bytes = sum(len(raw.data) for known in of_it for raw in known.outputs.values())
        return HeldValues(here_bytes, sum(sum(each.event.expects.values()) for each in of_it))

    def cancel(self, ticket: int) -> None:
        """Nobody waits for it any more."""
        for device, number in [key for key, x in self._open.items() if x.event.ticket == ticket]:
            self._end(device, number)

    def lose(self, device: str, error: PotluckError) -> list[Action]:
        """The device is gone, and what it was asked."""
        return self._reject([key for key in self._open if key[0] == device], {device: error})

    def late(self, now_s: float) -> list[Action]:
        """Those that a device should have said something about by now."""
        late = [key for key, known in self._open.items() if now_s > known.until_s]
        return self._reject(late, {key[0]: failures.unanswered(key[0]) for key in late})

    def _reject(
        self, keys: list[tuple[str, int]], errors: Mapping[str, PotluckError]
    ) -> list[Action]:
        return [Reject(ticket=self._end(*key).event.ticket, error=errors[key[0]]) for key in keys]

    def _end(self, device: str, number: int) -> _Open:
        known = self._open.pop((device, number))
        known.expected.end(_answer(number))
        return known


def _answer(number: int) -> Place:
    return ("", 0, ANSWER, number)


def _check(device: str, message: AskEnded) -> None:
    path, hops_s = message.path, message.hops_s
    if not is_route(path, device):
        raise WireError(WireCode.FIELD, "a path that cannot be")
    if len(hops_s) != len(path) or min(hops_s) < 0:
        raise WireError(WireCode.FIELD, "times that cannot be")
