"""Plans by a network that was measured, as in a real home, and not told: what `bench fidelity` adds
where it may make network namespaces (Linux, root).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from potluck.bench import namespaced_homes
from potluck.bench.lab_plans import LabCase, of_home

if TYPE_CHECKING:
    from potluck.run.comparison import Comparison

SCALE = 100.0  # two cores play six devices, and a step is some seconds
HOMES = ("wifi", "switch", "two-channels", "slow-uplink")
CHAIN = (("d1",), ("d3",), ("d4",))  # over every link that a home has


def cases(home: str) -> tuple[LabCase, ...]:
    """What the planner makes of the home, and what crosses its links in any case."""
    return (
        LabCase(name=f"{home} train, as planned", home=home, model="cnn"),
        LabCase(name=f"{home} stream, as planned", home=home, model="cnn", at_once=4),
        LabCase(name=f"{home} train, pipeline of 3", home=home, model="wide", stages=CHAIN),
        LabCase(
            name=f"{home} train, one, then shared",
            home=home,
            model="wide",
            stages=(("d1",), ("d3", "d4")),
        ),
    )


def comparisons(n: int, settings: Mapping[str, float]) -> "dict[str, list[Comparison]]":
    """Every case of the first `n` homes.

    Parameters
    ----------
    n
        At most as many as there are.
    settings
        Of the bench.
    """
    found: dict[str, list[Comparison]] = {}
    wirings = {wiring.name: wiring for wiring in namespaced_homes.HOMES}
    for name in HOMES[:n]:
        with namespaced_homes.opened(replace(wirings[name], time_scale=SCALE)) as home:
            measured = home.measure_network().wait()
            found |= of_home(home, cases(name), settings, measured)
    return found
