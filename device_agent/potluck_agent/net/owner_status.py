"""What goes on in an agent, for the owner who asks: as the core says it, with names for keys."""

from collections.abc import Mapping
from typing import Any

from potluck_agent.core.machine import Core
from potluck_agent.keys import TrustedPeer
from potluck_wire.fingerprint import fingerprint


def view(core: Core, owners: Mapping[str, TrustedPeer]) -> dict[str, Any]:
    """A document of plain values."""
    state = core.state()
    notebooks = [
        {"name": peer.name, "fingerprint": fingerprint(key), "connected": key in core.sessions}
        for key, peer in owners.items()
    ]

    def named(row: Mapping[str, Any]) -> dict[str, Any]:
        key = row["notebook"]
        return {**row, "notebook": owners[key].name, "fingerprint": fingerprint(key)}

    named_rows = {what: [named(row) for row in state[what]] for what in ("runs", "workers")}
    return {**state, "notebooks": notebooks, **named_rows}
