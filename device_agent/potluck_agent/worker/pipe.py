"""The worker's end of the pipe to its agent: what is said together, and what overtakes."""

import socket
import time
from collections import deque
from collections.abc import Sequence

from potluck_wire.messages import Channel, Message, Release
from potluck_wire.stream import StreamReader, pack

READ_BYTES = 1 << 16  # memory for a read of 1 MiB costs more than the read
# what nobody waits for is said that late at most; half of what the agent lets a worker have ahead
LATE_S = 0.025


class Pipe:
    """The worker's end of the pipe. A `Release` overtakes everything: a full outbound memory may be
    waiting for it.
    """

    def __init__(self, end: socket.socket) -> None:
        self.outbound_released: deque[int] = deque()
        self._end = end
        self._reader = StreamReader(Channel.WORKER)
        self._unsent: list[bytes] = []
        self._urgent, self._said_s = False, 0.0
        self._waiting: deque[tuple[Message, tuple[bytes | memoryview, ...]]] = deque()

    def send(
        self, message: Message, buffers: Sequence[bytes] = (), *, urgent: bool = False
    ) -> None:
        """Send with the next `flush`: the agent wakes once for all that a task has to say."""
        self._unsent.append(pack(message, buffers))
        self._urgent = self._urgent or urgent

    def flush(self) -> None:
        """Blocks while the agent does not read."""
        if self._unsent:
            self._end.sendall(b"".join(self._unsent))
            self._unsent.clear()
            self._urgent, self._said_s = False, time.monotonic()

    def flush_in_time(self) -> None:
        """Flush what is urgent; the rest where nothing is left to do here, or the last time is long
        ago.
        """
        if self._urgent or not self._waiting or time.monotonic() - self._said_s > LATE_S:
            self.flush()

    def listen(self) -> None:
        """Wait for bytes and sort the messages in them. `EOFError` when the agent is gone."""
        self.flush()
        data = self._end.recv(READ_BYTES)
        if not data:
            raise EOFError("the agent is gone")
        for message, buffers in self._reader.feed(data):
            if isinstance(message, Release):
                self.outbound_released.append(message.offset)
            else:
                self._waiting.append((message, buffers))

    def next(self) -> tuple[Message, tuple[bytes | memoryview, ...]]:
        """The next message in order."""
        while not self._waiting:
            self.listen()
        return self._waiting.popleft()
