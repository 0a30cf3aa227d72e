"""Which services of a notebook may be asked for on this device, by whom, and how often. Pure.

A grant is the least that serving together needs: one program, of which only its inputs are said by
who asks. It belongs to the notebook whose run that is, and ends with it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from potluck_agent.core.dependencies import DependencyGraph, lay_out
from potluck_agent.core.events import Buffer
from potluck_agent.core.members import MAX_MEMBERS
from potluck_wire.checks import boolean, integer, one_of, record, rows, which
from potluck_wire.documents import parse
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import (
    MAX_DIMENSIONS,
    MAX_GRANTS,
    MAX_ITEMS,
    MAX_LIMIT_S,
    MIN_RUN_S,
    STANDING_S,
    is_device_name,
    is_identifier,
    is_value_name,
)
from potluck_wire.messages import HOME, GrantService, Standing
from potluck_wire.program import from_json
from potluck_wire.tensors import DTYPES

# what changes nothing on the device, and goes to nobody else
HARMLESS = frozenset({"recv", "run", "slice", "pad", "concat", "add", "send"})
HAND_ON = "hand-on"  # the program that hands a request on

Type = tuple[str, tuple[int, ...]]


@dataclass(slots=True)
class PeerGrant:
    """What one member may. `left` of its requests may come at once, as of `counted_s`."""

    asks_per_s: float
    hands_on: bool
    left: float
    counted_s: float = 0.0
    heard: Standing | None = None  # of the same service there
    heard_s: float = 0.0
    n_sent: int = 0  # requests handed to it since

    def takes(self, now_s: float) -> bool:
        """Whether one more request is within what was granted; it counts then."""
        most = max(1.0, self.asks_per_s)
        self.left = min(most, self.left + (now_s - self.counted_s) * self.asks_per_s)
        self.counted_s = now_s
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


@dataclass(slots=True, kw_only=True)
class ServiceGrant:
    """One service on this device, in one of its runs."""

    message: GrantService
    layout: DependencyGraph
    inputs: dict[str, Type]
    outputs: tuple[str, ...]
    peers: dict[str, PeerGrant]
    until_s: float
    computed_s: float = 0.0  # by its worker, as of `stated_s`
    stated_s: float = 0.0
    busy_frac: float = 0.0  # of the last interval
    relays: dict[str, DependencyGraph] = field(default_factory=dict)

    def peer(self, name: str, now_s: float) -> PeerGrant | None:
        """What that member may, if anything; once its time is over it may nothing."""
        return self.peers.get(name) if now_s < self.until_s else None

    def relay(self, peer: str) -> DependencyGraph:
        """The program that hands a request on to this member, and its answer back."""
        if peer not in self.relays:
            self.relays[peer] = _relay(self.inputs, self.outputs, peer)
        return self.relays[peer]

    def standing(self, n_before: int) -> Standing:
        """How it stands: idle goodput is what was not used in the last interval (EPARA, eq. 1), by
        whatever its worker did.
        """
        capacity = 1 / self.message.run_s
        return Standing(
            service=self.message.service,
            capacity_per_s=capacity,
            idle_per_s=capacity * (1 - self.busy_frac),
            queue_s=n_before * self.message.run_s,
            run_s=self.message.run_s,
        )

    def count(self, now_s: float, computed_s: float) -> bool:
        """Once per interval: how busy its worker was, which has computed for so long in all; False:
        the interval is not over.
        """
        passed_s = now_s - self.stated_s
        if passed_s < STANDING_S:
            return False
        self.busy_frac = min(1.0, max(0.0, computed_s - self.computed_s) / passed_s)
        self.stated_s, self.computed_s = now_s, computed_s
        return True


class GrantTable:
    """The services of one notebook that may be asked for here, by name."""

    def __init__(self) -> None:
        self.services: dict[str, ServiceGrant] = {}

    def put(
        self,
        message: GrantService,
        document: Buffer,
        layout: DependencyGraph,
        computed_s: float,
        now_s: float,
    ) -> None:
        """Put this in the place of what was granted before. WireError where it does not hold."""
        if not is_identifier(message.service):
            raise WireError(WireCode.DOCUMENT, "the service's name is not an identifier")
        if len(self.services) >= MAX_GRANTS and message.service not in self.services:
            raise WireError(WireCode.SIZE, f"{MAX_GRANTS} services are granted already")
        read = parse(document, "the grant", _GRANT)
        inputs = {row["name"]: (row["dtype"], row["shape"]) for row in read["inputs"]}
        names = [row["name"] for row in read["peers"]]
        if len(inputs) < len(read["inputs"]) or len({*names}) < len(names):
            raise WireError(WireCode.DOCUMENT, "two inputs or two members have one name")
        if not MIN_RUN_S <= message.run_s <= message.limit_s <= MAX_LIMIT_S or message.lasts_s < 0:
            text = f"{MIN_RUN_S} <= run_s <= limit_s <= {MAX_LIMIT_S:.0f} and lasts_s >= 0 expected"
            raise WireError(WireCode.DOCUMENT, text)
        before = self.services.get(message.service)
        peers = {
            row["name"]: PeerGrant(
                row["asks_per_s"], row["hands_on"], left=max(1.0, row["asks_per_s"])
            )
            for row in read["peers"]
        }
        for name, peer in peers.items():  # a renewal gives nobody more at once
            if before is not None and (known := before.peers.get(name)) is not None:
                peer.left, peer.counted_s = known.left, known.counted_s
                peer.heard, peer.heard_s = known.heard, known.heard_s
        self.services[message.service] = ServiceGrant(
            message=message,
            layout=layout,
            inputs=inputs,
            outputs=_outputs(layout, inputs.keys()),
            peers=peers,
            until_s=now_s + message.lasts_s if message.lasts_s else float("inf"),
            computed_s=computed_s,
            stated_s=now_s,
        )


def _outputs(layout: DependencyGraph, inputs: Iterable[str]) -> tuple[str, ...]:
    """What a program answers. WireError where it is none to be asked for."""
    instructions = layout.program.instructions
    for each in instructions:
        is_plain = each.op in HARMLESS and "to" not in each.attrs and not each.attrs.get("train")
        if not is_plain or each.attrs.get("peer", HOME) != HOME:
            text = f"instruction {each.id} ({each.op}) is not for others to ask for"
            raise WireError(WireCode.DOCUMENT, text)
    if layout.receives.keys() != {*inputs}:
        raise WireError(WireCode.DOCUMENT, "its inputs are not those of the program")
    outputs = tuple(each.attrs["name"] for each in instructions if each.op == "send")
    if not outputs or {*outputs} & {*inputs}:
        raise WireError(WireCode.DOCUMENT, "it needs outputs, with names of their own")
    return outputs


def _relay(inputs: Iterable[str], outputs: Iterable[str], peer: str) -> DependencyGraph:
    instructions: list[list[Any]] = []
    for names, source, sink in ((inputs, HOME, peer), (outputs, peer, HOME)):
        for name in names:
            instructions.append(["recv", [], [name], [], 0, {"peer": source}])
            instructions.append(["send", [name], [], [], 0, {"peer": sink, "name": name}])
    return lay_out(from_json({"name": HAND_ON, "instructions": instructions}))


def _is_rate(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1e6  # type: ignore[operator]


_GRANT = record(
    inputs=rows(
        record(
            name=which(is_value_name, "the name of a value"),
            dtype=one_of(DTYPES),
            shape=rows(integer(), MAX_DIMENSIONS),
        ),
        MAX_ITEMS,
    ),
    peers=rows(
        record(
            name=which(lambda name: is_device_name(name) and name != HOME, "a device's name"),
            asks_per_s=which(_is_rate, "a number in 0..1000000"),
            hands_on=boolean,
        ),
        MAX_MEMBERS,
    ),
)
