"""A profile of those devices that stay until it is done."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from potluck.errors import DeviceGone, PotluckError, ProtocolError, Refused, WorkerFailed
from potluck.profile.profiles import Profile

# what one device does, or lets happen, that is nothing to the others
OF_ONE_DEVICE = (ProtocolError, DeviceGone, WorkerFailed, Refused)


def leave_out(device: str, error: PotluckError, notes: list[str]) -> str:
    """Warn of it, note it, and say it as plans will.

    Parameters
    ----------
    device
        Its name.
    error
        Why.
    notes
        Of the profile; gets one more.
    """
    notes.append(f"{device} is left out. {error}")
    warnings.warn(notes[-1], stacklevel=3)
    return f"was left out of the profile ({error})"


def profile_of_the_others(
    names: Sequence[str], profile: Callable[[tuple[str, ...]], Profile]
) -> Profile:
    """What `profile` gives of these devices; one that is lost meanwhile, breaks the protocol, or
    whose worker fails, is left out, with a note and a warning, and the others are profiled again.

    Parameters
    ----------
    names
        Of the devices.
    profile
        Measures some of them; what it has measured before, it does not measure again.

    Raises
    ------
    PotluckError
        The last device fails, or what fails is of no device of these.
    """
    excluded: dict[str, str] = {}
    notes: list[str] = []
    while True:
        left = tuple(name for name in names if name not in excluded)
        try:
            found = profile(left)
            break
        except OF_ONE_DEVICE as error:
            if error.device not in left or len(left) == 1:
                raise
            excluded[error.device] = leave_out(error.device, error, notes)
    return replace(found, notes=(*found.notes, *notes), excluded={**found.excluded, **excluded})
