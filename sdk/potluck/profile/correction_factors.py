"""What a run showed against what was predicted of it, and how far a profile follows. Pure."""

from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from typing import TypeVar

MOST = 4.0  # times longer or shorter than predicted; what is beyond has another reason
SHARE = 0.5  # of the way, on a scale of ratios

Key = TypeVar("Key", bound=Hashable)


def half_way(ratios: Mapping[Key, Sequence[float]]) -> dict[Key, float]:
    """By what each thing's seconds are to be multiplied.

    The square root of its median ratio, which counts as 1/4 to 4: half of the way, so that one
    disturbed run moves a profile little and several bring it there.

    Parameters
    ----------
    ratios
        Measured by predicted seconds, one or more of each thing.
    """
    return {key: min(max(median(found), 1 / MOST), MOST) ** SHARE for key, found in ratios.items()}
