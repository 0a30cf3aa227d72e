"""Asks devices how long layers take there, and values between them."""

from collections.abc import Iterable, Sequence
from statistics import mean, median
from typing import Any

from potluck.graph.backends import document_for, kind_on
from potluck.handle import Task
from potluck.profile.call_cost import (
    N_FEW,
    N_MANY,
    NO_CALL,
    call_cost,
    seconds_of,
    tiny_piece,
    without,
)
from potluck.profile.link_probes import WAIT_BYTES
from potluck.profile.links import LinkLine, fit_line
from potluck.records import HOME, Layer, LayerCost
from potluck.sessions.events import RequestAll, UplinkProbe
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Members
from potluck_wire.messages import Measure, Probe

MAX_REPEATS = 64  # what agents accept
CALL_REPEATS = 16
PROBE_BYTES = (WAIT_BYTES, 256 * 1024, 2 * 2**20)  # latency; one chunk; a window's worth
PROBE_REPEATS = 3
# of the smallest: they cost next to nothing, and a neighbour on the processor doubles their time
SHORT_REPEATS = 9
WORK_REPEATS = 3  # of a layer before such a value

Requests = dict[str, tuple[Measure, tuple[bytes, ...]]]


class Bench:
    """Asks the devices; counts what is done for the progress display.

    Parameters
    ----------
    link, members
        The home's connection and its devices.
    task
        Where progress is reported.
    n_tasks
        How many measurements there will be.
    """

    def __init__(self, link: SessionLink, members: Members, task: Task, n_tasks: int) -> None:
        self._link = link
        self._members = members
        self._task = task
        self._n_tasks, self._n_done = max(n_tasks, 1), 0
        self.beside: dict[str, int] = {}  # devices that others used meanwhile -> how many did
        self.calls: dict[tuple[str, bool], LayerCost] = {}  # (device, for training) -> of a call

    def done(self, text: str) -> None:
        """One more thing is measured."""
        self._n_done += 1
        self._task.update(self._n_done / self._n_tasks, text)

    def layer(
        self, device: str, model: Any, index: int, train: bool, rows: Sequence[int], n: int
    ) -> LayerCost:
        """The times of one layer on one device, without those of a call.

        Parameters
        ----------
        device
            Its name.
        model
            What is measured.
        index
            Of the layer.
        train
            Forward and backward.
        rows
            Batch sizes.
        n
            How often each time is taken.
        """
        kind = kind_on(
            model, device, self._members[device].capability.get("backends", ()), train=train
        )
        name = f"{'train' if train else 'infer'}-{index}"
        document = document_for(model, device, kind, index, index + 1, train=train)
        sizes = possible_rows(rows, model.layers(train)[index : index + 1], train)
        cost = self._piece(device, name, kind, document, train, sizes, n)
        self.done(f"{device}: {name}")
        return without(cost, self.call(device, kind, train))

    def call(self, device: str, kind: str, train: bool) -> LayerCost:
        """What a call of a piece takes there beside its layers, measured once; of emulated devices,
        whose tasks last as long as told, and of ONNX pieces, nothing.

        Parameters
        ----------
        device
            Its name.
        kind
            Of the piece.
        train
            Forward and backward.
        """
        if kind != "aten" or self._members[device].capability.get("emulated"):
            return NO_CALL
        if (device, train) not in self.calls:
            few, many = (
                self._piece(device, "call", kind, tiny_piece(n), train, (1,), CALL_REPEATS)
                for n in (N_FEW, N_MANY)
            )
            self.calls[device, train] = call_cost(few, many)
        return self.calls[device, train]

    def call_s(self, device: str, train: bool) -> float:
        """Seconds of a call there, where that is known.

        Parameters
        ----------
        device
            Its name.
        train
            Forward and backward, on average.
        """
        return seconds_of(self.calls.get((device, train), NO_CALL))

    def _piece(
        self,
        device: str,
        name: str,
        kind: str,
        document: bytes,
        train: bool,
        rows: Sequence[int],
        n: int,
    ) -> LayerCost:
        order = Measure(task=name, kind=kind, train=train, rows=tuple(rows), repeats=n)
        self._task.check()
        answers = self._link.ask(RequestAll(requests={device: (order, (document,))})).result()
        answer, _ = answers[device]
        if answer.n_beside:
            self.beside[device] = max(answer.n_beside, self.beside.get(device, 0))
        return LayerCost(
            rows=tuple(answer.rows),
            forward_s=tuple(answer.forward_s),
            backward_s=tuple(answer.backward_s),
            update_s=answer.update_s if train else None,
            sgd_s=tuple(answer.sgd_s),
            weight_frac=answer.weight_frac if answer.weight_frac >= 0 else None,
        )

    def together_s(
        self, devices: Iterable[str], model: Any, index: int, train: bool, rows: int, n: int
    ) -> float:
        """Seconds of a layer, forward and backward, when all these devices compute it at the same
        time.

        Parameters
        ----------
        devices
            All at once.
        model
            What is measured.
        index
            Of the layer.
        train
            Forward and backward.
        rows
            Of the batch.
        n
            How often.
        """
        requests = self._requests(devices, model, index, train, rows, n)
        self._task.check()
        answers = self._link.ask(RequestAll(requests=requests)).result()
        self.done(f"{', '.join(requests)} at once")
        seconds = [
            float(sum((*answer.forward_s, *answer.backward_s))) for answer, _ in answers.values()
        ]
        return mean(seconds)

    def _requests(
        self, devices: Iterable[str], model: Any, index: int, train: bool, rows: int, n: int
    ) -> Requests:
        """That each of these devices times a layer."""
        requests: Requests = {}
        for name in devices:
            backends = self._members[name].capability.get("backends", ())
            kind = kind_on(model, name, backends, train=train)
            order = Measure(task="together", kind=kind, train=train, rows=(rows,), repeats=n)
            document = document_for(model, name, kind, index, index + 1, train=train)
            requests[name] = order, (document,)
        return requests

    def waits_at_work_s(
        self,
        source: str,
        target: str,
        devices: Iterable[str],
        model: Any,
        index: int,
        train: bool,
        rows: int,
    ) -> list[float]:
        """What small values take there, each with its answer, when devices of that machine have
        just computed a layer: caches are full of its numbers then and cores have been lent to
        others, as in a run.

        Parameters
        ----------
        source, target
            Names of devices.
        devices
            All that compute.
        model
            What is measured.
        index
            Of the layer.
        train
            Forward and backward.
        rows
            Of the batch.
        """
        requests = self._requests(devices, model, index, train, rows, WORK_REPEATS)
        seconds: list[float] = []
        for _ in range(SHORT_REPEATS):
            self._task.check()
            self._link.ask(RequestAll(requests=requests)).result()
            seconds += self._probe(source, target, WAIT_BYTES, 1)
        return seconds

    def line(self, source: str, target: str, rate: float | None = None) -> LinkLine:
        """Latency and rate from one device to another, or from home.

        `rate` where an emulated uplink states it.

        Parameters
        ----------
        source, target
            Names of devices.
        rate
            Bytes per second, where they are stated.
        """
        if rate:
            return LinkLine(latency_s=self.latency_s(source, target, rate), bytes_per_s=rate)
        seconds = []
        for nbytes in PROBE_BYTES:
            self._task.check()
            seconds.append(median(self._probe(source, target, nbytes)))
        self.done(f"{source} to {target}")
        return fit_line(PROBE_BYTES, seconds)

    def waits_s(self, source: str, target: str) -> tuple[float, ...]:
        """What small values take there, each with its answer.

        Parameters
        ----------
        source, target
            Names of devices.
        """
        self._task.check()
        seconds = tuple(self._probe(source, target, PROBE_BYTES[0]))
        self.done(f"{source} to {target}")
        return seconds

    def latency_s(self, source: str, target: str, bytes_per_s: float) -> float:
        """What a small message takes on an emulated path of that rate, beyond its bytes.

        The quickest counts: what the other emulated devices do on the same processor meanwhile is
        no latency.

        Parameters
        ----------
        source, target
            Names of devices.
        bytes_per_s
            Of the path.
        """
        self._task.check()
        seconds = min(self._probe(source, target, PROBE_BYTES[0]))
        self.done(f"{source} to {target}")
        return max(0.0, seconds - PROBE_BYTES[0] / bytes_per_s)

    def _probe(
        self, source: str, target: str, nbytes: int, repeats: int | None = None
    ) -> Sequence[float]:
        repeats = repeats or (SHORT_REPEATS if nbytes == PROBE_BYTES[0] else PROBE_REPEATS)
        if source == HOME:
            order = UplinkProbe(device=target, nbytes=nbytes)
            return [float(self._link.ask(order).result()) for _ in range(repeats)]
        probe = Probe(
            task=f"{source}-{target}-{nbytes}"[:64], peer=target, nbytes=nbytes, repeats=repeats
        )
        answers = self._link.ask(RequestAll(requests={source: (probe, ())})).result()
        return tuple(answers[source][0].seconds)


def possible_rows(rows: Sequence[int], layers: Sequence[Layer], train: bool) -> tuple[int, ...]:
    """The batch sizes that all of these layers can be measured at: a batch norm of which a row is
    one value cannot learn from one row, and caches have so many slots.

    Parameters
    ----------
    rows
        Batch sizes that are asked for.
    layers
        That are measured.
    train
        Forward and backward.
    """
    fewest = 2 if train and any(layer.norm_values == 1 for layer in layers) else 1
    most = min((layer.slots for layer in layers if layer.slots), default=max(rows))
    return tuple(dict.fromkeys(min(max(fewest, n), most) for n in rows))
