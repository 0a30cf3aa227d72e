"""potluck: everyone brings what they have. See ARCHITECTURE.md for the flow.

    home = potluck.Home.local()  # or Home.lab(), Home.discover(), Home(peers=["192.168.1.7"])
    model = potluck.Model.from_torch(net, example)
    profile = home.profile(model)
    plans = potluck.plan(profile, potluck.Training(batch=128), potluck.QoE(latency_s=0.5))
    run = home.deploy(plans.best)
    run.fit(loader, epochs=2)
    run.trace

Importing this loads neither torch, numpy nor zmq: each name is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potluck import errors
    from potluck.errors import PotluckError, StopTraining
    from potluck.graph import LanguageModel, Model
    from potluck.handle import Handle
    from potluck.home import Home
    from potluck.offload.accelerate import accelerate
    from potluck.offload.what_if import offload_what_if
    from potluck.planning.api import judge, load_plan, plan
    from potluck.profile.estimate import estimate
    from potluck.records import Device, Inference, Plan, QoE, Training
    from potluck.run.array_files import ArrayFiles
    from potluck.run.local_steps import OuterStep, local_steps
    from potluck.run.optimizers import SGD, Adafactor, Adagrad, Adam, AdamW, Lion, RMSprop
    from potluck.run.rounding_effect import rounding_effect
    from potluck.serve.scheduling.records import Frequency, Latency
    from potluck.sessions.agent_specs import Spec
    from potluck_wire import __version__

_WHERE = {
    "Home": "potluck.home",
    "Model": "potluck.graph",
    "LanguageModel": "potluck.graph",
    "estimate": "potluck.profile.estimate",
    "accelerate": "potluck.offload.accelerate",
    "offload_what_if": "potluck.offload.what_if",
    "plan": "potluck.planning.api",
    "judge": "potluck.planning.api",
    "load_plan": "potluck.planning.api",
    "Training": "potluck.records",
    "Inference": "potluck.records",
    "QoE": "potluck.records",
    "Latency": "potluck.serve.scheduling.records",
    "Frequency": "potluck.serve.scheduling.records",
    "Plan": "potluck.records",
    "Device": "potluck.records",
    "Spec": "potluck.sessions.agent_specs",
    "Handle": "potluck.handle",
    "ArrayFiles": "potluck.run.array_files",
    "local_steps": "potluck.run.local_steps",
    "OuterStep": "potluck.run.local_steps",
    "rounding_effect": "potluck.run.rounding_effect",
    "AdamW": "potluck.run.optimizers",
    "SGD": "potluck.run.optimizers",
    "Adam": "potluck.run.optimizers",
    "Adagrad": "potluck.run.optimizers",
    "RMSprop": "potluck.run.optimizers",
    "Lion": "potluck.run.optimizers",
    "Adafactor": "potluck.run.optimizers",
    "PotluckError": "potluck.errors",
    "StopTraining": "potluck.errors",
    "__version__": "potluck_wire",
}

__all__ = [
    "Home",
    "Model",
    "LanguageModel",
    "accelerate",
    "estimate",
    "offload_what_if",
    "plan",
    "judge",
    "load_plan",
    "Training",
    "Inference",
    "QoE",
    "Latency",
    "Frequency",
    "Plan",
    "Device",
    "Spec",
    "Handle",
    "ArrayFiles",
    "local_steps",
    "OuterStep",
    "rounding_effect",
    "AdamW",
    "SGD",
    "Adam",
    "Adagrad",
    "RMSprop",
    "Lion",
    "Adafactor",
    "PotluckError",
    "StopTraining",
    "errors",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("potluck.errors")
    if name not in _WHERE:
        raise AttributeError(f"module 'potluck' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_WHERE[name]), name)
    except ImportError as error:
        from potluck.optional_packages import missing

        raise missing(error) or error from error


def __dir__() -> list[str]:
    return sorted(__all__)
