"""Profile: what was measured of a model on a home: the input of planning. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from potluck.errors import PlanError
from potluck.records import Device, Inference, Layer, LayerCost, Network, Problem, QoE, Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """A model's costs in one mode (training or inference), `costs[device][layer]`, and its sizes per row."""

    layers: tuple[Layer, ...]
    costs: Mapping[str, tuple[LayerCost, ...]]
    input_bytes: int = 0
    target_bytes: int = 0
    result_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How fast, how hungry and how connected the devices are for one model. `notes`: what could not be measured."""

    model: str
    signature: str
    devices: tuple[Device, ...]
    network: Network
    training: Measurements | None = None
    inference: Measurements | None = None
    notes: tuple[str, ...] = field(default=())

    def problem(self, workload: Training | Inference, qoe: QoE | None = None) -> Problem:
        """The planning problem of this workload under these limits.

        Raises
        ------
        PlanError
            Where that mode was not measured.
        """
        measured = self.training if isinstance(workload, Training) else self.inference
        if measured is None:
            mode = "training" if isinstance(workload, Training) else "inference"
            raise PlanError(f"this profile was not measured for {mode}.", next_step=f"home.profile(model) with {mode}.")
        return Problem(
            model=self.model,
            devices=self.devices,
            network=self.network,
            layers=measured.layers,
            costs=measured.costs,
            workload=workload,
            qoe=qoe or QoE(),
            input_bytes=measured.input_bytes,
            target_bytes=measured.target_bytes if isinstance(workload, Training) else 0,
            result_bytes=4 if isinstance(workload, Training) else measured.result_bytes,
        )

    def __repr__(self) -> str:
        modes = [name for name, item in (("training", self.training), ("inference", self.inference)) if item]
        return f"<Profile of {self.model} for {' and '.join(modes)} on {', '.join(d.name for d in self.devices)}>"

    def _repr_html_(self) -> str:
        from potluck.display import html

        measured = self.training or self.inference
        rows = max((cost.rows[-1] for costs in measured.costs.values() for cost in costs), default=1) if measured else 1
        workload = Training(batch=rows) if self.training else Inference(batch=rows)
        return html.profile(self.problem(workload))
