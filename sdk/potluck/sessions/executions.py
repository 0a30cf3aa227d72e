"""The executions under way: which are on a device, which may begin, and what their devices may send
home. Pure.
"""

from collections.abc import Callable, Iterator, Mapping

from potluck.sessions.events import FeedExecution, StartExecution
from potluck.sessions.expected_values import HeldValues
from potluck.sessions.pending_records import Launched, Peer, startable
from potluck.sessions.traffic import Place, Raw, Traffic, place_of
from potluck_wire.limits import HUNG_S
from potluck_wire.messages import Value

# before a program has ended once nobody knows what is usual: the first one of a big model takes
# time, as do many rows after few
FIRST_HUNG_S = 60.0
KEPT_PROGRAMS = 256  # of which it is known how long they take


class Executions:
    """All of one notebook, oldest first."""

    def __init__(self, peers: Mapping[str, Peer]) -> None:
        self._peers = peers
        self._launched: dict[int, Launched] = {}  # by ticket
        # the longest of each program so far, by run, epoch and name; the latest come last
        self._usual_s: dict[tuple[str, int, str], float] = {}

    def __iter__(self) -> Iterator[Launched]:
        """As they are now: ending one while going through them is fine."""
        return iter(tuple(self._launched.values()))

    def begin(self, launch: StartExecution, now_s: float) -> Launched:
        """One more; its devices may send what it expects of them."""
        values = {(device, name) for device, names in launch.expects.items() for name in names}
        alone = not any(other.launch.request and other.launch.run == launch.run for other in self)
        launched = Launched(
            launch,
            now_s,
            values,
            list(launch.devices),
            is_fed=not launch.follows,
            ordered=launch.together and alone,
        )
        self._launched[launch.ticket] = launched
        for device in launch.devices:
            self._peers[device].expected.expect(launched.place, launch.expects.get(device, {}))
        return launched

    def through(self, launched: Launched, now_s: float) -> None:
        """A device is through with it: so long its program may take."""
        program = launched.place[:3]
        usual_s = self._usual_s.pop(program, 0.0)
        self._usual_s[program] = max(usual_s, now_s - launched.start_s)
        if len(self._usual_s) > KEPT_PROGRAMS:
            del self._usual_s[next(iter(self._usual_s))]

    def hung(self, device: str, still_s: float) -> list[Launched]:
        """Those that a device is at, where it has made no progress for too long: longer than each
        of them gives it time.
        """
        busy = [launched for launched in self.on(device) if launched.occupies(device)]
        return busy if busy and still_s > max(map(self._patience_s, busy)) else []

    def _patience_s(self, launched: Launched) -> float:
        usual_s = self._usual_s.get(launched.place[:3])
        return FIRST_HUNG_S if usual_s is None else max(HUNG_S, 3 * usual_s)

    def end(self, launched: Launched) -> bool:
        """It is over; False where it was before."""
        if self._launched.pop(launched.launch.ticket, None) is None:
            return False
        for device in launched.launch.devices:
            if device in self._peers:
                self._peers[device].expected.end(launched.place)
        return True

    def of(self, ticket: int) -> Launched | None:
        """The one that has this ticket."""
        return self._launched.get(ticket)

    def on(self, device: str, where: tuple[str, int] | None = None) -> list[Launched]:
        """Those that a device takes part in, of any run or of this run and epoch."""
        return [x for x in self if device in x.launch.devices and where in (None, x.place[:2])]

    def at(self, device: str, place: Place) -> Launched | None:
        """The one of that program and step."""
        return next((launched for launched in self.on(device) if launched.place == place), None)

    def fed(self, event: FeedExecution) -> None:
        """One more value was sent from here, perhaps the last one."""
        launched = self.at(event.device, event.place)
        if launched is not None and event.is_last:
            launched.is_fed = True

    def arrived(self, device: str, value: Value, raw: Raw) -> Launched | None:
        """A value has come; the execution that waited for it."""
        launched = self.at(device, place_of(value))
        if launched is None or (device, value.name) not in launched.waiting_values:
            return None
        launched.waiting_values.discard((device, value.name))
        launched.outputs[device, value.name] = raw
        return launched

    def spared(self, device: str, traffic: Traffic) -> None:
        """Count what a device had of what it was offered."""
        while traffic.spared:
            value = traffic.spared.pop()
            if (launched := self.at(device, place_of(value))) is not None:
                launched.kept_bytes += value.nbytes

    def still(self, hung: list[Launched], device: str, now_s: float) -> list[str]:
        """The other devices of these executions that make no progress either, for about as long."""
        others = {name for launched in hung for name in launched.launch.devices} - {device}
        return sorted(
            name
            for name in others & self._peers.keys()
            if self._peers[name].pulse.still_s(now_s) > HUNG_S / 2
        )

    def held(self, asked: Callable[[str], HeldValues]) -> dict[str, HeldValues]:
        """By device, how much is held of its values, and how much may be.

        `asked(device)`: the same of the services that it was asked for.
        """
        found = {}
        for device, peer in self._peers.items():
            here_bytes, expected_bytes = asked(device)
            here_bytes += peer.traffic.held_bytes + self.arrived_bytes(device)
            found[device] = HeldValues(here_bytes, expected_bytes + self.expected_bytes(device))
        return found

    def expected_bytes(self, device: str) -> int:
        """Of the values that a device may send home."""
        return sum(sum(x.launch.expects.get(device, {}).values()) for x in self.on(device))

    def arrived_bytes(self, device: str) -> int:
        """Of the values that it has sent, in executions that are not over."""
        outputs = [output for x in self.on(device) for output in x.outputs.items()]
        return sum(len(raw.data) for (at, _), raw in outputs if at == device)

    def startable(self) -> list[tuple[Launched, str, Launched | None]]:
        """Which may begin on which devices, and behind which other."""
        return startable(tuple(self), self._peers)
