"""Would a helper pay? One request at every bandwidth, shared and as others would do it, on devices
that need not exist.

Operators take what the data sheets of the devices allow (`profile.roofline`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.display_hooks import Pictured
from potluck.errors import UserError
from potluck.offload.home_problem import sharing_in
from potluck.offload.plan import baselines
from potluck.offload.plan.problem import OffloadProblem
from potluck.offload.plan.split import Split, Splitter
from potluck.profile.library import HomeSpec, load_home

if TYPE_CHECKING:
    from potluck.graph import Model
    from potluck.graph.partition.cuts import Linearization

BANDWIDTHS = tuple(1e6 * mb for mb in (0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 40, 50))
OTHERS = ("device", "helper", "layer cut")  # of `baselines.WAYS`


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthPoint:
    """One bandwidth: the best split, and what each of `OTHERS` comes to."""

    bytes_per_s: float
    split: Split
    others: Mapping[str, Split]


@dataclass(frozen=True, kw_only=True, repr=False)
class OffloadWhatIf(Pictured):
    """What sharing a request comes to at several bandwidths; shows itself as a chart and a table.

    `splitter` answers for any other bandwidth: `share(bytes_per_s)`, `front(bytes_per_s)`.
    """

    model: str
    device: str
    helpers: tuple[str, ...]
    splitter: Splitter
    points: tuple[BandwidthPoint, ...]

    def front(self, bytes_per_s: float, n: int = 8) -> tuple[Split, ...]:
        """From the fastest split at this bandwidth to the one with the fewest joules of the
        device.
        """
        return self.splitter.front(bytes_per_s, n)


def offload_what_if(
    home: str | Path | HomeSpec,
    model: "str | Model",
    *,
    device: str = "",
    helper: str | Sequence[str] = (),
    bandwidths: Sequence[float] = BANDWIDTHS,
) -> OffloadWhatIf:
    """What `potluck.accelerate` should bring for one request of one row, before there is a device
    to try it on.

    Parameters
    ----------
    home
        A home of the library (`potluck plan list homes`), or a file of your own.
    model
        A `potluck.Model`, or the name of a model of the library (which needs torch and
        transformers).
    device, helper
        Where the answer is wanted, and who helps (or several). Default: the device where the home's
        notebook is, and the strongest of the others.
    bandwidths
        Between them, in bytes per second.

    Raises
    ------
    UserError
        Where the home has no such device, or only one.
    """
    home = home if isinstance(home, HomeSpec) else load_home(home)
    names = _sides(home, device, [helper] if isinstance(helper, str) else [*helper])
    if not bandwidths or min(bandwidths) <= 0:
        raise UserError(
            f"bandwidths are bytes per second above zero, got {tuple(bandwidths)!r:.80}."
        )
    splitter = Splitter(sharing_of(home, names, _line(model)))
    return OffloadWhatIf(
        model=model if isinstance(model, str) else model.name,
        device=names[0],
        helpers=names[1:],
        splitter=splitter,
        points=tuple(_point(splitter, rate) for rate in sorted(bandwidths)),
    )


def sharing_of(home: HomeSpec, names: Sequence[str], line: "Linearization") -> OffloadProblem:
    """The planner's problem of a traced model on these devices of a home, one row a request.

    The link is still open.

    Parameters
    ----------
    home
        Gives devices, data sheets and network.
    names
        The device, then its helpers.
    line
        The traced model.
    """
    from potluck.graph.costed_graph import nodes_of
    from potluck.offload.plan.lowering import Shareable
    from potluck.offload.rows.operator_times import OperatorTimes
    from potluck.profile.roofline import node_s

    first = line.traced.graph.first_node
    nodes = {first + line.bound[place]: node for place, node in nodes_of(line).items()}
    side_times = tuple(
        OperatorTimes(
            seconds={value: node_s(home.specs[name], node, 1)[0] for value, node in nodes.items()},
            # launch, weights
            fixed_s={value: node_s(home.specs[name], node, 0)[0] for value, node in nodes.items()},
        )
        for name in names
    )
    (device,) = (known for known in home.devices if known.name == names[0])
    return sharing_in(home.network, device, names[1:], Shareable(line), side_times, batch=1)


def _sides(home: HomeSpec, device: str, helpers: list[str]) -> tuple[str, ...]:
    """The device and its helpers, each by its name in the home."""
    device = device or (home.home_at if home.home_at in home.specs else home.devices[0].name)
    others = [known.name for known in home.devices if known.name != device]
    if not helpers:
        if not others:
            raise UserError(
                f"{home.name} has one device, and nobody to help it.",
                next_step="Choose another home.",
            )
        helpers = [max(others, key=lambda name: home.specs[name].need("peak_fp32_flop_per_s"))]
    names = (device, *helpers)
    for name in names:
        if name not in home.specs:
            raise UserError(
                f"{home.name} has no device {name!r}.", next_step=f"It has {', '.join(home.specs)}."
            )
    if len(set(names)) < len(names):
        raise UserError(
            f"the device and its helpers are different devices, got {', '.join(names)}."
        )
    return names


def _line(model: "str | Model") -> "Linearization":
    from potluck.graph.partition.cuts import line
    from potluck.profile import catalog

    if isinstance(model, str):
        return line(catalog.traced(model))
    if not hasattr(model, "traced_line"):
        raise UserError(
            "a potluck.Model or the name of one of the library is needed, got "
            f"{type(model).__name__}.",
            next_step="Make one: potluck.Model.from_torch(net, example).",
        )
    # only torch's are divided
    return (model.as_torch() if hasattr(model, "as_torch") else model).traced_line()


def _point(splitter: Splitter, bytes_per_s: float) -> BandwidthPoint:
    return BandwidthPoint(
        bytes_per_s=bytes_per_s,
        split=splitter.share(bytes_per_s),
        others=baselines.answers(OTHERS, splitter, bytes_per_s),
    )
