"""A service that no device can hold alone: split over several by this project's planners, and
measured there as one. EPARA's categories of several processors (section 3.1).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from potluck.errors import OutOfMemory, PlanError
from potluck.planning import api
from potluck.profile.profiles import Profile
from potluck.records import Inference, Plan
from potluck.serve.runtime.loaded_model import Loaded, with_batch
from potluck.serve.runtime.measure import MeasuredService, measure

TRIED = 5  # plans, the best first: what a plan says of memory is an estimate
JOINED = "+"  # between the names of devices that are one place; no device has it in its name

Load = Callable[[Plan], Loaded]


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedService:
    """A service that runs over several devices. `memory_bytes`: by device, of the largest batch
    that was measured.
    """

    plan: Plan
    measured: MeasuredService
    memory_bytes: Mapping[str, int]

    @property
    def where(self) -> str:
        """The devices as one place."""
        return JOINED.join(self.plan.devices)


def divide(model: Any, profile: Profile, limit_s: float, load: Load) -> DividedService:
    """The soonest plan over several devices that they have room for, as measured there.

    Parameters
    ----------
    model
        What is served.
    profile
        Of it, on the devices that stay.
    limit_s
        Seconds that an answer may take.
    load
        Loads a plan.

    Raises
    ------
    OutOfMemory
        All of them together have no room.
    Infeasible
        No plan holds their memory; says by how much.
    """
    plans = api.plan(profile, Inference(batch=1))
    several = (plan for plan in plans if len(with_batch(plan, 1).devices) > 1)
    failure: OutOfMemory | PlanError | None = None
    for plan in islice(several, TRIED):
        try:
            return _measured(model, with_batch(plan, 1), limit_s, load)
        except (OutOfMemory, PlanError) as error:
            failure = error
    if failure is None:
        raise OutOfMemory(
            f"{model.name} has room on no device, and no plan divides it over several.",
            next_step="Add a device, or give potluck more memory on one.",
        )
    raise failure


def _measured(model: Any, plan: Plan, limit_s: float, load: Load) -> DividedService:
    memory: dict[str, int] = {}

    def load_for(batch: int) -> Loaded:
        loaded = load(with_batch(plan, batch))
        memory.update(loaded.memory_bytes)
        return loaded

    found = measure(load_for, model, limit_s, n_devices=len(plan.devices))
    return DividedService(plan=plan, measured=found, memory_bytes=memory)
