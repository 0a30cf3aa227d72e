"""The notebook's side of every session as a state machine: `handle(event, now_s)` returns what to
do. No sockets, no clock, no threads.

One `RequestAll` asks many devices one thing each (prepare, commit, drop, measure); one
`StartExecution` executes one step on all of them, with values going out and coming back. Whatever
fails on one device fails the whole with that device's name.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from potluck.errors import DeviceGone, PotluckError, ProtocolError
from potluck.sessions import failures
from potluck.sessions.events import (
    Action,
    ActUnder,
    AskService,
    CancelExecution,
    CloseSession,
    Connect,
    ConnectionLost,
    Disconnect,
    Event,
    FeedExecution,
    Notification,
    OpenSession,
    Received,
    Reject,
    RequestAll,
    Resolve,
    Send,
    Session,
    StartExecution,
    Tick,
    UplinkProbe,
)
from potluck.sessions.executions import Executions
from potluck.sessions.expected_values import ExpectedValues, HeldValues
from potluck.sessions.heartbeat import Heartbeat
from potluck.sessions.indirect_probes import DOUBT_S, UNREACHED_S, Suspicions
from potluck.sessions.peer_texts import legible, read_statement
from potluck.sessions.pending_records import Launched, Peer, is_over, read_timeline
from potluck.sessions.pending_requests import PendingRequests
from potluck.sessions.service_requests import ServiceRequests
from potluck.sessions.traffic import OF_VALUES, Envelope, Place, Raw, Traffic, place_of
from potluck_wire.errors import WireError
from potluck_wire.limits import ANSWER, PROBE, PULSE_S
from potluck_wire.messages import (
    MESSAGES,
    NUMBER_OF,
    AskEnded,
    Available,
    Channel,
    Done,
    Drop,
    Execute,
    Failed,
    FailureCause,
    Goodbye,
    Hello,
    Leaving,
    Message,
    Pong,
    Prepare,
    Probe,
    Probed,
    Reading,
    RefusalCode,
    Refused,
    Staying,
    Value,
    Welcome,
)
from potluck_wire.program import MAX_INSTRUCTIONS
from potluck_wire.replies import check_clock
from potluck_wire.session import AGENT, SessionState, check
from potluck_wire.version import VERSION

JOIN_S = 5.0  # to the first pong; the welcome may take longer, as the agent first starts its worker
WELCOME_S = 150.0  # from then on: an agent gives its worker up after two minutes, and says so
# a device reports a lost neighbour; the neighbour's own end is noticed within this, and named
PEER_LOST_GRACE_S = 1.0
OWED_S = 30.0  # a chunk of 2 MiB takes 17 s on a link of 1 Mbit/s


class Controller:
    """All sessions of one notebook, which introduces itself to the agents by `name`."""

    def __init__(self, name: str = "notebook") -> None:
        self._name = name
        self._peers: dict[str, Peer] = {}
        self._pending = PendingRequests()
        self._executions = Executions(self._peers)
        self._suspicions = Suspicions()
        self._asks = ServiceRequests()
        self._met: set[str] = set()  # the keys of devices that have heard of it
        self._gone: dict[str, PotluckError] = {}  # why a device's last session ended
        self._now_s = self._ticked_s = 0.0
        self._actions: list[Action] = []
        self._under = ActUnder(lease="", term=0)

    def session(self, device: str) -> Session | None:
        """The open session with a device."""
        return peer.session if (peer := self._peers.get(device)) else None

    def held(self) -> dict[str, HeldValues]:
        """By device, how much is held of its values, and how much may be."""
        return self._executions.held(self._asks.held)

    # --- events -----------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Take in one event; returns what to do, in order."""
        self._now_s = now_s
        match event:
            case Received():
                self._receive(event)
            case StartExecution():
                self._start(event)
            case FeedExecution():
                self._feed(event.device, event.place, event.name, event.raw)
                self._executions.fed(event)
            case RequestAll():
                self._request_all(event)
            case AskService():
                self._ask(event)
            case UplinkProbe():
                self._probe_uplink(event)
            case OpenSession():
                self._join(event)
            case CloseSession():
                self._leave(event.device)
            case CancelExecution():
                self._cancel(event.ticket)
            case ConnectionLost():
                self._lose(event.device, event.error)
            case ActUnder():
                self._under = event
            case Tick():
                self._tick()
        return self._taken()

    def _taken(self) -> list[Action]:
        taken, self._actions = self._actions, []
        return taken

    def survive(self, event: Event, error: Exception, now_s: float) -> list[Action]:
        """The last line of defence: this event raised what nothing may raise. Whoever it came from
        is given up: a device loses its session, a ticket is rejected; what came from nobody costs
        every session."""
        self._now_s = now_s
        text = (
            f"what it led to could not be handled ({type(error).__name__}); this is a fault of "
            "potluck's."
        )
        if isinstance(event, OpenSession | RequestAll | UplinkProbe | StartExecution | AskService):
            self._actions.append(Reject(ticket=event.ticket, error=ProtocolError(text)))
            self._cancel(event.ticket)
        device = getattr(event, "device", "")
        for lost in (device,) if device else () if hasattr(event, "ticket") else tuple(self._peers):
            self._lose(lost, ProtocolError(text, device=lost))
        return self._taken()

    def _join(self, event: OpenSession) -> None:
        if event.device in self._peers:
            self._lose(
                event.device, DeviceGone("the connection was made anew.", device=event.device)
            )
        self._gone.pop(event.device, None)
        expected = ExpectedValues()
        self._peers[event.device] = Peer(
            address=event.address,
            key=event.key,
            join_ticket=event.ticket,
            deadline_s=self._now_s + JOIN_S,
            expected=expected,
            traffic=Traffic(expected.code),
            pulse=Heartbeat(self._now_s),
        )
        self._actions.append(Connect(device=event.device, address=event.address, key=event.key))
        if event.key not in self._met:  # runs of a process that had this notebook's key end
            self._met.add(event.key)
            self._send(event.device, Goodbye(reason="a new notebook begins"))
        self._send(event.device, Hello(major=VERSION[0], minor=VERSION[1], name=self._name))

    def _leave(self, device: str) -> None:
        if device in self._peers:
            self._send(device, Goodbye(reason="closed"))
            self._lose(device, DeviceGone("this notebook closed the connection.", device=device))

    def _is_missing(self, ticket: int, devices: Iterable[str]) -> bool:
        """Whether one of them is not there; then that is the answer, and why it went."""
        for device in devices:
            if self.session(device) is None:
                self._actions.append(
                    Reject(ticket=ticket, error=self._gone.get(device) or failures.gone(device))
                )
                return True
        return False

    def _request_all(self, event: RequestAll) -> None:
        if self._is_missing(event.ticket, event.requests):
            return
        for device, (message, buffers) in event.requests.items():
            self._send(device, message, buffers)
            match message:
                case Drop():
                    self._drop(device, message)
                case Probe():
                    self._peers[device].expected.probe(message)
        self._actions += self._pending.ask(event.ticket, event.requests)

    def _ask(self, event: AskService) -> None:
        if not self._is_missing(event.ticket, [event.device]):
            peer = self._peers[event.device]
            self._post(event.device, self._asks.begin(event, peer, self._now_s))

    def _drop(self, device: str, message: Drop) -> None:
        self._post(device, self._peers[device].traffic.drop(message.run, message.epoch))
        dropped = failures.dropped(device)
        self._actions += self._pending.give_up(device, dropped, partial(is_over, message))
        over = [x for x in self._executions.on(device) if is_over(message, x.launch)]
        self._fail_all(over, dropped)

    def _probe_uplink(self, event: UplinkProbe) -> None:
        if self._is_missing(event.ticket, [event.device]):
            return
        self._pending.probe(event.ticket, event.device, self._now_s)
        traffic = self._peers[event.device].traffic
        self._post(event.device, traffic.probe(event.ticket, event.nbytes))

    def _start(self, event: StartExecution) -> None:
        if self._is_missing(event.ticket, event.devices):
            return
        launched = self._executions.begin(event, self._now_s)
        self._start_ready()
        for device, feeds in event.feeds.items():
            for name, raw in feeds.items():
                self._feed(device, launched.place, name, raw)

    def _feed(self, device: str, place: Place, name: str, raw: Raw) -> None:
        if self._executions.at(device, place) is not None:
            self._post(device, self._peers[device].traffic.send(place, name, raw))

    def _start_ready(self) -> None:
        for launched, device, ahead in self._executions.startable():
            launched.to_start.remove(device)
            launched.running.add(device)
            self._send(device, launched.order(ahead, self._peers[device], self._now_s))

    def _cancel(self, ticket: int) -> None:
        self._pending.cancel(ticket)
        self._asks.cancel(ticket)
        if launched := self._executions.of(ticket):
            self._executions.end(launched)
            self._fail(launched.launch, failures.dropped())

    # --- messages ---------------------------------------------------------------------------------

    def _receive(self, event: Received) -> None:
        if (peer := self._peers.get(event.device)) is None:
            return
        peer.pulse.receive(self._now_s)
        self._suspicions.end(event.device)
        try:
            self._take_in(event, peer, legible(event.message))
        except WireError as error:  # the one answer to whatever an agent says that does not hold
            self._lose(event.device, failures.broke(event.device, error))

    def _take_in(self, event: Received, peer: Peer, message: Message) -> None:
        match message:
            case Pong():
                check_clock(message.clock_s)
                peer.pulse.pong(message, self._now_s)
            case _ if type(message) in OF_VALUES:
                self._receive_data(event.device, peer, message, event.buffers)
            case AskEnded():
                self._actions += self._asks.ended(event.device, message)
            case _:
                self._receive_control(event, peer, message)

    def _receive_control(self, event: Received, peer: Peer, message: Message) -> None:
        check(SessionState.OPENING if peer.session is None else SessionState.OPEN, message, AGENT)
        match message:
            case Done():
                self._done(event.device, message, event.buffers)
            case Failed():
                self._failed(event.device, message)
            case Refused():
                self._refused(event.device, message)
            case Welcome():
                self._welcome(event.device, peer, message, event.buffers)
            case Reading():
                timed = replace(message, at_s=peer.pulse.ours_s(message.at_s, self._now_s))
                self._actions.append(Notification(device=event.device, message=timed))
            case Leaving() | Staying() | Available():
                self._actions.append(Notification(device=event.device, message=message))
            case Goodbye():
                why = f"the agent said goodbye: {failures.clean(message.reason)}."
                self._lose(event.device, DeviceGone(why, device=event.device))
            case _:
                self._actions += self._pending.answered(event.device, message, event.buffers)
                if isinstance(message, Probed):
                    peer.expected.probed(message.task)
                    self._suspicions.answered(event.device, message, self._now_s)

    def _welcome(self, device: str, peer: Peer, message: Welcome, buffers: tuple[Any, ...]) -> None:
        version = message.major, message.minor
        facts = read_statement(buffers[0])
        peer.session = Session(device=device, name=message.name, version=version, capability=facts)
        self._actions.append(Resolve(ticket=peer.join_ticket, result=peer.session))

    def _refused(self, device: str, message: Refused) -> None:
        error = failures.refused(device, message)
        if message.about == NUMBER_OF[Hello]:
            self._lose(device, failures.ended(device, message) if self.session(device) else error)
        elif message.about == NUMBER_OF[Execute]:
            self._fail_all(self._executions.on(device, (message.run, message.epoch)), error)
        else:
            self._actions += self._pending.refused(device, message, error)

    def _receive_data(
        self, device: str, peer: Peer, message: Message, buffers: tuple[Any, ...]
    ) -> None:
        n_taken = peer.traffic.n_taken
        envelopes, arrived = peer.traffic.receive(message, buffers)
        if peer.traffic.n_taken > n_taken:
            peer.owes_s = 0.0
        self._post(device, envelopes)
        while peer.traffic.probed:
            self._actions += self._pending.probed(peer.traffic.probed.pop(), self._now_s)
        for value, raw in arrived:
            if value.program == ANSWER and not value.run:
                self._asks.arrived(device, value.step, value.name, raw)
            if (launched := self._executions.arrived(device, value, raw)) is not None:
                self._finish(launched)
        self._executions.spared(device, peer.traffic)
        while peer.traffic.rejected:
            value, rejection = peer.traffic.rejected.pop()
            if not value.run and value.program == PROBE:
                refusal = failures.rejected(device, value, rejection)
                self._actions += self._pending.give_up(
                    device, refusal, lambda it: isinstance(it, Value)
                )
            self._actions += self._asks.rejected(device, value, rejection)
            launched = self._executions.at(device, place_of(value))
            if launched is not None and rejection.code != RefusalCode.OLD_EPOCH:
                self._fail(launched.launch, failures.rejected(device, value, rejection))

    def _done(self, device: str, message: Done, buffers: tuple[Any, ...]) -> None:
        launched = self._executions.at(device, place_of(message))
        if launched is None or device in launched.timelines:
            return
        pulse = self._peers[device].pulse
        launched.timelines[device] = read_timeline(
            message,
            buffers[0],
            pulse.offset_s or 0.0,
            launched.launch.instructions.get(device, MAX_INSTRUCTIONS),
        )
        launched.running.discard(device)
        self._executions.through(launched, self._now_s)
        self._finish(launched)
        self._start_ready()

    def _finish(self, launched: Launched) -> None:
        launch = launched.launch
        if launched.waiting_values or len(launched.timelines) < len(launch.devices):
            return
        self._executions.end(launched)
        self._actions.append(Resolve(ticket=launch.ticket, result=launched.execution(self._now_s)))

    # --- failure ----------------------------------------------------------------------------------

    def _failed(self, device: str, message: Failed) -> None:
        launched = self._executions.at(device, place_of(message))
        if launched is None:
            return
        session, alone = self.session(device), launched.ends_alone(message.cause, self._peers)
        memory_bytes = session.capability.get("memory_bytes") if session else None
        error = failures.failed(device, message, memory_bytes, alone=alone)
        if alone:
            self._abort(launched, error)
        # that follows from something else
        elif message.cause in (FailureCause.PEER_LOST, FailureCause.CANCELLED):
            launched.suspicion = launched.suspicion or (self._now_s + PEER_LOST_GRACE_S, error)
        else:
            self._fail(launched.launch, error)

    def _abort(self, launched: Launched, error: PotluckError) -> None:
        """End this execution alone, on every device that is still at it."""
        self._executions.end(launched)
        self._actions.append(Reject(ticket=launched.launch.ticket, error=error))
        for device in launched.launch.devices:
            self._post(device, self._peers[device].traffic.drop(*launched.place))
            if device not in launched.timelines:
                self._send(device, launched.abort())

    def _fail_all(self, failing: list[Launched], error: PotluckError) -> None:
        for launched in failing:
            if self._executions.of(launched.launch.ticket):
                self._fail(launched.launch, error)

    def _fail(self, launch: StartExecution, error: PotluckError) -> None:
        """End every execution of that run and epoch, on every device that is left."""
        devices = dict.fromkeys(launch.devices)
        for other in self._executions:
            if other.place[:2] == (launch.run, launch.epoch):
                self._executions.end(other)
                self._actions.append(Reject(ticket=other.launch.ticket, error=error))
                devices |= dict.fromkeys(other.launch.devices)
        for device in devices:
            if self.session(device) is not None:
                self._post(device, self._peers[device].traffic.drop(launch.run, launch.epoch))
                self._send(device, Drop(run=launch.run, epoch=launch.epoch))

    def _lose(self, device: str, error: PotluckError) -> None:
        peer = self._peers.pop(device, None)
        if peer is None:
            return
        self._suspicions.end(device)
        if peer.session is None:
            self._actions.append(Reject(ticket=peer.join_ticket, error=error))
        else:  # before anybody learns that work has failed: they look at the device next
            self._actions.append(Notification(device=device, message=error))
        self._actions += self._pending.give_up(device, error)
        self._actions += self._asks.lose(device, error)
        self._fail_all(self._executions.on(device), error)
        self._gone[device] = error
        self._actions.append(Disconnect(device=device))

    def _demand(self, device: str, peer: Peer, passed_s: float) -> None:
        """End what a device is done with where a value of it neither comes nor gets on, or the word
        that it is done.
        """
        is_idle = not (peer.pulse.is_busy or peer.traffic.outstanding)
        owing = [
            launched
            for launched in self._executions.on(device)
            if launched.owed_by(device) or (is_idle and launched.waits_only_for(device))
        ]
        peer.owes_s = peer.owes_s + passed_s if owing else 0.0
        if peer.owes_s > OWED_S:
            first = owing[0]
            self._fail_all(
                owing, failures.owing(device, first.launch.step, first.owed_by(device), peer.owes_s)
            )

    def _tick(self) -> None:
        # what is more we ourselves stood still
        passed_s = min(self._now_s - self._ticked_s, PULSE_S)
        self._ticked_s = self._now_s
        for device, peer in tuple(self._peers.items()):
            ping = peer.pulse.tick(self._now_s)
            if ping is not None:
                self._send(device, ping)
            if not peer.pulse.answered:
                if self._now_s > peer.deadline_s:
                    self._lose(device, failures.unreachable(device, str(peer.address)))
                continue
            if peer.session is None and self._now_s > peer.deadline_s + WELCOME_S:
                self._lose(device, failures.mute(device, Hello(), JOIN_S + WELCOME_S))
                continue
            silent_s, still_s = peer.pulse.silent_s(self._now_s), peer.pulse.still_s(self._now_s)
            if silent_s >= DOUBT_S:
                self._doubt(device, silent_s)
            elif peer.pulse.unanswered_s(self._now_s) > UNREACHED_S:
                self._lose(device, failures.deaf(device, UNREACHED_S))
            elif hung := self._executions.hung(device, still_s):
                others = self._executions.still(hung, device, self._now_s)
                self._fail_all(hung, failures.hung(device, still_s, others))
            self._demand(device, peer, passed_s)
        self._actions += self._asks.late(self._now_s)
        for device, question, waited_s in self._pending.pass_time(passed_s):
            self._lose(device, failures.mute(device, question, waited_s))
        for launched in self._executions:
            if launched.suspicion and self._now_s > launched.suspicion[0]:
                self._fail_all([launched], launched.suspicion[1])
        self._start_ready()  # what waited for one that failed

    def _doubt(self, device: str, silent_s: float) -> None:
        """Nothing was heard of it for a while: do others reach it? It is lost where nobody does."""
        if self._suspicions.is_lost(device, silent_s, self._now_s):
            self._lose(device, failures.silent(device, silent_s, self._suspicions.seen_by(device)))
            return
        heard = [
            name
            for name, peer in self._peers.items()
            if peer.session is not None and peer.pulse.silent_s(self._now_s) < DOUBT_S
        ]
        for other, probe in self._suspicions.ask(device, heard, self._now_s):
            self._send(other, probe)

    # --- sending ----------------------------------------------------------------------------------

    def _post(self, device: str, envelopes: list[Envelope]) -> None:
        for message, buffers in envelopes:
            self._send(device, message, buffers)

    def _send(self, device: str, message: Message, buffers: tuple[Any, ...] = ()) -> None:
        channel: Channel = MESSAGES[NUMBER_OF[type(message)]].channel
        if isinstance(message, Prepare):
            message = replace(message, lease=self._under.lease, term=self._under.term)
        self._actions.append(Send(device=device, channel=channel, message=message, buffers=buffers))
