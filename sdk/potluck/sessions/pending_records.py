"""What the controller waits for: sessions and executions. Records only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from potluck.errors import PotluckError
from potluck.sessions.events import Address, ExecutionResult, Session, StartExecution, Timeline
from potluck.sessions.expected_values import ExpectedValues
from potluck.sessions.heartbeat import Heartbeat
from potluck.sessions.traffic import Place, Raw, Traffic
from potluck_wire import replies
from potluck_wire.errors import WireCode, WireError
from potluck_wire.messages import Abort, Commit, Done, Drop, Execute, FailureCause, Message, Prepare
from potluck_wire.version import ABORT, AFTER_STEP, COMMON_BEGIN

ROW_BYTES = 128  # of a timeline, at most: a small integer and two floats
# its worker goes on, and has all that it had
BY_VALUES = (FailureCause.INPUT, FailureCause.ARITHMETIC)


def is_over(drop: Drop, request: Message | StartExecution) -> bool:
    """Whether nobody will answer this, because its run or epoch is dropped."""
    if not isinstance(request, Prepare | Commit | StartExecution):
        return False
    return request.run == drop.run and drop.epoch in (-1, request.epoch)


def read_timeline(message: Done, document: Any, offset_s: float, most_rows: int) -> Timeline:
    """What a device did, on our clock. WireError where it does not hold, or tells more than there
    was to do.

    That is looked at first: of 8 MiB, every list takes its time to be read, however empty.
    """
    if len(document) > (most_rows + 1) * ROW_BYTES or bytes(document).count(b"[") > most_rows + 1:
        raise WireError(
            WireCode.SIZE, f"a timeline of {len(document)} bytes for {most_rows} instructions"
        )
    told = replies.read_timeline(document)
    if (last := max((index for index, *_ in told), default=-1)) >= most_rows:
        raise WireError(
            WireCode.DOCUMENT, f"a timeline of instruction {last}, of {most_rows} that there are"
        )
    rows = tuple([(index, start + offset_s, stop + offset_s) for index, start, stop in told])
    return Timeline(rows=rows, busy_s=message.busy_s, peak_bytes=message.peak_bytes)


@dataclass(slots=True)
class Peer:
    address: Address
    key: str
    join_ticket: int
    deadline_s: float
    expected: ExpectedValues
    traffic: Traffic
    pulse: Heartbeat
    session: Session | None = None
    owes_s: float = 0.0  # for how long a value of a step that it is done with has not got on

    def own_s(self, now_s: float) -> float:
        """This moment by the device's own clock; 0 where that is not known, or the device would not
        understand.
        """
        if (
            self.session is None
            or self.session.version < COMMON_BEGIN
            or self.pulse.offset_s is None
        ):
            return 0.0
        return now_s - self.pulse.offset_s

    @property
    def keeps_order(self) -> bool:
        """Whether the device understands that an execution shall begin behind another."""
        return self.session is not None and self.session.version >= AFTER_STEP

    @property
    def can_abort(self) -> bool:
        """Whether the device can end one execution and go on with its plan."""
        return self.session is not None and self.session.version >= ABORT


@dataclass(slots=True)
class Launched:
    launch: StartExecution
    start_s: float
    waiting_values: set[tuple[str, str]]
    to_start: list[str]
    running: set[str] = field(default_factory=set)
    outputs: dict[tuple[str, str], Raw] = field(default_factory=dict)
    timelines: dict[str, Timeline] = field(default_factory=dict)
    is_fed: bool = True  # all that goes there from here was sent
    kept_bytes: int = 0  # of what was fed: devices had it
    # its releases count from a common begin: there is one, and no other request is under way
    ordered: bool = False
    # fail with this after that time, unless a better cause appears
    suspicion: tuple[float, PotluckError] | None = None

    def occupies(self, device: str) -> bool:
        """Whether a device is at it, and waits for nothing that we have not sent."""
        return self.is_fed and device in self.running

    @property
    def place(self) -> Place:
        launch = self.launch
        return (launch.run, launch.epoch, launch.program, launch.step)

    def owed_by(self, device: str) -> tuple[str, ...]:
        """Values that are not here, though the device says that it is done: that it had credit for
        them.
        """
        return tuple(
            sorted(
                name
                for at, name in self.waiting_values
                if at == device and device in self.timelines
            )
        )

    def waits_only_for(self, device: str) -> bool:
        """Whether all others are done, so that nothing comes to it from them any more."""
        others = set(self.launch.devices) - {device}
        return device in self.running and others <= self.timelines.keys()

    def ends_alone(self, cause: str, peers: Mapping[str, Peer]) -> bool:
        """Whether a failure of that cause is about this request only, and its devices can end it
        and go on.
        """
        mild = self.launch.request and cause in BY_VALUES
        return mild and all(peers[device].can_abort for device in self.launch.devices)

    def abort(self) -> Abort:
        """What a device is told, to end it and nothing else."""
        run, epoch, program, step = self.place
        return Abort(run=run, epoch=epoch, program=program, step=step)

    def execution(self, now_s: float) -> ExecutionResult:
        """What it has brought, now that it is over."""
        run, epoch, program, step = self.place
        return ExecutionResult(
            run=run,
            epoch=epoch,
            program=program,
            step=step,
            outputs=self.outputs,
            timelines=self.timelines,
            start_s=self.start_s,
            stop_s=now_s,
            kept_bytes=self.kept_bytes,
        )

    def order(self, ahead: "Launched | None", peer: Peer, now_s: float) -> Execute:
        """What a device is told, to begin it, perhaps behind another execution."""
        run, epoch, program, step = self.place
        begin_s = peer.own_s(now_s) if self.ordered else 0.0
        after_step = ahead.launch.step if ahead is not None else -1
        return Execute(
            run=run, epoch=epoch, program=program, step=step, begin_s=begin_s, after_step=after_step
        )


def startable(
    executions: Sequence[Launched], peers: Mapping[str, Peer]
) -> list[tuple[Launched, str, Launched | None]]:
    """Which executions may begin on which devices, and behind which other.

    Each waits, per device, for those of its run and stream before it. Where one is before it, of
    the same program, a device that keeps order is told already: it need not wait for our word
    between the two. Devices that begin together wait for all.
    """
    found: list[tuple[Launched, str, Launched | None]] = []
    under_way: dict[tuple[str, str, str], list[Launched]] = {}
    for launched in executions:
        launch = launched.launch
        ready: list[tuple[Launched, str, Launched | None]] = []
        for device in launched.to_start:
            ahead = under_way.get((launch.run, launch.stream, device), [])
            if not ahead:
                ready.append((launched, device, None))
            elif (
                len(ahead) == 1
                and _may_follow(launch, ahead[0].launch)
                and peers[device].keeps_order
            ):
                ready.append((launched, device, ahead[0]))
        if not launch.together or len(ready) == len(launched.to_start):
            found += ready
        if launch.stream:
            for device in launch.devices:
                if device not in launched.timelines:
                    under_way.setdefault((launch.run, launch.stream, device), []).append(launched)
    return found


def _may_follow(launch: StartExecution, ahead: StartExecution) -> bool:
    same = (launch.epoch, launch.program) == (ahead.epoch, ahead.program)
    return same and not launch.together and not ahead.together
