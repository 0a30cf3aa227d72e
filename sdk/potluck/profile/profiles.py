"""Profile: what was measured of a model on a home, or is estimated of one that is not there: the
input of planning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from potluck import display_hooks
from potluck.display_hooks import Shown
from potluck.errors import PlanError, UserError
from potluck.profile.home_network import HomeNetwork
from potluck.records import (
    Device,
    Inference,
    Layer,
    LayerCost,
    Network,
    Plan,
    Problem,
    QoE,
    Training,
)

if TYPE_CHECKING:
    from pathlib import Path

    from potluck.graph.modelgraph import ModelGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """A model's costs in one mode (training or inference), `costs[device][layer]`, and its sizes
    per row.

    `weight_copies`: how often a device holds its weights for inference.
    """

    layers: tuple[Layer, ...]
    costs: Mapping[str, tuple[LayerCost, ...]]
    input_bytes: int = 0
    target_bytes: int = 0
    result_bytes: int = 0
    weight_copies: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(Shown):
    """How fast, how hungry and how connected the devices are for one model.

    `notes`: what could not be measured.

    `document`: the network as `home.network` shows it. `home` names a home of the library. `graph`
    and `bounds`: the operators that the layers are made of, where they are known; layer i is the
    nodes [bounds[i], bounds[i + 1]). `untrained`: why the model cannot be trained, if so.
    `excluded`: why devices that were asked could not be measured; problems name them, too.

    Asked "what if", it answers with a profile of the home as it would be: `with_device`,
    `without_device`, `with_medium`. The times of a device that is not there are estimated, and say
    so.
    """

    model: str
    signature: str
    devices: tuple[Device, ...]
    network: Network
    training: Measurements | None = None
    inference: Measurements | None = None
    notes: tuple[str, ...] = field(default=())
    home: str = ""
    graph: "ModelGraph | None" = None
    bounds: tuple[int, ...] = ()
    untrained: str = ""
    excluded: Mapping[str, str] = field(default_factory=dict)
    document: HomeNetwork | None = field(default=None, compare=False)

    def problem(self, workload: Training | Inference, qoe: QoE | None = None) -> Problem:
        """The planning problem of this workload under these limits.

        Raises
        ------
        PlanError
            Where that mode was not measured, or no device can do it.
        """
        measured = self.training if isinstance(workload, Training) else self.inference
        mode = "training" if isinstance(workload, Training) else "inference"
        if measured is None:
            if mode == "training" and self.untrained:
                raise PlanError(self.untrained)
            raise PlanError(
                f"this profile was not measured for {mode}.",
                next_step=f"Measure it: home.profile(model, train={mode == 'training'}).",
            )
        excluded = {d.name: _why_not(d, mode) for d in self.devices if d.name not in measured.costs}
        if len(excluded) == len(self.devices):
            name, why = next(iter(excluded.items()))
            raise PlanError(
                f"no device here can do {mode}: {name} {why}.", next_step="Add a device that can."
            )
        return Problem(
            model=self.model,
            devices=tuple(device for device in self.devices if device.name not in excluded),
            network=self.network,
            layers=measured.layers,
            costs=measured.costs,
            workload=workload,
            qoe=qoe or QoE(),
            input_bytes=measured.input_bytes,
            target_bytes=measured.target_bytes if isinstance(workload, Training) else 0,
            result_bytes=4 if isinstance(workload, Training) else measured.result_bytes,
            home=self.home,
            excluded={**self.excluded, **excluded},
            weight_copies=measured.weight_copies,
        )

    def with_device(
        self, kind: "str | Path", name: str = "", *, like: str = "", **numbers: float
    ) -> "Profile":
        """The profile with one device more.

        Parameters
        ----------
        kind
            A device of the library (`potluck plan list devices`), or a file of your own.
        name
            What it is called here; default: made from its kind.
        like
            The device here that it is connected like; by default the one that is reached fastest.
        numbers
            What you know better than the library, such as `busy_w=15` or `memory_bytes=4e9`.

        Raises
        ------
        UserError
            A number is not known by this name, or the device has no path to take after.
        FileError
            The kind is in no library and no file.
        """
        from potluck.profile.what_if import with_device

        return with_device(self, kind, name, like=like, numbers=numbers)

    def without_device(self, name: str) -> "Profile":
        """The profile with one device less.

        Parameters
        ----------
        name
            Of the device.

        Raises
        ------
        UserError
            There is no such device, or it is the only one.
        """
        from potluck.planning.scenario import known, parted

        known(name, [device.name for device in self.devices], "device")
        remaining = tuple(device for device in self.devices if device.name != name)
        if not remaining:
            raise UserError(f"without {name} no device is left.", next_step="Add another first.")
        return replace(self, devices=remaining, network=parted(self.network, name), home="")

    def with_medium(self, name: str, rate: float | str) -> "Profile":
        """The profile with another capacity of one medium, such as ("air", "50 Mbit/s"), or bytes
        per second.
        """
        from potluck.planning.scenario import rated
        from potluck.units import parse_rate

        return replace(self, network=rated(self.network, name, parse_rate(rate)), home="")

    def cockpit(self, workload: Training | Inference, *, plans: Sequence[Plan] = ()) -> Any:
        """Its plans live, in a notebook: limits to slide, media to slow down, devices to take away
        or to add, and a simulated step of each plan. Nothing runs.

        It needs the notebook extra.

        Parameters
        ----------
        workload
            What is planned.
        plans
            Plans that there are already; the first is looked at first. Without any, the best of a
            short search is.

        Raises
        ------
        UserError
            These are no plans, or what it needs is not installed.
        Infeasible
            No plan was found.
        """
        return display_hooks.explore(self, workload, tuple(plans))

    def __repr__(self) -> str:
        modes = [
            name
            for name, item in (("training", self.training), ("inference", self.inference))
            if item
        ]
        return (
            f"<Profile of {self.model} for {' and '.join(modes)} on "
            f"{', '.join(d.name for d in self.devices)}>"
        )

    def largest(self) -> Problem:
        """The problem of the most rows that were measured: training, if that was."""
        trains = self.training is not None and bool(self.training.costs)
        measured = self.training if trains else self.inference
        rows = (
            max((cost.rows[-1] for costs in measured.costs.values() for cost in costs), default=1)
            if measured
            else 1
        )
        workload = Training(batch=rows) if trains else Inference(batch=rows)
        return self.problem(workload)


def can_train(backends: Sequence[str]) -> bool:
    """Whether a device with these backends can train: onnxruntime alone answers requests only."""
    return "torch" in backends


def _why_not(device: Device, mode: str) -> str:
    """Why a device has no times for training or inference."""
    if mode == "training" and not can_train(device.backends):
        return (
            f"has {' and '.join(device.backends) or 'nothing that computes'}, and training "
            "needs torch"
        )
    return f"was not measured for {mode}"
