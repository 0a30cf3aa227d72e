"""What somebody else needs to go on with a training, beside its state."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potluck.graph.loss.constants import LossConstants
    from potluck.profile.profiles import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeParts:
    """Of a run.

    Parameters
    ----------
    model
        What is trained.
    profile
        What the run is predicted by; None where nobody measured.
    constants
        Of its loss.
    protect, patience_s, recovery
        As for `home.deploy`.
    """

    model: Any
    profile: "Profile | None"
    constants: "LossConstants | None"
    protect: bool | int
    patience_s: float
    recovery: str
