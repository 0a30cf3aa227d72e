"""Measuring links: how fast flows between devices are, alone and at once."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from potluck.handle import Task
from potluck.profile.access_tree import Flow
from potluck.profile.connection_hints import Hint
from potluck.records import HOME
from potluck.sessions.events import RequestAll, UplinkProbe
from potluck.sessions.link import SessionLink
from potluck_wire.messages import Probe

if TYPE_CHECKING:
    from potluck.profile.tomography import Tomography

LASTS_S = 0.2  # of one flow alone
N_VALUES = 8  # that one flow sends one after the other
FIRST_BYTES = 64 * 1024  # each, where nothing is known of a flow yet
LEAST_BYTES = 4096
WAIT_BYTES = 4096  # of the small values that show latency
MOST_BYTES = 2 * 2**20  # more is more than a window
MOST_LIMITED = 64  # values that one probe may send

Seconds = Sequence[float]  # of the values of one flow, one after the other


def measure_links(
    names: Sequence[str],
    send: Callable[[Mapping[Flow, tuple[int, int]]], Mapping[Flow, Seconds]],
    waits_s: Mapping[Flow, float],
    progress: Callable[[str], None] = lambda text: None,
    hints: Mapping[str, Hint] | None = None,
) -> "Tomography":
    """How these devices hang together, and how fast; all that was seen is in it.

    Parameters
    ----------
    names
        The devices, `home` among them.
    send
        Called with flows, and how many values of how many bytes each is: the seconds of every
        value. All flows begin at once.
    waits_s
        Per ordered pair, what `WAIT_BYTES` take with their answer.
    progress
        Called with what was measured.
    hints
        What devices say of their own connection.
    """
    from potluck.profile.tomography import Observation, Tomography

    tomography, rates = Tomography(names, hints=hints), dict[Flow, float]()
    latency_s = dict[Flow, float]()
    while flows := tomography.next_probe():
        for flow in flows:
            if flow not in rates:
                seconds = send({flow: (2, FIRST_BYTES)})[flow]
                rates[flow] = _alone(FIRST_BYTES, seconds, waits_s.get(flow, 0.0))
                latency_s[flow] = latency(waits_s.get(flow, 0.0), rates[flow])
        sizes = {flow: _size(rates[flow]) for flow in flows}
        sent = send(sizes)
        found = rates_at_once(sizes, sent, latency_s)
        if len(flows) == 1:
            rates |= found
        tomography.add(Observation(flows=flows, bytes_per_s=tuple(found[flow] for flow in flows)))
        progress(", ".join(f"{source} to {target}" for source, target in flows))
    return tomography


def rates_at_once(
    sizes: Mapping[Flow, tuple[int, int]],
    sent: Mapping[Flow, Seconds],
    latency_s: Mapping[Flow, float],
) -> dict[Flow, float]:
    """Bytes per second of every flow for as long as all of them last.

    >>> flows = {("a", "b"): (2, 100), ("b", "a"): (2, 100)}
    >>> rates_at_once(flows, {("a", "b"): (1, 1), ("b", "a"): (2, 2)}, {})
    {('a', 'b'): 100.0, ('b', 'a'): 50.0}

    Parameters
    ----------
    sizes
        Per flow: values, and bytes of each.
    sent
        Per flow: the seconds of each value.
    latency_s
        One way, per ordered pair: of each value that is the wait for its answer.
    """
    on_the_way = {
        flow: [max(s - latency_s.get(flow, 0.0), s / 10) for s in seconds]
        for flow, seconds in sent.items()
    }
    window_s = min(sum(seconds) for seconds in sent.values())
    found = {}
    for flow, (_, nbytes) in sizes.items():
        at_s = 0.0
        sending_s = 0.0
        done = 0.0
        for took_s, own_s in zip(sent[flow], on_the_way[flow], strict=True):
            part = min(1.0, max(0.0, window_s - at_s) / took_s)
            done += part * nbytes
            sending_s += part * own_s
            at_s += took_s
        found[flow] = done / sending_s
    return found


class LinkProber:
    """Sends values over the links of a home.

    Parameters
    ----------
    link
        The home's connection.
    task
        Is asked between probes whether it was cancelled.
    """

    def __init__(self, link: SessionLink, task: Task) -> None:
        self._link = link
        self._task = task
        self._n_probes = 0

    def send(self, sizes: Mapping[Flow, tuple[int, int]]) -> dict[Flow, Seconds]:
        """The seconds of every value of these flows, which begin at once.

        Parameters
        ----------
        sizes
            Per flow: values, and bytes of each. A device sends one flow at most.
        """
        self._task.check()
        self._n_probes += 1
        with ThreadPoolExecutor(1, "potluck probe") as pool:
            ours = {
                flow: pool.submit(self._from_home, flow[1], *size)
                for flow, size in sizes.items()
                if flow[0] == HOME
            }
            theirs = self._from_devices(
                {flow: size for flow, size in sizes.items() if flow[0] != HOME}
            )
            return {**theirs, **{flow: each.result() for flow, each in ours.items()}}

    def _from_home(self, target: str, n: int, nbytes: int) -> Seconds:
        return [
            float(self._link.ask(UplinkProbe(device=target, nbytes=nbytes)).result())
            for _ in range(n)
        ]

    def _from_devices(self, sizes: Mapping[Flow, tuple[int, int]]) -> dict[Flow, Seconds]:
        name = f"flow-{self._n_probes}"
        requests = {
            source: (Probe(task=name, peer=target, nbytes=nbytes, repeats=n), ())
            for (source, target), (n, nbytes) in sizes.items()
        }
        answers = self._link.ask(RequestAll(requests=requests)).result() if requests else {}
        return {flow: tuple(answers[flow[0]][0].seconds) for flow in sizes}


def latency(wait_s: float, bytes_per_s: float) -> float:
    """What a small value waits beyond its bytes.

    Parameters
    ----------
    wait_s
        What `WAIT_BYTES` take with their answer.
    bytes_per_s
        Of the flow alone.
    """
    return max(0.0, wait_s - WAIT_BYTES / bytes_per_s)


def _alone(nbytes: int, seconds: Seconds, wait_s: float) -> float:
    """The line through a small value and these."""
    return (nbytes - WAIT_BYTES) / max(min(seconds) - wait_s, min(seconds) / 10)


def _size(bytes_per_s: float) -> tuple[int, int]:
    """Values and bytes that last `LASTS_S` at this rate."""
    nbytes = int(min(max(bytes_per_s * LASTS_S / N_VALUES, LEAST_BYTES), MOST_BYTES))
    n = round(bytes_per_s * LASTS_S / nbytes)
    return min(max(n, 2), MOST_LIMITED), nbytes
