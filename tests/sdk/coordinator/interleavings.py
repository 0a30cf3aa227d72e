"""Every order in which things may happen to coordinators and devices, as far as a search gets.

The machines are the real ones: `Succession` of the coordinators, `LeaseTable` of the devices. The
network loses, repeats, delays and reorders whatever it carries. A coordinator that is not chosen
stands still, beyond its lease too. Disks keep what was synced, and nothing else.

What must hold is checked after every event; a world is a value, so that a search can branch.
"""

import copy
import json
import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from potluck.coordinator.succession import (
    ACTING,
    AskVoters,
    Begin,
    Follow,
    Grew,
    JournalReport,
    LeaderAnswered,
    Pulled,
    Record,
    Succession,
    Tick,
    Voted,
)
from potluck_agent.core.leases import LeaseTable
from potluck_wire.messages import Lease

NAME = "job"
STRANGER = "Z"  # a notebook that every device knows, and that has no copy
MOST_LEASES = 2  # of one notebook
MAX_FLYING = 8
MAX_ENTRIES = 12
LONG_S, SHORT_S = 5.5, 1.0
Log = tuple[tuple[int, int], ...]  # (term, number); number 0: the term begins


class Broken(AssertionError):
    """What must hold does not."""


@dataclass(frozen=True)
class Message:
    """On its way. `what` is a record of the machines, or (log, term) of a copy."""

    kind: str  # ask, vote, pull, copy
    source: str
    target: str
    what: Any
    is_repeat: bool = False


@dataclass(frozen=True)
class Coordinator:
    """One of them. `machine` None: it has ended. `log` is what it has; on its disk `n_synced`."""

    machine: Any
    log: Log = ()
    n_synced: int = 0

    @property
    def term(self) -> int:
        return self.log[-1][0] if self.log else 0


@dataclass(frozen=True)
class World:
    """All of it. `announced`: the longest journal that anybody was told of."""

    coordinators: dict[str, Coordinator]
    devices: dict[str, LeaseTable | None]
    flying: tuple[Message, ...] = ()
    now_s: float = 0.0
    announced: Log = ()
    acted: dict[str, int] = field(default_factory=dict)  # by device: the newest term at work there
    disks: dict[str, str] = field(default_factory=dict)  # of devices that have ended
    table: type[LeaseTable] = LeaseTable


def world(
    n_coordinators: int,
    n_devices: int,
    kind: type[Succession] = Succession,
    table: type[LeaseTable] = LeaseTable,
) -> World:
    """One that has all, others that come to it, and devices that have promised nothing."""
    voters = tuple(f"d{i}" for i in range(n_devices))
    names = [chr(ord("A") + i) for i in range(n_coordinators)]
    found: dict[str, Coordinator] = {}
    for rank, name in enumerate(names):
        log: Log = ((0, 1),) * (rank == 0)
        machine = kind(name, rank, voters, reached=len(log), founds=rank == 0)
        machine.leader = "A"
        found[name] = Coordinator(machine, log, len(log))
    return World(found, {name: table(max_leases=MOST_LEASES) for name in voters}, table=table)


# --- what may happen next -------------------------------------------------------------------------


def steps(w: World) -> list[tuple[Any, ...]]:
    """All that may happen now."""
    found: list[tuple[Any, ...]] = []
    for name, each in w.coordinators.items():
        if each.machine is None:
            found.append(("restart", name))
            continue
        found += [("tick", name), ("crash", name)]
        if each.machine.role == ACTING:
            found += [("grow", name)] * (len(each.log) < MAX_ENTRIES)
            found += [("act", name, device) for device in w.devices]
        elif each.machine.leader and len(w.flying) < MAX_FLYING:
            found.append(("pull", name))
        if each.n_synced < len(each.log):
            found.append(("sync", name))
    for message in w.flying:
        found += [("deliver", message), ("lose", message)]
        found += [("repeat", message)] * (not message.is_repeat)
    for name, table in w.devices.items():
        found.append(("off" if table is not None else "on", name))
        found += [("crowd", name)] * (table is not None)
    return [*found, ("wait", SHORT_S), ("wait", LONG_S)]


def after(w: World, step: tuple[Any, ...]) -> World:
    """The world after it; Broken where what must hold does not."""
    w = replace(
        w,
        coordinators=dict(w.coordinators),
        devices=dict(w.devices),
        acted=dict(w.acted),
        disks=dict(w.disks),
    )
    w = _STEPS[step[0]](w, *step[1:])
    holders = [
        name
        for name, each in w.coordinators.items()
        if each.machine and each.machine.role == ACTING and w.now_s < each.machine.held_until_s
    ]
    if len(holders) > 1:
        raise Broken(f"{holders} hold the lease at once")
    return w


def _handle(w: World, name: str, event: Any) -> World:
    each = w.coordinators[name]
    machine = copy.copy(each.machine)
    w.coordinators[name] = replace(each, machine=machine)
    for action in machine.handle(event, w.now_s):
        w = _perform(w, name, action)
    return w


def _perform(w: World, name: str, action: Any) -> World:
    each = w.coordinators[name]
    match action:
        case AskVoters():
            new = tuple(Message("ask", name, device, action) for device in w.devices)
            return _fly(w, *new)
        case Begin(term):
            if each.log[: len(w.announced)] != w.announced:
                raise Broken(f"{name} takes over with {each.log}, and {w.announced} was announced")
            w.coordinators[name] = replace(each, log=(*each.log, (term, 0)))
        case JournalReport(position):
            shown = each.log[:position]
            n_common = min(len(shown), len(w.announced))
            if shown[:n_common] != w.announced[:n_common]:
                raise Broken(f"{name} tells {shown}, and {w.announced} was announced")
            return replace(w, announced=max(shown, w.announced, key=len))
        case Follow():
            pass
    return w


def _fly(w: World, *messages: Message) -> World:
    flying = [*w.flying, *(message for message in messages if message not in w.flying)]
    return replace(w, flying=tuple(flying[-MAX_FLYING:]))


def _gone(w: World, message: Message) -> World:
    return replace(w, flying=tuple(each for each in w.flying if each != message))


def _deliver(w: World, message: Message) -> World:
    return _ARRIVES[message.kind](_gone(w, message), message)


def _asked(w: World, message: Message) -> World:
    table = w.devices[message.target]
    if table is None:
        return w
    request: AskVoters = message.what
    table = w.devices[message.target] = copy.copy(table)
    lease = Lease(
        name=NAME,
        term=request.term,
        serial=request.serial,
        lasts_s=request.lasts_s,
        record=_text(request.record),
    )
    answer, _ = table.ask(message.source, lease, w.now_s)
    vote = Voted(
        message.target,
        request.number,
        answer.granted,
        answer.term,
        answer.left_s,
        (answer.accepted_term, answer.accepted_serial),
        _record(answer.record),
    )
    return _fly(w, Message("vote", message.target, message.source, vote))


def _text(record: Record | None) -> str:
    return "" if record is None else json.dumps([record.leader, record.in_sync])


def _record(text: str) -> Record | None:
    return Record(json.loads(text)[0], tuple(json.loads(text)[1])) if text else None


def _voted(w: World, message: Message) -> World:
    if w.coordinators[message.target].machine is None:
        return w
    return _handle(w, message.target, message.what)


def _pull(w: World, name: str) -> World:
    each = w.coordinators[name]
    return _fly(w, Message("pull", name, each.machine.leader, each.log))


def _pulled(w: World, message: Message) -> World:
    """Whoever acts sends all that it has; a copy that is the same so far counts."""
    acting, log = w.coordinators[message.target], message.what
    if acting.machine is None:
        return w
    w = _handle(w, message.target, Tick())  # its lease may be over
    acting = w.coordinators[message.target]
    if acting.machine.role != ACTING or message.source == message.target:
        return w
    if acting.log[: len(log)] == log:
        w = _handle(w, message.target, Pulled(message.source, len(log)))
        acting = w.coordinators[message.target]
    return _fly(
        w, Message("copy", message.target, message.source, (acting.log, acting.machine.term))
    )


def _copied(w: World, message: Message) -> World:
    each, (log, term) = w.coordinators[message.target], message.what
    if each.machine is None or each.machine.role == ACTING or term < each.term:
        return w
    if term == each.term and len(log) < len(each.log):
        return w
    w.coordinators[message.target] = replace(each, log=log, n_synced=len(log))
    w = _handle(w, message.target, Grew(len(log)))
    return _handle(w, message.target, LeaderAnswered(message.source, term))


def _grow(w: World, name: str) -> World:
    w = _handle(w, name, Tick())
    each = w.coordinators[name]
    if each.machine.role != ACTING:
        return w
    w.coordinators[name] = replace(each, log=(*each.log, (each.machine.term, len(each.log))))
    return w


def _sync(w: World, name: str) -> World:
    each = w.coordinators[name]
    w.coordinators[name] = replace(each, n_synced=len(each.log))
    return _handle(w, name, Grew(len(each.log)))


def _act(w: World, name: str, device: str) -> World:
    """It has something done on a device, which looks at the term: even one that stood still."""
    table, term = w.devices[device], w.coordinators[name].machine.term
    if table is None or term < table.term(NAME):
        return w
    w.devices[device] = table = copy.copy(table)
    table.learn(name, NAME, term, w.now_s)
    if term < w.acted.get(device, 0):
        raise Broken(f"{device} does what {name} wants in term {term}, after a newer one")
    w.acted[device] = term
    return w


def _crash(w: World, name: str) -> World:
    each = w.coordinators[name]
    w.coordinators[name] = replace(each, machine=None, log=each.log[: each.n_synced])
    return w


def _restart(w: World, name: str) -> World:
    each, other = w.coordinators[name], next(c.machine for c in w.coordinators.values())
    rank = list(w.coordinators).index(name)
    kind = type(other) if other is not None else Succession
    founds = name == "A" and not each.term
    machine = kind(
        name, rank, tuple(w.devices), term=each.term, reached=len(each.log), founds=founds
    )
    w.coordinators[name] = replace(each, machine=machine)
    return w


def _off(w: World, name: str) -> World:
    table = w.devices[name]
    assert table is not None
    w.disks[name], w.devices[name] = json.dumps(table.rows()), None
    return w


def _on(w: World, name: str) -> World:
    w.devices[name] = w.table(w.disks.pop(name), max_leases=MOST_LEASES)
    return w


def _crowd(w: World, name: str) -> World:
    """A stranger asks for more leases of its own than a device keeps, and runs under others."""
    w.devices[name] = table = copy.copy(w.devices[name])
    assert table is not None
    for number in range(MOST_LEASES + 1):
        table.ask(STRANGER, Lease(name=f"ask-{number}", term=1), w.now_s)
        table.learn(STRANGER, f"run-{number}", 1, w.now_s)
    return w


_STEPS: dict[str, Any] = {
    "tick": lambda w, name: _handle(w, name, Tick()),
    "crash": _crash,
    "restart": _restart,
    "grow": _grow,
    "act": _act,
    "pull": _pull,
    "sync": _sync,
    "deliver": _deliver,
    "lose": _gone,
    "repeat": lambda w, message: _deliver(_fly(w, replace(message, is_repeat=True)), message),
    "off": _off,
    "on": _on,
    "crowd": _crowd,
    "wait": lambda w, seconds: replace(w, now_s=w.now_s + seconds),
}
_ARRIVES: dict[str, Any] = {"ask": _asked, "vote": _voted, "pull": _pulled, "copy": _copied}


# --- searching ------------------------------------------------------------------------------------


def key(w: World) -> Any:
    """What tells one world from another: times count from now."""
    return _plain(
        (
            tuple(
                (n, c.machine and vars(c.machine), c.log, c.n_synced)
                for n, c in w.coordinators.items()
            ),
            tuple((n, t and vars(t)) for n, t in w.devices.items()),
            frozenset(w.flying),
            w.announced,
            tuple(w.acted.items()),
        ),
        w.now_s,
    )


def _plain(value: Any, now_s: float) -> Any:
    if isinstance(value, dict):
        return tuple(
            (name, _shift(name, each, now_s)) for name, each in value.items() if name != "_actions"
        )
    if isinstance(value, tuple):
        return tuple(_plain(each, now_s) for each in value)
    return value


def _shift(name: str, value: Any, now_s: float) -> Any:
    if isinstance(value, float) and name.endswith("_s") and name != "_left_s":
        return round(max(value - now_s, -9.0), 3)
    if name == "_copies":
        return tuple((who, n, round(max(s - now_s, -9.0), 3)) for who, (n, s) in value.items())
    if name == "_until_s":
        return tuple((n, s and round(max(s - now_s, -9.0), 3)) for n, s in value.items())
    return _plain(value, now_s)


@dataclass
class Searched:
    """How far a search came."""

    n_worlds: int = 0
    n_terms: int = 0
    n_announced: int = 0
    samples: list[World] = field(default_factory=list)


def search(begin: list[World], most: int, every: int = 200) -> Searched:
    """Breadth first from these worlds, through at most so many different ones."""
    seen = {key(w) for w in begin}
    queue = deque(begin)
    done = Searched()
    while queue and len(seen) < most:
        w = queue.popleft()
        for step in steps(w):
            new = after(w, step)
            if (name := key(new)) not in seen:
                seen.add(name)
                queue.append(new)
                if len(seen) % every == 0:
                    done.samples.append(new)
                done.n_announced = max(done.n_announced, len(new.announced))
                terms = [c.machine.term for c in new.coordinators.values() if c.machine]
                done.n_terms = max([done.n_terms, *terms])
    done.n_worlds = len(seen)
    return done


WEIGHTS = {
    "crowd": 0.2,
    "crash": 0.1,
    "off": 0.1,
    "lose": 0.2,
    "repeat": 0.2,
    "deliver": 8.0,
    "sync": 3.0,
}
PHASE = 60  # steps, in which the same pairs do not hear of each other, and the same stand still


def walk(w: World, n: int, rng: random.Random) -> World:
    """A long way through: so many steps, by chance."""
    for at in range(n):
        if at % PHASE == 0:
            names = [*w.coordinators, *w.devices]
            parted = {(a, b) for a in names for b in names if rng.random() < 0.2}
            still = {name for name in w.coordinators if rng.random() < 0.15}
        possible = steps(w)
        (step,) = rng.choices(possible, [_weight(s, parted, still) for s in possible])
        w = after(w, step)
    return w


def _weight(step: tuple[Any, ...], parted: set[tuple[str, str]], still: set[str]) -> float:
    kind, what = step[:2]
    if kind in ("deliver", "repeat") and (what.source, what.target) in parted:
        return 0.0
    if kind in ("tick", "grow", "act", "pull", "sync") and what in still:
        return 0.0
    if kind == "wait":
        return 1.0 if what == SHORT_S else 0.1
    return WEIGHTS.get(kind, 1.0)


def settled(w: World, without: str = "") -> World:
    """From here on nothing is lost, all devices are there, and all coordinators but one."""
    w = replace(w, flying=())
    for name, table in w.devices.items():
        w = after(w, ("on", name)) if table is None else w
    for name, each in w.coordinators.items():
        if name == without and each.machine is not None:
            w = after(w, ("crash", name))
        elif name != without and each.machine is None:
            w = after(w, ("restart", name))
    for _ in range(160):
        for name, each in w.coordinators.items():
            if each.machine is None:
                continue
            for kind in ("tick", "pull", "sync"):
                if (kind, name) in steps(w):
                    w = after(w, (kind, name))
                while w.flying:
                    w = after(w, ("deliver", w.flying[0]))
        w = after(w, ("wait", 0.25))
    return w


def in_sync(w: World) -> tuple[str, ...]:
    """Whose copies count, by what devices keep; of nobody where none was told so."""
    rows = [row for table in w.devices.values() if table for row in table.rows()]
    rows += [row for text in w.disks.values() for row in json.loads(text)]
    rows = [row for row in rows if row["name"] == NAME]
    latest = max(rows, key=lambda row: (row["accepted_term"], row["accepted_serial"]), default=None)
    record = _record(latest["record"]) if latest else None
    return record.in_sync if record else ()


def acting(w: World) -> tuple[str, ...]:
    """Who acts."""
    return tuple(
        name
        for name, each in w.coordinators.items()
        if each.machine is not None and each.machine.role == ACTING
    )
