"""The one tree of errors. Who must act decides the class; facts are attributes too.

PotluckError
├── UserError              the caller can mend it
│   ├── ModelError             a model that cannot be exported, cut or run (operator, shape)
│   ├── PlanError              a plan that does not hold, or belongs to another model or home
│   └── FileError              a cache, profile, plan or checkpoint file that cannot be used
├── HomeError              the home is not as expected
│   ├── EmptyHome              nobody was found
│   ├── NotPaired              the device does not know this notebook
│   ├── PairingError           wrong code, closed or expired window
│   ├── IdentityChanged        another key answers at a known device's address
│   └── DeviceGone             a device stopped answering
├── DeviceError            a device could not do its part
│   ├── OutOfMemory            needed more than it may use
│   ├── WorkerFailed           its worker crashed, hung or refused
│   │   └── RequestFailed          over one request, which ends alone
│   └── Refused                the agent declined, with its reason
├── NotServed              a service refused a request: overloaded, too late, or closed
├── ProtocolError          one side broke the protocol, or speaks another major version
└── Infeasible             no plan can hold the limits; says which limit, which device, by how much
"""

from typing import Any

from potluck.sanitized_text import harmless


class PotluckError(Exception):
    """Any error of potluck. `device` names the device concerned; `next_step` says what to do.

    Parameters
    ----------
    message
        What happened, to whom, and what was expected and got.
    device
        Its name comes before the message.
    next_step
        What to do now; comes after the message.
    **facts
        Numbers and names of the message as values, for programs. Each class says which it has.
    """

    def __init__(
        self, message: str, *, device: str = "", next_step: str = "", **facts: object
    ) -> None:
        parts = [f"{device}: {message}" if device else message, next_step]
        text = " ".join(part for part in parts if part)
        # a part of it may come from a file or a device: whoever reads it sees all, and runs nothing
        super().__init__("\n".join(map(harmless, text.split("\n"))))
        self.device = device
        self.next_step = next_step
        self.facts: dict[str, Any] = facts


class StopTraining(Exception):
    """Raised, or returned, by a callback of `run.fit`: the training ends here, and its history is
    what it is.
    """


class UserError(PotluckError):
    """The caller can mend it. Facts: `argument`, of texts, which one is wrong."""


class ModelError(UserError):
    """The model cannot be exported, cut or run as it is."""


class PlanError(UserError):
    """The plan does not hold, or belongs to another model or home."""


class FileError(UserError):
    """A file cannot be used as it is."""


class HomeError(PotluckError):
    """The home is not as expected."""


class EmptyHome(HomeError):
    """Nobody was found."""


class NotPaired(HomeError):
    """The device does not know this notebook."""


class PairingError(HomeError):
    """Wrong code, or the window is closed."""


class IdentityChanged(HomeError):
    """Another key answers at a known device's address."""


class DeviceGone(HomeError):
    """A device stopped answering."""


class DeviceError(PotluckError):
    """A device could not do its part."""


class OutOfMemory(DeviceError):
    """It would need more memory than it may use. Facts: `needed_bytes`, `available_bytes`."""


class WorkerFailed(DeviceError):
    """Its worker crashed, hung or failed. Facts: `cause`, `instruction`."""


class RequestFailed(WorkerFailed):
    """One request could not be answered, because of its values.

    All others can, and the run goes on.
    """


class Refused(DeviceError):
    """The agent declined. Facts: `code`."""


class NotServed(PotluckError):
    """A service refused a request, at once. Facts: `reason`, `limit_s`, `soonest_s`."""


class ProtocolError(PotluckError):
    """One side broke the protocol, or speaks another major version."""


class Infeasible(PotluckError):
    """No plan can hold the limits. Facts: `limit`, `needed`, `available`."""
