"""Values between this device and its peers, as their messages come: what is taken, what has
arrived, what is refused.

`ReceiveBuffers` and `SendQueue` keep the accounts; here their news go to the notebook's work and
measurements that they are of. Pure.
"""

from collections.abc import Callable, Hashable
from dataclasses import fields
from typing import Any

from potluck_agent.core.asks import AskExchange
from potluck_agent.core.events import Buffer, LinkReset, Sender
from potluck_agent.core.execution import Unwanted
from potluck_agent.core.outbox import Outbox, Settings
from potluck_agent.core.receive_buffers import ReceiveBuffers
from potluck_agent.core.send_queue import SendQueue, Transfer
from potluck_agent.core.workspaces import Workspace, Workspaces
from potluck_wire.errors import WireError
from potluck_wire.limits import ANSWER, ASK, MAX_CHUNK_BYTES, PROBE
from potluck_wire.messages import Chunk, Credit, Message, Offer, RefusalCode, Rejected, Value


class ValueExchange:
    """Everything that is said on the data channel."""

    def __init__(
        self,
        settings: Settings,
        out: Outbox,
        outgoing: SendQueue,
        workspaces: Workspaces,
        asks: AskExchange,
    ) -> None:
        self._is_emulated = settings.is_emulated
        self._out = out
        self._outgoing = outgoing
        self._workspaces = workspaces
        self._asks = asks
        self._sinks = ReceiveBuffers(0)  # values that are only measured, whoever asked for it
        self._receivers: dict[
            type[Message], Callable[[str, Any, tuple[Buffer, ...], float], None]
        ] = {
            Value: self._value,
            Offer: self._offer,
            Chunk: self._chunk,
            Credit: self._credit,
            Rejected: lambda key, message, buffers, now_s: self.rejected(key, message, now_s),
        }

    @property
    def is_receiving(self) -> bool:
        """Whether anything is coming in."""
        return self._sinks.busy or any(each.incoming.busy for each in self._workspaces)

    @property
    def n_sinks(self) -> int:
        """Values that come in to be measured."""
        return self._sinks.n_arriving

    def receive(
        self, sender: Sender, message: Message, buffers: tuple[Buffer, ...], now_s: float
    ) -> None:
        """A message of the data channel."""
        receiver = self._receivers.get(type(message))
        if receiver is None:
            self._asks.receive(sender, message, now_s)
        else:
            receiver(sender.key, message, buffers, now_s)

    def _value(self, key: str, message: Value, buffers: tuple[Buffer, ...], now_s: float) -> None:
        for transfer in message.received:
            self._delivered(self._outgoing.arrived(key, transfer, now_s), now_s)
        try:
            if not message.run and message.program == PROBE:
                step = self._sinks.begin(key, message, buffers[0], None, sink=True, now_s=now_s)
                self._out.add(*step.actions)
            elif not message.run and message.program in (ASK, ANSWER):
                self._take_asked(key, message, buffers[0], now_s)
            elif (workspace := self._workspaces.of_run(message.run)) is None:
                raise Unwanted(RefusalCode.UNKNOWN_RUN, f"no run {message.run} is loaded")
            else:
                self._take(workspace, key, message, buffers[0], now_s)
        except Unwanted as unwanted:
            self._reject(key, message.transfer, unwanted.code, str(unwanted))
        except WireError as error:
            self._reject(key, message.transfer, RefusalCode.DOCUMENT, error.text)

    def _take_asked(self, key: str, message: Value, data: Buffer, now_s: float) -> None:
        """A value of a request for a service: what does not hold ends that request."""
        try:
            workspace, value = self._asks.place(key, message)
            self._take(workspace, key, value, data, now_s)
        except Unwanted as unwanted:
            self._asks.spoil(key, message, unwanted.code, unwanted.text, now_s)
            raise
        except WireError as error:
            self._asks.spoil(key, message, RefusalCode.DOCUMENT, error.text, now_s)
            raise

    def _take(
        self, workspace: Workspace, key: str, message: Value, data: Buffer, now_s: float
    ) -> None:
        if (about := self._about(workspace, key, message)) is None:
            return
        if message.content and key != workspace.key:
            raise Unwanted(RefusalCode.STATE, "only a notebook says what may be kept for it")
        may_wait = not self._is_emulated and workspace.work.goes_on_after(message)
        step = workspace.incoming.begin(
            key, message, data, about, sink=False, now_s=now_s, may_wait=may_wait
        )
        workspace.takes(step, now_s)

    def _about(self, workspace: Workspace, key: str, value: Value) -> Hashable:
        """What this value belongs to; None, and its sender knows, where it is here already."""
        about = workspace.work.expect(key, value)
        if about is None:
            known = Credit(transfer=value.transfer, received_bytes=value.nbytes, done=True)
            self._out.send(key, known)
        return about

    def _offer(self, key: str, message: Offer, buffers: tuple[Buffer, ...], now_s: float) -> None:
        """A notebook asks whether its own weights are kept here."""
        try:
            workspace = self._workspaces.of_run(message.run)
            if workspace is None or workspace.key != key:
                raise Unwanted(RefusalCode.UNKNOWN_RUN, f"no run {message.run} of yours is loaded")
            names = (field.name for field in fields(message))
            header = {name: getattr(message, name) for name in names}
            value = Value(**header, chunk_bytes=min(MAX_CHUNK_BYTES, max(1, message.nbytes)))
            if (about := self._about(workspace, key, value)) is not None:
                workspace.takes(workspace.incoming.offer(key, value, about, now_s), now_s)
        except Unwanted as unwanted:
            self._reject(key, message.transfer, unwanted.code, str(unwanted))
        except WireError as error:
            self._reject(key, message.transfer, RefusalCode.DOCUMENT, error.text)

    def _reject(self, key: str, transfer: int, code: str, text: str) -> None:
        self._out.send(key, Rejected(transfer=transfer, code=code, text=text))

    def _chunk(self, key: str, message: Chunk, buffers: tuple[Buffer, ...], now_s: float) -> None:
        if self._sinks.awaits(key, message.transfer):
            self._out.add(*self._sinks.chunk(key, message, buffers[0]).actions)
            return
        for workspace in self._workspaces:
            if workspace.incoming.awaits(key, message.transfer):
                workspace.takes(workspace.incoming.chunk(key, message, buffers[0]), now_s)
                return

    def _credit(self, key: str, message: Credit, buffers: tuple[Buffer, ...], now_s: float) -> None:
        workspace = self._workspaces.get(self._outgoing.owner_of(key, message.transfer))
        if workspace is None:
            return
        workspace.n_moved += 1
        workspace.worker.moved(now_s)
        try:
            transfer = self._outgoing.credited(key, message, now_s)
        except WireError as error:  # it counts wrongly: this value cannot be finished with it
            self.rejected(
                key, Rejected(transfer=message.transfer, code=error.code, text=error.text), now_s
            )
            return
        self._delivered(transfer, now_s)

    def _delivered(self, transfer: Transfer | None, now_s: float) -> None:
        workspace = self._workspaces.get(transfer.owner) if transfer is not None else None
        if transfer is None or workspace is None:
            return
        workspace.worker.moved(now_s)
        workspace.work.delivered(transfer, now_s)
        workspace.measuring.delivered(transfer, now_s)

    def rejected(self, key: str, message: Rejected, now_s: float) -> None:
        """A value of ours is not wanted there, or cannot be sent."""
        transfer = self._outgoing.rejected(key, message.transfer)
        workspace = self._workspaces.get(transfer.owner) if transfer is not None else None
        if transfer is None or workspace is None:
            return
        workspace.n_moved += 1
        if not self._asks.rejected(key, transfer.value, message.code, now_s):
            workspace.work.refused(transfer, message.code, message.text, now_s)
        workspace.measuring.refused(transfer, message.text)

    def reset(self, event: LinkReset, now_s: float) -> None:
        """A connection is a new one: what was under way on the old one is lost."""
        self._asks.lose(event.key, "the connection is a new one", now_s)
        if event.incoming:
            self.forget_arrivals(event.key, now_s)
            self._outgoing.begin_anew(event.key)
        if event.outgoing:
            self._outgoing.restart(event.key)

    def forget_arrivals(self, key: str, now_s: float) -> None:
        """What was coming from this peer comes anew, or never."""
        self._out.add(*self._sinks.reset(key).actions)
        for workspace in self._workspaces:
            workspace.work.apply(workspace.incoming.reset(key), now_s)

    def lose_member(self, key: str, now_s: float) -> None:
        """There is no connection to this device: what waits for it will not get there."""
        self.lose(key, "no connection", now_s)
        self._outgoing.reach(key)  # it may come back for others

    def part_from(self, key: str, text: str, now_s: float) -> None:
        """Nothing more is sent to this peer, and nothing is taken from it."""
        self.lose(key, text, now_s)
        self.forget_arrivals(key, now_s)

    def lose(self, key: str, text: str, now_s: float) -> None:
        """Nothing that waits for this peer will get there."""
        self._asks.lose(key, text, now_s)
        lost: dict[str, dict[Hashable, list[Transfer]]] = {}
        for group, transfers in self._outgoing.forget(key).items():
            lost.setdefault(transfers[0].owner, {})[group] = transfers
        for owner, groups in lost.items():
            workspace = self._workspaces.get(owner)
            if workspace is not None:
                workspace.work.lost(groups, text, now_s)
                for transfers in groups.values():
                    workspace.measuring.refused(transfers[0], text)
