"""A way to serve as a whole: operators, placement, routing and what a server knows of the others.

EPARA, its baselines and ours are values of `Scheme`, so all run on the same servers, requests and
code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from potluck.serve.scheduling.allocate import EVERY, Operators
from potluck.serve.scheduling.node import Policy
from potluck.serve.scheduling.placement import Allocations, Demand, Placement
from potluck.serve.scheduling.records import Server

Place = Callable[[Sequence[Server], Allocations, Demand], Placement]


class ServerKnowledge(Enum):
    """What a server knows of the others when it hands a request on."""

    RING = "states of the ring, as old as their way here"
    NOW = "the exact state of everybody"
    NAMES = "who there is, not what they have or do"
    NOTHING = "nothing: it serves alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One way to serve.

    `policy` makes the policy of a server, which may keep its own turn. Of `place` and its
    `alternatives` the one is used that serves most when the period's first requests are played.
    `handling_s`: seconds that each decision to hand on takes. `group`: servers that exchange states
    and hand on to each other; None: all. `source` names the paper or project; `differs`: how this
    form differs from it.
    """

    name: str
    policy: Callable[[], Policy]
    place: Place
    alternatives: tuple[Place, ...] = ()
    operators: Operators = EVERY
    knows: ServerKnowledge = ServerKnowledge.RING
    handling_s: float = 0.0
    group: int | None = None
    source: str = ""
    differs: str = ""
