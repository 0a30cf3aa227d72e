"""Values between this device and its peers, as their messages come: what is taken, what has
arrived, what is refused.

`ReceiveBuffers` and `SendQueue` keep the accounts; here their news go to the work and to the
measurements. Pure.
"""

from collections.abc import Callable
from typing import Any

from potluck_agent.core.events import Buffer, LinkReset
from potluck_agent.core.execution import Unwanted
from potluck_agent.core.execution_engine import ExecutionEngine
from potluck_agent.core.measurements import MeasurementQueue
from potluck_agent.core.outbox import Outbox, Settings
from potluck_agent.core.receive_buffers import ReceiveBuffers
from potluck_agent.core.send_queue import SendQueue, Transfer
from potluck_agent.core.worker_proxy import WorkerProxy
from potluck_wire.errors import WireError
from potluck_wire.limits import PROBE
from potluck_wire.messages import Chunk, Credit, Message, RefusalCode, Rejected, Value


class ValueExchange:
    """Everything that is said on the data channel."""

    def __init__(
        self,
        settings: Settings,
        out: Outbox,
        worker: WorkerProxy,
        incoming: ReceiveBuffers,
        outgoing: SendQueue,
        work: ExecutionEngine,
        measuring: MeasurementQueue,
    ) -> None:
        self._is_emulated = settings.is_emulated
        self._out = out
        self._worker = worker
        self._incoming = incoming
        self._outgoing = outgoing
        self._work = work
        self._measuring = measuring
        self.n_moved = 0  # messages of values that come in and go out: a long transfer gets on, too
        self._receivers: dict[
            type[Message], Callable[[str, Any, tuple[Buffer, ...], float], None]
        ] = {
            Value: self._value,
            Chunk: self._chunk,
            Credit: self._credit,
            Rejected: lambda key, message, buffers, now_s: self.rejected(key, message, now_s),
        }

    def receive(
        self, key: str, message: Message, buffers: tuple[Buffer, ...], now_s: float
    ) -> None:
        """A message of the data channel."""
        self.n_moved += 1
        self._receivers[type(message)](key, message, buffers, now_s)

    def _value(self, key: str, message: Value, buffers: tuple[Buffer, ...], now_s: float) -> None:
        for transfer in message.received:
            self._delivered(self._outgoing.arrived(key, transfer, now_s), now_s)
        try:
            sink = not message.run and message.program == PROBE
            about = None if sink else self._work.expect(key, message)
            if about is None and not sink:
                known = Credit(transfer=message.transfer, received_bytes=message.nbytes, done=True)
                self._out.send(key, known)
                return
            may_wait = not (sink or self._is_emulated) and self._work.goes_on_after(message)
            step = self._incoming.begin(
                key, message, buffers[0], about, sink=sink, now_s=now_s, may_wait=may_wait
            )
            self._work.apply(step, now_s)
        except Unwanted as unwanted:
            self._out.send(
                key, Rejected(transfer=message.transfer, code=unwanted.code, text=str(unwanted))
            )
        except WireError as error:
            self._out.send(
                key, Rejected(transfer=message.transfer, code=RefusalCode.DOCUMENT, text=error.text)
            )

    def _chunk(self, key: str, message: Chunk, buffers: tuple[Buffer, ...], now_s: float) -> None:
        self._work.apply(self._incoming.chunk(key, message, buffers[0]), now_s)

    def _credit(self, key: str, message: Credit, buffers: tuple[Buffer, ...], now_s: float) -> None:
        try:
            transfer = self._outgoing.credited(key, message, now_s)
        except WireError as error:  # it counts wrongly: this value cannot be finished with it
            self.rejected(
                key, Rejected(transfer=message.transfer, code=error.code, text=error.text), now_s
            )
            return
        self._delivered(transfer, now_s)

    def _delivered(self, transfer: Transfer | None, now_s: float) -> None:
        self._worker.moved(now_s)
        if transfer is not None:
            self._work.delivered(transfer, now_s)
            self._measuring.delivered(transfer, now_s)

    def rejected(self, key: str, message: Rejected, now_s: float) -> None:
        """A value of ours is not wanted there, or cannot be sent."""
        transfer = self._outgoing.rejected(key, message.transfer)
        if transfer is not None:
            self._work.refused(transfer, message.code, message.text, now_s)
            self._measuring.refused(transfer, message.text)

    def reset(self, event: LinkReset, now_s: float) -> None:
        """A connection is a new one: what was under way on the old one is lost."""
        if event.incoming:
            self._work.apply(self._incoming.reset(event.key), now_s)
            self._outgoing.begin_anew(event.key)
        if event.outgoing:
            self._outgoing.restart(event.key)

    def lose_member(self, key: str, now_s: float) -> None:
        """There is no connection to this device: what waits for it will not get there."""
        self.lose(key, "no connection", now_s)
        self._outgoing.reach(key)  # it may come back for others

    def lose(self, key: str, text: str, now_s: float) -> None:
        """Nothing that waits for this peer will get there."""
        lost = self._outgoing.forget(key)
        self._work.lost(lost, text, now_s)
        for transfers in lost.values():
            self._measuring.refused(transfers[0], text)
