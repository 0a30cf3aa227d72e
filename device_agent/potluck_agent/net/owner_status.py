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
    runs = [{**run, "notebook": owners[run["notebook"]].name} for run in state["runs"]]
    return {**state, "notebooks": notebooks, "runs": runs}
