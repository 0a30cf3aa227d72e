"""Homes in network namespaces (Linux, root), whose network is measured and compared with the truth:
what `bench tomography` adds to its simulated ones.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.records import Network
from potluck.simulate.fairness import max_min_rates

if TYPE_CHECKING:
    from potluck.home import Home

RATE = 6e6  # bytes per second of a medium
LIMITED = 0.95  # of the rate alone; a flow that has less is limited by another
NUMBER = '{{ value = {value}, basis = "estimate", source = "a bench" }}'
HEAD = """\
name = "{name}"
title = "A home whose links are measured"
source = "a bench"
home_at = "d0"
network = {{ topology = "{topology}", capacity_bytes_per_s = {rate}{more} }}

[assume.raspberry-pi-4]
memory_bytes = {memory}
"""
DEVICE = '\n[[devices]]\nname = "d{i}"\nprofile = "raspberry-pi-4"\n{where}\n'

Flow = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchWiring:
    """A home of the bench: where each of its devices is, as its file says it, and its links.

    Its rates are those that a lab of this `time_scale` plays as `RATE`.
    """

    name: str
    topology: str
    where: tuple[str, ...]
    cable_bytes_per_s: float | None = None
    link_fracs: tuple[float, float] | None = None  # of the rate: there and back
    time_scale: float = 1.0

    @property
    def toml(self) -> str:
        """The file of the home."""
        more, rate = "", RATE * self.time_scale
        if self.cable_bytes_per_s is not None:
            more += f", cable_bytes_per_s = {_number(self.cable_bytes_per_s * self.time_scale)}"
        if self.link_fracs is not None:
            outward, back = (_number(rate * frac) for frac in self.link_fracs)
            more += (
                f', links = [{{ sites = ["here", "far"], there_bytes_per_s = {outward}, '
                f"back_bytes_per_s = {back} }}]"
            )
        memory = _number(2**32).replace(" }", ', reason = "a bench" }')
        head = HEAD.format(
            name=self.name, topology=self.topology, rate=_number(rate), more=more, memory=memory
        )
        devices = (DEVICE.format(i=i, where=where) for i, where in enumerate(self.where))
        return head + "".join(devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeOutcome:
    """Of one home: per shared medium the errors of rates, and seconds of measuring."""

    name: str
    errors: tuple[tuple[float, ...], ...]
    probe_s: float


HERE, FAR = 'site = "here"', 'site = "far"'
G, H = 'site = "g"', 'site = "h"'
HOMES = (
    BenchWiring(name="wifi", topology="wifi", where=("",) * 5),
    BenchWiring(name="switch", topology="switch", where=("",) * 5),
    BenchWiring(name="two-channels", topology="wifi", where=(G, G, G, H, H, H)),
    BenchWiring(
        name="wifi-and-cables",
        topology="wifi",
        where=("", "", "", "wired = true", "wired = true"),
        cable_bytes_per_s=2 * RATE,
    ),
    BenchWiring(
        name="far-site", topology="sites", where=(HERE, HERE, HERE, FAR, FAR), link_fracs=(0.1, 0.1)
    ),
    BenchWiring(
        name="slow-uplink",
        topology="sites",
        where=(HERE, HERE, HERE, HERE, FAR, FAR),
        link_fracs=(0.4, 0.1),
    ),
)


def outcomes(n: int) -> Iterator[HomeOutcome]:
    """The first `n` of the homes, measured one after another.

    Parameters
    ----------
    n
        At most as many as there are.
    """
    for wiring in HOMES[:n]:
        with opened(wiring) as home:
            truth = home.network.records
            start_s = time.perf_counter()
            document = home.measure_network().wait()
            probe_s = time.perf_counter() - start_s
            errors = errors_by_medium(document.devices, truth, document.records)
            yield HomeOutcome(name=wiring.name, errors=tuple(errors), probe_s=probe_s)


@contextmanager
def opened(wiring: BenchWiring) -> "Iterator[Home]":
    """A lab of this home, in namespaces."""
    from potluck.home import Home

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{wiring.name}.toml"
        path.write_text(wiring.toml)
        with Home.lab(path, time_scale=wiring.time_scale, links="namespaces") as home:
            yield home


def errors_by_medium(
    names: Sequence[str], truth: Network, guess: Network
) -> Iterator[tuple[float, ...]]:
    """Per medium that several devices share in truth: the errors, as parts, of the rates of all
    pairs of flows at once that it limits both.

    Parameters
    ----------
    names
        Of machines.
    truth, guess
        As it is, and as it was measured.
    """
    flows = [(a, b) for a in names for b in names if a != b]
    alone = {flow: rates(truth, (flow,))[0] for flow in flows}
    for medium in truth.media:
        over = [f for f in flows if any(name == medium.name for name, _ in truth.path(*f).media)]
        if len({a for a, _ in over}) < 2 or len({b for _, b in over}) < 2:
            continue  # one device's own port
        errors: list[float] = []
        for pair in combinations(over, 2):
            true = rates(truth, pair)
            if all(rate < LIMITED * alone[f] for f, rate in zip(pair, true, strict=True)):
                guessed = rates(guess, pair)
                errors += [abs(b / a - 1) for a, b in zip(true, guessed, strict=True)]
        if errors:
            yield tuple(errors)


def rates(network: Network, flows: Sequence[Flow]) -> list[float]:
    """Bytes per second of these flows at once.

    Parameters
    ----------
    network
        Media and paths.
    flows
        Who sends to whom.
    """
    place = {medium.name: i for i, medium in enumerate(network.media)}
    routes: Mapping[int, tuple[tuple[int, int], ...]] = {
        i: tuple((place[name], times) for name, times in network.path(*flow).media)
        for i, flow in enumerate(flows)
    }
    found = max_min_rates(routes, [medium.capacity_bytes_per_s for medium in network.media])
    return [found[i] for i in range(len(flows))]


def _number(value: float) -> str:
    return NUMBER.format(value=value)
