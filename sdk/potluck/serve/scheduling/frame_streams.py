"""Streams of frames on the replicas of one service: which rate a stream is granted (multi-frame),
and on how many of them (data parallel). EPARA, sections 2.3, 3.1 and 4.1.
"""

from dataclasses import dataclass

from potluck.serve.scheduling.records import Allocation

ROUNDED_FPS = 1e-9


@dataclass(frozen=True, slots=True)
class Grant:
    """A stream's frames per second here, by replica."""

    stream: int
    fps: tuple[tuple[int, float], ...]  # (replica, frames per second)

    @property
    def total_fps(self) -> float:
        """Over all replicas."""
        return sum(fps for _, fps in self.fps)


class StreamLedger:
    """Who has which part of the replicas of a service on one server.

    Streams on the same replica fill its batches together: with `s` streams a batch has
    min(BS, s MF) frames, so a replica gets faster as streams join.

    Parameters
    ----------
    allocation
        Of the service on this kind of processor.
    n_replicas
        That it has here.
    data_parallel
        Whether one stream may use several replicas.
    """

    def __init__(
        self, allocation: Allocation, n_replicas: int, *, data_parallel: bool = True
    ) -> None:
        self.allocation = allocation
        self.data_parallel = data_parallel
        self._used_fps = [0.0] * n_replicas
        self._n_streams = [0] * n_replicas
        self._grants: dict[int, Grant] = {}

    @property
    def n_replicas(self) -> int:
        """That take streams."""
        return len(self._used_fps)

    @property
    def capacity_fps(self) -> float:
        """Frames per second that all replicas compute with full batches."""
        return self.n_replicas * self.allocation.rate_per_s

    def idle_fps(self) -> float:
        """Frames per second that one more stream could get, over all replicas."""
        return sum(self._room(replica) for replica in range(self.n_replicas))

    def free_fps(self, fps: float) -> float:
        """What a stream of `fps` would be granted now."""
        return min(fps, self._most())

    def _most(self) -> float:
        rooms = [self._room(replica) for replica in range(self.n_replicas)]
        if not rooms:
            return 0.0
        return sum(rooms) if self.data_parallel else max(rooms)

    def _room(self, replica: int) -> float:
        """For one more stream there."""
        rate = self.allocation.frames_per_s(self._n_streams[replica] + 1)
        return max(0.0, rate - self._used_fps[replica])

    def admit(self, stream: int, fps: float) -> Grant:
        """Grant a stream as much of `fps` as is free, on as few replicas as will do.

        The replica that it fills best is taken first, so that batches become full; where none has
        room for all of it, the emptiest are.

        Parameters
        ----------
        stream
            Its number.
        fps
            What it asks.
        """
        rooms = sorted((self._room(replica), replica) for replica in range(self.n_replicas))
        enough = [pair for pair in rooms if pair[0] >= fps - ROUNDED_FPS]
        if enough:
            chosen = [(min(enough, key=lambda pair: (pair[0], pair[1]))[1], fps)]
        else:
            chosen = self._spread(fps, rooms[::-1] if self.data_parallel else rooms[-1:])
        grant = Grant(stream, tuple(chosen))
        for replica, part in chosen:
            self._used_fps[replica] += part
            self._n_streams[replica] += 1
        if chosen:
            self._grants[stream] = grant
        return grant

    @staticmethod
    def _spread(fps: float, rooms: list[tuple[float, int]]) -> list[tuple[int, float]]:
        chosen = []
        for room, replica in rooms:
            part = min(room, fps)
            if part <= ROUNDED_FPS:
                break
            chosen.append((replica, part))
            fps -= part
        return chosen

    def end(self, stream: int) -> Grant | None:
        """The stream is over; what it had is free again."""
        grant = self._grants.pop(stream, None)
        if grant is not None:
            for replica, part in grant.fps:
                self._used_fps[replica] -= part
                self._n_streams[replica] -= 1
        return grant

    def resize(self, n_replicas: int) -> list[int]:
        """Other replicas from now on; returns the streams that lost one, which are admitted anew.

        Parameters
        ----------
        n_replicas
            How many.
        """
        lost = [
            stream
            for stream, grant in self._grants.items()
            if any(replica >= n_replicas for replica, _ in grant.fps)
        ]
        for stream in lost:
            self.end(stream)
        more = max(0, n_replicas - self.n_replicas)
        self._used_fps = self._used_fps[:n_replicas] + [0.0] * more
        self._n_streams = self._n_streams[:n_replicas] + [0] * more
        return lost
