"""Tensors to and from one agent as chunks under credit: pure bookkeeping, no sockets.

The agents keep the same rules among themselves; PROTOCOL.md tells them.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields

from potluck_wire.chunks import CreditLedger, Reassembler, SendWindow
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import CHUNK_BYTES, MAX_TRANSFERS, PROBE, WINDOW_BYTES
from potluck_wire.messages import (
    Chunk,
    Credit,
    Done,
    Failed,
    Message,
    Offer,
    Rejected,
    Value,
    Wanted,
)

OF_VALUES = (Value, Chunk, Credit, Rejected, Wanted)  # what an agent says about values

Buffers = tuple[bytes | bytearray | memoryview, ...]
Envelope = tuple[Message, Buffers]
# run, epoch, program, step: the execution that a value belongs to
Place = tuple[str, int, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A tensor as bytes: what `tensors.py` makes from a torch tensor and back."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview
    content: bytes = b""  # what an agent may know it by, so that it is offered first


@dataclass(slots=True)
class _Outgoing:
    value: Value
    window: SendWindow
    data: memoryview
    ticket: int | None  # of a probe
    is_offered: bool = False  # and the agent has not said that it wants it


@dataclass(slots=True)
class _Incoming:
    assembly: Reassembler
    data: bytearray | None  # None: only measured


def place_of(message: Value | Done | Failed) -> Place:
    """The execution that a message is about."""
    return (message.run, message.epoch, message.program, message.step)


def _offer(value: Value) -> Offer:
    return Offer(**{item.name: getattr(value, item.name) for item in fields(Offer)})


class Traffic:
    """Both directions of the data channel of one agent.

    `wants(value)` says whether an arriving value is expected: "" or the code to reject it with. It
    raises WireError where the value breaks the rules.
    """

    def __init__(self, wants: Callable[[Value], str], chunk_bytes: int = CHUNK_BYTES) -> None:
        self._wants, self._chunk_bytes = wants, chunk_bytes
        self._n_transfers = 0
        self._free_bytes = WINDOW_BYTES
        self._outgoing: dict[int, _Outgoing] = {}
        self._waiting: deque[int] = deque()
        self._begun: set[int] = set()  # of `_outgoing`
        self._incoming: dict[int, _Incoming] = {}
        self._account = CreditLedger()
        self.n_taken = 0  # chunks of values that are wanted
        self.rejected: list[tuple[Value, Rejected]] = []
        self.probed: list[int] = []  # tickets of probes that have arrived
        self.spared: list[Value] = []  # offered, and the agent had them

    @property
    def held_bytes(self) -> int:
        """Bytes of values that have begun to come in."""
        return sum(
            len(coming.data) for coming in self._incoming.values() if coming.data is not None
        )

    @property
    def outstanding(self) -> int:
        """Values that the agent has not acknowledged yet."""
        return len(self._outgoing)

    def send(self, place: Place, name: str, raw: Raw) -> list[Envelope]:
        """Queue one tensor; returns what may go out now."""
        return self._send(place, name, raw, None)

    def _send(self, place: Place, name: str, raw: Raw, ticket: int | None) -> list[Envelope]:
        self._n_transfers += 1
        view = memoryview(raw.data)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        run, epoch, program, step = place
        value = Value(
            transfer=self._n_transfers,
            run=run,
            epoch=epoch,
            program=program,
            step=step,
            name=name,
            dtype=raw.dtype,
            shape=raw.shape,
            nbytes=len(view),
            chunk_bytes=self._chunk_bytes,
            content=raw.content,
        )
        self._outgoing[value.transfer] = _Outgoing(
            value, SendWindow(len(view), self._chunk_bytes), view, ticket
        )
        self._waiting.append(value.transfer)
        return self._pump()

    def probe(self, ticket: int, nbytes: int) -> list[Envelope]:
        """Queue so many bytes that the agent only measures.

        `probed` tells the ticket when they have arrived.
        """
        raw = Raw(dtype="uint8", shape=(nbytes,), data=bytes(nbytes))
        return self._send(("", 0, PROBE, 0), f"home-{ticket}", raw, ticket)

    def drop(self, run: str, epoch: int = -1, *execution: str | int) -> list[Envelope]:
        """Have done with the values of a run, of one epoch of it, or of one execution.

        Returns what may go out now.
        """
        gone = (run, epoch, *execution) if epoch >= 0 else (run,)
        for transfer, out in tuple(self._outgoing.items()):
            if place_of(out.value)[: len(gone)] == gone:
                self._forget(transfer)
        for transfer, coming in tuple(self._incoming.items()):
            if place_of(coming.assembly.value)[: len(gone)] == gone:
                self._account.forget(coming.assembly)
                del self._incoming[transfer]
        return self._pump()

    def receive(
        self, message: Message, buffers: Buffers
    ) -> tuple[list[Envelope], list[tuple[Value, Raw]]]:
        """Take in one message of the data channel: (what to send, the values that are complete
        now).

        Raises
        ------
        WireError
            Where the agent broke the rules of chunks or credits.
        """
        if isinstance(message, Credit):
            return self._credit(message), []
        if isinstance(message, Wanted):
            return self._wanted(message.transfer), []
        if isinstance(message, Rejected):
            out = self._outgoing.get(message.transfer)
            if out is not None:
                self.rejected.append((out.value, message))
                self._forget(message.transfer)
            return self._pump(), []
        if isinstance(message, Value):
            return self._begin(message, buffers)
        if isinstance(message, Chunk):
            return self._continue(message.transfer, message.index, buffers)
        raise WireError(WireCode.CHANNEL, f"{type(message).__name__} on the data channel")

    def _begin(
        self, value: Value, buffers: Buffers
    ) -> tuple[list[Envelope], list[tuple[Value, Raw]]]:
        if code := self._wants(value):
            return [
                (
                    Rejected(
                        transfer=value.transfer, code=code, text="the notebook does not expect it"
                    ),
                    (),
                )
            ], []
        if value.transfer in self._incoming:
            raise WireError(WireCode.CHUNK, f"transfer {value.transfer} has begun already")
        data = (
            bytearray() if value.program != PROBE or value.run else None
        )  # as large as what has really come
        self._incoming[value.transfer] = _Incoming(Reassembler(value), data)
        return self._continue(value.transfer, 0, buffers)

    def _continue(
        self, transfer: int, index: int, buffers: Buffers
    ) -> tuple[list[Envelope], list[tuple[Value, Raw]]]:
        incoming = self._incoming.get(transfer)
        if incoming is None:  # rejected a moment ago; its chunks were under way
            return [], []
        assembly = incoming.assembly
        assembly.accept(index, len(buffers[0]))
        if incoming.data is not None:
            incoming.data += buffers[0]
        self.n_taken += 1
        envelopes: list[Envelope] = [(credit, ()) for credit in self._account.take(assembly)]
        if not assembly.complete:
            return envelopes, []
        del self._incoming[transfer]
        if incoming.data is None:
            return envelopes, []
        value = assembly.value
        return envelopes, [
            (value, Raw(dtype=value.dtype, shape=tuple(value.shape), data=incoming.data))
        ]

    def _credit(self, message: Credit) -> list[Envelope]:
        out = self._outgoing.get(message.transfer)
        if out is None:
            return []
        self._free_bytes += out.window.credit(message.received_bytes, message.done)
        if message.done:
            self._forget(message.transfer)
            if out.is_offered:
                self.spared.append(out.value)
            if out.ticket is not None:
                self.probed.append(out.ticket)
        return self._pump()

    def _wanted(self, transfer: int) -> list[Envelope]:
        out = self._outgoing.get(transfer)
        if out is not None:
            if not out.is_offered:
                raise WireError(WireCode.CHUNK, f"transfer {transfer} was not offered")
            out.is_offered = False
            self._waiting.append(transfer)
        return self._pump()

    def _forget(self, transfer: int) -> None:
        out = self._outgoing.pop(transfer)
        self._begun.discard(transfer)
        self._free_bytes += out.window.outstanding_bytes
        if transfer in self._waiting:
            self._waiting.remove(transfer)

    def _pump(self) -> list[Envelope]:
        envelopes: list[Envelope] = []
        while self._waiting:
            out = self._outgoing[self._waiting[0]]
            if out.value.transfer not in self._begun and len(self._begun) >= MAX_TRANSFERS:
                break
            if out.value.content and out.value.transfer not in self._begun:
                self._begun.add(self._waiting.popleft())
                out.is_offered = True
                envelopes.append((_offer(out.value), ()))
                continue
            chunk = out.window.advance(self._free_bytes)
            if chunk is None:
                break
            index, start, stop = chunk
            self._free_bytes -= stop - start
            piece = (out.data[start:stop],)
            transfer = out.value.transfer
            self._begun.add(transfer)
            envelopes.append(
                (out.value if index == 0 else Chunk(transfer=transfer, index=index), piece)
            )
            if out.window.all_sent:
                self._waiting.popleft()
        return envelopes
