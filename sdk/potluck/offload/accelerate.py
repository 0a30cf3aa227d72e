"""accelerate: one model, one request at a time, answered by the device here with the help of
stronger ones.
"""

import math
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.argument_checks import number_of
from potluck.errors import DeviceGone, ModelError, UserError
from potluck.graph.traced import SEQUENCE
from potluck.handle import Handle, Task, resolved
from potluck.offload.accelerated import AcceleratedModel
from potluck.offload.cache import SplitCache, default_directory
from potluck.offload.plan.lowering import Shareable
from potluck.offload.rows.operator_times import OperatorTimes, operator_times
from potluck.offload.split_table import (
    BANDWIDTHS,
    BANDWIDTHS_OF_SEVERAL,
    FIRST_BANDWIDTHS,
    FIRST_BANDWIDTHS_OF_SEVERAL,
    N_SEARCHES,
    SplitCase,
)
from potluck.optional_packages import needed
from potluck.planning.check import need_power
from potluck.profile.profiles import Profile
from potluck.records import Inference
from potluck.run.batches import as_tuple
from potluck.sessions.agent_specs import Spec
from potluck.sessions.local_agents import LocalAgents
from potluck.sessions.members import Member
from potluck.simulate.interpolation import interpolate
from potluck_wire.machine_identity import machine_name

if TYPE_CHECKING:
    import torch

    from potluck.graph import Model
    from potluck.home import Home

OBJECTIVES = ("latency", "energy")
OWN = "this-machine"  # what an agent is called that is started here
_starting = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperDevice:
    """One device of a home: `home["desktop"]`."""

    home: "Home"
    name: str

    @property
    def member(self) -> Member:
        """What is known of it."""
        return self.home.devices[self.name]

    def __repr__(self) -> str:
        return repr(self.member)

    def _repr_html_(self) -> str:
        return self.member._repr_html_()


def accelerate(
    model: "torch.nn.Module | Model | Handle[Model] | str | Path",
    example: "torch.Tensor | Mapping[str, torch.Tensor] | None" = None,
    *,
    helper: HelperDevice | Sequence[HelperDevice],
    device: HelperDevice | None = None,
    objective: str = "latency",
    deadline_s: float | None = None,
    bandwidths: Sequence[float] | None = None,
) -> Handle[AcceleratedModel]:
    """The model as something to call: it answers as the model does, sooner or with less energy.

    Parameters
    ----------
    model
        A torch module, a `potluck.Model`, or the path of an ONNX file. It takes one input tensor:
        the rows of that are what is divided.
    example
        An input as requests will have it, of the same shape and number of rows.
    helper
        The stronger machine: `home["desktop"]`; or several: `[home["desktop"], home["nas"]]`.
    device
        Where the answers are wanted and the inputs are. Default: this machine, by its agent in this
        home (the first in `home.devices` where there are several; progress and result name it), or
        by one that is started for it.
    objective
        "latency": as soon as possible. "energy": with the fewest joules of the device within
        `deadline_s`.
    deadline_s
        Seconds that a request may take; goes with the objective "energy", and only with it.
    bandwidths
        Bytes per second, ascending from zero: each gets an entry in the table, before the first
        answer. Default: 8 of them before that. Then, while requests are answered, in a process of
        its own, 19 up to 50 MB/s, of some 0.1 to 1 s each. Where the best way to share changes much
        between two there are more, 51 in all. That table is taken over when it is whole
        (`fast.is_planned`), and kept for the next time. With several helpers, which take longer to
        plan, 2, then 6.

    Returns
    -------
    Handle[AcceleratedModel]
        What is called like the model. `explain()` shows how requests are divided, `stats` what came
        of it.

    Raises
    ------
    UserError
        A place, objective, deadline, bandwidth or example is not what it should be.
    ModelError
        The model has several inputs, takes any length of a sequence, or cannot be traced.
    """
    helpers = tuple(helper) if isinstance(helper, list | tuple) else (helper,)
    places = (*helpers, *([] if device is None else [device]))
    home = _home_of(places if helpers else (helper,))
    _check_search(objective, deadline_s, BANDWIDTHS if bandwidths is None else bandwidths)
    with needed():
        read, batch = read_model(resolved(model), example)
    if any(symbol.name == SEQUENCE for symbol in read.traced_line().traced.graph.symbols):
        raise ModelError(
            "the rows of a request are divided for one length of its sequence; this model takes "
            "any length.",
            next_step="Make it without sequence_dims, of an example as long as requests will be.",
        )
    acceleration = _Acceleration(
        home=home,
        model=read,
        batch=batch,
        helpers=tuple(place.name for place in helpers),
        device=None if device is None else device.name,
        deadline_s=deadline_s,
        search=_search_of(bandwidths, len(helpers)),
    )
    whose = device.name if device is not None else "this machine"
    return Handle(
        acceleration.begin, f"accelerating {whose} with {' and '.join(acceleration.helpers)}"
    )


def _search_of(bandwidths: Sequence[float] | None, n_helpers: int) -> dict[str, Any]:
    """Which splits are searched for, as fields of a `SplitCase`: the user's, or the usual ones."""
    if bandwidths is not None:
        return {"bandwidths": tuple(bandwidths)}
    if n_helpers == 1:
        return {"bandwidths": BANDWIDTHS, "first": FIRST_BANDWIDTHS, "n_searches": N_SEARCHES}
    return {"bandwidths": BANDWIDTHS_OF_SEVERAL, "first": FIRST_BANDWIDTHS_OF_SEVERAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Acceleration:
    """What `accelerate` was asked for, checked; `device` is None where it is this machine.

    With a deadline the fewest joules are wanted.
    """

    home: "Home"
    model: Any
    batch: int
    helpers: tuple[str, ...]
    device: str | None
    deadline_s: float | None
    search: dict[str, Any]

    def begin(self, task: Task) -> AcceleratedModel:
        """Measure the devices, plan, and load the splits."""
        home = self.home
        name, agents = (self.device, None) if self.device else _own(home, self.helpers)
        try:
            case = self._case(task, (name, *self.helpers))
            store = SplitCache(
                default_directory() if home._ring is not None else None, self.model.signature
            )
            accelerated = AcceleratedModel(
                home._link, home.devices, case, self.model.answer, agents, task, store
            )
        except BaseException:
            if agents is not None:
                home.devices.remove(name)
                agents.close()
            raise
        if task.cancelled:  # nobody will ever have it
            accelerated.close()
        task.check()
        return accelerated

    def _case(self, task: Task, names: tuple[str, ...]) -> SplitCase:
        """What is to be split, between these devices as they are now."""
        home, model = self.home, self.model
        task.update(0.1, f"measuring {' and '.join(names)}")
        saves_energy = self.deadline_s is not None
        profile = home.profile(
            model,
            train=False,
            rows=(self.batch,),
            devices=names,
            watts=None if saves_energy else False,  # it takes a while
        ).wait()
        self._check_measured(profile, names)
        if saves_energy:
            own = next(each for each in profile.devices if each.name == names[0])
            need_power(own, "the fewest joules are asked for")
        task.update(0.6, "planning")
        return SplitCase(
            model=model,
            shareable=Shareable(model.traced_line()),
            problem=profile.problem(Inference(batch=self.batch)),
            names=names,
            side_times=tuple(
                measured_operator_times(model, profile, name, self.batch) for name in names
            ),
            batch=self.batch,
            weight_source=f"0/layers-0-{len(model.layers())}",
            emulated=frozenset(n for n in names if home.devices[n].capability.get("emulated")),
            deadline_s=self.deadline_s,
            **self.search,
        )

    def _check_measured(self, profile: Profile, names: tuple[str, ...]) -> None:
        """A device that is lost meanwhile is left out of a profile, and here none can be."""
        measured = {device.name for device in profile.devices}
        for name in names:
            if name not in measured:
                raise self.home.devices[name].error or DeviceGone(
                    "it could not be measured.", device=name, next_step="Try again."
                )


def _home_of(places: Sequence[Any]) -> "Home":
    """The home of these devices, which have to be different ones."""
    for place in places:
        if not isinstance(place, HelperDevice):
            raise UserError(
                f"a device of a home is expected, got {place!r:.60}.",
                next_step='Write home["NAME"].',
            )
    home: Home = places[0].home
    names = {place.name for place in places}
    if any(place.home is not home for place in places) or len(names) < len(places):
        raise UserError("the device and its helpers are different devices of one home.")
    return home


def _check_search(objective: str, deadline_s: float | None, bandwidths: Sequence[float]) -> None:
    if objective not in OBJECTIVES or (objective == "energy") != (deadline_s is not None):
        raise UserError(
            f"an objective is latency, or energy with a deadline; got {objective!r}, "
            f"deadline_s={deadline_s}.",
            next_step='Write objective="energy", deadline_s=0.2.',
        )
    if deadline_s is not None and not (_is_number(deadline_s) and deadline_s > 0):
        raise UserError(f"deadline_s is in seconds, above zero; got {deadline_s!r:.40}.")
    rates = (
        bandwidths if isinstance(bandwidths, Sequence) and all(map(_is_number, bandwidths)) else ()
    )
    if not rates or rates[0] != 0 or any(a >= b for a, b in pairwise(rates)):
        raise UserError(
            f"bandwidths ascend from zero, in bytes per second; got {bandwidths!r:.80}."
        )


def _is_number(value: Any) -> bool:
    return (number := number_of(value)) is not None and math.isfinite(number)


def read_model(model: Any, example: Any) -> tuple[Any, int]:
    """The model, and the rows of a request.

    Parameters
    ----------
    model
        As `accelerate` takes it.
    example
        An input as requests will have it.

    Raises
    ------
    UserError
        The example is no tensor, or is missing.
    ModelError
        The model has several inputs, or cannot be traced.
    """
    from potluck.graph import Model
    from potluck.graph.partition.outputs import need_rows_apart

    if isinstance(example, list | tuple) and len(example) == 1:
        (example,) = example
    given = _tensors(example)
    for tensor in given.values():
        if not (hasattr(tensor, "shape") and hasattr(tensor, "detach")):
            raise UserError(
                "an example is a torch tensor, as a request will be one; got "
                f"{type(tensor).__name__}.",
                next_step="torch.as_tensor(x) makes one of an array.",
            )
    if isinstance(model, str | Path):
        model = Model.from_onnx(model)
    if hasattr(model, "as_torch"):  # from ONNX: only torch's operators are divided
        model = model.as_torch()
    if len(given) > 1:
        raise _several(tuple(given))
    ready = hasattr(model, "signature")
    if example is None and not ready:
        raise UserError(
            "an example of the input is needed.", next_step="potluck.accelerate(net, x, helper=...)"
        )
    made = model if ready else Model.from_torch(model, example)
    need_rows_apart(made, "accelerated")
    made.check_as_traced()
    if len(made.inputs()) > 1:
        raise _several(made.arguments.inputs)
    return made, made.check_inputs(*as_tuple(example, made.arguments.requested)) if given else 1


def _tensors(example: Any) -> Mapping[str, Any]:
    """What an example holds, by name or place."""
    if isinstance(example, Mapping):
        return {name: tensor for name, tensor in example.items() if tensor is not None}
    if isinstance(example, list | tuple):
        return {f"input {i}": tensor for i, tensor in enumerate(example)}
    return {} if example is None else {"input": example}


def _several(names: Sequence[str]) -> ModelError:
    listed = f" ({', '.join(names)})" if all(names) else ""
    return ModelError(
        f"accelerate divides requests of one input; here are {len(names)}{listed}.",
        next_step="Wrap the module in one that takes one tensor, or spread whole layers: "
        "home.deploy(plan, model).",
    )


def measured_operator_times(model: Any, profile: Profile, device: str, batch: int) -> OperatorTimes:
    """What every operator takes on a device, by the profile of its layers.

    Parameters
    ----------
    model
        A `Model`.
    profile
        Measured for inference.
    device
        One of the profile's.
    batch
        Rows of a request.
    """
    assert profile.inference is not None
    layer_s = [
        interpolate(cost.rows, cost.forward_s, batch) for cost in profile.inference.costs[device]
    ]
    return operator_times(model.laid_out(), layer_s, batch)


def _own(home: "Home", helpers: tuple[str, ...]) -> tuple[str, LocalAgents | None]:
    """The agent of this home on this very machine; where there is none, one is started."""
    others = [
        name for name in home.devices.ready if name not in helpers and not name.startswith(OWN)
    ]
    here = machine_name()
    local = [name for name in others if home.devices[name].capability.get("host") == here]
    if local:
        return local[0], None
    bind = _address_towards(home.devices[helpers[0]])
    with _starting:  # each has its own, which ends with it
        name = next(
            name
            for name in chain([OWN], (f"{OWN}-{n}" for n in count(2)))
            if name not in home.devices
        )
        agents = LocalAgents([Spec(name=name)], ("notebook", home.key), bind=bind)
        (started,) = agents.agents
        home.devices.add(Member(name=name, key=started.key, addresses=(started.address,)))
    try:
        home.devices.need([name])
    except BaseException:
        home.devices.remove(name)
        agents.close()
        raise
    return name, agents


def _address_towards(member: Member) -> str:
    """The address of this machine on its way to a device; nothing is sent."""
    address = member.addresses[0]
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address.host, address.port))
        return str(probe.getsockname()[0])
