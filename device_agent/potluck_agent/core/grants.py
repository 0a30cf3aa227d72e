"""Which services of a notebook may be asked for on this device, by whom, and how often. Pure.

A grant is the least that serving together needs: one program for each number of rows, of which only
its inputs are said by who asks. It belongs to the notebook whose run that is, and ends with it.

A model that several devices share is served by the first of them. Each asks the next one for what
the later ones compute, which is a service of its own, granted to the one before: so nothing goes to
anybody else, whatever the devices tell each other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from potluck_agent.core.dependencies import DependencyGraph, lay_out
from potluck_agent.core.events import Buffer
from potluck_agent.core.members import MAX_MEMBERS
from potluck_wire.checks import boolean, integer, one_of, record, rows, which
from potluck_wire.documents import parse
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import (
    MAX_ASKS_PER_S,
    MAX_DIMENSIONS,
    MAX_GRANTS,
    MAX_ITEMS,
    MAX_LIMIT_S,
    MAX_ROWS,
    MIN_RUN_S,
    STANDING_S,
    is_device_name,
    is_identifier,
    is_value_name,
)
from potluck_wire.messages import HOME, GrantService, Standing
from potluck_wire.program import COLUMNS, NETWORK, from_json
from potluck_wire.tensors import DTYPES, nbytes

# what changes nothing on the device, and goes to nobody else
HARMLESS = frozenset({"recv", "run", "slice", "pad", "concat", "add", "send"})
HAND_ON = "hand-on"  # the program that hands a request on, and its name for whom it goes to
# of one notebook, in all programs that hand on and that are parts; a service has some hundred
MAX_INSTRUCTIONS = 65_536

Type = tuple[str, tuple[int, ...]]


@dataclass(slots=True)
class PeerGrant:
    """What one member may. `rows`: the most of a request that is handed on to it. `left` of its
    requests of one row may come at once, as of `counted_s`.
    """

    asks_per_s: float
    hands_on: bool
    rows: int
    left: float
    counted_s: float = 0.0
    heard: Standing | None = None  # of the same service there
    heard_s: float = 0.0
    n_sent: float = 0.0  # requests handed to it since, each by its work

    def takes(self, work: float, now_s: float) -> bool:
        """Whether one more request is within what was granted; it counts then, as `work` requests
        of one row. What is more than may come at once is paid off before the next one.
        """
        most = max(1.0, self.asks_per_s)
        self.left = min(most, self.left + (now_s - self.counted_s) * self.asks_per_s)
        self.counted_s = now_s
        if self.left < min(work, most):
            return False
        self.left -= work
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPart:
    """Which member has what later devices compute of a program, and as which service."""

    peer: str
    service: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedProgram:
    """What answers a request of so many rows. `relay`: what hands it on, and its answer back."""

    rows: int
    name: str
    run_s: float  # that it takes here, and on later devices
    layout: DependencyGraph
    relay: DependencyGraph
    inputs: dict[str, Type]
    input_bytes: int  # of all of them
    then: NextPart | None
    n_made: int  # instructions that are kept beside the program's own


@dataclass(slots=True, kw_only=True)
class ServiceGrant:
    """A service that may be asked for here; `programs` by their rows. Its worker was busy for
    `busy_frac` of the last interval, and had computed for `computed_s` in all at `stated_s`.
    """

    message: GrantService
    programs: dict[int, GrantedProgram]
    peers: dict[str, PeerGrant]
    until_s: float
    computed_s: float = 0.0
    stated_s: float = 0.0
    busy_frac: float = 0.0

    def peer(self, name: str, now_s: float) -> PeerGrant | None:
        """What that member may, if anything; once its time is over it may nothing."""
        return self.peers.get(name) if now_s < self.until_s else None

    def run_s(self, program: str) -> float:
        """What a program of its run takes here."""
        known = (each.run_s for each in self.programs.values() if each.name == program)
        return next(known, self.message.run_s)

    def work(self, rows: int) -> float:
        """How much longer a request of so many rows takes than one of one row."""
        return self.programs[rows].run_s / self.message.run_s

    def standing(self, queue_s: float) -> Standing:
        """How it stands, with so much waiting: idle goodput is what was not used in the last
        interval (EPARA, eq. 1), by whatever its worker did.
        """
        capacity = 1 / self.message.run_s
        return Standing(
            service=self.message.service,
            capacity_per_s=capacity,
            idle_per_s=capacity * (1 - self.busy_frac),
            queue_s=queue_s,
            run_s=self.message.run_s,
        )

    @property
    def told_s(self) -> float:
        """When the interval is over."""
        return self.stated_s + STANDING_S

    def count(self, now_s: float, computed_s: float) -> bool:
        """Once per interval: how busy its worker was, which has computed for so long in all; False:
        the interval is not over.
        """
        if now_s < self.told_s:
            return False
        passed_s = now_s - self.stated_s
        self.busy_frac = min(1.0, max(0.0, computed_s - self.computed_s) / passed_s)
        self.stated_s, self.computed_s = now_s, computed_s
        return True


class GrantTable:
    """The services of one notebook that may be asked for here, by name."""

    def __init__(self) -> None:
        self.services: dict[str, ServiceGrant] = {}

    def forget_programs(self, is_loaded: Callable[[str, int], bool]) -> None:
        """Keep no program of an epoch that is over: `is_loaded(run, epoch)` tells."""
        for each in self.services.values():
            if not is_loaded(each.message.run, each.message.epoch):
                each.programs.clear()

    def put(
        self,
        message: GrantService,
        document: Buffer,
        layouts: Mapping[str, DependencyGraph],
        computed_s: float,
        now_s: float,
    ) -> None:
        """Put this, of an epoch with these programs, in the place of what was granted before.
        WireError where it does not hold.
        """
        if not is_identifier(message.service):
            raise WireError(WireCode.DOCUMENT, "the service's name is not an identifier")
        if len(self.services) >= MAX_GRANTS and message.service not in self.services:
            raise WireError(WireCode.SIZE, f"{MAX_GRANTS} services are granted already")
        read = parse(document, "the grant", _GRANT)
        names = [row["name"] for row in read["peers"]]
        if len({*names}) < len(names):
            raise WireError(WireCode.DOCUMENT, "two members have one name")
        if not MIN_RUN_S <= message.run_s <= message.limit_s <= MAX_LIMIT_S or message.lasts_s < 0:
            text = f"{MIN_RUN_S} <= run_s <= limit_s <= {MAX_LIMIT_S:.0f} and lasts_s >= 0 expected"
            raise WireError(WireCode.DOCUMENT, text)
        one_row = {"rows": 1, "program": message.program, "run_s": message.run_s}
        parts = {name: read[name] for name in ("inputs", *_PART) if name in read}
        sizes = [{**one_row, **parts}, *read.get("sizes", ())]
        others = (each for name, each in self.services.items() if name != message.service)
        room = MAX_INSTRUCTIONS - sum(p.n_made for each in others for p in each.programs.values())
        programs = dict[int, GrantedProgram]()
        for row in sizes:
            made = programs[row["rows"]] = _program(row, layouts, room)
            room -= made.n_made
        if len(programs) < len(sizes):
            raise WireError(WireCode.DOCUMENT, "two programs are for one number of rows")
        before = self.services.get(message.service)
        peers = {
            row["name"]: PeerGrant(
                row["asks_per_s"],
                row["hands_on"],
                row.get("rows", 1),
                left=max(1.0, row["asks_per_s"]),
            )
            for row in read["peers"]
        }
        for name, peer in peers.items():  # a renewal gives nobody more at once
            if before is not None and (known := before.peers.get(name)) is not None:
                peer.left, peer.counted_s = known.left, known.counted_s
                peer.heard, peer.heard_s = known.heard, known.heard_s
        self.services[message.service] = ServiceGrant(
            message=message,
            programs=programs,
            peers=peers,
            until_s=now_s + message.lasts_s if message.lasts_s else float("inf"),
            computed_s=computed_s,
            stated_s=now_s,
        )


def _program(
    row: dict[str, Any], layouts: Mapping[str, DependencyGraph], room: int
) -> GrantedProgram:
    """What one row of the document grants, in so many instructions at most. WireError where that
    does not hold.
    """
    inputs = {each["name"]: (each["dtype"], each["shape"]) for each in row["inputs"]}
    layout = layouts.get(row["program"])
    if layout is None:
        raise WireError(WireCode.DOCUMENT, f"no program {row['program']} is loaded")
    if len(inputs) < len(row["inputs"]):
        raise WireError(WireCode.DOCUMENT, "two inputs have one name")
    before, then = row.get("before", ()), row.get("then")
    later = then["devices"] if then else ()
    _check_harmless(layout, {HOME, *before, *later})
    # a program that hands values on has twice as many instructions
    n_values = len(inputs) + sum(each.op == "send" for each in layout.program.instructions)
    n_made = 2 * n_values
    if is_part := bool(before) or then is not None:
        n_made += layout.n_instructions + 4 * MAX_ITEMS
    if n_made > room:
        text = f"programs to be asked for have {MAX_INSTRUCTIONS} instructions in all, at most"
        raise WireError(WireCode.SIZE, text)
    if is_part:
        layout = _part(layout, {*later}, then)
    return GrantedProgram(
        rows=row["rows"],
        name=row["program"],
        run_s=row["run_s"],
        layout=layout,
        relay=_relay(inputs, _outputs(layout, inputs.keys())),
        inputs=inputs,
        input_bytes=sum(nbytes(*kind) for kind in inputs.values()),
        then=NextPart(peer=then["peer"], service=then["service"]) if then else None,
        n_made=n_made,
    )


def _check_harmless(layout: DependencyGraph, peers: set[str]) -> None:
    """WireError where a program is none to be asked for."""
    for each in layout.program.instructions:
        is_plain = each.op in HARMLESS and "to" not in each.attrs and not each.attrs.get("train")
        if not is_plain or each.attrs.get("peer", HOME) not in peers:
            text = f"instruction {each.id} ({each.op}) is not for others to ask for"
            raise WireError(WireCode.DOCUMENT, text)


def _part(layout: DependencyGraph, later: set[str], then: dict[str, Any] | None) -> DependencyGraph:
    """A part of a program that several devices share, as whoever asks for it sees it: what comes
    from earlier devices comes with the request, and what goes to them is its answer. All that later
    ones take goes to the next one as a request of its own, and its answer is what comes from them;
    what neither is made nor used here is handed on.
    """
    document = layout.program.to_json()
    rows, exchanged = document["instructions"], set[tuple[str, str, str]]()
    for op, _, outputs, _, _, attrs in rows:
        if op in NETWORK:
            attrs["peer"] = HAND_ON if attrs["peer"] in later else HOME
            exchanged.add((op, attrs["peer"], outputs[0] if op == "recv" else attrs["name"]))
    if then:
        on = [name for name in then["inputs"] if ("send", HAND_ON, name) not in exchanged]
        back = [name for name in then["outputs"] if ("recv", HAND_ON, name) not in exchanged]
        rows += [_recv(name, HOME) for name in on if ("recv", HOME, name) not in exchanged]
        rows += [_send(name, HAND_ON) for name in on]
        rows += [_recv(name, HAND_ON) for name in back]
        rows += [_send(name, HOME) for name in back]
    lasts_s = document.get("lasts_s", [])
    lasts_s += [0.0] * (len(rows) - len(lasts_s)) if lasts_s else []
    whole = {name: column for name, column in document.items() if name not in COLUMNS}
    return lay_out(from_json({**whole, **({"lasts_s": lasts_s} if lasts_s else {})}))


def _outputs(layout: DependencyGraph, inputs: Iterable[str]) -> tuple[str, ...]:
    """What a program answers. WireError where it takes other inputs, or answers nothing."""
    received = {name for name, (_, peer) in layout.receives.items() if peer == HOME}
    if received != {*inputs}:
        raise WireError(WireCode.DOCUMENT, "its inputs are not those of the program")
    sends = (each.attrs for each in layout.program.instructions if each.op == "send")
    outputs = tuple(attrs["name"] for attrs in sends if attrs["peer"] == HOME)
    if not outputs or {*outputs} & {*inputs}:
        raise WireError(WireCode.DOCUMENT, "it needs outputs, with names of their own")
    return outputs


def _recv(name: str, peer: str) -> list[Any]:
    return ["recv", [], [name], [], 0, {"peer": peer}]


def _send(name: str, peer: str) -> list[Any]:
    return ["send", [name], [], [], 0, {"peer": peer, "name": name}]


def _relay(inputs: Iterable[str], outputs: Iterable[str]) -> DependencyGraph:
    """Inputs on, outputs back. An input counts as sent once more than it is: so its place is kept
    to the end, and it can go to another device.
    """
    instructions: list[list[Any]] = []
    for names, source, sink in ((inputs, HOME, HAND_ON), (outputs, HAND_ON, HOME)):
        for name in names:
            instructions += _recv(name, source), _send(name, sink)
    layout = lay_out(from_json({"name": HAND_ON, "instructions": instructions}))
    return replace(layout, sends={**layout.sends, **dict.fromkeys(inputs, 2)})


def _is_member(name: object) -> bool:
    return is_device_name(name) and name != HOME


def _is_rate(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= MAX_ASKS_PER_S  # type: ignore[operator]


_INPUTS = rows(
    record(
        name=which(is_value_name, "the name of a value"),
        dtype=one_of(DTYPES),
        shape=rows(integer(), MAX_DIMENSIONS),
    ),
    MAX_ITEMS,
)
_NAMES = rows(which(is_value_name, "the name of a value"), MAX_ITEMS)
_DEVICE = which(_is_member, "a device's name")
_DEVICES = rows(_DEVICE, MAX_MEMBERS)
_PART = {
    "before": _DEVICES,
    "then": record(
        peer=_DEVICE,
        service=which(is_identifier, "an identifier"),
        devices=_DEVICES,
        inputs=_NAMES,
        outputs=_NAMES,
    ),
}
_SIZE = record(
    (*_PART,),
    rows=integer(2, MAX_ROWS),
    program=which(is_identifier, "an identifier"),
    run_s=which(lambda each: _is_rate(each) and each >= MIN_RUN_S, "seconds"),
    inputs=_INPUTS,
    **_PART,
)
_GRANT = record(
    ("sizes", *_PART),
    inputs=_INPUTS,
    sizes=rows(_SIZE, MAX_ITEMS),
    peers=rows(
        record(
            ("rows",),
            name=_DEVICE,
            asks_per_s=which(_is_rate, "a number in 0..1000000"),
            hands_on=boolean,
            rows=integer(1, MAX_ROWS),
        ),
        MAX_MEMBERS,
    ),
    **_PART,
)
