"""Requests for services, from the service's own notebook or from members that it granted them to:
computed here, handed on, or refused by name. Pure.

`potluck_wire.request_handler` decides. To a program that is asked for, whoever asked stands where
the notebook stands otherwise. A request that is handed on is such a program, too: its inputs go to
the other device, and that one's outputs come back. Where that device refuses or is lost, the first
one that had the request hands it to another, once.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from potluck_agent.core.ask_records import (
    ELSEWHERE,
    REFUSALS,
    SILENT_S,
    AskUnderWay,
    DeviceRequest,
    Key,
)
from potluck_agent.core.events import OWNER, Buffer, PeerDevice, Sender
from potluck_agent.core.execution import ASKED_STEP, Correspondent, Name, Unwanted
from potluck_agent.core.graceful_leave import GracefulLeave
from potluck_agent.core.grants import HAND_ON, GrantedProgram, PeerGrant, ServiceGrant
from potluck_agent.core.outbox import Outbox, Settings
from potluck_agent.core.worker_proxy import READY
from potluck_agent.core.workspaces import Workspace, Workspaces
from potluck_wire.errors import WireError
from potluck_wire.limits import ANSWER, ASK, MAX_ASKS, clip, is_device_name
from potluck_wire.messages import (
    ASK_CODES,
    HOME,
    Ask,
    AskEnded,
    Done,
    Failed,
    FailureCause,
    GrantService,
    Message,
    RefusalCode,
    ServiceGranted,
    Standing,
    Value,
)
from potluck_wire.request_handler import (
    MAX_OFFLOADS,
    CandidateServer,
    LocalOption,
    Offload,
    Refuse,
    Serve,
    Way,
    by_idle_goodput,
    decide,
)


class AskExchange:
    """All requests for services on this device. `members(owner)`: the roster of that notebook, by
    device name. Its chance is seeded by the device's key, so that a recording can be replayed.
    """

    def __init__(
        self,
        settings: Settings,
        out: Outbox,
        workspaces: Workspaces,
        members: Callable[[str], dict[str, PeerDevice]],
        departure: GracefulLeave,
    ) -> None:
        self._name, self._out = settings.name, out
        self._workspaces, self._members = workspaces, members
        self._kept_bytes = settings.inbound_bytes // 2  # answers have the other half of the arena
        self._departure = departure
        self._rng = Random(settings.key)
        self._asked: dict[Key, AskUnderWay] = {}
        self._handed_on: dict[Key, AskUnderWay] = {}
        self._latest: dict[str, int] = {}  # the number that each asked under last
        self._n_numbers = 0

    def __len__(self) -> int:
        """Requests that are not answered yet."""
        return len(self._asked)

    # --- grants -----------------------------------------------------------------------------------

    def grant(
        self, own: Workspace, key: str, message: GrantService, document: Buffer, now_s: float
    ) -> None:
        """What a notebook lets others ask for; what it does not any more ends."""
        grants = own.grants.services
        for name in [n for n, each in grants.items() if each.message.run not in own.plans.runs]:
            del grants[name]
        if not message.run:
            grants.pop(message.service, None)
        elif refusal := self._put(own, message, document, now_s):
            self._out.refuse(key, message, *refusal)
            return
        self._out.send(key, ServiceGranted(service=message.service))
        for each in [each for each in self._asked.values() if each.name.run in own.plans.runs]:
            if not self._may_go_on(own, each, now_s):
                self._fail(each, RefusalCode.NOT_GRANTED, "its grant was revoked", now_s)

    def _put(
        self, own: Workspace, message: GrantService, document: Buffer, now_s: float
    ) -> tuple[str, str] | None:
        known = self._workspaces.of_service(message.service)
        if known is not None and known is not own:
            return RefusalCode.BUSY, "another notebook's service has this name"
        run = own.plans.runs.get(message.run)
        epoch = run.epochs.get(message.epoch) if run is not None else None
        if epoch is None or message.program not in epoch.layouts:
            return RefusalCode.UNKNOWN_RUN, "no such program is loaded"
        try:
            own.grants.put(message, document, epoch.layouts, own.worker.computed_s, now_s)
        except WireError as error:
            return RefusalCode.DOCUMENT, error.text
        return None

    def _may_go_on(self, own: Workspace, each: AskUnderWay, now_s: float) -> bool:
        if each.asker_name == HOME and each.to is None:  # its notebook's own, on its own run
            return True
        grant = own.grants.services.get(each.request.service)
        if grant is None or grant.message.run != each.name.run:
            return False
        asks = grant.peer(each.asker_name, now_s)
        if each.asker_name != HOME and (asks is None or not asks.asks_per_s):
            return False
        if each.then is not None:
            granted = grant.programs.get(each.request.rows)
            return granted is not None and granted.then == each.then
        hands = grant.peer(each.to_name, now_s)
        return each.to is None or (hands is not None and hands.hands_on)

    # --- what peers say ---------------------------------------------------------------------------

    def receive(self, sender: Sender, message: Message, now_s: float) -> None:
        """A message about a request."""
        match message:
            case Ask():
                self._ask(sender, message, now_s)
            case AskEnded() if each := self._handed_on.get((sender.key, message.number)):
                self._reported(each, message, now_s)
            case Standing() if own := self._workspaces.of_service(message.service):
                if min(message.capacity_per_s, message.idle_per_s, message.queue_s) < 0:
                    return
                peer = self._peer(own, message.service, sender.key, now_s)
                if peer is not None and peer.hands_on:
                    peer.heard, peer.heard_s = message, now_s
                    peer.n_sent = 0

    def _peer(self, own: Workspace, service: str, key: str, now_s: float) -> PeerGrant | None:
        return own.grants.services[service].peer(self._name_of(own, key), now_s)

    def _name_of(self, own: Workspace, key: str) -> str:
        """What that notebook calls the member with this key; empty: it is none of its home."""
        return next((m.name for m in self._members(own.key).values() if m.key == key), "")

    def _ask(self, sender: Sender, ask: Ask, now_s: float) -> None:
        try:
            name, own, grant = self._admit(sender, ask, now_s)
        except Unwanted as unwanted:
            self._refuse((sender.key, ask.number), unwanted.code, unwanted.text)
            return
        granted, limit_s = grant.programs[ask.rows], grant.message.limit_s
        deadline_s = now_s + min(ask.left_s, limit_s)
        request = DeviceRequest(
            service=ask.service,
            arrived_s=now_s,
            deadline_s=deadline_s,
            until_s=deadline_s + min(max(0.0, ask.grace_s), limit_s),
            path=(*ask.path, self._name),
            rows=ask.rows,
            work=grant.work(ask.rows),
        )
        decision = decide(
            request,
            self._local(own, grant, granted.run_s, now_s),
            lambda: self._candidates(own, grant, request, granted, sender.key, (), now_s),
            now_s,
            self._rng,
            by_idle_goodput,
        )
        asker = (sender.key, ask.number)
        match decision:
            case Serve():
                self._begin(own, grant, asker, name, request, "", now_s)
            case Offload(server):
                self._begin(own, grant, asker, name, request, server, now_s)
            case Refuse(reason):
                self._refuse(asker, REFUSALS.get(reason, RefusalCode.INSUFFICIENT), reason.value)

    def _admit(self, sender: Sender, ask: Ask, now_s: float) -> tuple[str, Workspace, ServiceGrant]:
        """What its notebook calls who asks, and the service. `Unwanted` where that may not be."""
        if ask.number <= self._latest.get(sender.key, 0):
            raise Unwanted(RefusalCode.PATH, f"number {ask.number} was asked under before")
        self._latest[sender.key] = ask.number
        own = self._workspaces.of_service(ask.service)
        grant = own.grants.services[ask.service] if own is not None else None
        name = HOME if sender.role == OWNER else self._name_of(own, sender.key) if own else ""
        if own is None or grant is None or (name == HOME and own.key != sender.key):
            raise Unwanted(RefusalCode.NOT_GRANTED, "no such service is granted to who asks")
        peer = grant.peer(name, now_s)
        if name != HOME and (peer is None or not peer.asks_per_s):
            raise Unwanted(RefusalCode.NOT_GRANTED, "no such service is granted to who asks")
        if not own.plans.is_loaded(grant.message.run, grant.message.epoch):
            raise Unwanted(RefusalCode.UNKNOWN_RUN, "its model is not loaded any more")
        if ask.rows not in grant.programs:
            granted = ", ".join(map(str, grant.programs))
            raise Unwanted(RefusalCode.DOCUMENT, f"requests have {granted} rows, not {ask.rows}")
        if name != HOME and peer is not None and not peer.takes(grant.work(ask.rows), now_s):
            text = f"{peer.asks_per_s:g} requests a second are granted"
            raise Unwanted(RefusalCode.TOO_OFTEN, text)
        self._check_path(ask.path, name)
        self._check_room(own, grant.programs[ask.rows])
        return name, own, grant

    def _check_path(self, path: tuple[str, ...], name: str) -> None:
        """`Unwanted` where a request that comes from there cannot have gone this way."""
        if path[-1:] != (() if name == HOME else (name,)):
            raise Unwanted(RefusalCode.PATH, "its path does not end with who asks")
        if len({*path}) < len(path) or not all(map(is_device_name, path)):
            raise Unwanted(RefusalCode.PATH, "its path names no devices, or one twice")
        if self._name in path:
            raise Unwanted(RefusalCode.PATH, "it has been here before")
        if len(path) > MAX_OFFLOADS:
            raise Unwanted(RefusalCode.HOPS, f"it was handed on {len(path)} times")

    def _check_room(self, own: Workspace, program: GrantedProgram) -> None:
        """`Unwanted` where nothing more is begun."""
        if why := self._departure.reason:
            raise Unwanted(RefusalCode.LEAVING, f"it wants to leave: {why}")
        n_asks = len(self._of(own))
        if n_asks >= MAX_ASKS:
            raise Unwanted(RefusalCode.BUSY, f"{n_asks} requests are under way")
        if crowded := own.work.crowded(program.layout):
            raise Unwanted(RefusalCode.BUSY, crowded)
        if program.then is not None and program.then.peer not in self._members(own.key):
            text = f"{program.then.peer} has what follows, and is none of the home any more"
            raise Unwanted(FailureCause.PEER_LOST, text)

    # --- computing and handing on -----------------------------------------------------------------

    def _of(self, own: Workspace) -> list[AskUnderWay]:
        return [each for each in self._asked.values() if each.name.run in own.plans.runs]

    def _local(
        self, own: Workspace, grant: ServiceGrant, run_s: float, now_s: float
    ) -> list[LocalOption]:
        if own.worker.state != READY:
            return []
        return [LocalOption(Way.ALONE, now_s + self._queue_s(own, grant) + run_s)]

    def _queue_s(self, own: Workspace, grant: ServiceGrant) -> float:
        """What the executions of its run take that are under way on this device's worker."""
        under_way = own.work.under_way(grant.message.run)
        return sum(grant.run_s(program) for program in under_way if program != HAND_ON)

    def _candidates(
        self,
        own: Workspace,
        grant: ServiceGrant,
        request: DeviceRequest,
        granted: GrantedProgram,
        asker: str,
        tried: Sequence[str],
        now_s: float,
    ) -> list[CandidateServer]:
        """The members that it may be handed on to, as they told of themselves last; nobody, where
        its inputs have no room to be kept meanwhile.
        """
        members = self._members(own.key)
        others = (each for each in self._of(own) if each.request is not request)
        kept_bytes = sum(each.kept_bytes for each in others)
        if kept_bytes + granted.input_bytes > self._kept_bytes:
            return []
        found = []
        for name in grant.peers:
            peer, member = grant.peer(name, now_s), members.get(name)
            if peer is None or member is None or member.key == asker or name in tried:
                continue
            if peer.rows < granted.rows:
                continue
            heard, delay_s = peer.heard, now_s - peer.heard_s
            if peer.hands_on and heard is not None and delay_s <= SILENT_S:
                candidate = CandidateServer(
                    server=name,
                    idle_per_s=heard.idle_per_s,
                    queue_s=heard.queue_s,
                    delay_s=delay_s,
                    capacity_per_s=heard.capacity_per_s,
                    batch_s=heard.run_s,
                    sent=peer.n_sent,
                )
                found.append(candidate)
        return found

    def _begin(
        self,
        own: Workspace,
        grant: ServiceGrant,
        asker: Key,
        asker_name: str,
        request: DeviceRequest,
        to_name: str,
        now_s: float,
    ) -> None:
        """Have it computed here, what follows by the next device, or all of it by `to_name`."""
        self._n_numbers += 1
        number, granted = self._n_numbers, grant.programs[request.rows]
        program = HAND_ON if to_name else granted.name
        name = Name(grant.message.run, grant.message.epoch, program, ASKED_STEP + number)
        each = AskUnderWay(
            asker=asker, asker_name=asker_name, request=request, granted=granted, name=name
        )
        peers = {HOME: Correspondent(asker[0], ANSWER, asker[1])}
        if to_name:
            each.kept_bytes = granted.input_bytes
            peers[HAND_ON] = self._hand(own, grant, each, to_name, now_s)
        elif granted.then is not None:
            each.then = granted.then
            peers[HAND_ON] = self._request(own, each, granted.then.peer, now_s)
        self._asked[asker] = each
        layout = granted.relay if to_name else granted.layout
        own.work.begin_asked(name, layout, peers, partial(self._ended, each), now_s)

    def _hand(
        self, own: Workspace, grant: ServiceGrant, each: AskUnderWay, to_name: str, now_s: float
    ) -> Correspondent:
        """Ask that member for it instead."""
        each.tried.append(to_name)
        grant.peers[to_name].n_sent += each.request.work
        return self._request(own, each, to_name, now_s)

    def _request(
        self, own: Workspace, each: AskUnderWay, to_name: str, now_s: float
    ) -> Correspondent:
        """Ask that member for all of it, or for what follows."""
        self._n_numbers += 1
        number, request = self._n_numbers, each.request
        key = self._members(own.key)[to_name].key
        each.to_name, each.to = to_name, (key, number)
        self._handed_on[each.to] = each
        ask = Ask(
            number=number,
            service=each.then.service if each.then is not None else request.service,
            left_s=request.deadline_s - now_s,
            path=request.path,
            rows=request.rows,
            grace_s=request.until_s - request.deadline_s,
        )
        self._out.send(key, ask)
        return Correspondent(key, ASK, number)

    def _is_elsewhere(self, each: AskUnderWay, code: str, now_s: float) -> bool:
        """Whether it was handed to another device now, as nothing of an answer has come: only the
        first one that had it does so, once.
        """
        own = self._workspaces.of_run(each.name.run)
        grant = own.grants.services.get(each.request.service) if own is not None else None
        is_first = each.asker_name == HOME and len(each.tried) == 1 and code in ELSEWHERE
        if not is_first or own is None or grant is None or each.to is None:
            return False
        if each.is_through or not own.work.is_unanswered(each.name):
            return False
        decision = decide(
            each.request,
            (),
            lambda: self._candidates(
                own, grant, each.request, each.granted, each.asker[0], each.tried, now_s
            ),
            now_s,
            self._rng,
            by_idle_goodput,
        )
        if not isinstance(decision, Offload):
            return False
        del self._handed_on[each.to]
        each.report = None
        peer = self._hand(own, grant, each, decision.server, now_s)
        own.work.send_again(each.name, HAND_ON, peer, now_s)
        return True

    def place(self, key: str, value: Value) -> tuple[Workspace, Value]:
        """Whose value this is, and as which it goes on here. `Unwanted` where nobody waits for it,
        or it is another one than was granted.
        """
        table = self._asked if value.program == ASK else self._handed_on
        each = table.get((key, value.step))
        own = self._workspaces.of_run(each.name.run) if each is not None else None
        if each is None or own is None:
            raise Unwanted(RefusalCode.UNKNOWN_RUN, "it belongs to no request that is under way")
        if value.program == ASK:
            wanted, got = each.granted.inputs.get(value.name), (value.dtype, value.shape)
            if wanted != got:
                raise Unwanted(RefusalCode.DOCUMENT, f"{value.name!r:.80} is not {wanted}")
        return own, each.name.value(value)

    def spoil(self, key: str, value: Value, code: str, text: str, now_s: float) -> None:
        """A value of a request does not hold, and so the request does not."""
        table = self._asked if value.program == ASK else self._handed_on
        if each := table.get((key, value.step)):
            self._fail(each, code, text, now_s)

    def rejected(self, key: str, value: Value, code: str, now_s: float) -> bool:
        """An input of a request that was handed on was not taken there; whether all of them go to
        another device now.
        """
        is_input = value.program == ASK and not value.run
        each = self._handed_on.get((key, value.step)) if is_input else None
        return each is not None and self._is_elsewhere(each, code, now_s)

    # --- how they end -----------------------------------------------------------------------------

    def _reported(self, each: AskUnderWay, report: AskEnded, now_s: float) -> None:
        """Whom it was handed on to says how it went."""
        is_possible = each.is_possible(report)
        if report.code:
            code = report.code if report.code in ASK_CODES else RefusalCode.STATE
            each.report = report if is_possible else None
            if not self._is_elsewhere(each, code, now_s):
                self._fail(each, code, f"{each.to_name}: {report.text}", now_s)
        elif not is_possible:
            text = f"{each.to_name} tells of a path that cannot be"
            self._fail(each, RefusalCode.PATH, text, now_s)
        else:
            each.report = report
            if each.is_through:
                self._answer(each, "", "", now_s)

    def _ended(self, each: AskUnderWay, end: Done | Failed, now_s: float) -> None:
        """Its execution is over."""
        if isinstance(end, Failed):
            self._answer(each, end.cause, end.text, now_s)
            return
        each.is_through = True
        if each.to is None or each.report is not None:
            self._answer(each, "", "", now_s)

    def _answer(self, each: AskUnderWay, code: str, text: str, now_s: float) -> None:
        if self._asked.pop(each.asker, None) is None:
            return
        if each.to is not None:
            self._handed_on.pop(each.to, None)
        report = each.report
        after = report if report is not None and bool(report.code) == bool(code) else AskEnded()
        answered = AskEnded(
            number=each.asker[1],
            code=code,
            text=clip(text),
            path=(self._name, *after.path),
            hops_s=(max(0.0, now_s - each.request.arrived_s), *after.hops_s),
        )
        self._out.send(each.asker[0], answered)

    def _refuse(self, asker: Key, code: str, text: str) -> None:
        """Say at once why it is not done."""
        refused = AskEnded(
            number=asker[1], code=code, text=clip(text), path=(self._name,), hops_s=(0.0,)
        )
        self._out.send(asker[0], refused)

    def _fail(self, each: AskUnderWay, code: str, text: str, now_s: float) -> None:
        own = self._workspaces.of_run(each.name.run)
        if each.is_through or own is None or not own.work.fail_asked(each.name, code, text, now_s):
            self._answer(each, code, text, now_s)

    def lose(self, key: str, text: str, now_s: float) -> None:
        """Nothing more comes from, or gets to, this peer: what it asked for ends, and what was
        handed on to it.
        """
        self._latest.pop(key, None)
        for own in self._workspaces:
            for grant in own.grants.services.values():
                if peer := grant.peers.get(self._name_of(own, key)):
                    peer.heard = None
        for each in self._under_way():
            is_asker, is_receiver = each.asker[0] == key, (each.to or ("",))[0] == key
            if is_receiver and not is_asker:
                is_receiver = not self._is_elsewhere(each, FailureCause.PEER_LOST, now_s)
            if is_asker or is_receiver:
                who = f"{each.to_name}: " if is_receiver else ""
                self._fail(each, FailureCause.PEER_LOST, who + text, now_s)

    def _under_way(self) -> list[AskUnderWay]:
        return list(self._asked.values())

    # --- time -------------------------------------------------------------------------------------

    def end_late(self, now_s: float) -> None:
        """Requests whose time is over end."""
        for each in [x for x in self._under_way() if now_s >= x.request.until_s]:
            self._fail(each, RefusalCode.LATE, "its time is over", now_s)

    def tell(self, own: Workspace, now_s: float) -> None:
        """Members hear how this notebook's services stand."""
        for grant in own.grants.services.values():
            if grant.count(now_s, own.worker.computed_s):
                self._tell(own, grant, now_s)

    def _tell(self, own: Workspace, grant: ServiceGrant, now_s: float) -> None:
        if own.worker.state != READY:
            return
        members = self._members(own.key)
        standing = grant.standing(self._queue_s(own, grant))
        for name in grant.peers:
            peer, member = grant.peer(name, now_s), members.get(name)
            if peer is not None and peer.asks_per_s and member is not None:
                self._out.send(member.key, standing)

    def wake_s(self) -> float | None:
        """When there is something to end or to tell, if no event comes first."""
        times = [each.request.until_s for each in self._asked.values()]
        times += [
            grant.told_s for own in self._workspaces for grant in own.grants.services.values()
        ]
        return min(times, default=None)
