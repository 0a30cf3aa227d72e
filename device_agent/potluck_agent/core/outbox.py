"""Where the parts of the core put their actions, in order.

And what they all need to know about this device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from potluck_agent.core.events import Action, Buffer, Span, ToPeer
from potluck_agent.core.members import MAX_LINKS
from potluck_wire.limits import MAX_VALUE_BYTES
from potluck_wire.messages import MESSAGES, NUMBER_OF, Channel, Message, Refused
from potluck_wire.version import REFUSED_BYTES, VERSION, show

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the owner of the device lets it do, and how it behaves.

    `memory_bytes`: for tensors. `hang_s`: a worker that is silent for so long over a task is hung
    (or ten times the longest task so far, where that is more). `grace_s`: a notebook that is silent
    for so long is gone. `is_told_times`: tasks last as long as a program says, for this device
    plays another. `facts`: what else the capability statement says. `leases`: what was promised to
    coordinators before the agent was started, as JSON. `kept_bytes`: for weights between runs;
    `kept`: what there is of them already, as JSON. `most_links`: members that have
    a connection.
    """

    name: str
    key: str
    memory_bytes: int
    inbound_bytes: int
    outbound_bytes: int
    link_bytes_per_s: float = 0.0
    hang_s: float = 30.0
    start_s: float = 120.0
    grace_s: float = 30.0
    is_told_times: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    leases: str = ""
    kept_bytes: int = 0
    kept: str = ""
    most_links: int = MAX_LINKS

    @property
    def is_emulated(self) -> bool:
        """Whether it plays another device: then it is times that count, of transfers, too."""
        return self.is_told_times or self.link_bytes_per_s > 0

    def statement(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What this device is and accepts: the owner's limits, and what its worker says of
        itself.
        """
        nothing: dict[str, Any] = {"backends": {}, "dtypes": [], "operators": []}
        own = {
            "name": self.name,
            "version": show(),
            "memory_bytes": self.memory_bytes,
            "max_value_bytes": min(MAX_VALUE_BYTES, self.inbound_bytes),
            **({"kept_bytes": self.kept_bytes} if self.kept_bytes else {}),
        }
        return {**nothing, **facts, **self.facts, **own}


class Outbox:
    """Actions in order. `versions`: of the protocol, as each notebook speaks it."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self.versions: dict[str, tuple[int, int]] = {}

    def add(self, *actions: Action) -> None:
        """Do these next."""
        self._actions += actions

    def send(self, key: str, message: Message, buffers: Sequence[Buffer | Span] = ()) -> None:
        """Send this to a peer."""
        self._actions.append(ToPeer(key=key, message=message, buffers=tuple(buffers)))

    @property
    def n_sent(self) -> int:
        """How many actions wait to be done."""
        return len(self._actions)

    def unsend(self, key: str, since: int) -> None:
        """Of the actions behind the first `since`, leave out control messages to this peer: with it
        the session is closed.
        """
        self._actions[since:] = [
            action
            for action in self._actions[since:]
            if not (
                isinstance(action, ToPeer)
                and action.key == key
                and MESSAGES[NUMBER_OF[type(action.message)]].channel is Channel.CONTROL
            )
        ]

    def refuse(
        self,
        key: str,
        request: Message,
        code: str,
        text: str,
        needed_bytes: int = 0,
        available_bytes: int = 0,
    ) -> None:
        """Tell a notebook that its request was not carried out.

        Of memory how much, where it knows these fields.
        """
        if self.versions.get(key, VERSION) < REFUSED_BYTES:
            needed_bytes = available_bytes = 0
        refused = Refused(
            about=NUMBER_OF[type(request)],
            code=code,
            text=text,
            run=getattr(request, "run", ""),
            epoch=max(0, getattr(request, "epoch", 0)),
            needed_bytes=needed_bytes,
            available_bytes=available_bytes,
        )
        self.send(key, refused)

    def take(self) -> list[Action]:
        """All of them, once."""
        taken, self._actions = self._actions, []
        return taken
