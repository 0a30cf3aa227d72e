"""potluck: everyone brings what they have. See ARCHITECTURE.md for the flow.

    home = potluck.Home.local()                  # or Home.lab(), Home.discover(), Home(peers=["192.168.1.7"])
    model = potluck.Model.from_torch(net, example)
    profile = home.profile(model)
    plans = potluck.plan(profile, potluck.Training(batch=128), potluck.QoE(latency_s=0.5))
    run = home.deploy(plans.best)
    run.fit(loader, epochs=2)
    run.trace

Importing this loads neither torch, numpy nor zmq: each name is imported when it is first used.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potluck import errors
    from potluck.errors import PotluckError
    from potluck.graph import Model
    from potluck.handle import Handle
    from potluck.home import Home
    from potluck.lab.specs import Spec
    from potluck.plan.plans import Plans
    from potluck.profile.assemble import estimate
    from potluck.profile.profiles import Profile
    from potluck.records import Device, Inference, Plan, QoE, Training
    from potluck.run.optimizers import SGD, AdamW
    from potluck.run.planning import judge, load_plan, plan
    from potluck.run.sharing.accelerate import accelerate
    from potluck.run.sharing.prospect import prospect
    from potluck_wire import __version__

_WHERE = {
    "Home": "potluck.home",
    "Model": "potluck.graph",
    "estimate": "potluck.profile.assemble",
    "accelerate": "potluck.run.sharing.accelerate",
    "prospect": "potluck.run.sharing.prospect",
    "judge": "potluck.run.planning",
    "load_plan": "potluck.run.planning",
    "Training": "potluck.records",
    "Inference": "potluck.records",
    "QoE": "potluck.records",
    "Plan": "potluck.records",
    "Device": "potluck.records",
    "Spec": "potluck.lab.specs",
    "Handle": "potluck.handle",
    "AdamW": "potluck.run.optimizers",
    "SGD": "potluck.run.optimizers",
    "PotluckError": "potluck.errors",
    "__version__": "potluck_wire",
}

__all__ = [
    "Home", "Model", "accelerate", "estimate", "prospect", "plan", "judge", "load_plan", "Training", "Inference", "QoE",
    "Plan", "Device", "Spec", "Handle", "AdamW", "SGD", "PotluckError", "errors", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("errors", "plan"):  # `potluck.plan` is a package that can be called
        return importlib.import_module(f"potluck.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'potluck' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_WHERE[name]), name)
    except ImportError as error:
        from potluck.optional import missing

        raise missing(error) or error from error


def __dir__() -> list[str]:
    return sorted(__all__)


class _Plan(ModuleType):
    """The package `potluck.plan`, which can also be called."""

    def __call__(
        self, profile: "Profile | Handle[Profile]", workload: "Training | Inference", qoe: "QoE | None" = None, *,
        planner: str = "potluck", budget_s: float | None = None, turns: bool = False, refine_s: float = 0.0,
    ) -> "Plans":  # fmt: skip
        """Plans for `workload` on the profiled home, best first: see `help(potluck.plan)`."""
        from potluck.run.planning import plan

        return plan(profile, workload, qoe, planner=planner, budget_s=budget_s, turns=turns, refine_s=refine_s)


class _Package(ModuleType):
    """This package: importing its package `plan`, whoever does it, makes that callable."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "plan" and type(value) is ModuleType:
            value.__class__ = _Plan
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
