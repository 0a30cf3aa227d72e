"""The version of the protocol, and which versions understand each other.

The same major version: they do, and both speak the smaller minor one. Another major version: they
do not, and the agent says so with `Refused(code="version")` instead of guessing.
"""

import re

from potluck_wire.errors import WireCode, WireError

VERSION: tuple[int, int] = (1, 15)

# The versions that have a feature.
COMMON_BEGIN = (1, 1)  # `Execute.begin_s`
AFTER_STEP = (1, 2)  # `Execute.after_step`
TAKES = (1, 3)  # the attribute `takes` of `run`
ABORT = (1, 3)  # `Abort`
MEMORY_AT_COMMIT = (1, 4)  # `Commit.memory_bytes`
PIGGYBACKED_CREDIT = (1, 5)  # `Value.received` and `Prepare.credit_along`
REFUSED_BYTES = (1, 6)  # `Refused.needed_bytes` and `Refused.available_bytes`
READING_BATTERY = (1, 8)  # `Reading.battery_frac`
RECOMPUTE = (1, 8)  # the attribute `recompute` of `run`
LEAVING = (1, 8)  # `Leaving` and `Staying`
SPLIT_BACKWARD = (1, 9)  # `backward_input`, `backward_weight` and the attribute `split` of `run`
UPDATES = (1, 9)  # `norms`, `limit`, what else `step` may have, and optimizers beside `OLDER`
LEASE = (1, 9)  # `Lease`, `Prepare.lease` and `Prepare.term`
SHARING = (1, 10)  # `Available`, `Measured.n_beside` and `Probed.n_beside`
GRANTS = (1, 11)  # `GrantService`, `Ask`, and what belongs to them
ASK_ROWS = (1, 12)  # `Ask.rows`, and "sizes" in a grant
KEPT_WEIGHTS = (1, 12)  # `Offer`, `Wanted`, `Value.content` and `kept_bytes` of the statement
CACHES = (1, 13)  # the operator `potluck.cache_scatter`
HALF_MOMENTS = (1, 15)  # the setting `bfloat16_moments` of Adam and AdamW
PARTS = (1, 15)  # "before" and "then" in a grant
LATE_STEPS = (1, 15)  # the attributes `taken` of `gradients` and `late` of `step`
# 1.7 has `connection` in the capability statement, 1.8 `processors`, `hardware`, `rules` and
# `leaving`, and `Measured.sgd_s`, 1.9 `Measured.weight_frac`, 1.14 `Ask.grace_s`: who does not
# know them ignores them

_TEXT = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)


def agree(major: int, minor: int, ours: tuple[int, int] = VERSION) -> tuple[int, int]:
    """The version that both speak: our major, the smaller minor.

    Parameters
    ----------
    major, minor
        The other side's.
    ours
        This side's.

    Raises
    ------
    WireError
        With code `version` where the major versions differ.
    """
    if major != ours[0]:
        newer = "this side" if major > ours[0] else "the other side"
        raise WireError(
            WireCode.VERSION,
            f"it speaks {major}.{minor}, we speak {ours[0]}.{ours[1]}; update potluck on {newer}",
        )
    return ours[0], min(minor, ours[1])


def show(version: tuple[int, int] = VERSION) -> str:
    """As in the mDNS record: `1.0`."""
    return f"{version[0]}.{version[1]}"


def parse(text: str) -> tuple[int, int]:
    """`1.0` -> (1, 0).

    Raises
    ------
    WireError
        The text is no version.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise WireError(WireCode.VERSION, f"{text[:20]!r} is not a version such as {show()}")
    return int(match[1]), int(match[2])
