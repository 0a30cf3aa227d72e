"""Which devices a home on one machine emulates: each a slowdown, a link, a memory and a power
model. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from potluck.errors import UserError
from potluck.units import parse_bytes, parse_rate
from potluck_wire.limits import is_device_name

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One emulated device.

    `slowdown`: how many times slower than this machine it computes. `link_rate`: bytes per second
    of its uplink, or text such as "100 Mbit/s"; None does not pace. `memory`: bytes that it may
    use, or "512 MiB". `power`: watts idle, fully busy, and on top for the radio. `emulated`: the
    notebook knows how long its tasks last. `backends`: what it computes with, of torch and
    onnxruntime; by default all that is installed. `threads`: to compute with; one, as several share
    this machine. `processor`: "cpu", or an accelerator of this machine, as "cuda" or "cuda:1".
    """

    name: str
    slowdown: float = 1.0
    link_rate: float | str | None = None
    memory: int | str | None = None
    power: tuple[float, float, float] | None = None
    emulated: bool = False
    backends: tuple[str, ...] = ()
    threads: int = 1
    processor: str = "cpu"

    def __post_init__(self) -> None:
        if not is_device_name(self.name) or self.name == "home":
            raise UserError(
                f"{self.name!r} cannot name a device.",
                next_step="Use up to 40 lower-case letters, digits and hyphens.",
            )
        if not 1.0 <= self.slowdown <= 1000.0:
            raise UserError(
                f"a slowdown of {self.slowdown} is not possible; 1 to 1000 is.", device=self.name
            )
        if not 1 <= self.threads <= 256:
            raise UserError(
                f"{self.threads} threads are not possible; 1 to 256 are.", device=self.name
            )
        if self.power is not None and not 0 <= self.power[0] <= self.power[1]:
            raise UserError(f"power {self.power} is not idle <= busy watts.", device=self.name)

    def arguments(self) -> list[str]:
        """The agent's options that make it this device."""
        given = ["--name", self.name, "--threads", str(self.threads)]
        # an agent that ends with its home keeps nothing for later
        given += ["--device", self.processor, "--keep", "0"]
        if self.slowdown > 1.0:
            given += ["--slowdown", f"{self.slowdown:g}"]
        if self.emulated:
            given.append("--emulated")
        if self.link_rate is not None:
            given += ["--link-rate", f"{parse_rate(self.link_rate):.0f}"]
        if self.memory is not None:
            given += ["--memory", str(parse_bytes(self.memory))]
        if self.power is not None:
            given += ["--power", ",".join(f"{watts:g}" for watts in self.power)]
        if self.backends:
            given += ["--backends", ",".join(self.backends)]
        return given


# Two cores run all four, so they must leave each other room: a slowdown of s computes 1/s of the
# time. Watts: Jetson Orin Nano 2.6 W idle, 15 W mode; laptops and phone are plausible round
# numbers, not measurements.
DEMO = (
    Spec(name="laptop", slowdown=6, link_rate="200 Mbit/s", memory="1 GiB", power=(8.0, 38.0, 1.5)),
    Spec(
        name="old-laptop",
        slowdown=9,
        link_rate="100 Mbit/s",
        memory="768 MiB",
        power=(7.0, 28.0, 1.5),
    ),
    Spec(
        name="jetson", slowdown=12, link_rate="100 Mbit/s", memory="512 MiB", power=(2.6, 15.0, 1.0)
    ),
    Spec(name="phone", slowdown=18, link_rate="50 Mbit/s", memory="384 MiB", power=(0.8, 6.0, 1.2)),
)
NAMED: dict[str, tuple[Spec, ...]] = {"demo": DEMO}


def specs_of(named_or_specs: str | Iterable[Spec]) -> tuple[Spec, ...]:
    """The specs of a named lab, or the given ones; every name once.

    Raises
    ------
    UserError
        Where nobody knows the name, two devices have one name, or there are none.
    """
    if isinstance(named_or_specs, str):
        if named_or_specs not in NAMED:
            raise UserError(f"no lab is called {named_or_specs!r}; known are {', '.join(NAMED)}.")
        return NAMED[named_or_specs]
    specs = tuple(named_or_specs)
    names = [spec.name for spec in specs]
    if not specs or len(set(names)) < len(names):
        raise UserError(f"a lab needs devices of different names, got {names}.")
    return specs


def local_specs(n: int) -> tuple[Spec, ...]:
    """`n` plain agents on this machine, as fast as it is.

    Parameters
    ----------
    n
        1 or more.

    Raises
    ------
    UserError
        It is below 1.
    """
    if not isinstance(n, int) or not 1 <= n <= 32:
        raise UserError(f"{n!r} local agents are not possible; 1 to 32 are.")
    return tuple(Spec(name=f"local-{index}") for index in range(1, n + 1))
