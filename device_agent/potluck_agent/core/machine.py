"""The agent as a pure state machine: `handle(event, now_s) -> [actions]`.

No sockets, clock, threads or files.

It decides who may say what, and hands everything else to its parts. Each notebook has a
`Workspace` with its own `ExecutionEngine` (plans, programs, values), `MeasurementQueue` (layers,
links, power) and `WorkerProxy` (its worker).
"""

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from potluck_agent import fault_log
from potluck_agent.core.asks import AskExchange
from potluck_agent.core.blame import key_of, worker_of
from potluck_agent.core.coordinators import Coordinators
from potluck_agent.core.events import (
    OWNER,
    Action,
    Buffer,
    Event,
    FromDisk,
    FromPeer,
    FromWorker,
    KeepLeases,
    KillWorker,
    LimitWorker,
    LinkReset,
    MayStay,
    MemberLost,
    MustLeave,
    PeerDevice,
    PeerRevoked,
    Report,
    SetMembers,
    StartWorker,
    Store,
    Tick,
    ToPeer,
    ToWorker,
    Undone,
    WorkerDied,
)
from potluck_agent.core.execution import ASKED_STEP
from potluck_agent.core.graceful_leave import GracefulLeave
from potluck_agent.core.greetings import Greetings
from potluck_agent.core.outbox import Outbox, Settings
from potluck_agent.core.resource_usage import ResourceUsage, resource_usage
from potluck_agent.core.rosters import Rosters
from potluck_agent.core.sessions import NotebookSession, state_of, welcomed
from potluck_agent.core.undone_actions import end_of
from potluck_agent.core.value_exchange import ValueExchange
from potluck_agent.core.weight_cache import WeightCache
from potluck_agent.core.worker_proxy import READY, STARTING
from potluck_agent.core.workspaces import Workspace, Workspaces
from potluck_wire.errors import WireError
from potluck_wire.limits import clip
from potluck_wire.messages import (
    MESSAGES,
    NUMBER_OF,
    Abort,
    Channel,
    Chunk,
    Commit,
    Done,
    Drop,
    Execute,
    FailureCause,
    Goodbye,
    GrantService,
    Hello,
    Lease,
    Measure,
    Message,
    Meter,
    Ping,
    Pong,
    Prepare,
    Probe,
    RefusalCode,
    Refused,
    Rejected,
    Roster,
    RosterSet,
    Value,
)
from potluck_wire.session import CONTROLLER, check
from potluck_wire.version import agree


class Core:
    """All that a device does, one event at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._out = settings, Outbox()
        self.n_faults = 0  # events that raised what nothing may raise
        self._last_s: float | None = None
        self._departure = GracefulLeave()
        self._coordinators = Coordinators(settings.leases)
        self._cache = WeightCache(settings.kept_bytes, settings.kept)
        # what the report of a fault tells
        self._latest: deque[fault_log.Remembered] = deque(maxlen=fault_log.N_EVENTS)
        self._set_up()

    def _set_up(self) -> None:
        """Every part as it is when nothing has happened yet."""
        settings, out = self._settings, self._out
        self._sessions: dict[str, NotebookSession] = {}
        self._radio_s = 0.0
        self._workspaces = Workspaces(settings, out, self._members, self._cache)
        self._rosters = Rosters(settings, out, self._sessions, self._workspaces)
        self._greetings = Greetings(
            settings, out, self._sessions, self._workspaces, self._departure
        )
        self._outgoing = self._workspaces.outgoing
        self._asks = AskExchange(settings, out, self._workspaces, self._members, self._departure)
        self._exchange = ValueExchange(settings, out, self._outgoing, self._workspaces, self._asks)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What to do because of this event, in order.

        Where this raises anything, `survive` is the way on.
        """
        self._pass_time(now_s)
        match event:
            case FromPeer():
                self._from_peer(event, now_s)
            case FromWorker():
                self._from_worker(event, now_s)
            case WorkerDied():
                self._lose_worker(event.worker, event.cause, event.text, now_s)
            case PeerRevoked():
                self._end_session(event.key, now_s)
                self._workspaces.distrust(event.key)
            case FromDisk():
                self._workspaces.from_disk(event, now_s)
            case LinkReset():
                self._exchange.reset(event, now_s)
            case MemberLost():
                self._exchange.lose_member(event.key, now_s)
            case Undone():
                self._undone(event, now_s)
            case Tick():
                self._tick(now_s)
            case MustLeave() | MayStay():
                self._departure.receive(self._out, event, welcomed(self._sessions), now_s)
        if self._departure.reason:
            self._end_if_late(now_s)
        if not isinstance(event, Tick):
            self._latest.append(fault_log.remembered(now_s, event))
        return self._go_on(now_s)

    def _go_on(self, now_s: float) -> list[Action]:
        """The workers are fed, what waits is sent; all that is to be done."""
        self._each(Workspace.feed, now_s)
        self._out.add(*self._outgoing.pump(now_s, self._workspaces.starting))
        self._each(Workspace.credit, now_s)
        return self._out.take()

    def _each(self, step: Callable[[Workspace, float], None], now_s: float) -> None:
        """Do this for every notebook, whoever's event it is: what raises there costs that one."""
        for own in self._workspaces:
            try:
                step(own, now_s)
            except Exception as error:
                self.fault(own, error)
                self._give_up_notebook(own.key, error, now_s)

    def wake_s(self) -> float | None:
        """When the next `Tick` is needed, if no event comes first."""
        parts = self._workspaces.wake_s(self._last_s or 0.0), self._outgoing.wake_s()
        times = (*parts, self._asks.wake_s())
        return min((wake_s for wake_s in times if wake_s is not None), default=None)

    @property
    def spent_s(self) -> tuple[float, float]:
        """Seconds of computing and of radio since the agent started."""
        return self._workspaces.busy.total_s, self._radio_s

    def reach(self, key: str) -> None:
        """A notebook's data connection stands: values can go home."""
        self._outgoing.reach(key)

    @property
    def sessions(self) -> Collection[str]:
        """Keys of the notebooks that have a session."""
        return self._sessions.keys()

    def state(self) -> dict[str, Any]:
        """What goes on: the workers and the runs by the keys of their notebooks, the capability
        statement.
        """
        now = {"n_faults": self.n_faults, "statement": self._greetings.statement}
        return {**self._workspaces.state(), **now}

    @property
    def has_left(self) -> bool:
        """Whether it was to leave for good, and has."""
        return self._departure.has_left

    def is_working(self, worker: int = 0) -> bool:
        """Whether the worker of this number owes an answer."""
        workspace = self._workspaces.of_worker(worker)
        return workspace is not None and workspace.worker.is_working

    @property
    def n_old_messages(self) -> int:
        """Messages that were refused because their epoch is over."""
        return sum(each.plans.n_old for each in self._workspaces)

    @property
    def held(self) -> ResourceUsage:
        """What it holds of others' values and orders now."""
        n_sinks, n_asks = self._exchange.n_sinks, len(self._asks)
        return resource_usage(self._workspaces, self._outgoing, n_sinks, n_asks)

    def _pass_time(self, now_s: float) -> None:
        """Count for how long values have been on a link."""
        if self._last_s is not None and (self._outgoing.busy or self._exchange.is_receiving):
            self._radio_s += max(0.0, now_s - self._last_s)
        self._last_s = now_s

    def _members(self, owner: str) -> dict[str, PeerDevice]:
        session = self._sessions.get(owner)
        return session.members if session else {}

    # --- peers ------------------------------------------------------------------------------------

    def _from_peer(self, event: FromPeer, now_s: float) -> None:
        """The one place where it is decided who may say what."""
        key, message = event.sender.key, event.message
        entry = MESSAGES[NUMBER_OF[type(message)]]
        if entry.channel is Channel.DATA:
            if event.sender.role == OWNER:
                self._outgoing.reach(key)
            self._exchange.receive(event.sender, message, event.buffers, now_s)
            return
        if event.sender.role != OWNER:  # a member sends values and nothing else
            return
        session = self._sessions.get(key)
        if session is not None:
            session.heard_s = now_s
        if isinstance(message, Ping):
            own = self._workspaces.get(key)
            progress, busy = (own.progress, own.is_busy) if own is not None else (0, False)
            self._out.send(key, Pong(seq=message.seq, clock_s=now_s, progress=progress, busy=busy))
            return
        try:
            check(state_of(session), message, CONTROLLER)
        except WireError as error:
            self._out.refuse(key, message, RefusalCode.STATE, error.text)
            return
        own = self._workspaces.get(key)
        runs = own.plans.runs if own is not None else ()
        if not self._departure.refuses(self._out, key, message, runs):
            self._from_notebook(key, message, event.buffers, now_s)
            if not isinstance(message, Execute):  # it takes nothing that was not claimed
                self._workspaces.divide(self._sessions)

    def _from_notebook(
        self, key: str, message: Message, buffers: tuple[Buffer, ...], now_s: float
    ) -> None:
        own = self._workspaces.open(key)
        match message:
            case Hello():
                self._hello(key, message, now_s)
            case Goodbye():
                self._close_session(key, now_s)
            case Roster():
                self._roster(key, message, buffers, now_s)
            case Prepare() | Measure() if crowded := self._workspaces.crowded(key):
                self._out.refuse(key, message, RefusalCode.BUSY, crowded)
            case Prepare() | Probe() if self._rosters.refuses(key, message):
                pass
            case Prepare():
                own.forget_what_is_over()  # before more is loaded
                if plan := self._coordinators.lets(
                    self._out, self._workspaces, key, message, now_s
                ):
                    own.plans.prepare(key, plan, buffers, now_s)
                    self._set_members(now_s)  # it is this notebook's word that counts now
            case Lease():
                self._coordinators.ask(self._out, self._workspaces, key, message, now_s)
            case GrantService():
                self._asks.grant(own, key, message, buffers[0], now_s)
            case Commit():
                own.plans.commit(key, message, now_s)
            case Drop():
                own.plans.drop(key, message, now_s)
            case Execute() | Abort() if message.step >= ASKED_STEP:
                text = f"steps from {ASKED_STEP} on are of requests for services"
                self._out.refuse(key, message, RefusalCode.DOCUMENT, text)
            case Execute():
                own.work.execute(key, message, now_s)
            case Abort():
                own.work.abort(key, message, now_s)
            case Measure():
                own.measuring.measure(key, message, buffers, now_s)
            case Probe():
                own.measuring.probe(key, message, now_s)
                self._set_members(now_s)  # it goes where this notebook says
            case Meter():
                own.measuring.meter(key, message, now_s)

    def _hello(self, key: str, message: Hello, now_s: float) -> None:
        """A session begins; the welcome waits until a worker has said what it can do."""
        try:
            self._out.versions[key] = agree(message.major, message.minor)
        except WireError as error:
            self._close_session(key, now_s)
            self._out.refuse(key, message, RefusalCode.VERSION, error.text)
            return
        self._sessions.setdefault(key, NotebookSession(now_s, None)).hello = message
        self._set_members(now_s)
        self._greetings.answer(now_s)

    def _end_if_late(self, now_s: float) -> None:
        """The device leaves: whoever has not moved elsewhere is given up."""
        owners, at_work = self._workspaces.owners, self._workspaces.at_work
        for key in self._departure.ends(self._out, self._sessions, owners, at_work, now_s):
            self._out.send(key, Goodbye(reason=clip(f"it leaves: {self._departure.reason}")))
            self._close_session(key, now_s)

    def _roster(self, key: str, message: Roster, buffers: tuple[Buffer, ...], now_s: float) -> None:
        """The members of a notebook's home."""
        if self._rosters.take(key, message, buffers[0]):
            self._set_members(now_s)
            self._out.send(key, RosterSet(home=message.home))

    def _set_members(self, now_s: float) -> None:
        """Who is a member, and where: told when that has changed."""
        before, members = self._rosters.renew()
        for key in sorted(before.keys() - members.keys() - self._sessions.keys()):
            self._exchange.part_from(key, "it is no member of the home any more", now_s)
        for key in members:
            self._outgoing.reach(key)
        if members != before:
            self._out.add(SetMembers(tuple(members.values())))

    def _close_session(self, key: str, now_s: float) -> None:
        """It was closed in words: of what ends with it, its notebook hears no more."""
        n_before = self._out.n_sent
        self._end_session(key, now_s)
        self._out.unsend(key, n_before)

    def _end_session(self, key: str, now_s: float) -> None:
        """A notebook is gone, in good order or not: what it started ends, what it took is given
        back.
        """
        if self._sessions.pop(key, None) is None:
            self._workspaces.close(key)
            return
        self._out.versions.pop(key, None)
        own = self._workspaces.open(key)
        own.plans.leave(key, now_s)
        own.measuring.leave(key)
        self._exchange.part_from(key, "its notebook is gone", now_s)
        self._set_members(now_s)
        own.worker.kill("its notebook is gone")
        self._workspaces.close(key)
        self._workspaces.divide(self._sessions)
        self._greetings.answer(now_s)  # whoever waited for this worker gets another one

    # --- workers ----------------------------------------------------------------------------------

    def _from_worker(self, event: FromWorker, now_s: float) -> None:
        workspace = self._workspaces.of_worker(event.worker)
        if workspace is None:
            return
        was_ready = workspace.worker.state == READY
        try:
            workspace.receive(event.message, event.buffers, now_s)
        # it runs native code on foreign data, and may have been taken over
        except WireError as error:
            text = f"the worker broke the protocol: {error}"
            self._lose_worker(event.worker, FailureCause.CRASHED, text, now_s, kill=True)
            return
        if not was_ready and workspace.worker.state == READY:
            self._greetings.facts = workspace.worker.facts
            self._greetings.answer(now_s)
            self._workspaces.divide(self._sessions)

    def _lose_worker(
        self, number: int, cause: str, text: str, now_s: float, *, kill: bool = False
    ) -> None:
        """A worker is gone, or has to go; another one is started when it is needed."""
        workspace = self._workspaces.of_worker(number)
        if workspace is None:
            return
        was_starting = workspace.worker.state == STARTING
        if kill:
            workspace.worker.kill(text)
        else:
            workspace.worker.gone()
        workspace.work.lose_worker(cause, text, now_s)
        workspace.measuring.lose_worker(RefusalCode.STATE, text)
        if was_starting:
            for key in self._greetings.refuse(f"the worker does not start: {text}"):
                self._close_session(key, now_s)

    def _tick(self, now_s: float) -> None:
        self._each(self._end_if_hung, now_s)
        for key in [
            k for k, s in self._sessions.items() if now_s - s.heard_s > self._settings.grace_s
        ]:
            # a computer that slept hears it when it wakes up
            text = f"it heard nothing of this notebook for {self._settings.grace_s:.0f} s"
            self._out.send(key, Goodbye(reason=text))
            self._close_session(key, now_s)
        self._asks.end_late(now_s)
        self._workspaces.make_room(now_s)
        self._workspaces.divide(self._sessions)
        self._each(self._pass_time_of, now_s)

    def _end_if_hung(self, own: Workspace, now_s: float) -> None:
        if (overdue_s := own.worker.overdue_s(now_s)) is not None:
            text = f"the worker was silent for {overdue_s:.0f} s"
            self._lose_worker(own.number, FailureCause.HUNG, text, now_s, kill=True)

    def _pass_time_of(self, own: Workspace, now_s: float) -> None:
        self._asks.tell(own, now_s)
        own.tick(now_s, self._radio_s)

    # --- what must not happen ---------------------------------------------------------------------

    def malformed(self, key: str, channel: Channel, error: WireError) -> list[Action]:
        """What came from a paired peer is no message: it is told, on the control channel, and
        nothing else happens.
        """
        if channel is Channel.CONTROL:
            self._out.send(
                key, Refused(code=RefusalCode.DOCUMENT, text=clip(f"not a message: {error.text}"))
            )
        return self._out.take()

    def fault(self, what: object, error: Exception) -> None:
        """Something raised what nothing may raise.

        It is counted, and told with the next actions.
        """
        self.n_faults += 1
        self._out.add(Report(fault_log.report(what, error, self._latest)))

    def survive(self, event: Event, error: Exception, now_s: float) -> list[Action]:
        """The last line of defence: this event raised what nothing may raise.

        Whoever it came from is given up.

        A notebook loses its session, a member the executions, the worker its life, all by the
        ordinary paths; what came from nobody, or spoils those paths too, costs every session. The
        agent goes on.
        """
        self.fault(event, error)
        try:
            self._give_up(event, error, now_s)
            return self._go_on(now_s)
        except Exception as second:  # nothing that is left can be relied on
            self.fault(event, second)
            self._begin_anew()
            return self._out.take()

    def _give_up(self, event: Event, error: Exception, now_s: float) -> None:
        text = _cause(error)
        if (number := worker_of(event)) is not None:
            self._lose_worker(number, FailureCause.INTERNAL, text, now_s, kill=True)
        elif (key := key_of(event)) in self._sessions:
            self._give_up_notebook(key, error, now_s)
        elif key:
            self._exchange.lose_member(key, now_s)
            self._exchange.forget_arrivals(key, now_s)
            for own in self._workspaces:
                if any(member.key == key for member in self._members(own.key).values()):
                    own.work.fail_all(FailureCause.PEER_LOST, text, now_s)
        else:
            raise RuntimeError("nobody is to blame")

    def _give_up_notebook(self, key: str, error: Exception, now_s: float) -> None:
        self._out.send(key, Goodbye(reason=_cause(error)))
        self._close_session(key, now_s)

    def _begin_anew(self) -> None:
        """As after a start: every session ends, and the worker."""
        for key in self._sessions:
            self._out.send(key, Goodbye(reason="a fault in the agent: it begins anew"))
        self._out.add(SetMembers(()))
        for each in self._workspaces:
            self._out.add(KillWorker("a fault in the agent", each.number))
        self._set_up()

    def _undone(self, event: Undone, now_s: float) -> None:
        """An action of ours could not be carried out: what it was for fails."""
        self.n_faults += 1
        self._out.add(Report(event.text))
        end = end_of(event)
        match event.action:
            case _ if isinstance(end, FromWorker):
                self._from_worker(end, now_s)
            case _ if isinstance(end, FromDisk):
                self._workspaces.from_disk(end, now_s)
            case ToWorker() | Store() | StartWorker() | LimitWorker() as action:
                cause = FailureCause.INTERNAL
                self._lose_worker(action.worker, cause, event.text, now_s, kill=True)
            case ToPeer(message=(Value() | Chunk()) as sent):
                rejected = Rejected(transfer=sent.transfer, code=RefusalCode.STATE, text=event.text)
                self._exchange.rejected(event.action.key, rejected, now_s)
            case KeepLeases():
                self._coordinators.not_kept()
            case ToPeer(message=Done() as done):
                if own := self._workspaces.get(event.action.key):
                    own.plans.answer_failed(done, event.text)
            case ToPeer() if event.action.key in self._sessions and not isinstance(
                event.action.message, Goodbye
            ):
                self._out.send(event.action.key, Goodbye(reason=event.text))
                self._close_session(event.action.key, now_s)


def _cause(error: Exception) -> str:
    return f"a fault in the agent ({type(error).__name__}), see its report"
