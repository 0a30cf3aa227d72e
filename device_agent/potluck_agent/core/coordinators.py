"""Who of several coordinators is heard: they ask for leases, and prepare plans under them. Pure."""

from dataclasses import replace

from potluck_agent.core.events import KeepLeases, ToPeer
from potluck_agent.core.leases import LeaseTable
from potluck_agent.core.outbox import Outbox
from potluck_agent.core.workspaces import Workspaces
from potluck_wire.limits import MAX_LEASES, is_identifier
from potluck_wire.messages import Lease, Prepare, RefusalCode


class Coordinators:
    """Of a device; `document` as for `LeaseTable`."""

    def __init__(self, document: str) -> None:
        self._leases = LeaseTable(document)

    def not_kept(self) -> None:
        """What was to be on disk is not: who asked hears nothing, and asks again."""
        self._leases.not_kept()

    def lets(
        self, out: Outbox, workspaces: Workspaces, key: str, message: Prepare, now_s: float
    ) -> Prepare | None:
        """The plan as it is prepared; None, and it is refused, where it may not be."""
        if not message.lease:
            return message
        newest = self._leases.term(message.lease)
        if key == self._leases.holder(message.lease):  # said before it heard of its own term
            message = replace(message, term=max(message.term, newest))
        if message.term < newest:
            text = f"term {newest} has begun, this is of term {message.term}"
            out.refuse(key, message, RefusalCode.OLD_TERM, text)
            return None
        if not is_identifier(message.lease):
            out.refuse(key, message, RefusalCode.DOCUMENT, "the lease's name is not an identifier")
            return None
        if not self._leases.learn(key, message.lease, message.term, now_s):
            text = f"this notebook holds {MAX_LEASES} leases already"
            out.refuse(key, message, RefusalCode.BUSY, text)
            return None
        workspaces.end_older(key, message.lease, message.term, now_s)
        return message

    def ask(
        self, out: Outbox, workspaces: Workspaces, key: str, message: Lease, now_s: float
    ) -> None:
        """A coordinator asks whether it may act: what older terms do here ends with that."""
        answer, has_changed = self._leases.ask(key, message, now_s)
        if answer.granted:
            workspaces.end_older(key, message.name, message.term, now_s)
        reply = ToPeer(key=key, message=answer)
        out.add(KeepLeases(self._leases.rows(), reply) if has_changed else reply)
