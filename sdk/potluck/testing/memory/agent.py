"""An agent without a process: the real core, and what `net.event_loop` does for it, in memory."""

import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from potluck.errors import DeviceError
from potluck.sessions.agent_specs import Spec
from potluck.testing.memory.clock import VirtualClock
from potluck.testing.memory.network import Frames, MemoryNetwork
from potluck.testing.memory.worker import MemoryWorker
from potluck.units import parse_bytes, parse_rate
from potluck_agent.core.events import (
    MEMBER,
    ON_OWN_LINKS,
    OWNER,
    Action,
    Event,
    FromPeer,
    FromWorker,
    KeepLeases,
    KillWorker,
    LinkReset,
    MayStay,
    MemberLost,
    MustLeave,
    PeerDevice,
    ReadMeter,
    Report,
    Sender,
    SetMembers,
    Span,
    StartWorker,
    Store,
    Tick,
    ToPeer,
    ToWorker,
    Undone,
    WorkerDied,
)
from potluck_agent.core.machine import Core
from potluck_agent.core.outbox import Settings
from potluck_wire.frames import decode, encode
from potluck_wire.limits import MAX_CHUNK_BYTES
from potluck_wire.machine_identity import machine_name
from potluck_wire.messages import MESSAGES, NUMBER_OF, Channel, Configure, FailureCause, Reading

TICK_S = 0.2
MEMORY_BYTES = 2 * 1024**3
ARENA_BYTES = 64 * 1024**2
RESOLUTION_W = 0.05  # of a meter
DEAD_S = 5.0  # without a heartbeat of the other device for so long: the connection is made anew
LOST_S = 10.0  # without a connection for so long: what waits for that device will not get there
_ZEROS = memoryview(bytes(MAX_CHUNK_BYTES))


class MemoryAgent:
    """One device.

    Parameters
    ----------
    clock, network
        Virtual time, and what carries its messages.
    spec
        Its name, memory, link and slowdown.
    key
        Its public key.
    owners
        The keys of the notebooks, by where they are.
    names
        The devices of the home by their keys.
    ahead_s
        How far its clock is ahead of the notebook's.
    fault
        Hears of what must not happen and did.
    is_metered
        Its power is told by a meter, and not stated.
    left
        Called once it was to leave for good, and has.
    """

    def __init__(
        self,
        spec: Spec,
        key: str,
        *,
        owners: Mapping[str, str],
        names: dict[str, str],
        clock: VirtualClock,
        network: MemoryNetwork,
        ahead_s: float,
        fault: Callable[[str], None],
        is_metered: bool = False,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = spec.name
        self._spec = spec
        self._owners = owners
        self._names = names
        self._clock = clock
        self._network = network
        self._ahead_s = ahead_s
        self._fault, self._left = fault, left
        self._settings = _settings(spec, key, is_metered)
        self._core = Core(self._settings)
        self._members: dict[str, PeerDevice] = {}
        # of devices that this one does not know yet, which a connection holds until it does
        self._early: list[tuple[str, Channel, Frames]] = []
        self._workers: dict[int, MemoryWorker] = {}
        self._wake_s = float("inf")
        self.is_gone = False
        self._tick()

    # --- in ---------------------------------------------------------------------------------------

    def receive(self, sender: str, channel: Channel, frames: Frames) -> None:
        """A message from the notebook or another device.

        Parameters
        ----------
        sender
            Its key.
        channel
            On which it comes.
        frames
            As on the wire.
        """
        if sender in self._owners:
            known: Sender | None = Sender(key=self._owners[sender], role=OWNER, name="notebook")
        else:
            keys = [key for key in self._members if self._names.get(key) == sender]
            known = Sender(key=keys[0], role=MEMBER, name=sender) if keys else None
        if known is None:
            self._early.append((sender, channel, frames))
            return
        message, buffers = decode(frames, channel)
        self._feed(FromPeer(sender=known, message=message, buffers=tuple(buffers)))

    def greet(self, notebook: str, *, again: bool) -> None:
        """A notebook's data connection stands; `again`: it is a new one."""
        if again:
            self._feed(LinkReset(key=self._owners[notebook]))
        self._core.reach(self._owners[notebook])

    def lost(self, device: str) -> None:
        """The connection to another device broke, because that is gone."""
        for key in [key for key in self._members if self._names.get(key) == device]:
            self._feed(LinkReset(key=key))
            self._clock.after(LOST_S, lambda key=key: self._give_up(key), repeats=True)  # type: ignore[misc]

    def misses(self, device: str) -> None:
        """No heartbeat of another device comes: after a while the connection is made anew."""

        def breaks() -> None:
            if self._network.is_parted(self.name, device) and not self.is_gone:
                self._network.cut(self.name, device)
                self.lost(device)

        self._clock.after(DEAD_S, breaks, repeats=True)

    def _give_up(self, key: str) -> None:
        device = self._names[key]
        is_away = device not in self._network.sites or self._network.is_parted(self.name, device)
        if not self.is_gone and key in self._members and is_away:
            self._feed(MemberLost(key))

    def end(self) -> None:
        """The device is gone, and its worker with it."""
        self.is_gone = True
        for number in tuple(self._workers):
            self._kill_worker(number)

    def leave(self, reason: str, within_s: float, *, for_good: bool) -> None:
        """By its owner's rules it has to leave, or it was told to end.

        Parameters
        ----------
        reason
            Told to notebooks.
        within_s
            Seconds until it ends.
        for_good
            Whether it was told to end.
        """
        self._feed(MustLeave(reason=reason, within_s=within_s, for_good=for_good))

    def stay(self) -> None:
        """It need not leave any more."""
        self._feed(MayStay())

    def kill_worker(self) -> None:
        """Its workers are killed from outside."""
        for number in tuple(self._workers):
            self._kill_worker(number)
            text = "the worker was killed from outside"
            self._feed(WorkerDied(FailureCause.CRASHED, text, number))

    def load(self, times: float) -> None:
        """Its workers' tasks last so many times longer from now on."""
        for worker in self._workers.values():
            worker.load = times

    # --- the loop ---------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return self._clock.now_s + self._ahead_s

    def _tick(self) -> None:
        if not self.is_gone:
            self._feed(Tick())
            self._clock.after(TICK_S, self._tick, repeats=True)

    def _wake(self) -> None:
        self._wake_s = float("inf")
        self._feed(Tick())

    def _feed(self, event: Event) -> None:
        if self.is_gone:
            return
        self._perform(self._handle(event))
        if self._core.has_left:
            self._left()
            return
        wake_s = self._core.wake_s()
        if wake_s is not None and wake_s < self._wake_s:
            self._wake_s = wake_s
            self._clock.after(wake_s - self._now_s(), self._wake, repeats=True)

    def _handle(self, event: Event) -> list[Action]:
        try:
            return self._core.handle(event, self._now_s())
        except Exception as error:  # the last line of defence
            return self._core.survive(event, error, self._now_s())

    def _perform(self, actions: list[Action]) -> None:
        while actions:
            undone: list[Event] = []
            for action in actions:
                try:
                    self._do(action)
                except Exception as error:
                    text = f"{type(action).__name__}: {type(error).__name__}: {error}"
                    undone.append(Undone(action, text))
            actions = [action for event in undone for action in self._handle(event)]

    def _do(self, action: Action) -> None:
        match action:
            case ToPeer():
                self._send(action)
            case Store() if worker := self._workers.get(action.worker):
                worker.inbound.view(action.offset, len(action.data))[:] = action.data
            case ToWorker() if worker := self._workers.get(action.worker):
                worker.send(action.message, action.buffers)
            case StartWorker():
                self._start_worker(action.worker)
            case KillWorker():
                self._kill_worker(action.worker)
            case SetMembers():
                self._members = {member.key: member for member in action.members}
                early, self._early = self._early, []
                for sender, channel, frames in early:
                    self._clock.after(
                        0.0,
                        lambda held=(sender, channel, frames): self.receive(*held),  # type: ignore[misc]
                    )
            case ReadMeter():
                self._send(ToPeer(key=action.key, message=self._reading(action)))
            case KeepLeases():
                self._send(action.answer)
            case Report():
                self._fault(action.text)

    # --- out --------------------------------------------------------------------------------------

    def _send(self, action: ToPeer) -> None:
        notebooks = [site for site, key in self._owners.items() if key == action.key]
        receiver = notebooks[0] if notebooks else self._names.get(action.key)
        if receiver is None:
            return
        with suppress(LookupError):
            buffers = [self._bytes(part) for part in action.buffers]
            frames = [bytes(frame) for frame in encode(action.message, buffers)]
            channel = MESSAGES[NUMBER_OF[type(action.message)]].channel
            back = receiver in self._owners or not isinstance(action.message, ON_OWN_LINKS)
            self._network.send(self.name, receiver, channel, frames, back=back)

    def _bytes(self, part: bytes | memoryview | Span) -> bytes | memoryview:
        if not isinstance(part, Span):
            return part
        if part.arena == "zeros":
            return _ZEROS[: part.nbytes]
        worker = self._workers.get(part.worker)
        if worker is None:
            raise LookupError("its memory is gone with the worker")
        memory = worker.inbound if part.arena == "inbound" else worker.outbound
        return memory.view(part.offset, part.nbytes)

    def _reading(self, action: ReadMeter) -> Reading:
        idle_w, busy_w, radio_w = self._spec.power or (0.0, 0.0, 0.0)
        now_s = self._now_s()
        energy_j = idle_w * (now_s - self._ahead_s) + (busy_w - idle_w) * action.busy_s
        return Reading(
            at_s=now_s,
            watts=idle_w + (busy_w - idle_w) * action.busy_frac,
            joules=energy_j + radio_w * action.radio_s,
            source=self._source,
            meter="memory",
            resolution_w=RESOLUTION_W if self._is_metered else 0.0,
            busy_frac=action.busy_frac,
        )

    @property
    def _is_metered(self) -> bool:
        return bool(self._settings.facts["meters"])

    @property
    def _source(self) -> str:
        if self._is_metered:
            return "measured"
        return "simulated" if self._settings.is_emulated else "estimated"

    # --- workers ----------------------------------------------------------------------------------

    def _start_worker(self, number: int) -> None:
        settings = self._settings
        self._workers[number] = MemoryWorker(
            Configure(
                memory_bytes=settings.memory_bytes,
                inbound_bytes=settings.inbound_bytes,
                outbound_bytes=settings.outbound_bytes,
                backends=self._spec.backends,
            ),
            self._spec.slowdown,
            clock_s=self._now_s,
            after=self._clock.after,
            say=lambda message, buffers: self._feed(FromWorker(message, buffers, number)),
            wait=self._clock.step,
        )

    def _kill_worker(self, number: int) -> None:
        worker = self._workers.pop(number, None)
        if worker is not None:
            worker.kill()


def _settings(spec: Spec, key: str, is_metered: bool) -> Settings:
    if not spec.slowdown >= 1.0:
        raise DeviceError("it cannot be faster than it is.", device=spec.name)
    memory_bytes = parse_bytes(spec.memory) if spec.memory is not None else MEMORY_BYTES
    rate = parse_rate(spec.link_rate) if spec.link_rate is not None else 0.0
    facts: dict[str, Any] = {
        "host": machine_name(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": 1,
        "threads": 1,
        "meters": [],
    }
    is_told_times = spec.emulated or spec.slowdown > 1.0
    if is_told_times or rate:
        facts["emulated"] = {"slowdown": spec.slowdown, "link_bytes_per_s": rate or None}
    if is_metered:
        facts["meters"] = [{"name": "memory", "source": "measured", "reason": "", "remedy": ""}]
    elif spec.power is not None:
        facts["power"] = dict(zip(("idle_w", "busy_w", "radio_w"), spec.power, strict=True))
    plain = Settings(name=spec.name, key=key, memory_bytes=0, inbound_bytes=0, outbound_bytes=0)
    return replace(
        plain,
        memory_bytes=memory_bytes,
        inbound_bytes=ARENA_BYTES,
        outbound_bytes=ARENA_BYTES,
        link_bytes_per_s=rate,
        is_told_times=is_told_times,
        facts=facts,
    )
